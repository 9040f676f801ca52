/* Worker threads: how they get jobs, become idle, end, and survive a fork; and
 * which threads could wake a fiber of a run.  worker.h has the overview. */
#include "python/threads/worker.h"

#include "engine/base/mutex.h"
#include "python/core/compiler.h"
#include "python/core/facade.h"
#include "python/core/state.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/switch/pending.h"
#include "python/task/fiber.h"
#include "python/task/scheduler.h"
#include "python/threads/threads.h"

/* An idle worker ends after this time, in microseconds. */
#define IDLE_LIMIT (10 * (PY_TIMEOUT_T)1000000)

/* Invariant: while a worker is idle, and while it ends, it is in one of the
 * lists below, which owns a reference to it.  The lock of the lists also
 * guards `job`, `next` and `over`. */
struct WorkerObject {
    PyObject_HEAD
    PyThread_type_lock wake; /* locked, except just after a hand-over */
    JobObject *job;          /* handed over */
    WorkerObject *next;
    uint64_t tstate_id;
    unsigned long thread;
    size_t forks; /* `forks` when it was made: if that differs now, its thread
                     is in the parent */
    bool own;     /* the private worker of a limiter */
    bool over;    /* the limiter no longer needs it */
};

static PyTypeObject *worker_type; /* constant after import */
static PF_ATOMIC(size_t) forks;   /* how often forked: shared, one word */

/* Twice the members of run(threads=256).  A thread for which there is no room
 * counts as one that may wake a fiber, so no deadlock is found while it lives.
 */
#define PF_MOST_WATCHERS 512

/* The lists of workers: shared, behind workers_lock. */
static struct {
    WorkerObject *idle;  /* the last one to become idle first */
    WorkerObject *owned; /* private workers that are idle */
    WorkerObject *ended; /* workers whose thread states may still exist */
    /* Ids of the states of threads that wake nobody; 0 or the id of a state
     * that is gone: free. */
    uint64_t watchers[PF_MOST_WATCHERS];
} workers;
static pf_mutex workers_lock = PF_MUTEX_INIT;

/* ----------------------------------------------------------------- workers */

static WorkerObject **
idle_list(const WorkerObject *self)
{
    return self->own ? &workers.owned : &workers.idle;
}

/* Puts the worker into its list.  Returns false if it has something to do
 * already: a job, or to end. */
static bool
become_idle(WorkerObject *self)
{
    pf_mutex_lock(&workers_lock);
    WorkerObject **list = idle_list(self);
    self->next = *list;
    *list = (WorkerObject *)Py_NewRef((PyObject *)self);
    bool nothing = self->job == NULL && !self->over;
    pf_mutex_unlock(&workers_lock);
    return nothing;
}

/* Takes the worker out of its list; the caller holds the lock and gets the
 * list's reference.  Returns false if it is not there: a job was handed over.
 */
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

static bool
has_id(uint64_t tstate_id, const void *wanted)
{
    return tstate_id == *(const uint64_t *)wanted;
}

static bool
has_thread_state(uint64_t tstate_id)
{
    return pystate_any(has_id, &tstate_id);
}

/* Drops ended workers whose thread states are gone. */
static void
reap_ended(void)
{
    WorkerObject *gone = NULL;
    pf_mutex_lock(&workers_lock);
    WorkerObject **link = &workers.ended;
    while (*link != NULL) {
        WorkerObject *worker = *link;
        if (has_thread_state(worker->tstate_id)) {
            link = &worker->next;
        } else {
            *link = worker->next;
            worker->next = gone;
            gone = worker;
        }
    }
    pf_mutex_unlock(&workers_lock);
    while (gone != NULL) {
        WorkerObject *next = gone->next;
        Py_DECREF(gone);
        gone = next;
    }
}

/* Returns the next job; or NULL, and the worker moves from its list, with that
 * list's reference, to the ended ones.  If there is a job, the code that
 * handed it over has taken the worker from the list of idle ones.  A private
 * worker may still be in its list, if it got its next job while it dropped the
 * last one: then it leaves the list here. */
