/* Threads that run functions for fibers.
 *
 * A job goes from its fiber through its limiter's queue to an idle worker, or
 * a new one, and comes back to its scheduler as a message.  A lock guards the
 * lists of workers, another the list of jobs; the GIL, or without one its own
 * mutex, guards a limiter's fields.  Idle workers wait, without the GIL, for a
 * lock of their own; the last to become idle is the first to be used, which
 * lets the others end.
 *
 * A limiter of one token may have a worker of its own (OneThread), which
 * serves only this limiter and lives until it is released.
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
    JOB_FINISHED, /* its call was posted */
    JOB_ARRIVED,  /* the fiber, if it still waits, has been woken */
} JobState;

/* Invariants:
 * - until it is done, `fiber` waits for it; NULL: abandoned.
 * - `held`: the scheduler expects a wake-up from it (pf_scheduler_hold).
 * - `waits`: its thread waits for a fiber of the scheduler, which meanwhile
 *   expects nothing from it: virtual time may move, a deadlock is reported.
 * - prev/next link it into the list of all jobs that have not finished.
 * - whose is what: until it has a token the limiter's queue decides on `state`;
 *   then it is its worker's, and once it was posted back its fiber's.  What
 *   both write meanwhile, `cancelled`, `callee` and `waits`, is behind the lock
 *   of the list.
 */
struct JobObject {
    PyObject_HEAD
    PfPost call;              /* that it has finished */
    PF_ATOMIC(uint8_t) state; /* JobState */
    PF_ATOMIC(uint8_t) held;
    bool failed; /* `result` is an exception */
    JobObject *prev, *next;
    JobObject *behind; /* in the limiter's queue */
    LimiterObject *limiter;
    SchedulerObject *scheduler;
    FiberObject *fiber;
    PyObject *function;
    PyObject *args; /* NULL: none */
    PyObject *kwargs;
    PyObject *context;
    PyObject *result;
    PyObject
        *cancelled; /* the Cancelled that its waiting fiber got, or NULL */
    FiberObject *callee;  /* what from_thread() waits for in the thread */
    unsigned long thread; /* the thread that runs it; 0: none yet */
    uint64_t waits;       /* the thread's state, if it was held; or 0 */
};

/* Limits how many of its jobs run at a time, and queues the others. */
struct LimiterObject {
    PyObject_HEAD
    PF_OBJECT_MUTEX
    PyObject *weakrefs;
    Py_ssize_t total;
    Py_ssize_t borrowed;
    Py_ssize_t waiting;
    JobObject *first, *last; /* of the queue, which owns a reference to each */
    PyObject *start;         /* starts the thread of its own worker, or NULL */
    WorkerObject *own;       /* once that has been started */
    bool closed; /* no more jobs: its own worker has been released */
    bool abandon_on_cancel;
};

/* --- job.c --- */
static inline JobState
pf_job_state(const JobObject *job)
{
    return (JobState)pf_load_acquire(&job->state);
}
/* A new reference.  Takes the arguments of a vectorcall. */
JobObject *pf_job_new(LimiterObject *limiter, PyObject *const *args,
                      Py_ssize_t nargs, PyObject *kwnames);
/* Its scheduler expects a wake-up from it, unless its fiber has gone or need
 * not wait. */
void pf_job_hold(JobObject *job);
void pf_job_release_hold(JobObject *job);
/* Its fiber waits no longer, because of the raised exception. */
void pf_job_abandon(JobObject *job);
/* Its thread begins, and ends, to wait for a fiber of its run.  They do
 * nothing if it is not held, or the hold was not lent. */
void pf_job_lend_hold(JobObject *job);
void pf_job_take_hold_back(JobObject *job);
JobObject *pf_job_current(void); /* this thread's; borrowed, or NULL */
/* Its fiber keeps waiting although it is cancelled by `exc` (stolen), a
 * Cancelled.  Calls from the thread back into the run are cancelled, now and
 * later. */
void pf_job_cancel(JobObject *job, PyObject *exc);
/* Its thread calls into the run, by that fiber; NULL: no longer.  Returns the
 * Cancelled that its fiber has got already, a new reference, or NULL. */
PyObject *pf_job_calls(JobObject *job, FiberObject *fiber);
/* That alone; and, of a Cancelled, what pf_cancel_now wants. */
PyObject *pf_job_cancelled(JobObject *job);
PyObject *pf_job_why(PyObject *cancelled);
/* It ends without a worker: it fails with `exc` (stolen). */
void pf_job_fail(JobObject *job, PyObject *exc);

/* Run it on this thread, a worker's, and give its token back.  Returns its
 * limiter's next one, as pf_limiter_next. */
JobObject *pf_job_run(JobObject *job);
/* Does that thread, for which a fiber of `s` waits, itself wait for the end of
 * a fiber of `s`? */
bool pf_job_waits_for(const SchedulerObject *s, uint64_t tstate_id);
/* In the child, whose only thread is `t`: the jobs of the others fail. */
void pf_jobs_after_fork(PfThread *t);
int pf_job_init(PyObject *module);

/* --- worker.c --- */
/* Give the job, whose token is taken, to a worker. 0, or -1 with an exception
 * if there is none and no thread can be started. 1: the job continues, but a
 * signal handler, say, raised an exception for the caller. */
int pf_worker_dispatch(JobObject *job);
/* The limiter's own worker, which has no job, ends. */
void pf_worker_release(LimiterObject *limiter);

/* --- limiter.c --- */
/* One of its jobs is done.  Returns the next one, with its token taken, or
 * NULL.  A new reference. */
JobObject *pf_limiter_next(LimiterObject *limiter);
/* In the child of fork: no token is borrowed, no job is queued. */
void pf_limiter_forget(LimiterObject *limiter);
int pf_limiter_init(PyObject *module);

#endif
