/* wait/: park, sleep, yield, join.
 *
 *   wait.h     these functions, and pf_wait, which they are made of
 *   in_line.h  waiting in a queue, as primitives do
 *   remote.h   waiting for a fiber of another thread
 *   asyncio.h  waiting inside of an event loop of asyncio
 *
 * A deadline is a time of the scheduler's clock in nanoseconds, or PF_NEVER.
 */
#ifndef PF_PYTHON_WAIT_H
#define PF_PYTHON_WAIT_H

#include "python/core/thread.h"
#include "python/task/fiber.h"

/* Parks the running fiber.  Returns 0 if it was woken, 1 if the deadline
 * passed, and -1 with an exception: Cancelled, or FiberError where the caller
 * must not wait.  `what` is for reports. */
int pf_wait(PfThread *t, int64_t deadline, PyObject *what);
/* As pf_wait, for waits that a cancellation must not end: raises no Cancelled.
 * Returns a pf_wake, or -1 with an exception.  The caller checks whether what
 * it waits for has happened, and waits again if not. */
int pf_wait_anyhow(PfThread *t, int64_t deadline, PyObject *what);
/* Waits until `waiter` is granted.  A grant has precedence over a cancellation
 * and the deadline.  Returns what pf_wait returns; -1 for a waiter that has
 * been granted means that the fiber is being unwound at the same time. */
int pf_wait_granted(PfThread *t, PfWaiter *waiter, int64_t deadline,
                    PyObject *what);
/* As pf_wait_granted, but without a deadline, and a cancellation is deferred
 * until the wait is over. */
int pf_wait_granted_shielded(PfThread *t, PfWaiter *waiter, PyObject *what);
/* Waits until `target` has ended.  Returns 0 if it has, 1 if the deadline
 * passed, and -1 with an exception. */
int pf_wait_join(PfThread *t, FiberObject *target, int64_t deadline);
/* Returns 0 if the running fiber may wait for the end of `target`, else -1
 * with FiberError. */
int pf_wait_refuse_join(PfThread *t, FiberObject *target);
int pf_wait_unpark(PfTaskObject *task, PyObject *value); /* see PfTaskOps */
/* For unpark() on a task that has a permit already.  If `value` is not None,
 * it is lost, and a RuntimeWarning says so.  Returns 0, or -1 if the warning
 * is raised as an exception; the second function writes that exception out,
 * for callers that cannot raise it. */
int pf_wait_second_permit(PyObject *op, PyObject *value);
void pf_wait_warn_second_permit(PyObject *op, PyObject *value);
/* park(): returns the value of unpark(), or NULL with TimeoutError or another
 * exception of pf_wait. */
PyObject *pf_wait_park(PfThread *t, int64_t deadline);
/* yield_now(): returns 0, or -1 with an exception. */
int pf_wait_yield(PfThread *t);
/* Runs a fiber that has been enlisted and not begun until it waits or ends;
 * then the running fiber continues.  Returns 0, or -1 if the running fiber is
 * being unwound. */
int pf_wait_run_now(PfThread *t, FiberObject *fresh);
/* sleep_until(): returns 0, or -1 with an exception. */
int pf_wait_sleep_until(PfThread *t, int64_t deadline);
/* pf_task_ops.posted of fibers: handles the PF_POST_ bits that other threads
 * have posted. */
void pf_wait_posted(pf_scheduler *s, pf_task *core, unsigned bits);

#endif
