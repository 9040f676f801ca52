/* Calls from threads into a run: how Portal.call() and from_thread() wait. */
#include "python/cancel/cancel.h"
#include "python/cancel/scope.h"
#include "python/task/fiber.h"
#include "python/task/scheduler.h"
#include "python/threads/threads.h"
#include "python/threads/worker.h"

/* A done-callback that a thread waits for: `self` is the lock, and the job
 * that the thread runs or None.  It cannot be Python code: a trace function or
 * a signal handler might raise before its first line. */
static PyObject *
release(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    PyObject *job = PyTuple_GET_ITEM(self, 1);
    if (job != Py_None) { /* before other code checks whether it is held */
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

static bool
is_of_its_run(const JobObject *job, const FiberObject *fiber)
{
    return fiber->core.scheduler == &job->scheduler->core &&
           !pf_task_is_done(PF_TASK(fiber));
}

/* A fiber that nobody else has yet is born cancelled if the caller of
 * to_thread() is: once it has been posted it might run first. */
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

/* From now on cancel it together with the caller of to_thread(). */
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

/* Other threads see one step: no code of this thread runs between the loan of
 * the hold and the wait. */
static PyObject *
wait_in_job(JobObject *job, FiberObject *fiber, PyObject *lock, bool together)
{
    if (together && cancel_together(job, fiber) < 0) {
        call_is_over(job);
        return NULL;
    }
    if (is_of_its_run(job, fiber)) {
        pf_job_lend_hold(job);
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
     "A done-callback that releases the lock for which this thread waits."},
    {"_share_cancellation", share_cancellation, METH_O,
     "_share_cancellation(fiber, /)\n--\n\n"
     "The fiber, which has not been started, is cancelled if the caller of\n"
     "to_thread() is."},
    {"_wait_for_call", wait_for_call, METH_VARARGS,
     "_wait_for_call(lock, fiber, together, /)\n--\n\n"
     "Block this thread until the lock, which the fiber's releaser has, is\n"
     "free.  A job's run goes on meanwhile as if the job were not there.\n"
     "`together`: the fiber is cancelled with the caller of to_thread()."},
    {NULL, NULL, 0, NULL},
};

int
pf_portal_init(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
