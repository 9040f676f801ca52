/* The life of a task, written once for Fiber and Grain: waiting for its end,
 * what it came to, cancelling and unparking it, and how it ends. */
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
/* Of one that is done: a new reference, or what it ended with is raised. */
PyObject *pf_task_value(PfTaskObject *task);
int pf_task_add_callback(PfTaskObject *task, PyObject *fn); /* 0 or -1 */
/* Owner thread.  Give it a permit, and wake it if it is in park(): 1, or 0 if
 * it had one already. */
int pf_task_give_permit(PfTaskObject *task, PyObject *value);
/* FiberError if it is done. 0 or -1. */
int pf_task_may_unpark(PfTaskObject *task);

/* --- its end --- */
/* It is over for everyone who looks, with this result (stolen) or, if it is
 * NULL, with the raised exception. */
void pf_task_record_outcome(PfTaskObject *task, PyObject *result);
void pf_task_run_callbacks(PfTaskObject *task);
/* One of the scheduler's tasks has failed: some failures end the run, the
 * others are for whoever looks. */
void pf_task_failed(SchedulerObject *s, PfTaskObject *task);

/* --- the end of its object --- */
/* The collector's finalizer runs once in an object's life, perhaps before the
 * task has failed, and the last reference may go several times: then it is
 * brought back to life for `act`.  False: it stays alive. */
bool pf_task_revived_for(PyObject *op, void (*act)(PyObject *op));
/* A wake-up posted by another thread may still be on its way to a finished
 * task, in the inbox or in a batch that is being worked off: its arrival
 * drops the reference that the task is given here. */
bool pf_task_awaits_post(PfTaskObject *task);

#endif
