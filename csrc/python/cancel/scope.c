/* The CancelScope type: its objects, deadlines, entering and leaving.
 * cancel.c finds what a cancellation reaches; scope_functions.c has timeout()
 * and shield(). */
#include "python/cancel/scope.h"

#include "python/cancel/cancel.h"
#include "python/core/arguments.h"
#include "python/core/compiler.h"
#include "python/core/state.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/core/world.h"
#include "python/look/inspect.h"
#include "python/task/fiber.h"
#include "python/task/name.h"
#include "python/task/scheduler.h"

#include <structmember.h>

/* -------------------------------------------------------------- birth, death */

static void fire(pf_timer_call *call, pf_scheduler *s);
static PyObject *describe(ScopeObject *self);

/* Returns a dead scope that the thread has kept, as a new object.  `outer`
 * links the kept scopes. */
static ScopeObject *
take_spare(PfThread *t)
{
    PfSpare *spare = &t->spare[PF_SPARE_SCOPES];
    ScopeObject *self = spare->first;
    spare->first = self->outer;
    spare->count--;
    pf_memory_zero((char *)self + sizeof(PyObject),
                   sizeof *self - sizeof(PyObject));
    pf_fiber_revive((PyObject *)self);
    return self;
}

static void
free_spare(PfThread *t)
{
    ScopeObject *self = pf_thread_empty_spare(t, PF_SPARE_SCOPES);
    while (self != NULL) {
        ScopeObject *next = self->outer;
        PyTypeObject *type = Py_TYPE(self);
        type->tp_free(self);
        Py_DECREF(type);
        self = next;
    }
}

const PfPart pf_cancel_part = {
    .hooks = {.cancelling = &pf_cancel_table},
    .free_spare = free_spare,
};

ScopeObject *
pf_scope_new(PyTypeObject *type)
{
    PfThread *t = pf_thread_current;
    bool spare = type == pf_scope_type && t != NULL &&
                 t->spare[PF_SPARE_SCOPES].first != NULL;
    ScopeObject *self =
        spare ? take_spare(t) : (ScopeObject *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->timer.timer.kind = PF_TIMER_CALL;
        self->timer.fire = fire;
        self->deadline = PF_NEVER;
        self->length = -1;
    }
    return self;
}

static PyObject *
scope_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args;
    (void)kwargs;
    return (PyObject *)pf_scope_new(type);
}

static int
read_deadline(PyObject *value, int64_t *deadline)
{
    *deadline = PF_NEVER;
    return value == NULL || value == Py_None
               ? 0
               : pf_arguments_seconds(value, "deadline", deadline);
}

static int
scope_init(PyObject *op, PyObject *args, PyObject *kwds)
{
    static char *names[] = {"deadline", "shield", NULL};
    ScopeObject *self = (ScopeObject *)op;
    PyObject *deadline = NULL;
    int64_t when;
    int shield = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwds, "|Op:CancelScope", names,
                                     &deadline, &shield) ||
        read_deadline(deadline, &when) < 0) {
        return -1;
    }
    if (self->fiber != NULL || self->left) {
        PyErr_SetString(pf.fiber_error,
                        "the scope has been entered: __init__ comes too late");
        return -1;
    }
    self->shield = shield != 0;
    self->deadline = when;
    return 0;
}

/* Makes a CancelScope() or TaskGroup() without parsing arguments.  All other
 * calls take the usual way, by __new__ and __init__. */
static PyObject *
scope_vectorcall(PyObject *type, PyObject *const *args, size_t nargsf,
                 PyObject *kwnames)
{
    Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
    if (nargs == 0 && kwnames == NULL) {
        return (PyObject *)pf_scope_new((PyTypeObject *)type);
    }
    return pf_arguments_make(type, args, nargs, kwnames);
}

/* tp_vectorcall is not inherited, so subclasses use __new__ and __init__. */
void
pf_scope_type_ready(PyTypeObject *type)
{
    type->tp_vectorcall = scope_vectorcall;
}

int
pf_scope_traverse(PyObject *op, visitproc visit, void *arg)
{
    ScopeObject *self = (ScopeObject *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->scheduler);
    Py_VISIT(self->reason);
    Py_VISIT(self->why);
    return 0;
}

