/* The Scheduler type: the loop, what starts it and what ends it.
 *
 * The fiber that calls run() becomes the hub: it gets control when nobody is
 * ready (then it waits, with the GIL released) and when a fiber's end may be
 * the end of the run.  Fibers that yield or park switch to each other
 * directly and never pass through it.
 */
#include "python/binding.h"

#include <errno.h>
#include <structmember.h>

/* --------------------------------------------------------------- making one */

static int
open_scheduler(SchedulerObject *s, PfThread *t)
{
    int rc = pf_scheduler_init(&s->core, &t->engine);
    if (rc < 0) {
        errno = -rc;
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    s->thread = t;
    s->adopted = 1;
    return 0;
}

static PyObject *
scheduler_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":Scheduler", names)) {
        return NULL;
    }
    PfThread *t = pf_this_thread();
    if (t == NULL) {
        return NULL;
    }
    SchedulerObject *s = (SchedulerObject *)type->tp_alloc(type, 0);
    if (s != NULL && open_scheduler(s, t) < 0) {
        Py_CLEAR(s);
    }
    return (PyObject *)s;
}

/* Fibers of `s`, and raw ones waiting in it, that are still suspended; a new
 * reference or NULL. */
static FiberObject *
find_leftover(SchedulerObject *s)
{
    for (FiberObject *f = s->thread->live; f != NULL; f = f->next) {
        if (f->core.scheduler == &s->core && f->core.state != PF_RUNNING &&
            f->core.state != PF_DONE && f != CURRENT(s->thread)) {
            return (FiberObject *)Py_NewRef((PyObject *)f);
        }
    }
    return NULL;
}

/* Unwind what is left with FiberExit. */
static void
abandon(SchedulerObject *s)
{
    FiberObject *fiber;
    while ((fiber = find_leftover(s)) != NULL) {
        if (fiber->core.stack != NULL) {
            pf_fiber_unwind(s->thread, fiber);
        } else {
            pf_queue_remove(&s->core.ready, &fiber->core);
            PyErr_SetNone(pf.fiber_exit);
            pf_fiber_end(s->thread, fiber, NULL);
        }
        Py_DECREF(fiber);
    }
}

static void
close_now(SchedulerObject *s)
{
    if (s->closed) {
        return;
    }
    s->closed = true;
    if (s->alive > 0 || s->thread->live != NULL) {
        abandon(s);
    }
    Py_CLEAR(s->main);
    Py_CLEAR(s->fatal);
}

