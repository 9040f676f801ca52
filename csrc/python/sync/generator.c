/* FiberGenerator: a function that emits values from any depth of its calls, as
 * an iterator.
 *
 * The function runs on a raw fiber, the body.  A pull links it with the
 * pulling fiber, makes this its parent, which gets its result or failure, and
 * switches to it; emit() undoes the link and switches back.  So another fiber
 * may pull next, and a body that is suspended in emit() keeps no puller alive.
 *
 * While they are linked, whatever cancels the puller also cancels the body:
 * the body may wait, and the puller, which was left by a direct switch, waits
 * with it.  See cancel.c.
 *
 * The link is made before anything that could run other code, and removed
 * before the body can be entered again: meanwhile another pull is refused.
 *
 * The body is one thread's, that of the first pull, and only that thread uses
 * it.  Others may hold the generator, so `user` and `body` are read and written
 * behind its mutex, but for what the user itself reads.
 */
#include "python/cancel/scope.h"
#include "python/core/arguments.h"
#include "python/core/objlock.h"
#include "python/core/state.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/look/inspect.h"
#include "python/pack/pack.h"
#include "python/switch/home.h"
#include "python/switch/pending.h"
#include "python/switch/switch.h"
#include "python/sync/sync.h"
#include "python/task/fiber.h"
#include "python/task/name.h"

#include <structmember.h>

typedef struct GeneratorObject {
    PyObject_HEAD
    PyObject *weakrefs;
    FiberObject *body; /* NULL: it has ended or was closed; see is_over */
    PfThread *user;    /* whose the body is, or that tries; NULL: nobody's */
    PF_OBJECT_MUTEX
} GeneratorObject;

/* ---------------------------------------------------------------- whose it is
 */

/* Of any thread: a new reference, or NULL. */
static FiberObject *
body_of(GeneratorObject *self)
{
    PF_LOCK(self);
    FiberObject *body = (FiberObject *)Py_XNewRef((PyObject *)self->body);
    PF_UNLOCK(self);
    return body;
}

/* The caller drops it. */
static FiberObject *
take_body(GeneratorObject *self)
{
    PF_LOCK(self);
    FiberObject *body = self->body;
    self->body = NULL;
    PF_UNLOCK(self);
    return body;
}

/* One that has not begun, and that nobody is about to begin. */
static FiberObject *
take_fresh(GeneratorObject *self)
{
    FiberObject *body = NULL;
    PF_LOCK(self);
    if (self->user == NULL && self->body != NULL &&
        self->body->core.state == PF_NEW) {
        body = self->body;
        self->body = NULL;
    }
    PF_UNLOCK(self);
    return body;
}

static int
claim(GeneratorObject *self, PfThread *t)
{
    PF_LOCK(self);
    bool ours = self->user == NULL || self->user == t;
    if (ours) {
        self->user = t;
    }
    PF_UNLOCK(self);
    if (!ours) {
        PyErr_SetString(pf.fiber_error,
                        "the generator belongs to another thread: it runs "
                        "only on the thread that pulled from it first. Let "
                        "that thread send the values, through a Queue or a "
                        "Channel");
    }
    return ours ? 0 : -1;
}

/* After a pull by its user: a body that it has not begun is nobody's again. */
static void
unclaim(GeneratorObject *self)
{
    PF_LOCK(self);
    if (self->body != NULL && self->body->core.state == PF_NEW &&
        pf_fiber_rare(self->body)->puller == NULL) {
        self->user = NULL;
    }
    PF_UNLOCK(self);
}

/* ------------------------------------------------------------------ the link */

/* The link changes which scopes enclose the body: if it is in one, or one of
 * the two is cancelled, find out anew what cancels it. */
static void
look_around_again(FiberObject *body, const FiberObject *puller)
{
    if (body->scope != NULL || (body->under_cancel || puller->under_cancel)) {
        pf_scope_refresh_fiber(body);
    }
}

static int
link_to(GeneratorObject *self, FiberObject *puller)
{
    FiberObject *body = self->body;
    PfRare *ours = pf_fiber_rare_of(body), *theirs = pf_fiber_rare_of(puller);
    if (ours == NULL || theirs == NULL) {
        return -1;
    }
    assert(ours->puller == NULL && theirs->pulled == NULL);
    FiberObject *before = NULL;
    if (!pf_name_descends(puller, body)) { /* else heir() finds the puller */
        before = body->parent;
        body->parent = (FiberObject *)Py_NewRef((PyObject *)puller);
    }
    ours->puller = (FiberObject *)Py_NewRef((PyObject *)puller);
    theirs->pulled = (FiberObject *)Py_NewRef((PyObject *)body);
    puller->waiting_on = Py_NewRef((PyObject *)self);
    look_around_again(body, puller);
    Py_XDECREF(before);
    return 0;
}

