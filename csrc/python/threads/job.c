/* The calls of to_thread() that workers run: a job's life, its cancellation
 * and the way back to its fiber.  worker.h says who owns what. */
#include "python/threads/worker.h"

#include "engine/base/mutex.h"
#include "python/cancel/cancel.h"
#include "python/cancel/scope.h"
#include "python/core/arguments.h"
#include "python/core/compiler.h"
#include "python/core/facade.h"
#include "python/core/list.h"
#include "python/core/state.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/task/fiber.h"
#include "python/task/scheduler.h"

#include <structmember.h>

static PyTypeObject *job_type;        /* constant after import */
static PF_TLS JobObject *current_job; /* of a thread */
/* Every job that runs or is queued: shared, behind jobs_lock. */
static JobObject *unfinished;
static pf_mutex jobs_lock = PF_MUTEX_INIT;

JobObject *
pf_job_current(void)
{
    return current_job;
}

JobObject *
pf_job_new(LimiterObject *limiter, PyObject *const *args, Py_ssize_t nargs,
           PyObject *kwnames)
{
    PfThread *t = pf_thread_current;
    JobObject *job = PyObject_GC_New(JobObject, job_type);
    if (job == NULL) {
        return NULL;
    }
    pf_memory_zero(&job->call, sizeof(JobObject) - offsetof(JobObject, call));
    job->limiter = (LimiterObject *)Py_NewRef((PyObject *)limiter);
    job->scheduler = (SchedulerObject *)Py_NewRef((PyObject *)t->scheduler);
    job->fiber = (FiberObject *)Py_NewRef((PyObject *)CURRENT(t));
    job->function = Py_NewRef(args[0]);
    job->context = PyContext_CopyCurrent();
    int rc = job->context == NULL
                 ? -1
                 : pf_arguments_pack(args + 1, nargs - 1, kwnames, &job->args,
                                     &job->kwargs);
    pf_mutex_lock(&jobs_lock);
    PF_LIST_PUSH(unfinished, job);
    pf_mutex_unlock(&jobs_lock);
    PyObject_GC_Track(job);
    if (rc < 0) {
        Py_CLEAR(job);
    }
    return job;
}

static int
job_traverse(PyObject *op, visitproc visit, void *arg)
{
    JobObject *job = (JobObject *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(job->limiter);
    Py_VISIT(job->scheduler);
    Py_VISIT(job->fiber);
    Py_VISIT(job->function);
    Py_VISIT(job->args);
    Py_VISIT(job->kwargs);
    Py_VISIT(job->context);
    Py_VISIT(job->result);
    Py_VISIT(job->cancelled);
    Py_VISIT(job->callee);
    return 0;
}

static int
job_clear(PyObject *op)
{
    JobObject *job = (JobObject *)op;
    Py_CLEAR(job->limiter);
    Py_CLEAR(job->scheduler);
    Py_CLEAR(job->fiber);
    Py_CLEAR(job->function);
    Py_CLEAR(job->args);
    Py_CLEAR(job->kwargs);
    Py_CLEAR(job->context);
    Py_CLEAR(job->result);
    Py_CLEAR(job->cancelled);
    Py_CLEAR(job->callee);
    return 0;
}

static void
unlist(JobObject *job)
{
    pf_mutex_lock(&jobs_lock);
    PF_LIST_REMOVE(unfinished, job);
    pf_mutex_unlock(&jobs_lock);
}

static void
job_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    unlist((JobObject *)op);
    (void)job_clear(op);
    type->tp_free(op);
    Py_DECREF(type);
}

void
pf_job_hold(JobObject *job)
{
    if (job->fiber != NULL && pf_job_state(job) < JOB_FINISHED &&
        !pf_fetch_or(&job->held, 1)) {
        pf_scheduler_hold(&job->scheduler->core);
    }
}

/* Sets job->waits; returns its old value. */
static uint64_t
set_waits(JobObject *job, uint64_t tstate_id)
{
    pf_mutex_lock(&jobs_lock);
    uint64_t before = job->waits;
    job->waits = tstate_id;
    pf_mutex_unlock(&jobs_lock);
    return before;
}

static void
release_hold(JobObject *job)
{
    if (pf_take(&job->held)) {
        pf_scheduler_release(&job->scheduler->core);
    }
}

void
pf_job_release_hold(JobObject *job)
{
    (void)set_waits(job, 0);
    release_hold(job);
}

/* `waits` is set before the hold is released, so a loop that no longer finds
 * the hold finds that the thread waits. */
void
pf_job_borrow_hold(JobObject *job)
{
    if (pf_load(&job->held)) {
        (void)set_waits(job, PyThreadState_GetID(PyThreadState_Get()));
        release_hold(job);
    }
}

void
pf_job_take_hold_back(JobObject *job)
{
    if (set_waits(job, 0) != 0) {
        pf_job_hold(job);
    }
}

PyObject *
pf_job_why(PyObject *exc)
{
    const CancelledObject *cancelled = (CancelledObject *)exc;
    return pf_cancel_why(cancelled->reason != NULL ? cancelled->reason
                                                   : Py_None,
                         cancelled->by != NULL ? cancelled->by : Py_None);
}