int
pf_scope_clear(PyObject *op)
{
    ScopeObject *self = (ScopeObject *)op;
    Py_CLEAR(self->reason);
    Py_CLEAR(self->why);
    return 0;
}

/* Returns true if the scope is from a function such as timeout() and no code
 * has tried to enter it. */
static inline bool
was_forgotten(ScopeObject *self)
{
    return self->what != NULL && !self->left && self->fiber == NULL &&
           !self->refused;
}

/* Warns of a timeout(1) without `with`, which does nothing at all, as Python
 * warns of a coroutine that was never awaited. */
static void
scope_finalize(PyObject *op)
{
    ((ScopeObject *)op)->finalized = true;
    if (!was_forgotten((ScopeObject *)op) || pf_state_is_shut_down()) {
        return;
    }
    PyObject *pending = pystate_take_exception();
    PyObject *what = describe((ScopeObject *)op);
    if (what == NULL ||
        PyErr_WarnFormat(PyExc_RuntimeWarning, 1,
                         "%U was never entered, so it limits nothing: write "
                         "'with %U:' and put the code under it",
                         what, what) < 0) {
        PyErr_WriteUnraisable(op);
    }
    Py_XDECREF(what);
    pystate_restore_exception(pending);
}

/* The scope is not entered and has no children, because its fiber and each
 * child would have a reference.  A finalized object is not kept for reuse: its
 * memory is marked as finalized, and a new object there would never be
 * finalized. */
void
pf_scope_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    if (PF_UNLIKELY(was_forgotten((ScopeObject *)op)) &&
        PyObject_CallFinalizerFromDealloc(op) < 0) {
        return;
    }
    PyObject_GC_UnTrack(op);
    pf_scope_clear(op);
    PfSpare *spare = pf_thread_place_to_spare(PF_SPARE_SCOPES);
    if (type == pf_scope_type && spare != NULL &&
        !((ScopeObject *)op)->finalized) {
        ((ScopeObject *)op)->outer = spare->first;
        spare->first = op;
        spare->count++;
        return;
    }
    type->tp_free(op);
    Py_DECREF(type);
}

/* ---------------------------------------------------------------- deadlines */

static void
expire(ScopeObject *self)
{
    self->expired = self->expired || !self->cancelled;
    pf_scope_cancel_again(self, pf_cancel_why_deadline);
}

static void
fire(pf_timer_call *call, pf_scheduler *s)
{
    (void)s;
    expire((ScopeObject *)((char *)call - offsetof(ScopeObject, timer)));
}

/* Arms the timer of an entered scope for its deadline, or cancels the scope at
 * once if that has passed.  Returns 0, or -1 with MemoryError. */