/* Returns the puller, a reference.  The body and its generator are kept alive
 * by pull(). */
static FiberObject *
take_link(FiberObject *body)
{
    FiberObject *puller = body->rare->puller;
    body->rare->puller = NULL;
    puller->rare->pulled = NULL;
    Py_CLEAR(puller->waiting_on);
    look_around_again(body, puller);
    Py_DECREF(body);
    return puller;
}

/* ---------------------------------------------------------------------- emit */

/* `puller` (stolen) is about to be entered, and nothing in the body may keep
 * it alive: the thread does while it runs, as with the parent of a fiber that
 * ends.  A greenlet's fiber dies in another way and stays the parent. */
static void
let_go(PfThread *t, FiberObject *body, FiberObject *puller)
{
    bool ours = !pf_fiber_kind(puller)->is_part;
    if (ours && body->parent == puller) {
        body->parent = NULL;
        Py_DECREF(puller); /* not the last one: the stolen one remains */
    }
    if (ours && puller != t->root && !puller->held) {
        puller->held = true;
    } else {
        Py_DECREF(puller);
    }
}

static PyObject *
mod_emit(PyObject *module, PyObject *value)
{
    (void)module;
    PfThread *t = pf_thread_this();
    if (t == NULL || (t->pending != 0 && pf_pending_run(t) < 0)) {
        return NULL;
    }
    FiberObject *body = CURRENT(t);
    FiberObject *puller = pf_fiber_rare(body)->puller;
    if (puller == NULL || puller->core.state != PF_SUSPENDED) {
        PyErr_SetString(
            pf.fiber_error,
            "emit() hands a value to whoever pulls from a generator: call it "
            "in a function decorated with @pyfiber.generator, on the fiber "
            "that this runs on");
        return NULL;
    }
    pf_fiber *way = pf_home_way_to(t, puller);
    if (way == NULL) {
        return NULL;
    }
    let_go(t, body, take_link(body));
    return pf_switch_give(t, puller, way, value);
}

/* ---------------------------------------------------------------------- pull */

static int
may_pull(FiberObject *body, PyObject *value)
{
    bool fresh = body->core.state == PF_NEW;
    if (pf_fiber_rare(body)->puller != NULL ||
        (!fresh && body->core.state != PF_SUSPENDED)) {
        PyErr_SetString(PyExc_ValueError,
                        "generator already executing: another fiber waits "
                        "for its next value, or it pulls from itself. Where "
                        "fibers share a generator, hold a Lock around next()");
        return -1;
    }
    if (fresh && value != NULL && value != Py_None) {
        PyErr_SetString(PyExc_TypeError,
                        "can't send a value other than None to a generator "
                        "that has not begun: call next() first");
        return -1;
    }
    return 0;
}

static void
stop_with(PyObject *value)
{
    PyObject *stop = PyObject_CallOneArg(PyExc_StopIteration, value);
    pystate_restore_exception(stop);
}

/* The function has returned, or raised if `result` (stolen) is NULL.  Sets an
 * exception, or none if it returned None. */
static void
ended(GeneratorObject *self, PyObject *result)
{
    if (result == NULL && PyErr_ExceptionMatches(PyExc_StopIteration)) {
        PyObject *stop = pystate_take_exception();
        PyErr_SetString(PyExc_RuntimeError, "generator raised StopIteration");
        PyObject *error = pystate_take_exception();
        PyException_SetCause(error, Py_NewRef(stop));
        PyException_SetContext(error, stop);
        pystate_restore_exception(error);
    } else if (result != NULL && result != Py_None) {
        stop_with(result);
    }
    Py_XDECREF(result);
    Py_XDECREF(take_body(self));
}

/* Back from the body.  If it is still linked, it has emitted nothing: it has
 * ended, or was never entered, or something else has switched to us. */
static PyObject *
landed(GeneratorObject *self, FiberObject *body, PyObject *result)
{
    if (body->rare->puller == NULL) {
        return result;
    }
    FiberObject *me = take_link(body);
    if (body->core.state == PF_DONE) {
        ended(self, result);
    } else if (result != NULL) {
        Py_DECREF(result);
        PyErr_SetString(pf.fiber_error,
                        "a fiber that waits for the next value of a generator "
                        "was switched to");
    }
    Py_DECREF(me);
    return NULL;
}

/* The end of its thread ends a body, too.  On any thread. */
static bool
is_over(GeneratorObject *self)
{
    FiberObject *body = body_of(self);
    bool over = body == NULL || pf_task_is_done(PF_TASK(body));
    Py_XDECREF(body);
    return over;
}

/* Is the generator open, and may the running fiber be left for it?  Then it is
 * this thread's. 1; 0: it is over; -1: FiberError.  A fiber that may not be
 * left may be in the middle of another wait, so it must not be linked. */
