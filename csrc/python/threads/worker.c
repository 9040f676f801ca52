/* Worker threads and the jobs they run: see worker.h. */
#include "python/threads/worker.h"

#include "python/cancel/cancel.h"
#include "python/cancel/scope.h"
#include "python/core/arguments.h"
#include "python/core/compiler.h"
#include "python/core/facade.h"
#include "python/core/list.h"
#include "python/core/state.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/fiber/attend.h"
#include "python/fiber/fiber.h"
#include "python/fiber/hub.h"
#include "python/threads/threads.h"

/* An idle worker ends after this time, in microseconds. */
#define IDLE_LIMIT (10 * (PY_TIMEOUT_T)1000000)

/* Invariant: while it is idle, and while it ends, it is in one of the lists
 * below, which owns a reference to it. */
struct WorkerObject {
    PyObject_HEAD
    PyThread_type_lock wake; /* locked, except just after a hand-over */
    JobObject *job;          /* handed over */
    WorkerObject *next;
    uint64_t tstate_id;
    unsigned long thread;
    unsigned
        forks; /* forks before it was made: older threads stayed in the parent */
    bool own;  /* of one limiter */
    bool over; /* ... which no longer needs it */
};

static PyTypeObject *worker_type, *job_type;
static WorkerObject *idle_workers;  /* the last one to become idle first */
static WorkerObject *idle_owned;    /* which wait for their limiter's jobs */
static WorkerObject *ended_workers; /* their thread states may still exist */
static JobObject *unfinished;       /* every job that runs or is queued */
static unsigned forks;              /* that made this process */
static PF_TLS JobObject *current_job;
static uint64_t watcher; /* the state of a thread that wakes nobody */

JobObject *
pf_current_job(void)
{
    return current_job;
}

/* Where no run is, but one may be near. */
static const char *
no_run(void)
{
    return current_job == NULL
               ? NULL
               : ", and a thread of to_thread() has none: give the function "
                 "to from_thread(), which runs it in a fiber of the caller";
}

/* ------------------------------------------------------------------- jobs */

JobObject *
pf_job_new(LimiterObject *limiter, PyObject *const *args, Py_ssize_t nargs,
           PyObject *kwnames)
{
    PfThread *t = pf_tls_thread;
    JobObject *job = PyObject_GC_New(JobObject, job_type);
    if (job == NULL) {
        return NULL;
    }
    pf_zero(&job->message, sizeof(JobObject) - offsetof(JobObject, message));
    job->limiter = (LimiterObject *)Py_NewRef((PyObject *)limiter);
    job->scheduler = (SchedulerObject *)Py_NewRef((PyObject *)t->scheduler);
    job->fiber = (FiberObject *)Py_NewRef((PyObject *)CURRENT(t));
    job->function = Py_NewRef(args[0]);
    job->context = PyContext_CopyCurrent();
    int rc = job->context == NULL ? -1
                                  : pf_pack(args + 1, nargs - 1, kwnames,
                                            &job->args, &job->kwargs);
    PF_LIST_PUSH(unfinished, job);
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
job_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    PF_LIST_REMOVE(unfinished, (JobObject *)op);
    (void)job_clear(op);
    type->tp_free(op);
    Py_DECREF(type);
}

void
pf_job_hold(JobObject *job)
{
    if (!job->held && job->fiber != NULL && job->state < JOB_FINISHED) {
        job->held = true;
        pf_hold(&job->scheduler->core);
    }
}

static void
release_hold(JobObject *job)
{
    job->waits = 0;
    if (job->held) {
        job->held = false;
        pf_release(&job->scheduler->core);
    }
}

void
pf_job_lend_hold(JobObject *job)
{
    if (job->held) {
        release_hold(job);
        job->waits = PyThreadState_GetID(PyThreadState_Get());
    }
}

void
pf_job_take_hold_back(JobObject *job)
{
    if (job->waits != 0) {
        job->waits = 0;
        pf_job_hold(job);
    }
}

void
pf_job_cancel(JobObject *job, PyObject *exc)
{
    CancelledObject *cancelled = (CancelledObject *)exc;
    PyObject *why = pf_reason_and_author(
        cancelled->reason != NULL ? cancelled->reason : Py_None,
        cancelled->by != NULL ? cancelled->by : Py_None);
    if (job->callee != NULL) {
        pf_cancel_now(job->callee, why);
    }
    Py_XSETREF(job->cancelled, exc);
    Py_XDECREF(why);
}

/* Otherwise nobody would see it. */
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

