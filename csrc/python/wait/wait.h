/* wait/: park, sleep, yield, join.
 *
 *   wait.h     all of these, and what they are made of
 *   in_line.h  in a line of waiters: how primitives wait
 *   remote.h   for a fiber of another thread
 *   asyncio.h  in a loop of asyncio's
 */
#ifndef PF_PYTHON_WAIT_H
#define PF_PYTHON_WAIT_H

#include "python/core/thread.h"
#include "python/task/fiber.h"

/* 0: woken; 1: timed out; -1: an exception is set (Cancelled, or FiberError
 * where the caller must not wait).  `what` is for reports. */
int pf_wait(PfThread *t, int64_t deadline, PyObject *what);
/* The same, but a cancellation is not raised, for waits that must be seen to
 * their end: returns a pf_wake, and the caller checks again; or -1. */
int pf_wait_anyhow(PfThread *t, int64_t deadline, PyObject *what);
/* Wait until `waiter` is granted, which beats a cancellation and the deadline.
 * Results as pf_wait; -1 though it is granted: unwound at the same time. */
int pf_wait_granted(PfThread *t, PfWaiter *waiter, int64_t deadline,
                    PyObject *what);
/* The same, but a cancellation is deferred until it is over. */
int pf_wait_granted_shielded(PfThread *t, PfWaiter *waiter, PyObject *what);
int pf_wait_join(PfThread *t, FiberObject *target, int64_t deadline);
int pf_wait_refuse_join(PfThread *t, FiberObject *target);
int pf_wait_unpark(PfTaskObject *task, PyObject *value); /* see PfTaskOps */
/* There is a permit already.  Without a value a second one changes nothing; a
 * value is lost, with a warning. 0, or -1 if the warning is an exception; the
 * other function is for places where nobody can catch that. */
int pf_wait_second_permit(PyObject *op, PyObject *value);
void pf_wait_tell_second_permit(PyObject *op, PyObject *value);
PyObject *pf_wait_park(PfThread *t, int64_t deadline);
int pf_wait_yield(PfThread *t);
/* An enlisted fiber runs, then the running one again; -1: it is unwound. */
int pf_wait_run_now(PfThread *t, FiberObject *fresh);
int pf_wait_sleep_until(PfThread *t, int64_t deadline);
void pf_wait_posted(pf_scheduler *s, pf_task *core, unsigned bits);

#endif
