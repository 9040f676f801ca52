/* A fiber's attributes (name, state, parent, context, frame, outcome), and the
 * functions that list threads, schedulers and fibers for pyfiber's reports. */
#include "python/look/inspect.h"

#include "python/core/facade.h"
#include "python/core/state.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/core/world.h"
#include "python/look/calls.h"
#include "python/pack/pack.h"
#include "python/task/fiber.h"
#include "python/task/life.h"
#include "python/task/name.h"
#include "python/task/scheduler.h"

static PyObject *
get_state(PyObject *op, void *closure)
{
    (void)closure;
    return PyUnicode_FromString(pf_name_of_state(&((FiberObject *)op)->core));
}

static PyObject *
get_parent(PyObject *op, void *closure)
{
    (void)closure;
    FiberObject *self = (FiberObject *)op;
    return pf_world_ref(self->thread, (PyObject **)&self->parent);
}

/* Returns `value` as a parent: borrowed, or NULL with an exception. */
static FiberObject *
as_parent(PyObject *value)
{
    if (value == NULL) {
        PyErr_SetString(PyExc_AttributeError,
                        "a fiber's parent cannot be deleted");
        return NULL;
    }
    if (!PyObject_TypeCheck(value, pf_task_fiber_type)) {
        PyErr_Format(PyExc_TypeError,
                     "a fiber's parent must be a Fiber, not '%.200s'",
                     Py_TYPE(value)->tp_name);
        return NULL;
    }
    return (FiberObject *)value;
}

static int
check_parent(FiberObject *self, FiberObject *parent)
{
    if (self->scheduled) {
        PyErr_SetString(pf.fiber_error,
                        "a fiber of a scheduler has no parent: call its "
                        "result() to get its result");
        return -1;
    }
    if (self->dying) {
        PyErr_SetString(pf.fiber_error,
                        "the fiber is being unwound: its parent cannot be "
                        "set any more");
        return -1;
    }
    if (pf_name_descends(parent, self)) {
        PyErr_SetString(PyExc_ValueError,
                        "a fiber cannot be its own ancestor");
        return -1;
    }
    if (self->thread != NULL && parent->thread != NULL &&
        self->thread != parent->thread) {
        PyErr_SetString(pf.fiber_error,
                        "the parent belongs to another thread");
        return -1;
    }
    return 0;
}

static int
set_parent(PyObject *op, PyObject *value, void *closure)
{
    (void)closure;
    FiberObject *self = (FiberObject *)op, *parent = as_parent(value);
    if (parent == NULL) {
        return -1;
    }
    bool ours = parent->thread == pf_thread_current;
    bool stopped = pf_world_stop(ours ? self->thread : NULL);
    FiberObject *before = NULL;
    int rc = check_parent(self, parent);
    if (rc == 0) {
        before = self->parent;
        self->parent_set = true;
        self->parent = (FiberObject *)Py_NewRef((PyObject *)parent);
    }
    pf_world_start(stopped);
    Py_XDECREF(before);
    return rc;
}

/* Returns the place of the fiber's context, which counts only until the fiber
 * is done.  NULL with FiberError if the fiber runs on another thread. */
static PyObject **
context_slot(PfThread *t, FiberObject *self)
{
    if (self == CURRENT(t)) {
        return pystate_context(t->tstate);
    }
    if (self->core.state != PF_DONE && self->thread != NULL &&
        self->thread != t && self == CURRENT(self->thread)) {
        PyErr_SetString(pf.fiber_error,
                        "the fiber runs on another thread: its context cannot "
                        "be read from here");
        return NULL;
    }
    return &self->context;
}

/* A fiber without a context gets an empty one, as the interpreter does at
 * first use.  The new context is created before the other threads are stopped,
 * because creating it may run the collector. */
