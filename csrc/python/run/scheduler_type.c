/* The Scheduler type: creation, end and methods, also those that other threads
 * may call.  loop.c runs it; run.c makes one for each run(). */
#include "python/core/arguments.h"
#include "python/core/list.h"
#include "python/core/parts.h"
#include "python/core/state.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/core/world.h"
#include "python/pack/pack.h"
#include "python/run/run.h"
#include "python/run/team.h"
#include "python/task/call.h"
#include "python/task/deadline.h"
#include "python/task/explore.h"
#include "python/task/fiber.h"
#include "python/task/post.h"
#include "python/task/scheduler.h"
#include "python/task/unhandled.h"

#include <errno.h>
#include <structmember.h>

/* --------------------------------------------------------------- making one */

static int
open_scheduler(SchedulerObject *s, PfThread *t)
{
    int rc = pf_scheduler_init(&s->core, &t->engine);
    if (rc == -ENOSYS) {
        PyErr_SetString(PyExc_OSError,
                        "PYFIBER_POLLER in the environment names nothing that "
                        "this system can wait with: unset it");
        return -1;
    }
    if (rc < 0) {
        errno = -rc;
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    /* The engine made its creator the hub, but nothing runs its loop yet. */
    s->core.hub = NULL;
    s->core.spin.allowed = pf.in_parallel;
    s->thread = t;
    s->open = true;
    pystate_prepare_try_incref((PyObject *)s);
    PF_LIST_PUSH(t->schedulers, s);
    return 0;
}

/* Takes `s` out of its thread's list and adds its counters to the thread's.
 * To be called on that thread, or while it is stopped. */
static void
unlist(SchedulerObject *s)
{
    PfThread *t = s->thread;
    if (t == NULL) {
        return;
    }
    pf_scheduler_stats *ended = &t->ended, own;
    pf_scheduler_stats_get(&s->core, &own);
    ended->switches += own.switches;
    ended->wakeups += own.wakeups;
    ended->messages += own.messages;
    ended->timeouts += own.timeouts;
    ended->waits += own.waits;
    ended->preemptions += own.preemptions;
    PF_LIST_REMOVE(t->schedulers, s);
    s->thread = NULL;
}

/* As unlist, on any thread, since the last reference may go anywhere.  Does
 * nothing if the scheduler's thread has ended meanwhile, which has done it. */
static void
unlink_scheduler(SchedulerObject *s)
{
    bool stopped = pf_world_stop(s->thread);
    unlist(s);
    pf_world_start(stopped);
}

static PyObject *
scheduler_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"on_unhandled", "slots", "time_slice", NULL};
    PyObject *how = NULL, *wanted = Py_None, *slice = Py_None;
    size_t slots;
    int64_t time_slice;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$OOO:Scheduler", names,
                                     &how, &wanted, &slice) ||
        pf_pack_slots(wanted, &slots) < 0 ||
        pf_scheduler_time_slice(slice, &time_slice) < 0) {
        return NULL;
    }
    PfThread *t = pf_thread_this();
    if (t == NULL ||
        (how != NULL && (how = pf_unhandled_option(how)) == NULL)) {
        return NULL;
    }
    if (t->ending) {
        PyErr_SetString(pf.fiber_error,
                        "the thread is ending: no schedulers any more");
        return NULL;
    }
    SchedulerObject *s = (SchedulerObject *)type->tp_alloc(type, 0);
    if (s == NULL) {
        Py_XDECREF(how);
        return NULL;
    }
    s->on_unhandled = how;
    s->slots = slots;
    pf_store(&s->time_slice, time_slice);
    if (open_scheduler(s, t) < 0) {
        Py_CLEAR(s);
    }
    return (PyObject *)s;
}

void
pf_run_close_now(SchedulerObject *s)
{
    if (s->closed) {
        return;
    }
    s->closed = true;
    pf_run_abandon(s);
    pf_scheduler_close(&s->core);
    pf_run_abandon(s); /* fibers that were in the last messages */
    PF_EACH_PART(part, closed) {
        part->closed(s);
    }
    Py_CLEAR(s->main);
    Py_CLEAR(s->fatal);
}

static void
orphan(SchedulerObject *s)
{
    pf_run_close_now(s);
    pf_unhandled_close_quietly(s);
    unlink_scheduler(s);
    Py_DECREF(s);
}

/* Closes the thread's schedulers.  A scheduler whose last reference has gone
 * on another thread, which is about to stop this one, has no fibers: it only
 * leaves the list. */
