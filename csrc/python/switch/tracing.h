/* Gives each fiber a separate trace function, as threading.settrace() does for
 * threads.
 *
 * Tools that keep a separate stack of calls, as coverage does, ask
 * threading.settrace() for a trace function for each thread. A fiber that
 * begins on a traced thread gets one as well, which is in the thread state
 * while the fiber runs. Without threading.settrace() the thread has one trace
 * function for all of its fibers.
 */
#ifndef PF_SWITCH_TRACING_H
#define PF_SWITCH_TRACING_H

#include "python/core/compiler.h"
#include "python/core/thread.h"
#include "python/task/fiber.h"

/* sys.settrace() and sys.setprofile() as they were when pyfiber was
 * imported. */
extern PyObject *pf_tracing_settrace, *pf_tracing_setprofile;
int pf_tracing_init(void); /* 0, or -1 with ImportError */

void pf_tracing_begin_slow(PfThread *t, FiberObject *self);
void pf_tracing_end_slow(PfThread *t, FiberObject *self);
/* Exchanges trace functions as a part of a switch. Runs no code. */
void pf_tracing_switch(PyThreadState *ts, PfTrace *from, PfTrace *to);
/* For the collector: visits the trace function of a fiber that is not packed;
 * `trace` may be NULL. */
int pf_tracing_traverse(const PfTrace *trace, visitproc visit, void *arg);
void pf_tracing_free_spares(PfThread *t);
/* From here on the running fiber has its own trace and profile functions, as a
 * thread has: none at first.  Twice is fine.  0, or -1 with MemoryError.  The
 * second function undoes the first for a fiber that goes on: what it traces
 * with is the thread's again. */
int pf_tracing_own(PfThread *t);
void pf_tracing_disown(PfThread *t);
bool pf_tracing_is_own(const PfTrace *trace); /* false for NULL */
/* Calls `setter`, which is sys.settrace() or a similar function, for the
 * functions that are not in the thread state: those of a suspended fiber that
 * has its own, or the thread's, while a fiber that has its own runs.  Code may
 * run, but must not switch.  0, or -1 with an exception. */
int pf_tracing_set(PfThread *t, PfTrace *trace, PyObject *setter,
                   PyObject *function);
/* Raises the exception type in the fiber soon, as PyThreadState_SetAsyncExc()
 * does in a thread: between two bytecodes, and after what the fiber waits for.
 * NULL: raises nothing any more.  The fiber runs on the main thread, has begun
 * and is not packed.  0, or -1 with MemoryError. */
int pf_tracing_throw(PfThread *t, FiberObject *fiber, PyObject *exc);

/* Called when the running fiber is about to make its first call. No exception
 * is set; one that the tool raises is written to stderr. */
static inline void
pf_tracing_begin(PfThread *t, FiberObject *self)
{
    if (PF_UNLIKELY(pystate_traced(t->tstate))) {
        pf_tracing_begin_slow(t, self);
    }
}

/* Called when the running fiber has made its last call. An exception may be
 * set. */
static inline void
pf_tracing_end(PfThread *t, FiberObject *self)
{
    if (PF_UNLIKELY(self->saved->trace != NULL)) {
        pf_tracing_end_slow(t, self);
    }
}

#endif