static PyObject *
get_context(PyObject *op, void *closure)
{
    (void)closure;
    FiberObject *self = (FiberObject *)op;
    PfThread *t = pf_thread_this();
    PyObject *context = NULL, *fresh = t == NULL ? NULL : PyContext_New();
    bool stopped = pf_world_stop(self->thread);
    PyObject **slot = fresh == NULL ? NULL : context_slot(t, self);
    if (self->core.state == PF_DONE && slot == &self->context) {
        context = Py_NewRef(Py_None);
    } else if (slot != NULL) {
        if (*slot == NULL) {
            *slot = Py_NewRef(fresh);
        }
        context = Py_NewRef(*slot);
    }
    pf_world_start(stopped);
    Py_XDECREF(fresh);
    return context;
}

bool
pf_look_has_frames(const FiberObject *self)
{
    return self->core.state != PF_NEW && self->core.state != PF_DONE &&
           self->thread != NULL && self != CURRENT(self->thread) &&
           (self->fiber.stack != NULL || self == self->thread->root);
}

PyObject *
pf_look_frame(PfThread *t, FiberObject *self)
{
    PyObject *frame = NULL;
    if (pf_pack_show_fiber(self) < 0) {
        return NULL;
    }
    if (pf_look_has_frames(self)) {
        frame = pystate_frame(t->tstate, self->saved);
    }
    return frame != NULL ? frame : Py_NewRef(Py_None);
}

static PyObject *
refuse_frame(void)
{
    PyErr_SetString(
        pf.fiber_error,
        "the fiber belongs to another thread, which without a GIL may "
        "continue it at any time: use stack() instead of frame");
    return NULL;
}

/* Fiber.frame: where the fiber is suspended; for the running fiber, the frame
 * that reads the attribute. */
static PyObject *
get_frame(PyObject *op, void *closure)
{
    (void)closure;
    PfThread *t = pf_thread_this();
    if (t == NULL) {
        return NULL;
    }
    FiberObject *self = (FiberObject *)op;
    if (pf_world_moves(self->thread) && self->thread != NULL &&
        self->core.state != PF_DONE) {
        return refuse_frame();
    }
    if (self != CURRENT(t)) {
        return pf_look_frame(t, self);
    }
    PyObject *frame = (PyObject *)PyThreadState_GetFrame(t->tstate);
    return frame != NULL ? frame : Py_NewRef(Py_None);
}

PyObject *
pf_look_stack(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    bool moves_on = pf_world_moves(((FiberObject *)op)->thread);
    PyObject *frame =
        moves_on ? pf_calls_of((FiberObject *)op) : get_frame(op, NULL);
    if (frame == NULL) {
        return NULL;
    }
    if (pf_facade.stack_summary == NULL) {
        Py_DECREF(frame);
        PyErr_SetString(PyExc_RuntimeError, "import pyfiber, not _engine");
        return NULL;
    }
    PyObject *stack = PyObject_CallOneArg(pf_facade.stack_summary, frame);
    Py_DECREF(frame);
    return stack;
}

static PyObject *
get_daemon(PyObject *op, void *closure)
{
    (void)closure;
    return PyBool_FromLong(((FiberObject *)op)->daemon);
}

static int
set_daemon(PyObject *op, PyObject *value, void *closure)
{
    (void)closure;
    FiberObject *self = (FiberObject *)op;
    if (value == NULL) {
        PyErr_SetString(PyExc_AttributeError, "daemon cannot be deleted");
        return -1;
    }
    int truth = PyObject_IsTrue(value);
    if (truth < 0) {
        return -1;
    }
    int new = pf_fiber_claim_new(self);
    if (new > 0) {
        self->daemon = truth;
        pf_fiber_unclaim(self);
    } else if (new == 0) {
        PyErr_SetString(pf.fiber_error,
                        "daemon cannot be changed after the start");
    }
    return new > 0 ? 0 : -1;
}

/* Fiber.waiting_on: the object that the fiber waits for (after join(), a
 * fiber), a word such as "sleep", or None. */