static int
set_timer(ScopeObject *self, int64_t now)
{
    pf_timers *timers = &self->scheduler->core.timers;
    if (self->deadline == PF_NEVER) {
        pf_timers_remove(timers, &self->timer.timer);
        return 0;
    }
    if (self->deadline <= now) {
        pf_timers_remove(timers, &self->timer.timer);
        expire(self);
        return 0;
    }
    if (pf_timers_add(timers, &self->timer.timer, self->deadline) != 0) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

static int
begin_deadline(ScopeObject *self)
{
    int64_t now = pf_scheduler_now(&self->scheduler->core);
    if (self->length >= 0) {
        self->deadline = pf_timers_later(now, self->length);
    }
    return set_timer(self, now);
}

/* ---------------------------------------------------------- entering, leaving */

static int
may_enter(PfThread *t, ScopeObject *self)
{
    if (self->fiber != NULL || self->left) {
        PyErr_Format(pf.fiber_error,
                     "%R has been %s already: a scope serves for one with "
                     "statement, make a new one",
                     self, self->left ? "left" : "entered");
        return -1;
    }
    if (pf_scheduler_active(t, "entering a cancel scope") == NULL) {
        self->refused = true;
        return -1;
    }
    return 0;
}

PyObject *
pf_scope_enter(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    ScopeObject *self = (ScopeObject *)op;
    PfThread *t = pf_thread_this();
    if (t == NULL || may_enter(t, self) < 0) {
        return NULL;
    }
    FiberObject *fiber = CURRENT(t);
    self->fiber = fiber;
    self->scheduler = (SchedulerObject *)Py_NewRef((PyObject *)t->scheduler);
    self->outer = fiber->scope;
    if (self->outer != NULL) {
        self->outer->inner = self;
    }
    fiber->scope = (ScopeObject *)Py_NewRef(op);
    if (PF_UNLIKELY(self->cancelled || self->shield || fiber->under_cancel)) {
        pf_scope_entered(self);
    }
    if ((self->length >= 0 || self->deadline != PF_NEVER) &&
        begin_deadline(self) < 0) {
        pf_scope_remove(self);
        return NULL;
    }
    return Py_NewRef(op);
}

/* Returns a FiberError.  `format` takes the scope, `other` and perhaps the
 * running fiber.  Holds `other`, because a repr() may drop it. */
static PyObject *
make_error(PfThread *t, const char *format, ScopeObject *self, void *other)
{
    PyObject *held = Py_NewRef(other);
    PyErr_Format(pf.fiber_error, format, self, held, CURRENT(t));
    PyObject *error = pystate_take_exception();
    Py_DECREF(held);
    return error;
}

/* For a fiber that leaves a scope of another fiber: raises FiberError, and
 * removes the scope, because the other fiber must not stay in it. */
static void
left_elsewhere(PfThread *t, ScopeObject *self)
{
    PyObject *error = make_error(
        t,
        "%R was entered on %R and cannot be left on %R: was a generator with "
        "it inside handed to another fiber?",
        self, self->fiber);
    if (self->fiber != NULL && self->fiber->thread == t) {
        pf_scope_remove(self);
    } else if (self->fiber != NULL && pf_scope_remove_there(self) < 0) {
        PyErr_Clear(); /* no memory: the scope stays until the fiber ends */
    }
    pystate_restore_exception(error);
}

/* For a fiber that leaves a scope before one that was entered inside it:
 * raises FiberError and removes the outer scope. */
static void
left_out_of_order(PfThread *t, ScopeObject *self)
{
    PyObject *error = make_error(
        t,
        "%R is left while the fiber is still in %R, which was entered inside "
        "of it: is a generator suspended inside of a with statement?",
        self, self->inner);
    if (self->fiber != NULL) {
        pf_scope_remove(self);
    }
    pystate_restore_exception(error);
}

PfThread *
pf_scope_may_leave(ScopeObject *self, Py_ssize_t nargs)
{
    PfThread *t = pf_thread_this();
    if (t == NULL) {
        return NULL;
    }
    if (PF_UNLIKELY(nargs != 3)) {
        PyErr_Format(PyExc_TypeError, "__exit__() takes 3 arguments, not %zd",
                     nargs);
        return NULL;
    }
    if (PF_LIKELY(self->fiber == CURRENT(t) && self->inner == NULL)) {
        return t;
    }
    if (self->fiber == NULL) {
        PyErr_Format(pf.fiber_error, "%R has %s", self,
                     self->left ? "been left already, or the fiber that "
                                  "entered it has ended"
                                : "not been entered");
    } else if (self->fiber != CURRENT(t)) {
        left_elsewhere(t, self);
    } else {
        left_out_of_order(t, self);
    }
    return NULL;
}

PyObject *
pf_scope_seconds(int64_t ns)
{
    return PyFloat_FromDouble((double)ns / 1e9);
}

static PyObject *
timeout_text(const ScopeObject *self)
{
    if (!self->expired) {
        return PyUnicode_FromFormat("cancelled before the timeout: %S",
                                    self->reason != NULL ? self->reason
                                                         : Py_None);
    }
    if (self->length < 0) {
        return PyUnicode_FromString("not done at its deadline");
    }
    PyObject *length = pf_scope_seconds(self->length);
    PyObject *text =
        length == NULL
            ? NULL
            : PyUnicode_FromFormat("not done after %R seconds", length);
    Py_XDECREF(length);
    return text;
}

/* Raises TimeoutError, also if cancel() and not the deadline ended the block:
 * the block did not run to its end, and the code after it must not assume that
 * it did. */
static void
raise_timeout(ScopeObject *self, PyObject *cancelled)
{
    PyObject *text = timeout_text(self);
    PyObject *error =
        text == NULL ? NULL : PyObject_CallOneArg(PyExc_TimeoutError, text);
    Py_XDECREF(text);
    if (error != NULL) {
        PyException_SetCause(error, Py_NewRef(cancelled));
        PyErr_SetObject(PyExc_TimeoutError, error);
        Py_DECREF(error);
    }
}

static PyObject *
scope_exit(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    ScopeObject *self = (ScopeObject *)op;
    if (pf_scope_may_leave(self, nargs) == NULL) {
        return NULL;
    }
    pf_scope_remove(self);
    if (PF_LIKELY(!pf_scope_owns(self, args[1]))) {
        Py_RETURN_FALSE;
    }
    self->caught = true;
    if (self->times_out) {
        raise_timeout(self, args[1]);
        return NULL;
    }
    Py_RETURN_TRUE;
}

/* ------------------------------------------------------- methods, attributes */

static PyObject *
scope_cancel(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"reason", NULL};
    PyObject *reason = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:cancel", names,
                                     &reason)) {
        return NULL;
    }
    int rc = pf_scope_cancel((ScopeObject *)op, reason);
    return rc < 0 ? NULL : PyBool_FromLong(rc);
}

