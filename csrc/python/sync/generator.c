/* FiberGenerator: an iterator over the values that a function emits, from any
 * depth of its calls.
 *
 * The function runs on a raw fiber, the body.  To pull is to ask for the next
 * value.  A pull links the body with the pulling fiber, the puller, makes the
 * puller the body's parent, which gets its result or failure, and switches to
 * the body.  emit() removes the link and switches back.  So another fiber may
 * pull next, and a body that is suspended in emit() keeps no puller alive.
 *
 * While the two are linked, everything that cancels the puller also cancels
 * the body: the body may wait, and the puller, which was left by a direct
 * switch, waits with it.  See cancel/cancel.c.
 *
 * The link is made before anything that could run other code, and removed
 * before the body can be entered again.  While it exists, another pull is
 * refused.
 *
 * The body belongs to one thread, the one that pulls first, and no other
 * thread runs it.  But other threads may refer to the generator.  So `user`
 * and `body` are read and written with the mutex held; only the thread in
 * `user` may read `body` without it.
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
    PfThread *user;    /* the body's, or the one that is about to begin it */
    PF_OBJECT_MUTEX
} GeneratorObject;

/* ------------------------------------------------------- the body's thread */

/* Returns a new reference to the body, or NULL.  Any thread may call this. */
static FiberObject *
body_of(GeneratorObject *self)
{
    PF_LOCK(self);
    FiberObject *body = (FiberObject *)Py_XNewRef((PyObject *)self->body);
    PF_UNLOCK(self);
    return body;
}

/* Clears `body`; the reference goes to the caller. */
static FiberObject *
take_body(GeneratorObject *self)
{
    PF_LOCK(self);
    FiberObject *body = self->body;
    self->body = NULL;
    PF_UNLOCK(self);
    return body;
}

/* Takes the body as take_body() does, but only if the body has not begun and
 * no thread is about to begin it; else returns NULL. */
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

/* Makes `t` the user, unless another thread is: then -1 with FiberError. */
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

/* Ends a pull.  If the pull has not begun the body, the body belongs to no
 * thread again. */
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

/* Finds out anew what cancels the body, after the link has changed which
 * scopes enclose it.  This can only matter if the body has entered a scope, or
 * if the body or the puller is cancelled. */
static void
refresh_cancellation(FiberObject *body, const FiberObject *puller)
{
    if (body->scope != NULL || (body->under_cancel || puller->under_cancel)) {
        pf_scope_refresh_fiber(body);
    }
}

/* Links the body with `puller`.  Returns 0, or -1 with MemoryError. */
static int
link_to(GeneratorObject *self, FiberObject *puller)
{
    FiberObject *body = self->body;
    PfRare *body_rare = pf_fiber_rare_of(body);
    PfRare *puller_rare = pf_fiber_rare_of(puller);
    if (body_rare == NULL || puller_rare == NULL) {
        return -1;
    }
    assert(body_rare->puller == NULL && puller_rare->pulled == NULL);
    FiberObject *before = NULL;
    /* No cycle of parents may be made.  Without this parent heir() finds the
     * puller by the link. */
    if (!pf_name_descends(puller, body)) {
        before = body->parent;
        body->parent = (FiberObject *)Py_NewRef((PyObject *)puller);
    }
    body_rare->puller = (FiberObject *)Py_NewRef((PyObject *)puller);
    puller_rare->pulled = (FiberObject *)Py_NewRef((PyObject *)body);
    puller->waiting_on = Py_NewRef((PyObject *)self);
    refresh_cancellation(body, puller);
    Py_XDECREF(before);
    return 0;
}

/* Removes the link and returns the puller, whose reference goes to the caller.
 * pull() keeps the body and the generator alive. */
static FiberObject *
take_link(FiberObject *body)
{
    FiberObject *puller = body->rare->puller;
    body->rare->puller = NULL;
    puller->rare->pulled = NULL;
    Py_CLEAR(puller->waiting_on);
    refresh_cancellation(body, puller);
    Py_DECREF(body);
    return puller;
}

/* ---------------------------------------------------------------------- emit */

/* Drops the body's references to `puller` (stolen), which is about to be
 * entered, so that a suspended body does not keep it alive.  The last
 * reference may be among these: then the thread holds the puller while it
 * runs, as with the parent of a fiber that ends.  A greenlet's fiber stays the
 * parent, because its greenlet ends it and its own last reference means
 * nothing. */
static void
release_puller(PfThread *t, FiberObject *body, FiberObject *puller)
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
            "emit() passes a value to the fiber that asks a generator for "
            "one: call it in a function decorated with @pyfiber.generator, on "
            "the fiber that runs this function");
        return NULL;
    }
    pf_fiber *way = pf_home_way_to(t, puller);
    if (way == NULL) {
        return NULL;
    }
    release_puller(t, body, take_link(body));
    return pf_switch_give(t, puller, way, value);
}

/* ---------------------------------------------------------------------- pull */

/* Returns 0, or -1 with an exception if the body is being pulled already,
 * runs, or has not begun and gets a value. */
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