/* On the fiber's thread. */
static void
arrive(JobObject *job)
{
    FiberObject *fiber = job->fiber;
    job->state = JOB_ARRIVED;
    release_hold(job);
    job->fiber = NULL;
    if (fiber != NULL) {
        pf_scheduler *s = fiber->core.scheduler;
        if (s != NULL && pf_wake_task(s, &fiber->core, PF_WAKE_NORMAL)) {
            pf_tell_host(SCHEDULER_OF(s));
        }
        Py_DECREF(fiber);
    } else if (job->failed) {
        log_abandoned(job);
    }
}

void
pf_job_abandon(JobObject *job)
{
    release_hold(job);
    Py_CLEAR(job->fiber);
    if (job->state == JOB_ARRIVED && job->failed) {
        PyObject *raised = pf_take_exception();
        log_abandoned(job);
        pf_restore_exception(raised);
    }
}

static void
job_arrived(pf_message *message, pf_scheduler *s)
{
    JobObject *job =
        (JobObject *)((char *)message - offsetof(JobObject, message));
    SchedulerObject *scheduler =
        (SchedulerObject *)Py_NewRef((PyObject *)SCHEDULER_OF(s));
    pf_no_switch_begin((PfThread *)s->thread, "inside the scheduler");
    arrive(job);
    Py_DECREF(job);
    pf_no_switch_end((PfThread *)s->thread);
    Py_DECREF(scheduler);
}

static const pf_message_ops job_arrived_ops = {job_arrived};

/* Its scheduler is closed: no fiber waits, except in vain on a thread that is
 * just ending. */
static void
arrive_nowhere(JobObject *job)
{
    job->held = false;
    job->state = JOB_ARRIVED;
    if (job->fiber == NULL && job->failed) {
        log_abandoned(job);
    }
}

/* The result has arrived.  An abandoned job is sent back, too: its scheduler
 * may be waiting only because this thread was busy.  To drop the arguments may
 * run code for long: until then the job counts as unfinished, for a fork. */
static void
finish_job(JobObject *job)
{
    Py_CLEAR(job->args);
    Py_CLEAR(job->kwargs);
    Py_CLEAR(job->context);
    PF_LIST_REMOVE(unfinished, job);
    job->state = JOB_FINISHED;
    job->message.ops = &job_arrived_ops;
    Py_INCREF(job);
    if (!pf_post(&job->scheduler->core, &job->message)) {
        arrive_nowhere(job);
        Py_DECREF(job);
    }
}

void
pf_job_fail(JobObject *job, PyObject *exc)
{
    PyObject *result = job->result; /* it may already have one: see above */
    job->result = exc;
    job->failed = true;
    finish_job(job);
    Py_XDECREF(result);
}

static PyObject *
call_in_context(JobObject *job)
{
    if (PyContext_Enter(job->context) < 0) {
        return NULL;
    }
    PyObject *result = PyObject_Call(job->function, job->args, job->kwargs);
    PyObject *raised = result == NULL ? pf_take_exception() : NULL;
    if (PyContext_Exit(job->context) < 0) { /* left by the function itself */
        PyErr_WriteUnraisable(job->function);
    }
    if (raised != NULL) {
        pf_restore_exception(raised);
    }
    return result;
}

static void
run_job(JobObject *job)
{
    current_job = job;
    job->thread = PyThread_get_thread_ident();
    job->state = JOB_RUNNING;
    job->result = call_in_context(job);
    current_job = NULL;
    if (job->result == NULL) {
        job->failed = true;
        job->result = pf_take_exception();
    }
    finish_job(job);
}

/* ----------------------------------------------------------------- workers */

static WorkerObject **
idle_list(const WorkerObject *self)
{
    return self->own ? &idle_owned : &idle_workers;
}

static void
become_idle(WorkerObject *self)
{
    WorkerObject **list = idle_list(self);
    self->next = *list;
    *list = (WorkerObject *)Py_NewRef((PyObject *)self);
}

/* False if it is not in the list: a job was handed over.  Otherwise the caller
 * gets the list's reference. */
static bool
leave_idle(WorkerObject *self)
{
    WorkerObject **link = idle_list(self);
    while (*link != NULL && *link != self) {
        link = &(*link)->next;
    }
    if (*link == NULL) {
        return false;
    }
    *link = self->next;
    return true;
}

static PyThreadState *
first_thread_state(void)
{
    return PyInterpreterState_ThreadHead(PyInterpreterState_Get());
}

