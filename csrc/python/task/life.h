/* The life of a task, written once for Fiber and Grain: waiting for its end,
 * its result, cancelling and unparking it, and its end. */
#ifndef PF_TASK_LIFE_H
#define PF_TASK_LIFE_H

#include "python/task/task.h"

/* --- methods and attributes of the types --- */
PyObject *pf_task_join(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                       PyObject *kwnames);
PyObject *pf_task_result(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                         PyObject *kwnames);
PyObject *pf_task_exception(PyObject *op, PyObject *const *args,
                            Py_ssize_t nargs, PyObject *kwnames);
PyObject *pf_task_done(PyObject *op, PyObject *ignored);
PyObject *pf_task_cancelled(PyObject *op, PyObject *ignored);
PyObject *pf_task_cancel(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                         PyObject *kwnames);
PyObject *pf_task_unpark(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                         PyObject *kwnames);
PyObject *pf_task_add_done_callback(PyObject *op, PyObject *fn);
PyObject *pf_task_reduce(PyObject *op, PyObject *ignored);
PyObject *pf_task_get_name(PyObject *op, void *closure);
int pf_task_set_name(PyObject *op, PyObject *value, void *closure);
PyObject *pf_task_get_outcome(PyObject *op, void *closure);

/* --- parts of them --- */
/* The result of a task that is done: a new reference; or NULL with what the
 * task ended with raised. */
PyObject *pf_task_value(PfTaskObject *task);
int pf_task_add_callback(PfTaskObject *task, PyObject *fn); /* 0 or -1 */
/* Give the task a permit, and wake it if it is in park(). 1, or 0 if it had a
 * permit already. On the task's own thread. */
int pf_task_give_permit(PfTaskObject *task, PyObject *value);
/* Raises FiberError if the task is done. 0 or -1. */
int pf_task_may_unpark(PfTaskObject *task);

/* --- the end --- */
/* Publish the end of the task, with this result (stolen) or, if it is NULL,
 * with the raised exception. */
void pf_task_record_outcome(PfTaskObject *task, PyObject *result);
void pf_task_run_callbacks(PfTaskObject *task);
/* One of the scheduler's tasks has failed: KeyboardInterrupt and SystemExit
 * end the run, other failures are kept for code that looks at the task. */
void pf_task_failed(SchedulerObject *s, PfTaskObject *task);

/* --- the end of its object --- */
/* Bring an object whose count is 0 back to life for a call of `act`. True: it
 * still has no other reference and may be freed; false: it stays alive.
 * tp_finalize cannot do this, because it runs once in an object's life,
 * perhaps before the task has failed, and the last reference may be dropped
 * several times. */
bool pf_task_revived_for(PyObject *op, void (*act)(PyObject *op));
/* Is a wake-up that another thread has posted still under way to a finished
 * task, in the inbox or in a batch that is being worked off? Then this gives
 * the task a reference, which the arrival drops. */
bool pf_task_awaits_post(PfTaskObject *task);

#endif
