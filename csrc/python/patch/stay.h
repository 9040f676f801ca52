/* A patched wait in a place where no fiber may be left: in a finalizer that the
 * collector runs, in a signal handler that interrupts the idle loop, in a
 * callback of the loop, in a fiber that is being unwound, in the child of a
 * fork.
 *
 * The thread would have to block there, and no fiber of it could go on before it
 * returns. So if what is waited for is held by a fiber of this thread, or if
 * nobody outside of it could help, the wait would last for ever: it raises
 * FiberError at once. Otherwise it blocks, and if that takes long, a warning
 * tells where.
 */
#ifndef PF_STAY_H
#define PF_STAY_H

#include "python/core/compiler.h"
#include "python/core/parts.h"
#include "python/core/thread.h"
#include "python/patch/lot.h"
#include "python/patch/methods.h"

/* The loop itself logs, of a failure that nobody looked at, say, while a fiber
 * holds the RLock of a handler. The loop is the thread's code, whose RLock it is:
 * it takes it once more, as the thread would without fibers, so that the record
 * is not lost.  _loop_logs(yes) returns what was said before. */
PyObject *pf_stay_loop_logs(PyObject *module, PyObject *yes);
extern const PfPart pf_stay_part;
extern PfKeeps pf_stay_of_thread;
static inline bool *
pf_stay_logs(PfThread *t)
{
    return pf_parts_at(t, &pf_stay_of_thread);
}

/* The running thread, if pf_lot_parks() returned NULL though a run is active on
 * it; else NULL. */
static inline PfThread *
pf_stay_thread(void)
{
    PfThread *t = pf_thread_current;
    return PF_LIKELY(t == NULL || t->scheduler == NULL) || !pf_lot_is_ours()
               ? NULL
               : t;
}

/* 0: the wait for `object` may block the thread; -1 with FiberError. */
int pf_stay_check(PyObject *object, PfThread *t);
/* acquire() there.  1: taken; 0: not, and it must not wait; 2: let the
 * interpreter's own acquire() block; -1 with an exception. */
int pf_stay_acquire(const PfMethod *acquire, PyObject *lock, PfThread *t,
                    int64_t deadline);

#endif