/* Forget ended workers whose thread states are gone. */
static void
bury_ended(void)
{
    WorkerObject **link = &ended_workers;
    while (*link != NULL) {
        WorkerObject *worker = *link;
        PyThreadState *ts = first_thread_state();
        while (ts != NULL && PyThreadState_GetID(ts) != worker->tstate_id) {
            ts = PyThreadState_Next(ts);
        }
        if (ts != NULL) {
            link = &worker->next;
        } else {
            *link = worker->next;
            Py_DECREF(worker);
        }
    }
}

/* Wait for the next job; NULL: none came for a long time, or the worker's
 * limiter no longer needs it.  The list's reference to the worker has gone to
 * the code that hands over a job, or to the list of ended ones.  A limiter's
 * own worker may have got its next job while it dropped the last one. */
static JobObject *
wait_for_job(WorkerObject *self)
{
    PY_TIMEOUT_T limit = self->own ? -1 : IDLE_LIMIT;
    become_idle(self);
    if (self->job == NULL && !self->over) {
        Py_BEGIN_ALLOW_THREADS;
        (void)PyThread_acquire_lock_timed(self->wake, limit, 0);
        Py_END_ALLOW_THREADS;
    }
    JobObject *job = self->job;
    self->job = NULL;
    if (job == NULL && leave_idle(self)) {
        bury_ended();
        self->next = ended_workers;
        ended_workers = self;
    } else if (job != NULL && self->own && leave_idle(self)) {
        Py_DECREF(self);
    }
    return job;
}

/* If the hand-over came just after the wait timed out, consume its wake-up.
 */
static void
settle_wake(WorkerObject *self)
{
    (void)PyThread_acquire_lock(self->wake, NOWAIT_LOCK);
}

static PyObject *
worker_run(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    WorkerObject *self = (WorkerObject *)op;
    JobObject *job = self->job;
    self->job = NULL;
    if (job != NULL) {
        pf_job_hold(job);
    }
    self->tstate_id = PyThreadState_GetID(PyThreadState_Get());
    self->thread = PyThread_get_thread_ident();
    while (job != NULL) {
        settle_wake(self);
        pf_unwind_left_here(); /* by earlier jobs */
        run_job(job);
        JobObject *next = pf_limiter_next(job->limiter);
        Py_DECREF(job);
        job = next != NULL ? next : wait_for_job(self);
    }
    Py_RETURN_NONE;
}

static void
worker_dealloc(PyObject *op)
{
    WorkerObject *self = (WorkerObject *)op;
    PyTypeObject *type = Py_TYPE(op);
    if (self->wake != NULL) {
        PyThread_release_lock(self->wake);
        PyThread_free_lock(self->wake);
    }
    Py_XDECREF(self->job);
    type->tp_free(op);
    Py_DECREF(type);
}

static WorkerObject *
worker_new(void)
{
    WorkerObject *self = PyObject_New(WorkerObject, worker_type);
    if (self == NULL) {
        return NULL;
    }
    memset(&self->wake, 0,
           sizeof(WorkerObject) - offsetof(WorkerObject, wake));
    self->wake = PyThread_allocate_lock();
    if (self->wake == NULL) {
        Py_DECREF(self);
        PyErr_NoMemory();
        return NULL;
    }
    PyThread_acquire_lock(self->wake, WAIT_LOCK);
    self->forks = forks;
    return self;
}

/* The function that starts a threading.Thread: jobs run on ordinary threads.
 */
static PyObject *
starter(LimiterObject *limiter)
{
    if (limiter->start != NULL) {
        return Py_NewRef(limiter->start);
    }
    return Py_NewRef(pf_facade.start_worker);
}

static PyObject *
call_starter(LimiterObject *limiter, WorkerObject *worker)
{
    PyObject *start = starter(limiter);
    PyObject *run = PyObject_GetAttrString((PyObject *)worker, "run");
    PyObject *done = NULL;
    if (start != NULL && run != NULL) {
        done = PyObject_CallOneArg(start, run);
    }
    Py_XDECREF(run);
    Py_XDECREF(start);
    return done;
}

/* The code that starts it may wait, in a trace function, say.  No other thread
 * would end that wait, so meanwhile the run on this thread does not count on
 * the job. */
static PyObject *
start_thread(JobObject *job, WorkerObject *worker)
{
    if (job->scheduler->thread == pf_tls_thread) {
        release_hold(job);
    }
    PyObject *done = call_starter(job->limiter, worker);
    if (worker->job == job) { /* else the worker has done this */
        pf_job_hold(job);
    }
    return done;
}

