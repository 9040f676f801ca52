/* ThreadLimiter: limits how many functions run in threads at a time;
 * to_thread().  worker.c runs the jobs.
 *
 * A fiber that calls to_thread() parks once, until the job is done: the job,
 * not the fiber, waits in the limiter's queue for a token.
 */
#include "python/cancel/cancel.h"
#include "python/core/arguments.h"
#include "python/core/objlock.h"
#include "python/core/state.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/switch/pending.h"
#include "python/task/call.h"
#include "python/task/cancelling.h"
#include "python/task/fiber.h"
#include "python/task/scheduler.h"
#include "python/threads/worker.h"
#include "python/wait/wait.h"

#include <structmember.h>

/* ---------------------------------------------------------------- the queue */

static void
enqueue(LimiterObject *self, JobObject *job)
{
    Py_INCREF(job);
    if (self->last == NULL) {
        self->first = job;
    } else {
        self->last->behind = job;
    }
    self->last = job;
    self->waiting++;
}

static JobObject *
dequeue(LimiterObject *self)
{
    JobObject *job = self->first;
    if (job != NULL) {
        self->first = job->behind;
        if (self->first == NULL) {
            self->last = NULL;
        }
        job->behind = NULL;
        self->waiting--;
    }
    return job;
}

/* Takes the job out of the queue, because its fiber has stopped waiting.
 * Returns false if the job is not there: it has got a token before. */
static bool
withdraw(LimiterObject *self, JobObject *job)
{
    PF_LOCK(self);
    JobObject *before = NULL;
    JobObject **link = &self->first;
    while (*link != NULL && *link != job) {
        before = *link;
        link = &before->behind;
    }
    bool queued = *link != NULL;
    if (queued) {
        *link = job->behind;
        self->last = self->last == job ? before : self->last;
        job->behind = NULL;
        self->waiting--;
    }
    PF_UNLOCK(self);
    if (queued) {
        Py_DECREF(job);
    }
    return queued;
}

/* Takes the next job from the queue, and a token for it; NULL: none may begin.
 * `returned`: another job gives its token back.  (`borrowed` may be 0 even so,
 * if a fork came in between: pf_limiter_forget.) */
static JobObject *
take_waiting(LimiterObject *self, bool returned)
{
    PF_LOCK(self);
    if (returned && self->borrowed > 0) {
        self->borrowed--;
    }
    JobObject *job = self->borrowed < self->total ? dequeue(self) : NULL;
    if (job != NULL) {
        self->borrowed++;
        pf_store(&job->state, JOB_RUNNING); /* from now on not withdrawn */
    }
    PF_UNLOCK(self);
    return job;
}

JobObject *
pf_limiter_next(LimiterObject *self)
{
    return take_waiting(self, true);
}

void
pf_limiter_forget(LimiterObject *self)
{
    JobObject *job;
    self->borrowed = 0;
    while ((job = dequeue(self)) != NULL) {
        Py_DECREF(job);
    }
}

/* Starts the jobs for which there are tokens.  0, or -1 with an exception for
 * the caller, not for a job; even then all of them have begun. */
static int
dispatch_waiting(LimiterObject *self, bool returned)
{
    PyObject *interrupt = NULL;
    JobObject *job = take_waiting(self, returned);
    while (job != NULL) {
        int rc = pf_worker_dispatch(job);
        if (rc < 0) {
            pf_job_fail(job, pystate_take_exception());
        } else if (rc > 0) {
            Py_XSETREF(interrupt, pystate_take_exception());
        }
        Py_DECREF(job);
        job = take_waiting(self, rc < 0);
    }
    pystate_restore_exception(interrupt);
    return interrupt == NULL ? 0 : -1;
}

/* Gives back the token of a job that got no thread, and starts jobs that were
 * queued meanwhile.  An exception that is set on entry stays set. */