static void
scheduler_dealloc(PyObject *op)
{
    SchedulerObject *s = (SchedulerObject *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    if (s->weakrefs != NULL) {
        PyObject_ClearWeakRefs(op);
    }
    Py_CLEAR(s->main);
    Py_CLEAR(s->fatal);
    if (s->adopted) {
        pf_scheduler_finish(&s->core);
    }
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
    return 0;
}

static int
scheduler_clear(PyObject *op)
{
    SchedulerObject *s = (SchedulerObject *)op;
    Py_CLEAR(s->fatal);
    return 0;
}

/* -------------------------------------------------------------- ending a run */

/* The run ends with `exc` (stolen), unless something has ended it before. */
void
pf_scheduler_fail(SchedulerObject *s, PyObject *exc)
{
    if (s->fatal == NULL) {
        s->fatal = exc;
    } else {
        Py_DECREF(exc);
    }
}

void
pf_scheduler_cancel_all(SchedulerObject *s, PyObject *reason)
{
    for (FiberObject *f = s->thread->live; f != NULL; f = f->next) {
        if (f->core.scheduler == &s->core &&
            (f->core.host_bits & PF_F_SCHEDULED)) {
            pf_cancel_now(f, reason, Py_None);
        }
    }
}

static void
fail_with_raised(SchedulerObject *s)
{
    pf_scheduler_fail(s, pf_take_exception());
}

static void
cancel_all_because(SchedulerObject *s, const char *reason)
{
    PyObject *text = PyUnicode_FromString(reason);
    if (text == NULL) {
        PyErr_Clear();
        text = Py_NewRef(Py_None);
    }
    pf_scheduler_cancel_all(s, text);
    Py_DECREF(text);
}

/* ------------------------------------------------------------------- the loop */

static PyObject *
list_of_fibers(SchedulerObject *s)
{
    PyObject *list = PyList_New(0);
    for (FiberObject *f = s->thread->live; list != NULL && f != NULL;
         f = f->next) {
        if (f->core.scheduler == &s->core &&
            PyList_Append(list, (PyObject *)f) < 0) {
            Py_CLEAR(list);
        }
    }
    if (list != NULL && PyList_Reverse(list) < 0) {
        Py_CLEAR(list);
    }
    return list;
}

static void
deadlock(SchedulerObject *s)
{
    PyObject *fibers = list_of_fibers(s);
    PyObject *text = NULL;
    if (fibers != NULL && pf.deadlock_text != NULL) {
        text = PyObject_CallOneArg(pf.deadlock_text, fibers);
    }
    Py_XDECREF(fibers);
    if (text != NULL) {
        PyErr_SetObject(pf.deadlock_error, text);
        Py_DECREF(text);
    } else if (!PyErr_Occurred()) {
        PyErr_SetString(pf.deadlock_error,
                        "every fiber waits and nothing can wake one");
    }
    fail_with_raised(s);
}

/* Python's signal handlers run here while the loop idles; they must not
 * switch, for the hub is in the middle of its work. */
static int
run_signal_handlers(SchedulerObject *s)
{
    pf_no_switch_begin(s->thread, "in a signal handler that interrupted the "
                                  "idle scheduler");
    int rc = PyErr_CheckSignals();
    pf_no_switch_end(s->thread);
    if (rc < 0) {
        fail_with_raised(s);
    }
    return rc;
}

/* Nothing is ready.  Wait until `deadline`, or find that waiting is vain. */
static void
idle(SchedulerObject *s, int64_t deadline)
{
    if (s->core.ready.head != NULL || run_signal_handlers(s) < 0 ||
        s->core.ready.head != NULL) {
        return;
    }
    if (deadline == PF_NEVER && !pf_scheduler_expects(&s->core) &&
        !pf_other_threads(s->thread->tstate)) {
        deadlock(s);
        return;
    }
    int rc = pf_scheduler_wait(&s->core, deadline);
    pf_signals_drain();
    if (rc < 0) {
        errno = -rc;
        PyErr_SetFromErrno(PyExc_OSError);
        fail_with_raised(s);
        return;
    }
    (void)run_signal_handlers(s);
}

/* A raw fiber whose parent is the hub ended.  Its failure must not be lost. */
static void
take_stray(SchedulerObject *s)
{
    if (s->thread->transfer == NULL) {
        return;
    }
    PyObject *value = pf_value_in_parent(s->thread);
    if (value == NULL) {
        fail_with_raised(s);
    }
    Py_XDECREF(value);
}

/* Let the next ready fiber run; false if there is none. */
static bool
run_next(SchedulerObject *s, FiberObject *hub)
{
    hub->core.state = PF_PARKED;
    pf_fiber *next = pf_next(&s->core);
    if (next == &hub->core) {
        hub->core.state = PF_RUNNING;
        return s->core.ready.head != NULL;
    }
    pf_switch_with(&s->thread->engine, next, pf_on_switch);
    hub->core.state = PF_RUNNING;
    take_stray(s);
    return true;
}

typedef struct HubScope {
    FiberObject *hub;
    pf_scheduler *raw; /* what the hub's own core.scheduler was */
} HubScope;

static void
hub_begin(SchedulerObject *s, HubScope *scope)
{
    PfThread *t = s->thread;
    scope->hub = CURRENT(t);
    scope->hub->core.host_bits |= PF_F_HUB;
    s->core.hub = &scope->hub->core;
    s->running = true;
    t->scheduler = s;
    Py_INCREF(s);
}

static void
hub_end(SchedulerObject *s, HubScope *scope)
{
    PfThread *t = s->thread;
    pf_queue_remove(&s->core.ready, s->core.hub);
    scope->hub->core.state = PF_RUNNING;
    scope->hub->core.host_bits &= ~(uint32_t)PF_F_HUB;
    s->core.hub = NULL;
    s->running = false;
    t->scheduler = NULL;
    Py_DECREF(s);
}

static bool
failed(SchedulerObject *s)
{
    return s->fatal != NULL ||
           (s->main != NULL && s->main->core.state == PF_DONE &&
            s->main->core.host_byte != PF_OUTCOME_OK);
}

/* Until main and every non-daemon fiber are done; then, or when something
 * fails, cancel the rest and wait for that. */
static void
loop(SchedulerObject *s, FiberObject *hub)
{
    bool cancelled = false;
    while (s->alive > 0 && s->interrupts < 2) {
        if (!cancelled && (s->foreground == 0 || failed(s))) {
            cancelled = true;
            cancel_all_because(s, s->foreground == 0
                                      ? "the run is over"
                                      : "another fiber ended the run");
        }
        if (!run_next(s, hub)) {
            idle(s, PF_NEVER);
        }
        if (s->fatal != NULL && s->core.ready.head == NULL && cancelled &&
            PyErr_GivenExceptionMatches(s->fatal, pf.deadlock_error)) {
            break; /* waits for ever, cancelled or not */
        }
    }
}

static int
may_run(SchedulerObject *s)
{
    PfThread *t = pf_this_thread();
    if (t == NULL || (t->attention != 0 && pf_attend(t) < 0)) {
        return -1;
    }
    if (s->closed) {
        PyErr_SetString(pf.fiber_error, "the scheduler is closed");
        return -1;
    }
    if (s->thread != t) {
        PyErr_SetString(pf.fiber_error,
                        "the scheduler belongs to another thread: run it on "
                        "the thread that made it");
        return -1;
    }
    if (t->scheduler != NULL) {
        PyErr_SetString(pf.fiber_error,
                        "a scheduler runs on this thread already: use spawn() "
                        "inside of it");
        return -1;
    }
    return 0;
}

/* What run() answers when the loop is over. */
static PyObject *
run_result(SchedulerObject *s)
{
    if (s->fatal != NULL) {
        PyObject *exc = s->fatal;
        s->fatal = NULL;
        if (s->main != NULL) {
            s->main->core.host_bits |= PF_F_LOOKED_AT;
        }
        pf_restore_exception(exc);
        return NULL;
    }
    return pf_fiber_outcome_value(s->main);
}

static PyObject *
run_fiber(SchedulerObject *s, FiberObject *main)
{
    HubScope scope;
    PfSignals signals;
    hub_begin(s, &scope);
    s->interrupts = 0;
    PyObject *result = NULL;
    if (pf_signals_begin(s, &signals) == 0) {
        if (pf_fiber_start(s, main) == 0) {
            s->main = (FiberObject *)Py_NewRef((PyObject *)main);
            loop(s, scope.hub);
            if (s->alive > 0) {
                abandon(s);
            }
            result = run_result(s);
            Py_CLEAR(s->main);
        }
        pf_signals_end(s, &signals);
    }
    hub_end(s, &scope);
    return result;
}

static FiberObject *
fiber_from_args(PyObject *fn, PyObject *const *args, Py_ssize_t nargs,
                PyObject *kwnames)
{
    if (!PyCallable_Check(fn)) {
        PyErr_Format(PyExc_TypeError,
                     "the first argument must be callable, not '%.200s'",
                     Py_TYPE(fn)->tp_name);
        return NULL;
    }
    return pf_fiber_new(fn, args, nargs, kwnames);
}

static PyObject *
run_on(SchedulerObject *s, PyObject *const *args, Py_ssize_t nargs,
       PyObject *kwnames)
{
    if (may_run(s) < 0) {
        return NULL;
    }
    if (nargs < 1) {
        PyErr_SetString(PyExc_TypeError, "run() needs a function to run");
        return NULL;
    }
    FiberObject *main =
        fiber_from_args(args[0], args + 1, nargs - 1, kwnames);
    if (main == NULL) {
        return NULL;
    }
    PyObject *result = run_fiber(s, main);
    Py_DECREF(main);
    return result;
}

PyObject *
pf_run(PyObject *fn, PyObject *const *args, Py_ssize_t nargs,
       PyObject *kwnames)
{
    (void)fn;
    PfThread *t = pf_this_thread();
    if (t == NULL) {
        return NULL;
    }
    if (t->scheduler != NULL) {
        PyErr_SetString(pf.fiber_error,
                        "run() inside of a run: use spawn() and result()");
        return NULL;
    }
    PyObject *s = PyObject_CallNoArgs((PyObject *)pf.scheduler_type);
    if (s == NULL) {
        return NULL;
    }
    PyObject *result = run_on((SchedulerObject *)s, args, nargs, kwnames);
    PyObject *raised = result == NULL ? pf_take_exception() : NULL;
    close_now((SchedulerObject *)s);
    if (raised != NULL) {
        pf_restore_exception(raised);
    }
    Py_DECREF(s);
    return result;
}

static PyObject *
scheduler_run(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
              PyObject *kwnames)
{
    return run_on((SchedulerObject *)op, args, nargs, kwnames);
}

/* ------------------------------------------------------------------- run_once */

/* Run what is ready now, once.  The hub queues behind it. */
static void
one_pass(SchedulerObject *s, FiberObject *hub)
{
    pf_poll(&s->core);
    if (s->core.ready.head == NULL) {
        return;
    }
    pf_make_ready(&s->core, &hub->core);
    pf_fiber *next = pf_next(&s->core);
    if (next != &hub->core) {
        pf_switch_with(&s->thread->engine, next, pf_on_switch);
        take_stray(s);
    }
    hub->core.state = PF_RUNNING;
    pf_queue_remove(&s->core.ready, &hub->core);
}

static void
wait_once(SchedulerObject *s, PyObject *timeout, int64_t deadline)
{
    pf_poll(&s->core);
    bool wait = timeout == Py_None || deadline > pf_now(&s->core);
    if (wait && s->core.ready.head == NULL && s->alive > 0) {
        idle(s, deadline);
    }
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
        may_run(s) < 0 ||
        (timeout != NULL && pf_deadline(timeout, &deadline) < 0)) {
        return NULL;
    }
    HubScope scope;
    hub_begin(s, &scope);
    wait_once(s, timeout, deadline);
    if (s->fatal == NULL) {
        one_pass(s, scope.hub);
    }
    hub_end(s, &scope);
    if (s->fatal != NULL) {
        PyObject *exc = s->fatal;
        s->fatal = NULL;
        pf_restore_exception(exc);
        return NULL;
    }
    return PyBool_FromLong(s->foreground > 0);
}