static void
thread_end(PfThread *t)
{
    SchedulerObject *s;
    while ((s = t->schedulers) != NULL) {
        if (pystate_try_incref((PyObject *)s)) {
            orphan(s);
        } else {
            unlist(s);
        }
    }
}

/* The child has only this thread.  Each of its schedulers opens descriptors
 * that are not shared with the parent. */
static int
after_fork(PfThread *t)
{
    if (t == NULL) {
        return 0;
    }
    if (t->scheduler != NULL) {
        t->scheduler->inherited = true;
    }
    for (SchedulerObject *s = t->schedulers; s != NULL; s = s->next) {
        int rc = pf_scheduler_after_fork(&s->core);
        if (rc < 0) {
            errno = -rc;
            PyErr_SetFromErrno(PyExc_OSError);
            return -1;
        }
    }
    return t->scheduler == NULL ? 0 : pf_team_after_fork(t->scheduler);
}

const PfPart pf_runs_part = {
    .thread_end = thread_end,
    .after_fork = after_fork,
};

/* ResourceWarning: a program that drops a scheduler with fibers in it has
 * probably forgotten them. */
static void
warn_of_unfinished(SchedulerObject *s)
{
    PyObject *pending = pystate_take_exception();
    if (pf_scheduler_unfinished(s) > 0 &&
        PyErr_ResourceWarning((PyObject *)s, 1,
                              "%R was dropped without close(): its fibers, "
                              "%zd that have not ended, are unwound",
                              s, pf_scheduler_unfinished(s)) < 0) {
        PyErr_WriteUnraisable((PyObject *)s);
    }
    pystate_restore_exception(pending);
}

static bool
is_forgotten(const SchedulerObject *s)
{
    return s->open && !s->closed && !s->running && !pf_state_is_shut_down() &&
           s->thread != NULL;
}

static void
close_forgotten(SchedulerObject *s)
{
    if (is_forgotten(s) && s->thread == pf_thread_current) {
        warn_of_unfinished(s);
        pf_run_close_now(s);
        pf_unhandled_close_quietly(s);
    }
}

/* On the scheduler's thread, after another one has found it to be garbage. */
static void
forgotten_elsewhere(SchedulerObject *here, PyObject *op, PyObject *ignored)
{
    (void)here;
    (void)ignored;
    close_forgotten((SchedulerObject *)op);
}

/* The scheduler was dropped.  If it has fibers, they and the scheduler keep
 * each other alive, and the collector has found that nothing else does.  The
 * collector may run on any thread, but only the scheduler's own may end the
 * fibers. */
static void
scheduler_finalize(PyObject *op)
{
    SchedulerObject *s = (SchedulerObject *)op;
    close_forgotten(s);
    if (is_forgotten(s) && pf_scheduler_unfinished(s) > 0 &&
        pf_post_call_thread(s->thread, forgotten_elsewhere, op, NULL) < 0) {
        PyErr_Clear(); /* no memory: thread_end ends them, without a warning */
    }
}

static int
scheduler_clear(PyObject *op)
{
    SchedulerObject *s = (SchedulerObject *)op;
    Py_CLEAR(s->fatal);
    Py_CLEAR(s->on_unhandled);
    Py_CLEAR(s->errors);
    Py_CLEAR(s->watch);
    PF_EACH_PART(part, clear) {
        part->clear(s);
    }
    return 0;
}

/* Does the finalizer's work, too, because __del__ of a subclass replaces the
 * finalizer.  Otherwise the scheduler and its fibers would keep each other
 * alive for ever. */
static int
scheduler_collect(PyObject *op)
{
    close_forgotten((SchedulerObject *)op);
    return scheduler_clear(op);
}

static void
scheduler_dealloc(PyObject *op)
{
    SchedulerObject *s = (SchedulerObject *)op;
    PyTypeObject *type = Py_TYPE(op);
    if (PyObject_CallFinalizerFromDealloc(op) < 0) {
        return;
    }
    PyObject_GC_UnTrack(op);
    /* Dropping objects below may run code that looks at all schedulers. */
    unlink_scheduler(s);
    if (s->weakrefs != NULL) {
        PyObject_ClearWeakRefs(op);
    }
    Py_CLEAR(s->main);
    (void)scheduler_clear(op);
    pf_unhandled_forget_all(s);
    PF_EACH_PART(part, free) {
        part->free(s);
    }
    if (s->open) {
        pf_scheduler_finish(&s->core);
    }
    pf_mutex_lock(&pf_threads_lock); /* the watchdog may be looking at it */
    pf_mutex_unlock(&pf_threads_lock);
    type->tp_free(op);
    Py_DECREF(type);
}