static PyObject *
get_waiting_on(PyObject *op, void *closure)
{
    (void)closure;
    FiberObject *self = (FiberObject *)op;
    bool stopped = pf_world_stop(self->thread);
    bool waits = (self->entered || self->core.state == PF_PARKED) &&
                 self->waiting_on != NULL;
    PyObject *what = Py_NewRef(waits ? self->waiting_on : Py_None);
    pf_world_start(stopped);
    return what;
}

PyObject *
pf_look_repr(PyObject *op)
{
    FiberObject *self = (FiberObject *)op;
    PyObject *name = pf_name_of(self);
    if (name == NULL) {
        return NULL;
    }
    /* A reference, because the target's repr() may make the fiber drop it. */
    bool stopped = pf_world_stop(self->thread);
    PyObject *target = Py_XNewRef(pf_fiber_target(self));
    pf_world_start(stopped);
    PyObject *repr;
    if (target != NULL && self->name != NULL) {
        repr = PyUnicode_FromFormat("<%s %R %s, target %R at %p>",
                                    Py_TYPE(op)->tp_name, name,
                                    pf_name_of_state(&self->core), target, op);
    } else {
        repr = PyUnicode_FromFormat("<%s %R %s at %p>", Py_TYPE(op)->tp_name,
                                    name, pf_name_of_state(&self->core), op);
    }
    Py_XDECREF(target);
    Py_DECREF(name);
    return repr;
}

/* Fiber._group: the TaskGroup that spawned the fiber, for reports. */
static PyObject *
get_group(PyObject *op, void *closure)
{
    (void)closure;
    FiberObject *self = (FiberObject *)op;
    return pf_world_ref(self->thread, (PyObject **)&self->base);
}