/* ------------------------------------------------------- calls from anywhere */

typedef struct Soon {
    pf_message message;
    SchedulerObject *scheduler;
    FiberObject *fiber;
} Soon;

static void
soon_arrived(pf_message *message, pf_scheduler *core)
{
    Soon *soon = (Soon *)message;
    SchedulerObject *s = SCHEDULER_OF(core);
    PfThread *t = s->thread;
    pf_no_switch_begin(t, "inside the scheduler");
    if (s->closed || pf_fiber_start(s, soon->fiber) < 0) {
        PyErr_Clear();
    }
    Py_DECREF(soon->fiber);
    PyMem_RawFree(soon);
    pf_no_switch_end(t);
    Py_DECREF(s);
}

static PyObject *
scheduler_call_soon(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    SchedulerObject *s = (SchedulerObject *)op;
    if (nargs < 1) {
        PyErr_SetString(PyExc_TypeError,
                        "call_soon_threadsafe() needs a function");
        return NULL;
    }
    if (s->closed) {
        PyErr_SetString(pf.fiber_error, "the scheduler is closed");
        return NULL;
    }
    FiberObject *fiber = fiber_from_args(args[0], args + 1, nargs - 1, NULL);
    Soon *soon = fiber == NULL ? NULL : PyMem_RawMalloc(sizeof(*soon));
    if (soon == NULL) {
        Py_XDECREF(fiber);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    soon->message.run = soon_arrived;
    soon->scheduler = (SchedulerObject *)Py_NewRef(op);
    soon->fiber = fiber;
    pf_post(&s->core, &soon->message);
    Py_RETURN_NONE;
}

typedef struct Stop {
    pf_message message;
} Stop;

static void
stop_arrived(pf_message *message, pf_scheduler *core)
{
    SchedulerObject *s = SCHEDULER_OF(core);
    pf_no_switch_begin(s->thread, "inside the scheduler");
    PyMem_RawFree(message);
    cancel_all_because(s, "the scheduler was stopped");
    pf_no_switch_end(s->thread);
    Py_DECREF(s);
}

static PyObject *
scheduler_stop(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    SchedulerObject *s = (SchedulerObject *)op;
    if (s->closed) {
        Py_RETURN_NONE;
    }
    pf_message *message = PyMem_RawMalloc(sizeof(*message));
    if (message == NULL) {
        return PyErr_NoMemory();
    }
    message->run = stop_arrived;
    Py_INCREF(op);
    pf_post(&s->core, message);
    Py_RETURN_NONE;
}

static PyObject *
scheduler_spawn(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                PyObject *kwnames)
{
    SchedulerObject *s = (SchedulerObject *)op;
    if (nargs < 1) {
        PyErr_SetString(PyExc_TypeError, "spawn() needs a function");
        return NULL;
    }
    if (s->closed || s->thread != pf_tls_thread) {
        PyErr_SetString(pf.fiber_error,
                        s->closed
                            ? "the scheduler is closed"
                            : "the scheduler belongs to another thread: use "
                              "call_soon_threadsafe()");
        return NULL;
    }
    FiberObject *fiber =
        fiber_from_args(args[0], args + 1, nargs - 1, kwnames);
    if (fiber != NULL && pf_fiber_start(s, fiber) < 0) {
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
    /* Another loop waits on our behalf from now on: always signal it. */
    pf_store(&s->core.sleeping, 1);
    return PyLong_FromLong(fd);
}

static PyObject *
scheduler_close(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    SchedulerObject *s = (SchedulerObject *)op;
    if (s->running || (s->thread != pf_tls_thread && s->alive > 0)) {
        PyErr_SetString(pf.fiber_error,
                        s->running ? "the scheduler is running"
                                   : "the scheduler belongs to another thread");
        return NULL;
    }
    close_now(s);
    Py_RETURN_NONE;
}

static PyObject *
scheduler_stats(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    SchedulerObject *s = (SchedulerObject *)op;
    pf_scheduler_stats stats;
    pf_scheduler_stats_get(&s->core, &stats);
    return Py_BuildValue(
        "{s:n,s:n,s:n,s:n,s:K,s:K,s:K,s:K,s:K}", "fibers", s->alive,
        "foreground", s->foreground, "ready", (Py_ssize_t)stats.ready,
        "timers", (Py_ssize_t)stats.timers, "switches",
        (unsigned long long)stats.switches, "wakeups",
        (unsigned long long)stats.wakeups, "messages",
        (unsigned long long)stats.messages, "timeouts",
        (unsigned long long)stats.timeouts, "waits",
        (unsigned long long)stats.waits);
}

static PyObject *
scheduler_fibers(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    SchedulerObject *s = (SchedulerObject *)op;
    if (s->thread != pf_tls_thread) {
        PyErr_SetString(pf.fiber_error,
                        "the scheduler belongs to another thread");
        return NULL;
    }
    return list_of_fibers(s);
}

#define FAST(fn) ((PyCFunction)(void (*)(void))fn)

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
From any thread: run fn(*args) in a fiber of its own.\n\
\n\
A failure is logged. FiberError after close().");
PyDoc_STRVAR(stop_doc, "stop($self, /)\n--\n\n\
From any thread: cancel every fiber, so that run() ends.");
PyDoc_STRVAR(spawn_doc, "spawn($self, fn, /, *args, **kwargs)\n--\n\n\
Start fn(*args, **kwargs) in a fiber, also while the scheduler does not run.");
PyDoc_STRVAR(fileno_doc, "fileno($self, /)\n--\n\n\
A descriptor that is readable when another thread has given the scheduler work.\n\
\n\
Another event loop can wait for it and call run_once(). NotImplementedError on\n\
Windows.");
PyDoc_STRVAR(close_doc, "close($self, /)\n--\n\n\
Unwind the fibers that are left, with FiberExit. Closing twice is fine.");
PyDoc_STRVAR(stats_doc, "stats($self, /)\n--\n\n\
Counters as a dict: fibers, foreground, ready and timers now; switches,\n\
wakeups, messages (from other threads), timeouts and waits so far.");
PyDoc_STRVAR(fibers_doc, "fibers($self, /)\n--\n\n\
The fibers that are not done, oldest first.");

static PyMethodDef scheduler_methods[] = {
    {"run", FAST(scheduler_run), METH_FASTCALL | METH_KEYWORDS, run_doc},
    {"run_once", FAST(scheduler_run_once), METH_VARARGS | METH_KEYWORDS,
     once_doc},
    {"call_soon_threadsafe", FAST(scheduler_call_soon), METH_FASTCALL,
     soon_doc},
    {"stop", scheduler_stop, METH_NOARGS, stop_doc},
    {"spawn", FAST(scheduler_spawn), METH_FASTCALL | METH_KEYWORDS,
     spawn_doc},
    {"fileno", scheduler_fileno, METH_NOARGS, fileno_doc},
    {"close", scheduler_close, METH_NOARGS, close_doc},
    {"stats", scheduler_stats, METH_NOARGS, stats_doc},
    {"fibers", scheduler_fibers, METH_NOARGS, fibers_doc},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef scheduler_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(SchedulerObject, weakrefs),
     READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

PyDoc_STRVAR(scheduler_doc, "Scheduler()\n--\n\n\
The loop that chooses which fiber runs, for embedders; run() makes its own.\n\
\n\
It belongs to the thread that made it; call_soon_threadsafe() and stop() may\n\
be called from any.");

static PyType_Slot scheduler_slots[] = {
    {Py_tp_doc, (void *)scheduler_doc},
    {Py_tp_new, scheduler_new},
    {Py_tp_dealloc, scheduler_dealloc},
    {Py_tp_traverse, scheduler_traverse},
    {Py_tp_clear, scheduler_clear},
    {Py_tp_methods, scheduler_methods},
    {Py_tp_members, scheduler_members},
    {0, NULL},
};

PyType_Spec pf_scheduler_spec = {
    .name = "pyfiber.Scheduler",
    .basicsize = sizeof(SchedulerObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = scheduler_slots,
};