static int
refuse_deletion(const PyObject *value, const char *what)
{
    if (value != NULL) {
        return 0;
    }
    PyErr_Format(PyExc_AttributeError, "%s cannot be deleted", what);
    return -1;
}

/* Returns 0 if an attribute may be set, or -1 with FiberError.  Called after
 * the new value is converted, because that may run code that leaves the
 * scope. */
static int
may_change(ScopeObject *self, const char *what)
{
    if (self->left) {
        PyErr_Format(pf.fiber_error,
                     "%R has been left: its %s has no effect any more", self,
                     what);
        return -1;
    }
    SchedulerObject *there = pf_scope_is_remote(self);
    if (there != NULL) {
        Py_DECREF(there);
        PyErr_Format(pf.fiber_error,
                     "%R is in use on another thread: only cancel() may be "
                     "called from here",
                     self);
        return -1;
    }
    return 0;
}

static PyObject *
get_deadline(PyObject *op, void *closure)
{
    (void)closure;
    ScopeObject *self = (ScopeObject *)op;
    if (self->deadline == PF_NEVER) {
        Py_RETURN_NONE;
    }
    return pf_scope_seconds(self->deadline);
}

static int
set_deadline(PyObject *op, PyObject *value, void *closure)
{
    (void)closure;
    ScopeObject *self = (ScopeObject *)op;
    int64_t deadline;
    if (refuse_deletion(value, "deadline") < 0 ||
        read_deadline(value, &deadline) < 0 ||
        may_change(self, "deadline") < 0) {
        return -1;
    }
    self->deadline = deadline;
    self->length = -1;
    return self->fiber == NULL
               ? 0
               : set_timer(self, pf_scheduler_now(&self->scheduler->core));
}

static PyObject *
get_shield(PyObject *op, void *closure)
{
    (void)closure;
    return PyBool_FromLong(((ScopeObject *)op)->shield);
}

static int
set_shield(PyObject *op, PyObject *value, void *closure)
{
    (void)closure;
    ScopeObject *self = (ScopeObject *)op;
    int truth =
        refuse_deletion(value, "shield") < 0 ? -1 : PyObject_IsTrue(value);
    if (truth < 0 || may_change(self, "shield") < 0) {
        return -1;
    }
    self->shield = truth != 0;
    pf_scope_refresh(self);
    return 0;
}

static PyObject *
get_cancel_called(PyObject *op, void *closure)
{
    (void)closure;
    return PyBool_FromLong(((ScopeObject *)op)->cancelled);
}

static PyObject *
scope_cancelled(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    return PyBool_FromLong(((ScopeObject *)op)->caught);
}

static PyObject *
get_reason(PyObject *op, void *closure)
{
    (void)closure;
    PyObject *reason = ((ScopeObject *)op)->reason;
    return Py_NewRef(reason != NULL ? reason : Py_None);
}

/* Returns what messages call the scope: "timeout(0.5)", or the name of its
 * type. */
static PyObject *
describe(ScopeObject *self)
{
    if (self->what == NULL) {
        return PyType_GetName(Py_TYPE(self));
    }
    if (self->length < 0) {
        return PyUnicode_FromFormat("%s()", self->what);
    }
    PyObject *length = pf_scope_seconds(self->length);
    PyObject *text = length == NULL
                         ? NULL
                         : PyUnicode_FromFormat("%s(%R)", self->what, length);
    Py_XDECREF(length);
    return text;
}