PyGetSetDef pf_look_getset[] = {
    {"_group", get_group, NULL,
     "The TaskGroup that spawned the fiber, or None.", NULL},
    {"name", pf_task_get_name, pf_task_set_name,
     "The fiber's name, for reports; by default that of its function.", NULL},
    {"state", get_state, NULL,
     "'new', 'ready', 'running', 'parked' or 'done'.", NULL},
    {"parent", get_parent, set_parent,
     "The fiber that gets a raw fiber's value or exception; None for a "
     "fiber\n"
     "of a scheduler. ValueError for a cycle.",
     NULL},
    {"context", get_context, NULL,
     "The fiber's contextvars.Context; None when it is done.", NULL},
    {"frame", get_frame, NULL,
     "The frame where the fiber is suspended; None if it is not.\n"
     "FiberError for a fiber of another thread, without a GIL: use stack().",
     NULL},
    {"outcome", pf_task_get_outcome, NULL,
     "Ok(value), Failed(exception) or CancelledOutcome(reason) when the\n"
     "fiber is done; None before.",
     NULL},
    {"daemon", get_daemon, set_daemon,
     "True: run() cancels the fiber instead of waiting for it.", NULL},
    {"waiting_on", get_waiting_on, NULL,
     "What the parked fiber waits for, for reports; None if nothing.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

/* ---------------------------------------------------------- for the façade */

/* Returns a list of the thread's fibers that are not done, oldest first. */
static PyObject *
live_fibers(const PfThread *t)
{
    PyObject *list = PyList_New(0);
    for (FiberObject *f = t->live; list != NULL && f != NULL; f = f->next) {
        if (pf_world_has(f) && PyList_Append(list, (PyObject *)f) < 0) {
            Py_CLEAR(list);
        }
    }
    if (list != NULL && PyList_Reverse(list) < 0) {
        Py_CLEAR(list);
    }
    return list;
}

/* _places(fiber): where each call of a suspended fiber is, as bytes that are
 * equal for fibers with the same stack of calls. */
static PyObject *
mod_places(PyObject *module, PyObject *object)
{
    (void)module;
    FiberObject *fiber = pf_fiber_expect(object);
    if (fiber == NULL) {
        return NULL;
    }
    if (pf_pack_show_fiber(fiber) < 0) {
        return NULL;
    }
    bool stopped = pf_world_stop(fiber->thread);
    bool any = pf_look_has_frames(fiber);
    size_t count = any ? pystate_places(fiber->saved, NULL) : 0;
    PyObject *bytes = PyBytes_FromStringAndSize(
        NULL, (Py_ssize_t)(count * sizeof(uintptr_t)));
    if (any && bytes != NULL) { /* no Python code has run since the count */
        void *places = PyBytes_AS_STRING(bytes);
        pystate_places(fiber->saved, (uintptr_t *)places);
    }
    pf_world_start(stopped);
    return bytes;
}

/* Returns (the thread's identifier, its running fiber, its root fiber, the
 * scheduler that runs there or None, its fibers that are not done). */
static PyObject *
describe_thread(const PfThread *t)
{
    PyObject *fibers = live_fibers(t);
    PyObject *running =
        t->scheduler == NULL ? Py_None : (PyObject *)t->scheduler;
    return fibers == NULL
               ? NULL
               : Py_BuildValue("kOOON", pystate_thread(t->tstate), CURRENT(t),
                               t->root, running, fibers);
}

static PyObject *
mod_scheduler_of(PyObject *module, PyObject *object)
{
    (void)module;
    FiberObject *fiber = pf_fiber_expect(object);
    if (fiber == NULL) {
        return NULL;
    }
    bool stopped = pf_world_stop(fiber->thread);
    bool has_one = fiber->scheduled && fiber->core.scheduler != NULL;
    PyObject *s =
        has_one ? (PyObject *)SCHEDULER_OF(fiber->core.scheduler) : Py_None;
    Py_INCREF(s);
    pf_world_start(stopped);
    return s;
}

SchedulerObject *
pf_look_waits_on(const FiberObject *fiber)
{
    if (fiber->core.state != PF_PARKED || fiber->is_hub ||
        fiber->thread == NULL) {
        return NULL;
    }
    SchedulerObject *s = fiber->thread->schedulers;
    while (s != NULL && &s->core != fiber->core.scheduler) {
        s = s->next;
    }
    return s;
}

/* The result may be too large by one turn of the loop: a wait begins at the
 * time when the loop last read the clock (pf_scheduler.looked_at). */
static PyObject *
mod_waited(PyObject *module, PyObject *object)
{
    (void)module;
    const FiberObject *fiber = pf_fiber_expect(object);
    if (fiber == NULL) {
        return NULL;
    }
    bool stopped = pf_world_stop(fiber->thread);
    SchedulerObject *s = pf_look_waits_on(fiber);
    int64_t waited =
        s == NULL ? 0 : pf_scheduler_now(&s->core) - fiber->core.parked_at;
    pf_world_start(stopped);
    return s == NULL ? Py_NewRef(Py_None)
                     : PyFloat_FromDouble((double)waited * 1e-9);
}

static PyObject *
schedulers_of(const PfThread *t)
{
    PyObject *list = PyList_New(0);
    if (list != NULL && pf_scheduler_list(t, list) < 0) {
        Py_CLEAR(list);
    }
    return list;
}

/* Returns (the thread's identifier, the counters of its ended schedulers, a
 * list of the other schedulers). */
static PyObject *
describe_schedulers(const PfThread *t)
{
    PyObject *list = schedulers_of(t);
    const pf_scheduler_stats *ended = &t->ended;
    return list == NULL
               ? NULL
               : Py_BuildValue("k{s:K,s:K,s:K,s:K,s:K,s:K}N",
                               pystate_thread(t->tstate), "switches",
                               ended->switches, "wakeups", ended->wakeups,
                               "messages", ended->messages, "timeouts",
                               ended->timeouts, "waits", ended->waits,
                               "preemptions", ended->preemptions, list);
}

/* Returns a list of what `describe` makes of each thread.  The collector is
 * switched off meanwhile, because code that it runs might end a thread. */
static PyObject *
of_each_thread(PyObject *(*describe)(const PfThread *))
{
    int collecting = PyGC_Disable();
    PyObject *list = PyList_New(0);
    bool stopped = pf_world_stop(NULL);
    pf_mutex_lock(&pf_threads_lock);
    for (PfThread *t = pf_threads; list != NULL && t != NULL; t = t->next) {
        PyObject *described = describe(t);
        if (described == NULL || PyList_Append(list, described) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(described);
    }
    pf_mutex_unlock(&pf_threads_lock);
    pf_world_start(stopped);
    if (collecting) {
        PyGC_Enable();
    }
    return list;
}

static PyObject *
mod_threads(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    return of_each_thread(describe_thread);
}

static PyObject *
mod_schedulers(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    return of_each_thread(describe_schedulers);
}

static PyObject *
mod_running_scheduler(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    PfThread *t = pf_thread_current;
    return Py_NewRef(t == NULL || t->scheduler == NULL
                         ? Py_None
                         : (PyObject *)t->scheduler);
}

static PyObject *
mod_runs_elsewhere(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    bool found = false;
    pf_mutex_lock(&pf_threads_lock);
    for (PfThread *t = pf_threads; t != NULL; t = t->next) {
        found = found || (t != pf_thread_current && t->scheduler != NULL);
    }
    pf_mutex_unlock(&pf_threads_lock);
    return PyBool_FromLong(found);
}

/* _name_here() is called for log records, so it makes no PfThread. */
static PyObject *
mod_name_here(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    const PfThread *t = pf_thread_current;
    return t == NULL || CURRENT(t) == t->root ? Py_NewRef(Py_None)
                                              : pf_name_of(CURRENT(t));
}

static PyObject *
mod_target_of(PyObject *module, PyObject *op)
{
    (void)module;
    bool fresh = PyObject_TypeCheck(op, pf_task_fiber_type) &&
                 !((FiberObject *)op)->entered &&
                 ((FiberObject *)op)->target != NULL;
    return Py_NewRef(fresh ? ((FiberObject *)op)->target : Py_None);
}

static PyMethodDef functions[] = {
    {"_name_here", mod_name_here, METH_NOARGS,
     "_name_here()\n--\n\n"
     "The running fiber's name; None on a thread's own stack."},
    {"_running_scheduler", mod_running_scheduler, METH_NOARGS,
     "_running_scheduler()\n--\n\n"
     "The Scheduler that runs on this thread, or None."},
    {"_runs_elsewhere", mod_runs_elsewhere, METH_NOARGS,
     "_runs_elsewhere()\n--\n\nTrue if a scheduler runs on another thread."},
    {"_threads", mod_threads, METH_NOARGS,
     "_threads()\n--\n\n"
     "For each thread with fibers a tuple: identifier, running fiber, root\n"
     "fiber, running scheduler or None, fibers that are not done."},
    {"_target_of", mod_target_of, METH_O,
     "_target_of(fiber, /)\n--\n\n"
     "The function of a fiber that has not begun; None for other objects."},
    {"_scheduler_of", mod_scheduler_of, METH_O,
     "_scheduler_of(fiber, /)\n--\n\n"
     "The scheduler that a fiber was started on, or None."},
    {"_places", mod_places, METH_O,
     "_places(fiber, /)\n--\n\n"
     "Bytes that are the same for fibers with the same stack."},
    {"_waited", mod_waited, METH_O,
     "_waited(fiber, /)\n--\n\n"
     "The seconds that a parked fiber has waited, too many by up to one turn\n"
     "of the loop; None if the fiber is not parked."},
    {"_schedulers", mod_schedulers, METH_NOARGS,
     "_schedulers()\n--\n\n"
     "For each thread with fibers a tuple: identifier, counters of its ended\n"
     "schedulers, list of its other schedulers."},
    {NULL, NULL, 0, NULL},
};

int
pf_inspect_init(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