/* Raises StopIteration(value). */
static void
stop_with(PyObject *value)
{
    PyObject *stop = PyObject_CallOneArg(PyExc_StopIteration, value);
    pystate_restore_exception(stop);
}

/* Closes the generator after its function has returned `result` (stolen) or,
 * if that is NULL, has raised.  Sets the exception that the pull raises, or
 * none if the function returned None. */
static void
finish_body(GeneratorObject *self, PyObject *result)
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

/* Turns what the switch to the body brought back into the result of the pull.
 * If the two are still linked, the body has emitted nothing: it has ended, or
 * was never entered, or something else has switched to the puller. */
static PyObject *
after_switch(GeneratorObject *self, FiberObject *body, PyObject *result)
{
    if (body->rare->puller == NULL) {
        return result;
    }
    FiberObject *me = take_link(body);
    if (body->core.state == PF_DONE) {
        finish_body(self, result);
    } else if (result != NULL) {
        Py_DECREF(result);
        PyErr_SetString(pf.fiber_error,
                        "a fiber that waits for the next value of a generator "
                        "was switched to");
    }
    Py_DECREF(me);
    return NULL;
}

/* Returns true if the generator has no body that can go on.  The end of the
 * body's thread ends the body, too.  Any thread may call this. */
static bool
is_over(GeneratorObject *self)
{
    FiberObject *body = body_of(self);
    bool over = body == NULL || pf_task_is_done(PF_TASK(body));
    Py_XDECREF(body);
    return over;
}

/* Prepares a pull.  Returns 1: the body can go on, the running fiber may be
 * left for it, and this thread is its user; 0: the generator is over; -1:
 * exception.  A fiber that must not be left may be in the middle of another
 * wait, so it must not be linked. */
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
    return after_switch(self, body, result);
}

/* Continues the function, after is_open() has returned 1: emit() returns
 * `value` there, or raises `exc`; the other argument is NULL.  Returns the
 * value that the function emits; or NULL, with an exception, or without one if
 * the function returned None. */
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

/* Raises StopIteration if there is neither a value nor an exception: methods,
 * unlike tp_iternext, must say so. */
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

/* Raises FiberExit in the emit() where the body is suspended, and lets the
 * function run to its end. */
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
        Py_XDECREF(fresh); /* the function has not begun: nothing to unwind */
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

/* Drops the body.  If it is suspended, that unwinds it as any dropped fiber.
 */
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

static PyObject *
generator_holders(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    FiberObject *body = body_of((GeneratorObject *)op);
    return body == NULL ? PyList_New(0) : Py_BuildValue("[N]", body);
}

PyDoc_STRVAR(generator_doc, "FiberGenerator(fn, /, *args, **kwargs)\n--\n\n\
An iterator over the values that fn(*args, **kwargs) emits.\n\
\n\
A function decorated with @pyfiber.generator returns one. fn runs on a\n\
separate fiber. Each request for a value runs fn up to its next emit(). Any\n\
fiber of the thread may request one. The end of a with block closes the\n\
generator, and so does dropping it.");
PyDoc_STRVAR(send_doc, "send($self, value, /)\n--\n\n\
Return the next value; emit() returns `value` in the function.\n\
\n\
StopIteration, with the function's result, when the function has ended.\n\
TypeError for anything but None before the first value. ValueError if the\n\
generator is executing. FiberError on another thread than that of the first\n\
value.");
PyDoc_STRVAR(throw_doc, "throw($self, exc, /)\n--\n\n\
Raise `exc`, an exception or its class, in emit(), and return the next value.\n\
\n\
Raises the same errors as send(), and `exc` if the generator is over.");
PyDoc_STRVAR(close_doc, "close($self, /)\n--\n\n\
End the function by raising FiberExit in its emit(). Closing twice is fine.\n\
\n\
RuntimeError if the function emits another value instead. Otherwise raises the\n\
same errors as send(), but not StopIteration.");
PyDoc_STRVAR(emit_doc, "emit(value, /)\n--\n\n\
Hand out a generator's next value, and wait until another one is requested.\n\
\n\
A generator's function calls this at any depth of calls. Returns what send()\n\
sends, None for next(). Raises what throw() throws, and FiberExit when the\n\
generator is closed or dropped. FiberError elsewhere.");

static PyMethodDef methods[] = {
    {"send", generator_send, METH_O, send_doc},
    {"throw", generator_throw, METH_O, throw_doc},
    {"close", generator_close, METH_NOARGS, close_doc},
    {"__enter__", generator_enter, METH_NOARGS, "The generator."},
    {"__exit__", PF_FAST(generator_exit), METH_FASTCALL, close_doc},
    {"_holders", generator_holders, METH_NOARGS,
     "A list of the fiber that the function runs on; for reports."},
    PF_NO_PICKLE,
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS,
     "FiberGenerator[T]: a generator that emits T's."},
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
    Py_XDECREF(type);
    return type == NULL ? -1 : PyModule_AddFunctions(module, functions);
}