/* `cancelled` is written and `callee` is read under one lock, as pf_job_calls
 * does the reverse: so either this function cancels the call, or the job's
 * thread does. */
void
pf_job_cancel(JobObject *job, PyObject *exc)
{
    PyObject *why = pf_job_why(exc);
    pf_mutex_lock(&jobs_lock);
    PyObject *before = job->cancelled;
    job->cancelled = exc;
    PyObject *callee = Py_XNewRef((PyObject *)job->callee);
    pf_mutex_unlock(&jobs_lock);
    if (callee != NULL) {
        pf_cancel_now((FiberObject *)callee, why);
    }
    Py_XDECREF(callee);
    Py_XDECREF(before);
    Py_XDECREF(why);
}

PyObject *
pf_job_cancelled(JobObject *job)
{
    pf_mutex_lock(&jobs_lock);
    PyObject *cancelled = Py_XNewRef(job->cancelled);
    pf_mutex_unlock(&jobs_lock);
    return cancelled;
}

PyObject *
pf_job_calls(JobObject *job, FiberObject *fiber)
{
    PyObject *callee = Py_XNewRef((PyObject *)fiber);
    pf_mutex_lock(&jobs_lock);
    FiberObject *before = job->callee;
    job->callee = (FiberObject *)callee;
    PyObject *cancelled = Py_XNewRef(job->cancelled);
    pf_mutex_unlock(&jobs_lock);
    Py_XDECREF((PyObject *)before);
    return cancelled;
}

/* Logs the failure of an abandoned job, which nobody else will see. */
static void
log_abandoned(JobObject *job)
{
    PyObject *done = PyObject_CallFunctionObjArgs(
        pf_facade.log_abandoned, job->function, job->result, NULL);
    if (done == NULL) {
        PyErr_WriteUnraisable(job->function);
    }
    Py_XDECREF(done);
}

/* On the fiber's thread: the job is done, wake its fiber. */
static void
arrive(JobObject *job)
{
    FiberObject *fiber = job->fiber;
    pf_store(&job->state, JOB_ARRIVED);
    pf_job_release_hold(job);
    job->fiber = NULL;
    if (fiber != NULL) {
        pf_scheduler *s = fiber->core.scheduler;
        if (s != NULL && pf_scheduler_wake(s, &fiber->core, PF_WAKE_NORMAL)) {
            pf_scheduler_notify_host(SCHEDULER_OF(s));
        }
        Py_DECREF(fiber);
    } else if (job->failed) {
        log_abandoned(job);
    }
}

void
pf_job_abandon(JobObject *job)
{
    pf_job_release_hold(job);
    Py_CLEAR(job->fiber);
    if (pf_job_state(job) == JOB_ARRIVED && job->failed) {
        PyObject *raised = pystate_take_exception();
        log_abandoned(job);
        pystate_restore_exception(raised);
    }
}

static void
job_arrived(SchedulerObject *s, PyObject *job, PyObject *ignored)
{
    (void)s;
    (void)ignored;
    arrive((JobObject *)job);
}

/* The job is done, but its scheduler is closed.  No fiber waits then, except
 * one on a thread that is just ending, which waits in vain. */
static void
arrive_nowhere(JobObject *job)
{
    pf_store(&job->held, 0);
    pf_store(&job->state, JOB_ARRIVED);
    if (job->fiber == NULL && job->failed) {
        log_abandoned(job);
    }
}

/* Drops what the job needed to run, before it is sent back.  This may run code
 * for long, so the job leaves the list of unfinished jobs, which a fork looks
 * at, only afterwards. */
static void
drop_arguments(JobObject *job)
{
    Py_CLEAR(job->args);
    Py_CLEAR(job->kwargs);
    Py_CLEAR(job->context);
    unlist(job);
}

/* Posts the job to its scheduler; also an abandoned one, because the scheduler
 * may be waiting only because this thread was busy. */
static void
send_back(JobObject *job)
{
    pf_store(&job->state, JOB_FINISHED);
    pf_post_embed(&job->call, job_arrived, (PyObject *)job);
    if (!pf_post_send(job->scheduler, &job->call)) {
        arrive_nowhere(job);
        pf_post_drop(&job->call);
    }
}

void
pf_job_fail(JobObject *job, PyObject *exc)
{
    /* At a fork the job may have a result already: see drop_arguments. */
    PyObject *result = job->result;
    job->result = exc;
    job->failed = true;
    drop_arguments(job);
    send_back(job);
    Py_XDECREF(result);
}

static PyObject *
call_in_context(JobObject *job)
{
    if (PyContext_Enter(job->context) < 0) {
        return NULL;
    }
    PyObject *result = PyObject_Call(job->function, job->args, job->kwargs);
    PyObject *raised = result == NULL ? pystate_take_exception() : NULL;
    if (PyContext_Exit(job->context) < 0) { /* the function has left it */
        PyErr_WriteUnraisable(job->function);
    }
    pystate_restore_exception(raised);
    return result;
}