static int
scheduler_traverse(PyObject *op, visitproc visit, void *arg)
{
    SchedulerObject *s = (SchedulerObject *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(s->main);
    Py_VISIT(s->fatal);
    Py_VISIT(s->on_unhandled);
    Py_VISIT(s->errors);
    Py_VISIT(s->watch);
    PF_EACH_PART(part, traverse) {
        int rc = part->traverse(s, visit, arg);
        if (rc != 0) {
            return rc;
        }
    }
    if (pf_post_traverse(s, visit, arg) != 0) {
        return -1;
    }
    /* The scheduler owns a reference to each of its fibers that is not done. */
    FiberObject *f = s->thread == NULL ? NULL : s->thread->live;
    for (; f != NULL; f = f->next) {
        if (f->scheduled && f->core.scheduler == &s->core) {
            Py_VISIT(f);
        }
    }
    return 0;
}

/* ------------------------------------------------------------------------ run */

PyObject *
pf_run_main(SchedulerObject *s, FiberObject *main)
{
    PyObject *result = pf_run_prepare(s) < 0 ? NULL : pf_loop_run(s, main);
    Py_DECREF(main);
    return result;
}

static PyObject *
scheduler_run(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
              PyObject *kwnames)
{
    FiberObject *main = pf_call_fiber("run()", args, nargs, kwnames);
    if (main != NULL && pf_run_debug((SchedulerObject *)op) < 0) {
        Py_CLEAR(main);
    }
    return main == NULL ? NULL : pf_run_main((SchedulerObject *)op, main);
}

/* ------------------------------------------------------------------- run_once */

/* Raises the failure that ends a turn of run_once(), if there is one: 0, or -1
 * with an exception. */
static int
raise_fatal(SchedulerObject *s)
{
    PyObject *exc = pf_unhandled_joined(s, s->fatal);
    s->fatal = NULL;
    if (exc == NULL) {
        return 0;
    }
    pystate_restore_exception(exc);
    return -1;
}

static PyObject *
scheduler_run_once(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"timeout", NULL};
    SchedulerObject *s = (SchedulerObject *)op;
    PyObject *timeout = NULL;
    int64_t deadline = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:run_once", names,
                                     &timeout) ||
        (timeout != NULL && pf_deadline_by(s, timeout, &deadline) < 0) ||
        pf_run_prepare(s) < 0) {
        return NULL;
    }
    pf_loop_once(s, timeout, deadline);
    if (raise_fatal(s) < 0) {
        return NULL;
    }
    return PyBool_FromLong(pf_scheduler_foreground(s) > 0);
}

/* ------------------------------------------------------- calls from anywhere */

void
pf_run_soon_arrived(SchedulerObject *s, PyObject *fiber, PyObject *ignored)
{
    FiberObject *arrived = (FiberObject *)fiber;
    (void)ignored;
    assert(arrived->core.state == PF_NEW);
    pf_fiber_enroll(s, arrived);
    pf_fetch_sub(&s->coming, 1);
    pf_scheduler_make_ready_fresh(&s->core, &arrived->fiber);
}

static int
refuse_closed(void)
{
    PyErr_SetString(pf.fiber_error, "the scheduler is closed");
    return -1;
}

int
pf_run_start_soon(SchedulerObject *s, FiberObject *fiber)
{
    if (s->closed) {
        return refuse_closed();
    }
    int posted = pf_post_fiber(s, fiber, pf_run_soon_arrived, NULL);
    return posted > 0 ? 0 : posted < 0 ? -1 : refuse_closed();
}