/* As pf_job_dispatch.  A signal handler may raise just after the thread has
 * begun: then a job that it has not taken yet is withdrawn. */
static int
start_worker(JobObject *job)
{
    LimiterObject *limiter = job->limiter;
    WorkerObject *worker = worker_new();
    if (worker == NULL) {
        return -1;
    }
    worker->job = (JobObject *)Py_NewRef((PyObject *)job);
    if (limiter->start != NULL) { /* it may be idle before we come back */
        worker->own = true;
        limiter->own = (WorkerObject *)Py_NewRef((PyObject *)worker);
    }
    PyObject *done = start_thread(job, worker);
    bool taken = worker->job != job;
    int rc = done != NULL ? 0 : taken ? 1 : -1;
    if (rc < 0) {
        Py_CLEAR(worker->job);
        Py_CLEAR(limiter->own);
    }
    Py_DECREF(worker);
    Py_XDECREF(done);
    return rc;
}

/* The worker may be idle or about to be; it checks for a job before it waits.
 */
static int
hand_to_own(WorkerObject *worker, JobObject *job)
{
    if (worker->forks != forks) {
        PyErr_SetString(pf.fiber_error,
                        "the process was forked: the thread of its own exists "
                        "in the parent only, with what was bound to it. Make "
                        "another OneThread here");
        return -1;
    }
    worker->job = (JobObject *)Py_NewRef((PyObject *)job);
    PyThread_release_lock(worker->wake);
    return 0;
}

int
pf_job_dispatch(JobObject *job)
{
    job->state = JOB_RUNNING;
    if (job->limiter->own != NULL) {
        return hand_to_own(job->limiter->own, job);
    }
    WorkerObject *worker = job->limiter->start == NULL ? idle_workers : NULL;
    if (worker == NULL) {
        return start_worker(job);
    }
    idle_workers = worker->next;
    worker->job = (JobObject *)Py_NewRef((PyObject *)job);
    PyThread_release_lock(worker->wake);
    Py_DECREF(worker);
    return 0;
}

static bool
is_in(const WorkerObject *worker, uint64_t tstate_id)
{
    while (worker != NULL && worker->tstate_id != tstate_id) {
        worker = worker->next;
    }
    return worker != NULL;
}

void
pf_worker_release(LimiterObject *limiter)
{
    WorkerObject *worker = limiter->own;
    limiter->own = NULL;
    if (worker == NULL || worker->forks != forks) {
        return; /* with the parent's: see after_fork */
    }
    worker->over = true; /* it checks this before its next wait */
    if (is_in(idle_owned, worker->tstate_id) && worker->job == NULL) {
        PyThread_release_lock(worker->wake);
    }
    Py_DECREF(worker);
}

/* -------------------------------------------------- questions about threads
 */

/* Does that thread, for which a fiber of `s` waits, itself wait for the end of
 * a fiber of `s`? */
static bool
waits_for(const SchedulerObject *s, uint64_t tstate_id)
{
    JobObject *job = unfinished;
    while (job != NULL && !(job->waits == tstate_id && job->scheduler == s)) {
        job = job->next;
    }
    return job != NULL;
}

/* A worker without a job wakes nothing. */
static bool
could_wake(const SchedulerObject *s, uint64_t tstate_id)
{
    return tstate_id != watcher && !is_in(idle_workers, tstate_id) &&
           !is_in(idle_owned, tstate_id) && !is_in(ended_workers, tstate_id) &&
           !waits_for(s, tstate_id);
}

/* Does a thread exist besides that of `s` that could wake somebody there? */
static bool
has_helpers(const SchedulerObject *s)
{
    bury_ended();
    PyThreadState *ts = first_thread_state();
    while (ts != NULL && (ts == s->thread->tstate ||
                          !could_wake(s, PyThreadState_GetID(ts)))) {
        ts = PyThreadState_Next(ts);
    }
    return ts != NULL;
}

/* The child has none of the threads.  Their jobs, running or queued, fail; the
 * worker objects are kept, because their locks stay in use for ever. */
static int
after_fork(PfThread *t)
{
    idle_workers = idle_owned = ended_workers = NULL;
    forks++;
    while (unfinished != NULL) {
        JobObject *job = (JobObject *)Py_NewRef((PyObject *)unfinished);
        PF_LIST_REMOVE(unfinished, job);
        pf_limiter_forget(job->limiter);
        if (t != NULL && job->scheduler->thread == t && job->fiber != NULL) {
            PyObject *exc = PyObject_CallFunction(
                pf.fiber_error, "s",
                "the process was forked: the thread that runs the function "
                "exists in the parent only");
            pf_job_fail(job, exc != NULL ? exc : pf_take_exception());
        }
        Py_DECREF(job);
    }
    return 0;
}

