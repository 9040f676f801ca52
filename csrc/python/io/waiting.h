/* A wait for a descriptor. */
#ifndef PF_IO_WAITING_H
#define PF_IO_WAITING_H

#include "python/core/pyinclude.h"

#include "engine/io/descriptor.h"
#include "python/core/thread.h"
#include "python/task/fiber.h"

/* Where this code waits: in the run of this thread, or by blocking the thread
 * (NULL), which plain threads do and fibers that must not be left. */
pf_scheduler *pf_io_scheduler(PfThread *t);

/* Before an operation that may succeed at once, in a run: after many such
 * without a switch, others get a turn.  That is a cancellation point. 0 or -1.
 */
int pf_io_charge(PfThread *t, bool patched);
/* A wait between these two counts as one in a call that patch() has changed, if
 * `patched`: see pf_cancelling_is_here. */
static inline bool
pf_io_patched_begin(PfThread *t, bool patched)
{
    FiberObject *fiber = CURRENT(t);
    bool before = fiber->patched;
    fiber->patched = before || patched;
    return before;
}
static inline void
pf_io_patched_end(PfThread *t, bool before)
{
    CURRENT(t)->patched = before;
}

/* Results: 0, try now; 1: the deadline has passed; -1: an exception is set.
 * `every`: beside the line of those who take turns.  `what` is for reports. */
int pf_io_park(PfThread *t, pf_descriptor *at, pf_direction direction,
               bool every, int64_t deadline, PyObject *what);
int pf_io_park_foreign(PfThread *t, intptr_t number, pf_direction direction,
                       int64_t deadline, PyObject *what);

/* For the first of many. */
typedef struct PfAwaited {
    intptr_t number;
    pf_direction direction;
} PfAwaited;
int pf_io_park_any(PfThread *t, const PfAwaited *list, size_t count,
                   int64_t deadline, PyObject *what);

/* Block this thread; signal handlers run meanwhile.  The deadline is one of
 * the monotonic clock. */
int pf_io_block(intptr_t number, pf_direction direction, int64_t deadline);

/* Does the fiber stand in line there, and in which direction? */
bool pf_io_stands(const FiberObject *fiber, const pf_descriptor *at,
                  pf_direction *direction);

/* -1 with the OSError of -errno. */
int pf_io_error(int64_t error);

#endif