static PyObject *
scheduler_call_soon(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    SchedulerObject *s = (SchedulerObject *)op;
    FiberObject *fiber =
        pf_call_fiber("call_soon_threadsafe()", args, nargs, NULL);
    int rc = fiber == NULL ? -1 : pf_run_start_soon(s, fiber);
    Py_XDECREF(fiber);
    return rc < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *
scheduler_start_soon(PyObject *op, PyObject *fiber)
{
    if (!PyObject_TypeCheck(fiber, pf_task_fiber_type)) {
        PyErr_SetString(PyExc_TypeError, "_start_soon() takes a fiber");
        return NULL;
    }
    int rc = pf_run_start_soon((SchedulerObject *)op, (FiberObject *)fiber);
    return rc < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *
scheduler_on_this_thread(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    SchedulerObject *s = (SchedulerObject *)op;
    return PyBool_FromLong(!s->closed && s->thread != NULL &&
                           s->thread == pf_thread_current);
}

static void
stop_arrived(SchedulerObject *s, PyObject *target, PyObject *argument)
{
    (void)target;
    (void)argument;
    /* `ending` also ends a run whose fibers were left by a direct switch,
     * where no cancellation reaches them.  Without a run, turns of another
     * loop (run_once()) just continue. */
    s->ending = s->ending || s->main != NULL;
    pf_run_cancel_because(s, "the scheduler was stopped");
}

static PyObject *
scheduler_stop(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    SchedulerObject *s = (SchedulerObject *)op;
    if (!s->closed && pf_post_call(s, stop_arrived, NULL, NULL) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static int
may_spawn(SchedulerObject *s)
{
    if (!s->closed && s->thread == pf_thread_current) {
        return 0;
    }
    PyErr_SetString(pf.fiber_error,
                    s->closed ? "the scheduler is closed"
                              : "the scheduler belongs to another thread: use "
                                "call_soon_threadsafe()");
    return -1;
}

static PyObject *
scheduler_spawn(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                PyObject *kwnames)
{
    SchedulerObject *s = (SchedulerObject *)op;
    FiberObject *fiber = pf_call_fiber("spawn()", args, nargs, kwnames);
    if (fiber != NULL && (may_spawn(s) < 0 || pf_fiber_start(s, fiber) < 0)) {
        Py_CLEAR(fiber);
    }
    return (PyObject *)fiber;
}

/* -------------------------------------------------------------------- the rest */

static PyObject *
scheduler_fileno(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    SchedulerObject *s = (SchedulerObject *)op;
    if (s->closed) {
        PyErr_SetString(pf.fiber_error, "the scheduler is closed");
        return NULL;
    }
    int fd = s->core.poller->ops->fileno(s->core.poller);
    if (fd < 0) {
        PyErr_SetString(PyExc_NotImplementedError,
                        "this platform's scheduler has no descriptor to wait "
                        "for: call run_once() from a timer");
        return NULL;
    }
    if (!s->hosted) {
        s->hosted = true;
        if (!s->running) {
            pf_scheduler_rest(&s->core);
        }
    }
    return PyLong_FromLong(fd);
}

static int
refuse_from_here(SchedulerObject *s)
{
    if (!s->closed && s->thread == pf_thread_current) {
        return 0;
    }
    PyErr_SetString(pf.fiber_error,
                    s->closed ? "the scheduler is closed"
                              : "the scheduler belongs to another thread");
    return -1;
}

static PyObject *
next_timeout(SchedulerObject *s)
{
    if (s->core.ready.head != NULL || pf_inbox_pending(&s->core.inbox)) {
        return PyFloat_FromDouble(0.0);
    }
    int64_t when = pf_timers_next(&s->core.timers);
    if (when == PF_NEVER) {
        Py_RETURN_NONE;
    }
    int64_t left = when - pf_scheduler_now(&s->core);
    return PyFloat_FromDouble(left > 0 ? (double)left / 1e9 : 0.0);
}

static PyObject *
scheduler_next_timeout(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    SchedulerObject *s = (SchedulerObject *)op;
    return refuse_from_here(s) < 0 ? NULL : next_timeout(s);
}

static PyObject *
scheduler_turn(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    SchedulerObject *s = (SchedulerObject *)op;
    if (pf_run_prepare(s) < 0) {
        return NULL;
    }
    s->in_turn = true;
    pf_loop_once(s, NULL, 0);
    if (raise_fatal(s) < 0) {
        return NULL;
    }
    return s->closed ? Py_NewRef(Py_None) : next_timeout(s);
}

static PyObject *
scheduler_stir(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    SchedulerObject *s = (SchedulerObject *)op;
    if (refuse_from_here(s) < 0) {
        return NULL;
    }
    pf_scheduler_unrest(&s->core);
    Py_RETURN_NONE;
}

static PyObject *
scheduler_close(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    SchedulerObject *s = (SchedulerObject *)op;
    if (s->running ||
        (s->thread != pf_thread_current && pf_scheduler_unfinished(s) > 0)) {
        PyErr_SetString(pf.fiber_error,
                        s->running
                            ? "the scheduler is running"
                            : "the scheduler belongs to another thread");
        return NULL;
    }
    pf_run_close_now(s);
    return pf_unhandled_close(s) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *
scheduler_stats(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    SchedulerObject *s = (SchedulerObject *)op;
    pf_scheduler_stats stats;
    pf_scheduler_stats_get(&s->core, &stats);
    return Py_BuildValue(
        "{s:n,s:n,s:n,s:n,s:K,s:K,s:K,s:K,s:K,s:K}", "fibers",
        pf_scheduler_unfinished(s), "foreground", pf_scheduler_foreground(s),
        "ready", (Py_ssize_t)stats.ready, "timers", (Py_ssize_t)stats.timers,
        "switches", (unsigned long long)stats.switches, "wakeups",
        (unsigned long long)stats.wakeups, "messages",
        (unsigned long long)stats.messages, "timeouts",
        (unsigned long long)stats.timeouts, "waits",
        (unsigned long long)stats.waits, "preemptions",
        (unsigned long long)stats.preemptions);
}

static PyObject *
scheduler_fibers(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    SchedulerObject *s = (SchedulerObject *)op;
    if (s->thread == NULL) {
        return PyList_New(0);
    }
    if (s->thread != pf_thread_current) {
        PyErr_SetString(pf.fiber_error,
                        "the scheduler belongs to another thread");
        return NULL;
    }
    return pf_run_fibers(s);
}

PyDoc_STRVAR(run_doc, "run($self, fn, /, *args, **kwargs)\n--\n\n\
Run fn(*args, **kwargs) in a fiber until it and every non-daemon fiber are done.\n\
\n\
Returns its result or raises its exception, after cancelling and joining the\n\
other fibers. FiberError inside of a run, on another thread, after close().");
PyDoc_STRVAR(once_doc, "run_once($self, /, timeout=0)\n--\n\n\
Run every fiber that is ready now once; for embedding in another loop.\n\
\n\
If none is ready, wait up to `timeout` seconds (None: without limit) for one.\n\
True while there are non-daemon fibers left.");
PyDoc_STRVAR(soon_doc, "call_soon_threadsafe($self, fn, /, *args)\n--\n\n\
Run fn(*args) in a new fiber. May be called from any thread.\n\
\n\
A failure is logged. FiberError after close().");
PyDoc_STRVAR(stop_doc, "stop($self, /)\n--\n\n\
Cancel every fiber, which ends run(). May be called from any thread.\n\
\n\
Fibers that this run starts afterwards begin cancelled.");
PyDoc_STRVAR(spawn_doc, "spawn($self, fn, /, *args, **kwargs)\n--\n\n\
Start fn(*args, **kwargs) in a fiber, also while the scheduler does not run.");
PyDoc_STRVAR(fileno_doc, "fileno($self, /)\n--\n\n\
A descriptor that becomes readable when the scheduler is given work.\n\
\n\
Timers do not make it readable, so another event loop waits for it at most\n\
next_timeout() seconds, and then calls run_once(). NotImplementedError on\n\
Windows.");
PyDoc_STRVAR(next_timeout_doc, "next_timeout($self, /)\n--\n\n\
Seconds until run_once() has work to do (a float, 0.0: now); None if only a\n\
message from another thread or a descriptor can give it work.");
PyDoc_STRVAR(close_doc, "close($self, /)\n--\n\n\
Unwind the remaining fibers with FiberExit. Closing twice is fine.\n\
\n\
Failures that nobody has looked at are reported; with on_unhandled=\"raise\"\n\
they are raised after everything is closed.");
PyDoc_STRVAR(stats_doc, "stats($self, /)\n--\n\n\
Counters as a dict.\n\
\n\
Now: fibers, foreground (of these, not daemon), ready, timers. So far:\n\
switches, wakeups, messages (from other threads), timeouts, waits,\n\
preemptions (of fibers over their time slice).");
PyDoc_STRVAR(fibers_doc, "fibers($self, /)\n--\n\n\
The fibers that are not done, oldest first.");

static PyMethodDef scheduler_methods[] = {
    PF_METHOD("run", scheduler_run, run_doc),
    {"run_once", PF_FAST(scheduler_run_once), METH_VARARGS | METH_KEYWORDS,
     once_doc},
    {"call_soon_threadsafe", PF_FAST(scheduler_call_soon), METH_FASTCALL,
     soon_doc},
    {"_start_soon", scheduler_start_soon, METH_O,
     "_start_soon($self, fiber, /)\n--\n\n"
     "Start a fiber that has not been started; from any thread."},
    {"_on_this_thread", scheduler_on_this_thread, METH_NOARGS,
     "_on_this_thread($self, /)\n--\n\n"
     "Whether the scheduler is open and belongs to the calling thread."},
    {"stop", scheduler_stop, METH_NOARGS, stop_doc},
    PF_METHOD("spawn", scheduler_spawn, spawn_doc),
    {"fileno", scheduler_fileno, METH_NOARGS, fileno_doc},
    {"next_timeout", scheduler_next_timeout, METH_NOARGS, next_timeout_doc},
    {"_turn", scheduler_turn, METH_NOARGS,
     "_turn($self, /)\n--\n\n"
     "As run_once(0), but return what next_timeout() would. If that is 0 the\n"
     "caller must call again soon: the descriptor does not become readable."},
    {"_stir", scheduler_stir, METH_NOARGS,
     "_stir($self, /)\n--\n\n"
     "Announce that the caller will call _turn() soon: until then the\n"
     "descriptor does not become readable."},
    {"close", scheduler_close, METH_NOARGS, close_doc},
    {"stats", scheduler_stats, METH_NOARGS, stats_doc},
    {"fibers", scheduler_fibers, METH_NOARGS, fibers_doc},
    {NULL, NULL, 0, NULL},
};

static PyObject *
get_time_slice(PyObject *op, void *closure)
{
    (void)closure;
    int64_t ns = pf_load(&((SchedulerObject *)op)->time_slice);
    return ns == 0 ? Py_NewRef(Py_None) : PyFloat_FromDouble((double)ns / 1e9);
}

/* A run that has no slice at its beginning gets none later, as nobody watches
 * it. */
static int
set_time_slice(PyObject *op, PyObject *value, void *closure)
{
    (void)closure;
    SchedulerObject *s = (SchedulerObject *)op;
    int64_t ns;
    if (value == NULL) {
        PyErr_SetString(PyExc_TypeError, "time_slice cannot be deleted");
        return -1;
    }
    if (pf_scheduler_time_slice(value, &ns) < 0) {
        return -1;
    }
    if (s->running && (ns == 0) != (pf_load(&s->time_slice) == 0)) {
        PyErr_SetString(pf.fiber_error,
                        "time slices cannot be turned on or off during a run");
        return -1;
    }
    pf_store(&s->time_slice, ns);
    return 0;
}

static PyGetSetDef scheduler_getset[] = {
    {"time_slice", get_time_slice, set_time_slice,
     "The time slice in seconds, or None. FiberError if it is turned on or "
     "off\n"
     "during a run.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef scheduler_members[] = {
    PF_WEAKREFS(SchedulerObject),
    {NULL, 0, 0, 0, NULL},
};

PyDoc_STRVAR(
    scheduler_doc,
    "Scheduler(*, on_unhandled='log', slots=None, time_slice=None)\n--\n\n\
The loop that chooses which fiber runs, for embedders; run() makes its own.\n\
\n\
`on_unhandled` says what happens to failures that nobody looks at, as for\n\
run(): \"log\", \"raise\" (also from run_once() and close()) or a function.\n\
`slots` is how many stacks its fibers share once there are more than four\n\
times as many fibers: then a waiting fiber gives its stack to one that runs,\n\
and gets it back when its turn comes, which saves memory. 0: each fiber has a\n\
separate stack. None: the default, 256, or what PYFIBER_SLOTS says in the\n\
environment. Fewer than 16 are for tests, and are shared by any fibers beyond\n\
that number. ValueError: negative, or 1.\n\
`time_slice`: seconds after which a fiber that computes is switched away from\n\
while another one is ready, as for run().\n\
A scheduler belongs to the thread that made it; call_soon_threadsafe() and\n\
stop() may be called from any thread.");

static PyType_Slot scheduler_slots[] = {
    {Py_tp_doc, (void *)scheduler_doc},   {Py_tp_new, scheduler_new},
    {Py_tp_dealloc, scheduler_dealloc},   {Py_tp_finalize, scheduler_finalize},
    {Py_tp_traverse, scheduler_traverse}, {Py_tp_clear, scheduler_collect},
    {Py_tp_methods, scheduler_methods},   {Py_tp_members, scheduler_members},
    {Py_tp_getset, scheduler_getset},     {0, NULL},
};

/* Returns a new reference, or NULL with an exception. */
PyTypeObject *
pf_run_add_scheduler_type(PyObject *module)
{
    static PyType_Spec spec = {
        .name = "pyfiber.Scheduler",
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
        .slots = scheduler_slots,
    };
    spec.basicsize = (int)(sizeof(SchedulerObject) + pf_parts_of_scheduler);
    return pf_arguments_add_type(module, &spec, NULL);
}