static void
give_token_back(LimiterObject *self)
{
    PyObject *raised = pystate_take_exception();
    if (dispatch_waiting(self, true) < 0) {
        PyErr_WriteUnraisable((PyObject *)self);
    }
    pystate_restore_exception(raised);
}

/* ---------------------------------------------------------------- to_thread */

/* Takes a token for the job, or queues it to wait for one.  Returns false if
 * the limiter is closed. */
static bool
admit(LimiterObject *self, JobObject *job, bool *queued)
{
    PF_LOCK(self);
    bool open = !self->closed;
    *queued = open && self->borrowed >= self->total;
    if (*queued) {
        enqueue(self, job);
    } else if (open) {
        self->borrowed++;
    }
    PF_UNLOCK(self);
    return open;
}

static int
submit(LimiterObject *self, JobObject *job)
{
    bool queued;
    if (!admit(self, job, &queued)) {
        PyErr_SetString(pf.fiber_error,
                        "the OneThread takes no more calls: it was closed");
        return -1;
    }
    if (queued) {
        return 0;
    }
    /* May start a thread, which runs code, in which the run may be left. */
    int rc = pf_worker_dispatch(job);
    if (rc < 0) {
        give_token_back(self);
    } else if (rc == 0 && pf_thread_current->scheduler != job->scheduler) {
        PyErr_SetString(pf.fiber_error,
                        "the run was left while a thread was started for it");
        rc = -1;
    }
    return rc == 0 ? 0 : -1;
}

/* The fiber no longer waits for the job, whether that has begun or not. */
static void
let_go(LimiterObject *self, JobObject *job)
{
    (void)withdraw(self, job);
    pf_job_abandon(job);
}

/* An exception ended the wait before the job was done.  Returns true if the
 * fiber must go on waiting: the job has begun, and the exception is only a
 * cancellation.  (Another thread may be about to give the job a token, so it
 * is withdrawn before anything is decided.) */
static bool
must_see_its_end(LimiterObject *self, JobObject *job)
{
    return !withdraw(self, job) && !self->abandon_on_cancel &&
           PyErr_ExceptionMatches(pf.cancelled);
}

/* Parks the fiber until the job is done: 0; or -1 with an exception, and the
 * job is withdrawn or abandoned. */
static int
wait_for(LimiterObject *self, PfThread *t, JobObject *job)
{
    FiberObject *fiber = CURRENT(t);
    bool shielded = false;
    while (pf_job_state(job) != JOB_ARRIVED) {
        int rc = shielded ? pf_wait_anyhow(t, PF_NEVER, (PyObject *)job)
                          : pf_wait(t, PF_NEVER, (PyObject *)job);
        if (rc >= 0) {
            continue;
        }
        bool dying = fiber->dying;
        if (!dying && pf_job_state(job) == JOB_ARRIVED) {
            PyErr_Clear(); /* the job was done before the exception came */
            pf_parts_hooks.cancelling->retract(fiber);
        } else if (!dying && must_see_its_end(self, job)) {
            /* The fiber's next park point raises it again. */
            pf_job_cancel(job, pystate_take_exception());
            shielded = true;
        } else {
            let_go(self, job);
            return -1;
        }
    }
    return 0;
}

static PyObject *
take_result(JobObject *job)
{
    PyObject *result = job->result;
    job->result = NULL;
    if (result == NULL) {
        PyErr_SetString(pf.fiber_error,
                        "the scheduler was closed while a thread ran the "
                        "function");
    } else if (job->failed) {
        pystate_restore_exception(result);
        result = NULL;
    }
    return result;
}

static int
may_submit(PfThread *t, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs < 1) {
        PyErr_SetString(PyExc_TypeError,
                        "to_thread() takes a function to call");
        return -1;
    }
    if (pf_call_check("to_thread()", args[0]) < 0) {
        return -1;
    }
    if (t == NULL || pf_scheduler_active(t, "to_thread()") == NULL ||
        (t->pending != 0 && pf_pending_before_wait(t) < 0)) {
        return -1;
    }
    return pf_cancelling_check(CURRENT(t));
}