static PyObject *
scope_repr(PyObject *op)
{
    ScopeObject *self = (ScopeObject *)op;
    bool stopped = pf_world_stop(NULL);
    FiberObject *fiber = (FiberObject *)Py_XNewRef((PyObject *)self->fiber);
    pf_world_start(stopped);
    PyObject *name = NULL, *repr = NULL;
    PyObject *what = describe(self);
    if (what == NULL) {
        goto done;
    }
    const char *cancelled = self->cancelled ? ", cancelled" : "";
    if (fiber == NULL) {
        repr = PyUnicode_FromFormat("<%U %s%s at %p>", what,
                                    self->left ? "left" : "not entered",
                                    cancelled, op);
        goto done;
    }
    name = pf_name_of(fiber);
    if (name != NULL) {
        repr = PyUnicode_FromFormat("<%U entered by %R%s at %p>", what, name,
                                    cancelled, op);
    }
done:
    Py_XDECREF(name);
    Py_XDECREF(what);
    Py_XDECREF(fiber);
    return repr;
}

/* ------------------------------------------------------------------- the type */

PyDoc_STRVAR(cancel_doc, "cancel($self, /, reason=None)\n--\n\n\
Raise Cancelled at every park point inside the scope until it is left.\n\
\n\
Any thread may call it, also before the scope is entered. The first reason is\n\
kept. False if the scope had been left already.");

static PyMethodDef scope_methods[] = {
    {"__enter__", pf_scope_enter, METH_NOARGS,
     "Enter the scope on the running fiber. FiberError outside of a run, or\n"
     "the second time."},
    {"__exit__", PF_FAST(scope_exit), METH_FASTCALL,
     "Leave the scope; True if its own cancellation ended the block.\n\n"
     "FiberError if it is not the innermost one of the running fiber."},
    {"cancel", PF_FAST(scope_cancel), METH_VARARGS | METH_KEYWORDS,
     cancel_doc},
    {"cancelled", scope_cancelled, METH_NOARGS,
     "cancelled($self, /)\n--\n\n"
     "True if this scope's cancellation has ended its block; False inside\n"
     "the block."},
    {NULL, NULL, 0, NULL},
};

static PyObject *
get_parent_fiber(PyObject *op, void *closure)
{
    (void)closure;
    return pf_world_ref(NULL, (PyObject **)&((ScopeObject *)op)->fiber);
}

static PyGetSetDef scope_getset[] = {
    {"_parent_fiber", get_parent_fiber, NULL,
     "The fiber that is in the scope, or None.", NULL},
    {"deadline", get_deadline, set_deadline,
     "The time at which the scope will be cancelled, in seconds on the clock\n"
     "of now(); None: never. A time that has passed cancels at once.",
     NULL},
    {"shield", get_shield, set_shield,
     "True: cancellation from outside does not get in.", NULL},
    {"cancel_called", get_cancel_called, NULL,
     "True once cancel() was called or the deadline has passed.", NULL},
    {"reason", get_reason, NULL,
     "The argument of cancel(), or why the engine called it.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyDoc_STRVAR(scope_doc, "CancelScope(deadline=None, shield=False)\n--\n\n\
A with block that can be cancelled by itself, with everything inside it.\n\
\n\
cancel(), or the `deadline` in seconds on the clock of now(), raises Cancelled\n\
at every park point in the block; the scope stops the exception at the block's\n\
end and then cancelled() is True. With `shield`, a cancellation of what is\n\
around the block does not get in.");

static PyType_Slot scope_slots[] = {
    {Py_tp_doc, (void *)scope_doc},
    {Py_tp_new, scope_new},
    {Py_tp_init, scope_init},
    {Py_tp_dealloc, pf_scope_dealloc},
    {Py_tp_finalize, scope_finalize},
    {Py_tp_traverse, pf_scope_traverse},
    {Py_tp_clear, pf_scope_clear},
    {Py_tp_repr, scope_repr},
    {Py_tp_methods, scope_methods},
    {Py_tp_getset, scope_getset},
    {0, NULL},
};

PyType_Spec pf_scope_spec = {
    .name = "pyfiber.CancelScope",
    .basicsize = sizeof(ScopeObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = scope_slots,
};
