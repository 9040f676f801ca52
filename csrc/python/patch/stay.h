/* Patched waits in places where no fiber may park: in a finalizer that the
 * collector runs, in a signal handler that interrupts the idle loop, in a
 * callback of the loop, in a fiber that is being unwound, in the child of a
 * fork.  (A virtual thread that is being cut off parks, which abandons it: see
 * switch/unwind.h.)
 *
 * The thread has to block there, and its fibers cannot go on meanwhile.
 * If a fiber of this thread holds the object, or if nothing outside of the
 * thread could end the wait, the wait would last for ever: it raises
 * FiberError at once. Otherwise the wait blocks the thread, and a warning says
 * where if that takes long.
 */
#ifndef PF_STAY_H
#define PF_STAY_H

#include "python/core/compiler.h"
#include "python/core/parts.h"
#include "python/core/thread.h"
#include "python/patch/lot.h"
#include "python/patch/methods.h"

/* _loop_logs(yes): the loop itself logs from now on, or no longer; returns
 * what the setting was before.  The loop logs, for example, an exception that
 * nobody has looked at, possibly while a fiber holds the RLock of a logging
 * handler. The loop is code of the thread, and to the RLock the thread is the
 * owner.  So the loop takes the RLock once more, as the thread would without
 * fibers, and the log record is not lost. */
PyObject *pf_stay_loop_logs(PyObject *module, PyObject *yes);
extern const PfPart pf_stay_part;
extern PfKeeps pf_stay_of_thread;
static inline bool *
pf_stay_logs(PfThread *t)
{
    return pf_parts_at(t, &pf_stay_of_thread);
}

/* Returns the running thread if a run is active on it, even where no fiber may
 * park and pf_lot_parks() returns NULL; else NULL. */
static inline PfThread *
pf_stay_thread(void)
{
    PfThread *t = pf_thread_current;
    return PF_LIKELY(t == NULL || t->scheduler == NULL) || !pf_lot_is_ours()
               ? NULL
               : t;
}

/* Returns 0 if the wait for `object` may block the thread, and -1 with
 * FiberError if it would never end. */
int pf_stay_check(PyObject *object, PfThread *t);
/* Does an acquire() in such a place.  Returns 1 if the lock has been taken, 0
 * if it is not free and the call must not wait, 2 if the interpreter's own
 * acquire() is to block, and -1 with an exception. */
int pf_stay_acquire(const PfMethod *acquire, PyObject *lock, PfThread *t,
                    int64_t deadline);

#endif