static JobObject *
take_job(WorkerObject *self)
{
    pf_mutex_lock(&workers_lock);
    JobObject *job = self->job;
    self->job = NULL;
    if (job != NULL) {
        /* If the wait timed out just before the hand-over, the lock is still
         * free. */
        (void)PyThread_acquire_lock(self->wake, NOWAIT_LOCK);
    }
    bool left = (job == NULL || self->own) && leave_idle(self);
    if (job == NULL && left) {
        self->next = workers.ended;
        workers.ended = self;
    }
    pf_mutex_unlock(&workers_lock);
    if (job != NULL && left) {
        Py_DECREF(self);
    }
    return job;
}

/* Waits for the next job.  NULL: none came within IDLE_LIMIT, or the limiter
 * no longer needs its private worker. */
static JobObject *
wait_for_job(WorkerObject *self)
{
    PY_TIMEOUT_T limit = self->own ? -1 : IDLE_LIMIT;
    if (become_idle(self)) {
        Py_BEGIN_ALLOW_THREADS;
        (void)PyThread_acquire_lock_timed(self->wake, limit, 0);
        Py_END_ALLOW_THREADS;
    }
    JobObject *job = take_job(self);
    if (job == NULL) {
        reap_ended();
    }
    return job;
}

/* Takes the job for which the worker was started; NULL: it was withdrawn. */
static JobObject *
take_first_job(WorkerObject *self)
{
    pf_mutex_lock(&workers_lock);
    JobObject *job = self->job;
    self->job = NULL;
    pf_mutex_unlock(&workers_lock);
    return job;
}