JobObject *
pf_job_run(JobObject *job)
{
    current_job = job;
    job->thread = PyThread_get_thread_ident();
    job->result = call_in_context(job);
    current_job = NULL;
    if (job->result == NULL) {
        job->failed = true;
        job->result = pystate_take_exception();
    }
    drop_arguments(job);
    /* Code that sees the end of the job must see that its token is back.
     * Without a GIL the token is given back first; with one nothing looks in
     * between. */
    JobObject *next = PF_FREE_THREADED ? pf_limiter_next(job->limiter) : NULL;
    send_back(job);
    return PF_FREE_THREADED ? next : pf_limiter_next(job->limiter);
}

/* -------------------------------------------------- questions about threads
 */

bool
pf_job_waits_for(const SchedulerObject *s, uint64_t tstate_id)
{
    pf_mutex_lock(&jobs_lock);
    JobObject *job = unfinished;
    while (job != NULL && !(job->waits == tstate_id && job->scheduler == s)) {
        job = job->next;
    }
    pf_mutex_unlock(&jobs_lock);
    return job != NULL;
}

void
pf_jobs_after_fork(PfThread *t)
{
    while (unfinished != NULL) {
        JobObject *job = (JobObject *)Py_NewRef((PyObject *)unfinished);
        unlist(job);
        pf_limiter_forget(job->limiter);
        if (t != NULL && job->scheduler->thread == t && job->fiber != NULL) {
            PyObject *exc = PyObject_CallFunction(
                pf.fiber_error, "s",
                "the process was forked: the thread that runs the function "
                "exists in the parent only");
            pf_job_fail(job, exc != NULL ? exc : pystate_take_exception());
        }
        Py_DECREF(job);
    }
}

/* --------------------------------------------------------------- inspection */

static PyObject *
job_get_state(PyObject *op, void *closure)
{
    static const char *const names[] = {"queued", "running", "finished",
                                        "finished"};
    (void)closure;
    return PyUnicode_FromString(names[pf_job_state((JobObject *)op)]);
}

static PyObject *
job_get_thread(PyObject *op, void *closure)
{
    (void)closure;
    unsigned long thread = ((JobObject *)op)->thread;
    return thread == 0 ? Py_NewRef(Py_None) : PyLong_FromUnsignedLong(thread);
}

static PyObject *
job_repr(PyObject *op)
{
    PyObject *state = job_get_state(op, NULL);
    PyObject *function = PyObject_GetAttrString(op, "function");
    PyObject *repr =
        state == NULL || function == NULL
            ? NULL
            : PyUnicode_FromFormat("<to_thread job %R %U>", function, state);
    Py_XDECREF(function);
    Py_XDECREF(state);
    return repr;
}

static PyObject *
job_get_cancellation(PyObject *op, void *closure)
{
    (void)closure;
    PyObject *cancelled = pf_job_cancelled((JobObject *)op);
    return cancelled != NULL ? cancelled : Py_NewRef(Py_None);
}

static PyGetSetDef job_getset[] = {
    {"state", job_get_state, NULL, "'queued', 'running' or 'finished'.", NULL},
    {"cancellation", job_get_cancellation, NULL,
     "The Cancelled of the fiber, if it was cancelled and still waits, or "
     "None.",
     NULL},
    {"thread", job_get_thread, NULL,
     "The identifier of the thread that runs it, or None.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

/* Each is None if the garbage collector has cleared the job. */
static PyMemberDef job_members[] = {
    {"function", T_OBJECT, offsetof(JobObject, function), READONLY,
     "The function that it calls."},
    {"limiter", T_OBJECT, offsetof(JobObject, limiter), READONLY,
     "The limiter whose token it waits for or has."},
    {"scheduler", T_OBJECT, offsetof(JobObject, scheduler), READONLY,
     "The scheduler of the fiber that waits."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot job_slots[] = {
    {Py_tp_doc, (void *)"A call of to_thread(), for reports."},
    {Py_tp_traverse, job_traverse},
    {Py_tp_clear, job_clear},
    {Py_tp_dealloc, job_dealloc},
    {Py_tp_repr, job_repr},
    {Py_tp_getset, job_getset},
    {Py_tp_members, job_members},
    {0, NULL},
};

static PyType_Spec job_spec = {
    .name = "pyfiber._engine._Job",
    .basicsize = sizeof(JobObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
             Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = job_slots,
};

static PyObject *
get_current_job(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    return Py_NewRef(current_job == NULL ? Py_None : (PyObject *)current_job);
}

static PyMethodDef functions[] = {
    {"_current_job", get_current_job, METH_NOARGS,
     "_current_job()\n--\n\n"
     "The to_thread() call that this thread runs, or None."},
    {NULL, NULL, 0, NULL},
};

int
pf_job_init(PyObject *module)
{
    job_type =
        (PyTypeObject *)PyType_FromModuleAndSpec(module, &job_spec, NULL);
    return job_type == NULL ? -1 : PyModule_AddFunctions(module, functions);
}
