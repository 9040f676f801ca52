/* Calls from threads into a run: how Portal.call() and from_thread() block
 * their thread until the fiber that they have started is done. */
#include "python/cancel/cancel.h"
#include "python/cancel/scope.h"
#include "python/task/fiber.h"
#include "python/task/scheduler.h"
#include "python/threads/threads.h"
#include "python/threads/worker.h"

/* The done-callback that wakes the waiting thread.  `self` is a tuple: the
 * lock that the thread waits for, and the job that it runs or None.  Python
 * code would not do, because a trace function or a signal handler might raise
 * before its first line. */
static PyObject *
release(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    PyObject *job = PyTuple_GET_ITEM(self, 1);
    if (job != Py_None) { /* before other code can see that it is not held */
        pf_job_take_hold_back((JobObject *)job);
    }
    return PyObject_CallMethod(PyTuple_GET_ITEM(self, 0), "release", NULL);
}

static PyMethodDef release_method = {"release", release, METH_O, NULL};

static PyObject *
get_releaser(PyObject *module, PyObject *lock)
{
    (void)module;
    JobObject *job = pf_job_current();
    PyObject *self =
        PyTuple_Pack(2, lock, job == NULL ? Py_None : (PyObject *)job);
    PyObject *releaser =
        self == NULL ? NULL : PyCFunction_New(&release_method, self);
    Py_XDECREF(self);
    return releaser;
}

/* Does the fiber belong to the run in which the job was started, and is not
 * done? */
static bool
is_of_its_run(const JobObject *job, const FiberObject *fiber)
{
    return fiber->core.scheduler == &job->scheduler->core &&
           !pf_task_is_done(PF_TASK(fiber));
}

/* Cancels a fiber before it is posted, if the caller of to_thread() is
 * cancelled: once posted it might run before a cancellation comes. */
static PyObject *
share_cancellation(PyObject *module, PyObject *fiber)
{
    (void)module;
    JobObject *job = pf_job_current();
    if (!PyObject_TypeCheck(fiber, pf_task_fiber_type) || job == NULL) {
        PyErr_SetString(PyExc_TypeError,
                        "expected a Fiber, in a thread of to_thread()");
        return NULL;
    }
    PyObject *cancelled = pf_job_cancelled(job);
    if (cancelled != NULL) {
        PyObject *why = pf_job_why(cancelled);
        pf_cancel_now((FiberObject *)fiber, why);
        Py_XDECREF(why);
        Py_DECREF(cancelled);
    }
    Py_RETURN_NONE;
}

/* From now on the fiber is cancelled together with the caller of to_thread().
 * 0, or -1 with an exception. */
static int
cancel_together(JobObject *job, FiberObject *fiber)
{
    CancelledObject *why = (CancelledObject *)pf_job_calls(job, fiber);
    if (why == NULL) {
        return 0;
    }
    PyObject *reason = Py_NewRef(why->reason ? why->reason : Py_None);
    int rc = pf_cancel_fiber(fiber, reason);
    Py_DECREF(reason);
    Py_DECREF(why);
    return rc < 0 ? -1 : 0;
}

static void
call_is_over(JobObject *job)
{
    PyObject *raised = pystate_take_exception();
    Py_XDECREF(pf_job_calls(job, NULL));
    pystate_restore_exception(raised);
}

/* Blocks this thread until the lock is free.  No Python code of this thread
 * runs between suspending the hold and the wait, so the scheduler never sees
 * one without the other. */
static PyObject *
wait_in_job(JobObject *job, FiberObject *fiber, PyObject *lock, bool together)
{
    if (together && cancel_together(job, fiber) < 0) {
        call_is_over(job);
        return NULL;
    }
    if (is_of_its_run(job, fiber)) {
        pf_job_borrow_hold(job);
    }
    PyObject *done = PyObject_CallMethod(lock, "acquire", NULL);
    pf_job_take_hold_back(job);
    call_is_over(job);
    return done;
}

static PyObject *
wait_for_call(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *lock;
    FiberObject *fiber;
    int together;
    if (!PyArg_ParseTuple(args, "OO!p:_wait_for_call", &lock,
                          pf_task_fiber_type, &fiber, &together)) {
        return NULL;
    }
    JobObject *job = pf_job_current();
    return job == NULL ? PyObject_CallMethod(lock, "acquire", NULL)
                       : wait_in_job(job, fiber, lock, together != 0);
}

static PyMethodDef functions[] = {
    {"_releaser", get_releaser, METH_O,
     "_releaser(lock, /)\n--\n\n"
     "Make a done-callback that releases the lock this thread waits for."},
    {"_share_cancellation", share_cancellation, METH_O,
     "_share_cancellation(fiber, /)\n--\n\n"
     "Cancel the fiber, which has not been started, if the caller of\n"
     "to_thread() is cancelled."},
    {"_wait_for_call", wait_for_call, METH_VARARGS,
     "_wait_for_call(lock, fiber, together, /)\n--\n\n"
     "Block this thread until the fiber's releaser releases the lock. In a\n"
     "thread of to_thread(), the run does not count on the job meanwhile.\n"
     "`together`: cancel the fiber with the caller of to_thread()."},
    {NULL, NULL, 0, NULL},
};

int
pf_portal_init(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