static PyObject *
worker_run(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    WorkerObject *self = (WorkerObject *)op;
    JobObject *job = take_first_job(self);
    if (job != NULL) {
        pf_job_hold(job);
    }
    self->tstate_id = PyThreadState_GetID(PyThreadState_Get());
    self->thread = PyThread_get_thread_ident();
    while (job != NULL) {
        pf_pending_take_posts_here(); /* caused by earlier jobs */
        JobObject *next = pf_job_run(job);
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
    self->forks = pf_load(&forks);
    return self;
}

/* Starts a threading.Thread for the worker, so that jobs run on ordinary
 * Python threads. */
static PyObject *
call_starter(LimiterObject *limiter, WorkerObject *worker)
{
    PyObject *start = Py_NewRef(
        limiter->start != NULL ? limiter->start : pf_facade.start_worker);
    PyObject *run = PyObject_GetAttrString((PyObject *)worker, "run");
    PyObject *done = run == NULL ? NULL : PyObject_CallOneArg(start, run);
    Py_XDECREF(run);
    Py_DECREF(start);
    return done;
}

/* Has the worker not taken the job yet?  With `take`, a job that waits is
 * withdrawn. */
static bool
waits_in(WorkerObject *worker, JobObject *job, bool take)
{
    pf_mutex_lock(&workers_lock);
    bool waits = worker->job == job;
    if (waits && take) {
        worker->job = NULL;
    }
    pf_mutex_unlock(&workers_lock);
    if (waits && take) {
        Py_DECREF(job);
    }
    return waits;
}

/* Starts the worker's thread.  The code that does this may wait, in a trace
 * function for example, and the job, which has no thread yet, cannot end that
 * wait.  So if this thread runs the job's scheduler, the scheduler does not
 * expect a wake-up from the job meanwhile. */
static PyObject *
start_thread(JobObject *job, WorkerObject *worker)
{
    bool here = job->scheduler->thread == pf_thread_current;
    if (here) {
        pf_job_release_hold(job);
    }
    PyObject *done = call_starter(job->limiter, worker);
    /* A worker that has taken the job already has renewed the hold. */
    if (here && waits_in(worker, job, false)) {
        pf_job_hold(job);
    }
    return done;
}

/* Makes the worker the limiter's private one.  Must happen before its thread
 * begins, because it may be idle before the caller comes back.  If the limiter
 * was closed a moment ago, this job is the worker's last. */
static void
adopt(LimiterObject *limiter, WorkerObject *worker)
{
    worker->own = true;
    PF_LOCK(limiter);
    worker->over = limiter->closed;
    if (!limiter->closed) {
        limiter->own = (WorkerObject *)Py_NewRef((PyObject *)worker);
    }
    PF_UNLOCK(limiter);
}

/* Undoes adopt for a worker whose thread could not be started. */
static void
disown(LimiterObject *limiter, WorkerObject *worker)
{
    PF_LOCK(limiter);
    bool own = limiter->own == worker;
    if (own) {
        limiter->own = NULL;
    }
    PF_UNLOCK(limiter);
    if (own) {
        Py_DECREF(worker);
    }
}

/* Starts a worker for the job; returns what pf_worker_dispatch does.  A signal
 * handler may raise just after the thread has begun: then the job is
 * withdrawn, unless the worker has taken it. */
static int
start_worker(JobObject *job)
{
    LimiterObject *limiter = job->limiter;
    WorkerObject *worker = worker_new();
    if (worker == NULL) {
        return -1;
    }
    worker->job = (JobObject *)Py_NewRef((PyObject *)job);
    if (limiter->start != NULL) {
        adopt(limiter, worker);
    }
    PyObject *done = start_thread(job, worker);
    int rc = done != NULL ? 0 : waits_in(worker, job, true) ? -1 : 1;
    if (rc < 0) {
        disown(limiter, worker);
    }
    Py_DECREF(worker);
    Py_XDECREF(done);
    return rc;
}

/* The caller holds the lock, so a worker that finds the job also finds `wake`
 * released, and takes it.  Otherwise its next wait would end for nothing. */
static void
hand_over(WorkerObject *worker, JobObject *job)
{
    worker->job = (JobObject *)Py_NewRef((PyObject *)job);
    PyThread_release_lock(worker->wake);
}

/* Hands the job to the limiter's private worker, which may be idle or about to
 * be: it checks for a job before it waits.  0, or -1 with FiberError. */
static int
hand_to_own(WorkerObject *worker, JobObject *job)
{
    if (worker->forks != pf_load(&forks)) {
        PyErr_SetString(
            pf.fiber_error,
            "the process was forked: the thread of the OneThread exists "
            "in the parent only, with what was bound to it. Make "
            "another OneThread here");
        return -1;
    }
    pf_mutex_lock(&workers_lock);
    hand_over(worker, job);
    pf_mutex_unlock(&workers_lock);
    return 0;
}

/* Hands the job to an idle worker.  Returns the worker, with the list's
 * reference; NULL: none is idle. */
static WorkerObject *
give_to_idle(JobObject *job)
{
    pf_mutex_lock(&workers_lock);
    WorkerObject *worker = workers.idle;
    if (worker != NULL) {
        workers.idle = worker->next;
        hand_over(worker, job);
    }
    pf_mutex_unlock(&workers_lock);
    return worker;
}

static WorkerObject *
own_worker(LimiterObject *limiter)
{
    PF_LOCK(limiter);
    WorkerObject *own = limiter->own;
    Py_XINCREF((PyObject *)own);
    PF_UNLOCK(limiter);
    return own;
}

int
pf_worker_dispatch(JobObject *job)
{
    pf_store(&job->state, JOB_RUNNING);
    WorkerObject *own = own_worker(job->limiter);
    if (own != NULL) {
        int rc = hand_to_own(own, job);
        Py_DECREF(own);
        return rc;
    }
    WorkerObject *worker =
        job->limiter->start == NULL ? give_to_idle(job) : NULL;
    if (worker == NULL) {
        return start_worker(job);
    }
    Py_DECREF(worker);
    return 0;
}

/* Is the thread with this state in the list that begins with `worker`?  The
 * caller holds the lock. */
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
    PF_LOCK(limiter);
    WorkerObject *worker = limiter->own;
    limiter->own = NULL;
    PF_UNLOCK(limiter);
    if (worker == NULL || worker->forks != pf_load(&forks)) {
        /* none, or its thread is in the parent: leaked, see after_fork */
        return;
    }
    pf_mutex_lock(&workers_lock);
    worker->over = true; /* the worker checks this before its next wait */
    if (worker->job == NULL && is_in(workers.owned, worker->tstate_id)) {
        PyThread_release_lock(worker->wake);
    }
    pf_mutex_unlock(&workers_lock);
    Py_DECREF(worker);
}