static int
is_open(GeneratorObject *self)
{
    if (is_over(self)) {
        return 0;
    }
    PfThread *t = pf_thread_this();
    if (t == NULL || (t->pending != 0 && pf_pending_run(t) < 0)) {
        return -1;
    }
    if (is_over(self)) {
        return 0;
    }
    return claim(self, t) < 0 ? -1 : !is_over(self);
}

static PyObject *
pull_from(GeneratorObject *self, FiberObject *body, PyObject *value,
          PyObject *exc)
{
    if (may_pull(body, value) < 0 ||
        link_to(self, CURRENT(pf_thread_current)) < 0) {
        return NULL;
    }
    PyObject *result =
        exc != NULL ? pf_switch_throw(body, exc) : pf_switch_to(body, value);
    return landed(self, body, result);
}

/* `self` is open.  Continue the function: emit() returns `value` there, or
 * raises `exc`; the other one is NULL.  Returns what it emits, or NULL: with
 * an exception, or without one if it returned None. */
static PyObject *
pull(GeneratorObject *self, PyObject *value, PyObject *exc)
{
    FiberObject *body = self->body;
    Py_INCREF(self);
    Py_INCREF(body);
    PyObject *result = pull_from(self, body, value, exc);
    unclaim(self);
    Py_DECREF(body);
    Py_DECREF(self);
    return result;
}

static PyObject *
generator_next(PyObject *op)
{
    GeneratorObject *self = (GeneratorObject *)op;
    return is_open(self) == 1 ? pull(self, Py_None, NULL) : NULL;
}

/* For methods: the end is StopIteration. */
static PyObject *
value_or_stop(PyObject *value)
{
    if (value == NULL && !PyErr_Occurred()) {
        PyErr_SetNone(PyExc_StopIteration);
    }
    return value;
}

static PyObject *
generator_send(PyObject *op, PyObject *value)
{
    GeneratorObject *self = (GeneratorObject *)op;
    return value_or_stop(is_open(self) == 1 ? pull(self, value, NULL) : NULL);
}

static PyObject *
generator_throw(PyObject *op, PyObject *exc)
{
    PyObject *instance = pf_switch_exception(exc);
    if (instance == NULL) {
        return NULL;
    }
    GeneratorObject *self = (GeneratorObject *)op;
    PyObject *value = NULL;
    int open = is_open(self);
    if (open == 1) {
        value = value_or_stop(pull(self, NULL, instance));
    } else if (open == 0) {
        PyErr_SetObject((PyObject *)Py_TYPE(instance), instance);
    }
    Py_DECREF(instance);
    return value;
}

/* --------------------------------------------------------------------- close */

/* The body has been suspended: FiberExit is raised in its emit(). */
static PyObject *
unwind(GeneratorObject *self)
{
    PyObject *exit = PyObject_CallNoArgs(pf.fiber_exit);
    int open = exit == NULL ? -1 : is_open(self);
    if (open != 1) {
        Py_XDECREF(exit);
        return open < 0 ? NULL : Py_NewRef(Py_None);
    }
    PyObject *value = pull(self, NULL, exit);
    Py_DECREF(exit);
    if (value != NULL) {
        Py_DECREF(value);
        PyErr_SetString(PyExc_RuntimeError,
                        "generator ignored FiberExit: after it was closed it "
                        "must end, and not emit another value");
        return NULL;
    }
    if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_StopIteration)) {
        return NULL;
    }
    PyErr_Clear();
    Py_RETURN_NONE;
}

static PyObject *
generator_close(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    GeneratorObject *self = (GeneratorObject *)op;
    FiberObject *fresh = take_fresh(self);
    if (fresh != NULL || is_over(self)) {
        Py_XDECREF(fresh); /* nothing to clean up in it */
        Py_RETURN_NONE;
    }
    return unwind(self);
}

static PyObject *
generator_enter(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    return Py_NewRef(op);
}

static PyObject *
generator_exit(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    (void)args;
    (void)nargs;
    return generator_close(op, NULL);
}

/* ------------------------------------------------------------------ the type */

static PyObject *
generator_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    Py_ssize_t nargs = PyTuple_GET_SIZE(args);
    PyObject *fn = nargs > 0 ? PyTuple_GET_ITEM(args, 0) : Py_None;
    if (!PyCallable_Check(fn)) {
        PyErr_Format(PyExc_TypeError,
                     "FiberGenerator() takes a function and its arguments, "
                     "not '%.200s'",
                     Py_TYPE(fn)->tp_name);
        return NULL;
    }
    FiberObject *body =
        pf_fiber_new(fn, PySequence_Fast_ITEMS(args) + 1, nargs - 1, NULL);
    if (body != NULL && kwargs != NULL && PyDict_GET_SIZE(kwargs) > 0) {
        body->kwargs = PyDict_Copy(kwargs);
        if (body->kwargs == NULL) {
            Py_CLEAR(body);
        }
    }
    if (body == NULL) {
        return NULL;
    }
    GeneratorObject *self = (GeneratorObject *)type->tp_alloc(type, 0);
    if (self == NULL) {
        Py_DECREF(body);
        return NULL;
    }
    self->body = body;
    return (PyObject *)self;
}