static PyObject *
limiter_to_thread(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                  PyObject *kwnames)
{
    LimiterObject *self = (LimiterObject *)op;
    PfThread *t = pf_thread_this();
    if (may_submit(t, args, nargs) < 0) {
        return NULL;
    }
    JobObject *job = pf_job_new(self, args, nargs, kwnames);
    if (job == NULL) {
        return NULL;
    }
    pf_job_hold(job);
    PyObject *result = NULL;
    if (submit(self, job) < 0) {
        let_go(self, job);
    } else if (wait_for(self, t, job) == 0) {
        result = take_result(job);
    }
    Py_DECREF(job);
    return result;
}

/* ----------------------------------------------------------------- the type */

static int
check_total(PyObject *number, Py_ssize_t *total)
{
    Py_ssize_t n = PyNumber_AsSsize_t(number, PyExc_OverflowError);
    if (n == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (n < 1) {
        PyErr_SetString(PyExc_ValueError, "total_tokens must be at least 1");
        return -1;
    }
    *total = n;
    return 0;
}

static PyObject *
limiter_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"total_tokens", "abandon_on_cancel", NULL};
    PyObject *number;
    int abandon = 0;
    Py_ssize_t total;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$p:ThreadLimiter", names,
                                     &number, &abandon) ||
        check_total(number, &total) < 0) {
        return NULL;
    }
    LimiterObject *self = (LimiterObject *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->total = total;
        self->abandon_on_cancel = abandon != 0;
    }
    return (PyObject *)self;
}

static int
limiter_traverse(PyObject *op, visitproc visit, void *arg)
{
    LimiterObject *self = (LimiterObject *)op;
    Py_VISIT(Py_TYPE(op));
    for (JobObject *job = self->first; job != NULL; job = job->behind) {
        Py_VISIT(job);
    }
    Py_VISIT(self->start);
    return 0;
}

static int
limiter_clear(PyObject *op)
{
    pf_worker_release((LimiterObject *)op);
    Py_CLEAR(((LimiterObject *)op)->start);
    return 0;
}

/* Each job holds a reference to the limiter, so when that dies its queue is
 * empty. */
static void
limiter_dealloc(PyObject *op)
{
    pf_arguments_dealloc_with(op, limiter_clear);
}

enum { TOTAL, BORROWED, AVAILABLE, WAITING };

static PyObject *
get_count(PyObject *op, void *which)
{
    LimiterObject *self = (LimiterObject *)op;
    PF_LOCK(self);
    Py_ssize_t left = self->total - self->borrowed;
    const Py_ssize_t counts[] = {
        [TOTAL] = self->total,
        [BORROWED] = self->borrowed,
        [AVAILABLE] = left > 0 ? left : 0,
        [WAITING] = self->waiting,
    };
    PF_UNLOCK(self);
    return PyLong_FromSsize_t(counts[(intptr_t)which]);
}

static int
set_total(PyObject *op, PyObject *value, void *closure)
{
    (void)closure;
    LimiterObject *self = (LimiterObject *)op;
    if (value == NULL) {
        PyErr_SetString(PyExc_AttributeError,
                        "total_tokens cannot be deleted");
        return -1;
    }
    Py_ssize_t total;
    if (check_total(value, &total) < 0) {
        return -1;
    }
    PF_LOCK(self);
    self->total = total;
    PF_UNLOCK(self);
    return dispatch_waiting(self, false);
}

static PyObject *
limiter_repr(PyObject *op)
{
    LimiterObject *self = (LimiterObject *)op;
    PF_LOCK(self);
    Py_ssize_t borrowed = self->borrowed, total = self->total;
    Py_ssize_t waiting = self->waiting;
    PF_UNLOCK(self);
    return PyUnicode_FromFormat(
        "<ThreadLimiter, %zd of %zd tokens borrowed, %zd waiting>", borrowed,
        total, waiting);
}

