/* Waits for a descriptor: as a fiber, which parks, or by blocking the thread.
 * readiness.c and socket.c are built on this. */
#ifndef PF_IO_WAITING_H
#define PF_IO_WAITING_H

#include "python/core/pyinclude.h"

#include "engine/io/descriptor.h"
#include "engine/io/inmemory.h"
#include "python/core/thread.h"
#include "python/task/fiber.h"

/* Returns the run of this thread in which the running code waits.  NULL means
 * that a wait blocks the thread: a plain thread does so, and a fiber that must
 * not be left. */
pf_scheduler *pf_io_scheduler(PfThread *t);

/* Called in a run before an operation that may succeed at once.  After many
 * such operations without a switch it lets other fibers run, which is a
 * cancellation point.  Returns 0 if it did not, 1 if others have run, and -1
 * with an exception. */
int pf_io_charge(PfThread *t, bool patched);
/* With `patched`, the waits between these two calls count as waits in a call
 * that patch() has changed: see pf_cancelling_is_here. */
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

/* Parks the running fiber until the descriptor may be ready.  Returns 0 if the
 * caller is to try now, 1 if the deadline has passed, and -1 with an
 * exception. With `every`, each event wakes the fiber; otherwise it takes
 * turns with other waiters.  `what` is for reports. */
int pf_io_park(PfThread *t, pf_descriptor *at, pf_direction direction,
               bool every, int64_t deadline, PyObject *what);
/* The same for a descriptor that other code opens and closes: the system is
 * asked whether it is ready. */
int pf_io_park_foreign(PfThread *t, intptr_t number, pf_direction direction,
                       int64_t deadline, PyObject *what);

/* A descriptor, or an end of a connection in memory, for pf_io_park_any(),
 * which waits until the first of several is ready, and also ends when one is
 * closed.  The caller holds a reference to each end. */
typedef struct PfAwaited {
    intptr_t number;
    pf_end *end; /* NULL: the system's descriptor `number` */
    pf_direction direction;
} PfAwaited;
int pf_io_park_any(PfThread *t, const PfAwaited *list, size_t count,
                   int64_t deadline, PyObject *what);

/* Blocks this thread until the descriptor is ready; signal handlers run
 * meanwhile. The deadline is a time of the monotonic clock.  Returns as
 * pf_io_park(). */
int pf_io_block(intptr_t number, pf_direction direction, int64_t deadline);

/* Does the fiber wait for the descriptor?  Stores in which direction. */
bool pf_io_stands(const FiberObject *fiber, const pf_descriptor *at,
                  pf_direction *direction);

/* Sets the OSError for -errno.  Returns -1. */
int pf_io_error(int64_t error);

#endif