/* -------------------------------------------------- questions about threads
 */

/* Has the thread called _only_watches()?  The caller holds the lock. */
static bool
only_watches(uint64_t tstate_id)
{
    int i = 0;
    while (i < PF_MOST_WATCHERS && workers.watchers[i] != tstate_id) {
        i++;
    }
    return i < PF_MOST_WATCHERS;
}

/* Could the thread wake a fiber of the scheduler?  A worker without a job
 * cannot, nor can a thread that waits for a fiber of the scheduler itself. */
static bool
could_wake(uint64_t tstate_id, const void *scheduler)
{
    const SchedulerObject *s = scheduler;
    return tstate_id != s->thread->tstate_id && !only_watches(tstate_id) &&
           !is_in(workers.idle, tstate_id) &&
           !is_in(workers.owned, tstate_id) &&
           !is_in(workers.ended, tstate_id) && !pf_job_waits_for(s, tstate_id);
}

/* Does a thread exist, besides that of `s`, that could wake a fiber there? */
static bool
has_helpers(const SchedulerObject *s)
{
    reap_ended();
    pf_mutex_lock(&workers_lock);
    bool some = pystate_any(could_wake, s);
    pf_mutex_unlock(&workers_lock);
    return some;
}

/* The child has none of the workers' threads.  All jobs, running or queued,
 * fail.  The worker objects are leaked, because their locks, on which lost
 * threads wait, stay in use for ever. */
static int
after_fork(PfThread *t)
{
    /* No other thread runs, so this needs no lock. */
    workers.idle = workers.owned = workers.ended = NULL;
    pf_fetch_add(&forks, 1);
    pf_jobs_after_fork(t);
    return 0;
}

const PfPart pf_worker_part = {
    .after_fork = after_fork,
    .has_helpers = has_helpers,
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

bool
pf_worker_only_watches(void)
{
    uint64_t own = PyThreadState_GetID(PyThreadState_Get());
    pf_mutex_lock(&workers_lock);
    int i = 0;
    while (i < PF_MOST_WATCHERS && workers.watchers[i] != own &&
           workers.watchers[i] != 0 && has_thread_state(workers.watchers[i])) {
        i++;
    }
    if (i < PF_MOST_WATCHERS) {
        workers.watchers[i] = own;
    }
    pf_mutex_unlock(&workers_lock);
    return i < PF_MOST_WATCHERS;
}

static PyObject *
mod_only_watches(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    return PyBool_FromLong(pf_worker_only_watches());
}

static PyMethodDef functions[] = {
    {"_only_watches", mod_only_watches, METH_NOARGS,
     "_only_watches()\n--\n\n"
     "Declare that this thread never wakes a fiber, so that it does not hide\n"
     "a deadlock. Return False if too many live threads have done so."},
    {NULL, NULL, 0, NULL},
};

int
pf_worker_init(PyObject *module)
{
    worker_type =
        (PyTypeObject *)PyType_FromModuleAndSpec(module, &worker_spec, NULL);
    return worker_type == NULL || pf_job_init(module) < 0 ||
                   PyModule_AddFunctions(module, functions) < 0 ||
                   pf_limiter_init(module) < 0
               ? -1
               : 0;
}