static PyGetSetDef limiter_getset[] = {
    {"total_tokens", get_count, set_total,
     "How many functions may run at a time. Settable: a higher number lets\n"
     "waiting calls begin at once, a lower one stops no function that runs.",
     (void *)TOTAL},
    {"borrowed_tokens", get_count, NULL, "How many functions run now.",
     (void *)BORROWED},
    {"available_tokens", get_count, NULL,
     "How many more functions could begin now.", (void *)AVAILABLE},
    {"waiting", get_count, NULL, "How many fibers wait for a token.",
     (void *)WAITING},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(to_thread_doc, "to_thread($self, fn, /, *args, **kwargs)\n--\n\n\
Run fn(*args, **kwargs) in a thread while other fibers run; return its result.\n\
\n\
fn sees a copy of the caller's contextvars; what it changes there stays there.\n\
If the caller is cancelled before fn has a token, fn is never called. A later\n\
cancellation is raised at the next park point after fn has returned; with\n\
abandon_on_cancel it is raised at once, and the result of fn is dropped.\n\
FiberError outside of a run.");

/* For OneThread: gives the limiter a private worker.  `start` is called with
 * the function that the thread has to run. */
static PyObject *
limiter_own_thread(PyObject *op, PyObject *start)
{
    Py_XSETREF(((LimiterObject *)op)->start, Py_NewRef(start));
    Py_RETURN_NONE;
}

static PyObject *
limiter_end_thread(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    LimiterObject *self = (LimiterObject *)op;
    PF_LOCK(self);
    self->closed = true;
    PF_UNLOCK(self);
    pf_worker_release((LimiterObject *)op);
    Py_RETURN_NONE;
}

static PyMethodDef limiter_methods[] = {
    {"to_thread", PF_FAST(limiter_to_thread), METH_FASTCALL | METH_KEYWORDS,
     to_thread_doc},
    {"_own_thread", limiter_own_thread, METH_O,
     "Get a private thread, which start(run) starts when it is first needed."},
    {"_end_thread", limiter_end_thread, METH_NOARGS,
     "Accept no more calls, and let the private thread end."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef limiter_members[] = {
    {"abandon_on_cancel", T_BOOL, offsetof(LimiterObject, abandon_on_cancel),
     READONLY,
     "Whether a cancelled to_thread() raises at once, without waiting for "
     "its\n"
     "thread."},
    PF_WEAKREFS(LimiterObject),
    {NULL, 0, 0, 0, NULL},
};

PyDoc_STRVAR(limiter_doc,
             "ThreadLimiter(total_tokens, *, abandon_on_cancel=False)\n--\n\n\
Let at most `total_tokens` functions run in threads at a time; others wait.\n\
\n\
One limiter may serve the fibers of several threads. ValueError for less than\n\
one token.");

static PyType_Slot limiter_slots[] = {
    {Py_tp_doc, (void *)limiter_doc},   {Py_tp_new, limiter_new},
    {Py_tp_dealloc, limiter_dealloc},   {Py_tp_clear, limiter_clear},
    {Py_tp_traverse, limiter_traverse}, {Py_tp_repr, limiter_repr},
    {Py_tp_methods, limiter_methods},   {Py_tp_getset, limiter_getset},
    {Py_tp_members, limiter_members},   {0, NULL},
};

static PyType_Spec limiter_spec = {
    .name = "pyfiber.threads.ThreadLimiter",
    .basicsize = sizeof(LimiterObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = limiter_slots,
};

int
pf_limiter_init(PyObject *module)
{
    PyTypeObject *type = pf_arguments_add_type(module, &limiter_spec, NULL);
    Py_XDECREF(type);
    return type == NULL ? -1 : 0;
}
