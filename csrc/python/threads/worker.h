/* Threads that run functions for fibers.
 *
 * A job goes from its fiber through its limiter's queue to an idle worker, or
 * a new one, and comes back to its scheduler as a message.  One lock guards
 * the lists of workers, another the list of jobs; the GIL, or without a GIL
 * the limiter's mutex, guards a limiter's fields.  Each idle worker waits,
 * without the GIL, for a private lock.  The last worker to become idle is the
 * first to be used, so that surplus workers time out and end.
 *
 * A limiter of one token may have a private worker (OneThread), which serves
 * only this limiter and lives until it is released.
 */
#ifndef PF_WORKER_H
#define PF_WORKER_H

#include "python/core/objlock.h"
#include "python/task/fiber.h"
#include "python/task/post.h"
#include "python/task/scheduler.h"

typedef struct JobObject JobObject;
typedef struct LimiterObject LimiterObject;
typedef struct WorkerObject WorkerObject;

typedef enum JobState {
    JOB_QUEUED, /* in the limiter's queue */
    JOB_RUNNING,
    JOB_FINISHED, /* `call` was posted to the scheduler */
    JOB_ARRIVED,  /* the fiber, if it still waits, has been woken */
} JobState;

/* A call of to_thread().  Invariants:
 * - until the job is done, `fiber` waits for it; NULL: abandoned.
 * - `held`: the scheduler expects a wake-up from the job (pf_scheduler_hold).
 * - `waits`: the job's thread waits for a fiber of the scheduler, which
 *   meanwhile expects nothing from the job: virtual time may move, and a
 *   deadlock is reported.
 * - prev/next link the job into the list of all jobs that have not finished.
 * - owner: until the job has a token, the limiter's queue decides on `state`.
 *   Then the job belongs to its worker, and once it was posted back to its
 *   fiber.  What the worker and the fiber both write meanwhile, `cancelled`,
 *   `callee` and `waits`, is guarded by the lock of the list.
 */
struct JobObject {
    PyObject_HEAD
    PfPost call;              /* message to the scheduler: it has finished */
    PF_ATOMIC(uint8_t) state; /* JobState */
    PF_ATOMIC(uint8_t) held;
    bool failed; /* `result` is an exception */
    JobObject *prev, *next;
    JobObject *behind; /* the next one in the limiter's queue */
    LimiterObject *limiter;
    SchedulerObject *scheduler;
    FiberObject *fiber;
    PyObject *function;
    PyObject *args; /* NULL: none */
    PyObject *kwargs;
    PyObject *context;
    PyObject *result;
    PyObject
        *cancelled; /* the Cancelled that the waiting fiber got, or NULL */
    FiberObject *callee;  /* the fiber that from_thread() waits for, or NULL */
    unsigned long thread; /* identifier of its thread; 0: none yet */
    uint64_t waits;       /* id of the waiting thread's state, or 0 */
};

/* Limits how many of its jobs run at a time, and queues the others. */
struct LimiterObject {
    PyObject_HEAD
    PF_OBJECT_MUTEX
    PyObject *weakrefs;
    Py_ssize_t total;
    Py_ssize_t borrowed;
    Py_ssize_t waiting;
    JobObject *first, *last; /* the queue, which owns a reference to each */
    PyObject
        *start; /* starts the private worker's thread; NULL: shared ones */
    WorkerObject *own; /* the private worker; NULL: none, or not started */
    bool closed;       /* the private worker was released: no more jobs */
    bool abandon_on_cancel;
};

/* --- job.c --- */
static inline JobState
pf_job_state(const JobObject *job)
{
    return (JobState)pf_load_acquire(&job->state);
}
/* A job of the running fiber that calls args[0] with the other arguments of a
 * vectorcall.  A new reference, or NULL with an exception. */
JobObject *pf_job_new(LimiterObject *limiter, PyObject *const *args,
                      Py_ssize_t nargs, PyObject *kwnames);
/* Any thread: makes the scheduler expect a wake-up from the job, unless the
 * job is abandoned or has finished. */
void pf_job_hold(JobObject *job);
void pf_job_release_hold(JobObject *job);
/* The fiber waits no longer, because of the raised exception. */
void pf_job_abandon(JobObject *job);
/* The job's thread begins, and ends, to wait for a fiber of the same run: the
 * hold is suspended meanwhile.  The first does nothing if the job is not held,
 * the second if the hold was not suspended. */
void pf_job_borrow_hold(JobObject *job);
void pf_job_take_hold_back(JobObject *job);
/* The job that the calling thread runs; borrowed, or NULL. */
JobObject *pf_job_current(void);
/* The fiber keeps waiting although it is cancelled by `exc` (stolen), a
 * Cancelled.  Calls from the job's thread back into the run are cancelled, now
 * and later. */
void pf_job_cancel(JobObject *job, PyObject *exc);
/* The job's thread calls into the run, by this fiber; NULL: no longer.
 * Returns what pf_job_cancelled does. */
PyObject *pf_job_calls(JobObject *job, FiberObject *fiber);
/* The Cancelled that the waiting fiber has got, a new reference, or NULL. */
PyObject *pf_job_cancelled(JobObject *job);
/* The `why` for pf_cancel_now, made from a Cancelled. */
PyObject *pf_job_why(PyObject *cancelled);
/* The job ends without a worker: it fails with `exc` (stolen). */
void pf_job_fail(JobObject *job, PyObject *exc);

/* Runs the job on this thread, a worker's, and gives its token back.  Returns
 * the limiter's next job, as pf_limiter_next does. */
JobObject *pf_job_run(JobObject *job);
/* Does the thread run a job for a fiber of `s`, and itself wait for the end of
 * a fiber of `s`? */
bool pf_job_waits_for(const SchedulerObject *s, uint64_t tstate_id);
/* In the child of a fork, whose only thread is `t` (NULL: one without a
 * record): the jobs of the other threads fail. */
void pf_jobs_after_fork(PfThread *t);
int pf_job_init(PyObject *module);

/* --- worker.c --- */
/* Gives the job, whose token is taken, to a worker.  0; -1 with an exception
 * if none is idle and no thread can be started; 1 with an exception for the
 * caller, which a signal handler raised, for example: the job continues. */
int pf_worker_dispatch(JobObject *job);
/* Lets the limiter's private worker, if it has one, end when it has no job. */
void pf_worker_release(LimiterObject *limiter);

/* --- limiter.c --- */
/* Takes back the token of a job that is done.  Returns the next job, with its
 * token taken, a new reference; or NULL. */
JobObject *pf_limiter_next(LimiterObject *limiter);
/* In the child of a fork: no token is borrowed, no job is queued. */
void pf_limiter_forget(LimiterObject *limiter);
int pf_limiter_init(PyObject *module);

#endif