static int
generator_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(((GeneratorObject *)op)->body);
    return 0;
}

/* This unwinds a suspended body, as any dropped fiber. */
static int
generator_clear(PyObject *op)
{
    Py_XDECREF(take_body((GeneratorObject *)op));
    return 0;
}

static void
generator_dealloc(PyObject *op)
{
    pf_arguments_dealloc_with(op, generator_clear);
}

static PyObject *
generator_repr(PyObject *op)
{
    FiberObject *body = body_of((GeneratorObject *)op);
    if (body == NULL || body->core.state == PF_DONE) {
        Py_XDECREF(body);
        return PyUnicode_FromFormat("<%s over at %p>", Py_TYPE(op)->tp_name,
                                    op);
    }
    const char *state = body->core.state == PF_NEW            ? "new"
                        : pf_fiber_rare(body)->puller != NULL ? "executing"
                                                              : "suspended";
    PyObject *name = pf_name_of(body);
    PyObject *repr = name == NULL ? NULL
                                  : PyUnicode_FromFormat("<%s %R %s at %p>",
                                                         Py_TYPE(op)->tp_name,
                                                         name, state, op);
    Py_XDECREF(name);
    Py_DECREF(body);
    return repr;
}

/* For reports: the fiber that the next value depends on. */
static PyObject *
generator_holders(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    FiberObject *body = body_of((GeneratorObject *)op);
    return body == NULL ? PyList_New(0) : Py_BuildValue("[N]", body);
}

PyDoc_STRVAR(generator_doc, "FiberGenerator(fn, /, *args, **kwargs)\n--\n\n\
An iterator over the values that fn(*args, **kwargs) emits; @pyfiber.generator\n\
returns one.\n\
\n\
fn runs on a fiber of its own; each request for a value runs it up to its next\n\
emit(). Any fiber of the thread may request one. The end of a with block closes\n\
the generator; so does dropping it.");
PyDoc_STRVAR(send_doc, "send($self, value, /)\n--\n\n\
The next value; emit() returns `value` in the function.\n\
\n\
StopIteration, with the function's result, when it has ended. TypeError for\n\
anything but None before the first value. ValueError if it is executing.\n\
FiberError on another thread than that of the first value.");
PyDoc_STRVAR(throw_doc, "throw($self, exc, /)\n--\n\n\
Raise `exc`, an exception or its class, in emit(); return the next value.\n\
\n\
Errors as with send().");
PyDoc_STRVAR(close_doc, "close($self, /)\n--\n\n\
Let the function end: emit() raises FiberExit there. Closing twice is fine.\n\
\n\
RuntimeError if it emits another value instead. Errors as with send().");
PyDoc_STRVAR(emit_doc, "emit(value, /)\n--\n\n\
In a generator's function, at any depth of calls: hand out the next value, and\n\
wait until another one is requested.\n\
\n\
Returns what send() sends, None for next(); raises what throw() throws, and\n\
FiberExit when the generator is closed or dropped. FiberError elsewhere.");

static PyMethodDef methods[] = {
    {"send", generator_send, METH_O, send_doc},
    {"throw", generator_throw, METH_O, throw_doc},
    {"close", generator_close, METH_NOARGS, close_doc},
    {"__enter__", generator_enter, METH_NOARGS, "The generator."},
    {"__exit__", PF_FAST(generator_exit), METH_FASTCALL, close_doc},
    {"_holders", generator_holders, METH_NOARGS,
     "The fiber that its function runs on, in a list; for reports."},
    PF_NO_PICKLE,
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS,
     "FiberGenerator[T]: one that emits T's."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    PF_WEAKREFS(GeneratorObject),
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)generator_doc},
    {Py_tp_new, generator_new},
    {Py_tp_dealloc, generator_dealloc},
    {Py_tp_traverse, generator_traverse},
    {Py_tp_clear, generator_clear},
    {Py_tp_repr, generator_repr},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, generator_next},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "pyfiber.FiberGenerator",
    .basicsize = sizeof(GeneratorObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};

static PyMethodDef functions[] = {
    {"emit", mod_emit, METH_O, emit_doc},
    {NULL, NULL, 0, NULL},
};

int
pf_generator_init(PyObject *module)
{
    PyTypeObject *type = pf_arguments_add_type(module, &spec, NULL);
    Py_XDECREF(type); /* the module has it */
    return type == NULL ? -1 : PyModule_AddFunctions(module, functions);
}