const PfPart pf_workers_part = {
    .no_run = no_run,
    .after_fork = after_fork,
    .has_helpers = has_helpers,
};

/* --------------------------------------------------------------- inspection */

static PyObject *
job_get_state(PyObject *op, void *closure)
{
    static const char *const names[] = {"queued", "running", "finished",
                                        "finished"};
    (void)closure;
    return PyUnicode_FromString(names[((JobObject *)op)->state]);
}

/* The garbage collector may have cleared the job. */
static PyObject *
or_none(void *object)
{
    return Py_NewRef(object == NULL ? Py_None : (PyObject *)object);
}

static PyObject *
job_get_function(PyObject *op, void *closure)
{
    (void)closure;
    return or_none(((JobObject *)op)->function);
}

static PyObject *
job_get_limiter(PyObject *op, void *closure)
{
    (void)closure;
    return or_none(((JobObject *)op)->limiter);
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
    PyObject *function = job_get_function(op, NULL);
    PyObject *repr =
        state == NULL
            ? NULL
            : PyUnicode_FromFormat("<to_thread job %R %U>", function, state);
    Py_DECREF(function);
    Py_XDECREF(state);
    return repr;
}

static PyObject *
job_get_scheduler(PyObject *op, void *closure)
{
    (void)closure;
    return or_none(((JobObject *)op)->scheduler);
}

static PyObject *
job_get_cancelled(PyObject *op, void *closure)
{
    (void)closure;
    return or_none(((JobObject *)op)->cancelled);
}

static PyGetSetDef job_getset[] = {
    {"state", job_get_state, NULL, "'queued', 'running' or 'finished'.", NULL},
    {"function", job_get_function, NULL, "The function that it calls.", NULL},
    {"limiter", job_get_limiter, NULL,
     "The limiter whose token it waits for or has.", NULL},
    {"scheduler", job_get_scheduler, NULL,
     "The scheduler of the fiber that waits.", NULL},
    {"cancelled", job_get_cancelled, NULL,
     "The Cancelled of the fiber, if it was cancelled and still waits, or "
     "None.",
     NULL},
    {"thread", job_get_thread, NULL,
     "The identifier of the thread that runs it, or None.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot job_slots[] = {
    {Py_tp_doc, (void *)"A call of to_thread(), for reports."},
    {Py_tp_traverse, job_traverse},
    {Py_tp_clear, job_clear},
    {Py_tp_dealloc, job_dealloc},
    {Py_tp_repr, job_repr},
    {Py_tp_getset, job_getset},
    {0, NULL},
};

static PyType_Spec job_spec = {
    .name = "pyfiber._engine._Job",
    .basicsize = sizeof(JobObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
             Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = job_slots,
};

static PyMethodDef worker_methods[] = {
    {"run", worker_run, METH_NOARGS,
     "The main function of a worker's thread."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot worker_slots[] = {
    {Py_tp_doc, (void *)"A thread that runs functions for fibers."},
    {Py_tp_dealloc, worker_dealloc},
    {Py_tp_methods, worker_methods},
    {0, NULL},
};

static PyType_Spec worker_spec = {
    .name = "pyfiber._engine._Worker",
    .basicsize = sizeof(WorkerObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = worker_slots,
};

static PyObject *
get_current_job(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    return Py_NewRef(current_job == NULL ? Py_None : (PyObject *)current_job);
}

static PyObject *
only_watches(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    watcher = PyThreadState_GetID(PyThreadState_Get());
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"_only_watches", only_watches, METH_NOARGS,
     "_only_watches()\n--\n\n"
     "This thread does not count as one that could wake a fiber."},
    {"_current_job", get_current_job, METH_NOARGS,
     "_current_job()\n--\n\n"
     "The to_thread() call that this thread runs, or None."},
    {NULL, NULL, 0, NULL},
};

int
pf_worker_init(PyObject *module)
{
    worker_type =
        (PyTypeObject *)PyType_FromModuleAndSpec(module, &worker_spec, NULL);
    job_type =
        (PyTypeObject *)PyType_FromModuleAndSpec(module, &job_spec, NULL);
    return worker_type == NULL || job_type == NULL ||
                   PyModule_AddFunctions(module, functions) < 0 ||
                   pf_limiter_init(module) < 0
               ? -1
               : 0;
}
