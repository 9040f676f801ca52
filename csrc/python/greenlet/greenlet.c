/* The greenlet type: creation, end and attributes.  Switches are in
 * greenlet_switch.c.  Names, attributes and messages are those of the package
 * greenlet. */
#include "python/greenlet/greenlet.h"

#include "python/core/arguments.h"
#include "python/core/chain.h"
#include "python/core/compiler.h"
#include "python/core/state.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/look/inspect.h"
#include "python/pack/pack.h"
#include "python/switch/home.h"
#include "python/switch/pending.h"
#include "python/task/fiber.h"

/* ------------------------------------------------------------------ creation */

PfGreenlet *
pf_greenlet_impl_new(PfThread *t, PfGreenletKind kind)
{
    PfGreenlet *impl = PyMem_Calloc(1, sizeof(*impl));
    if (impl == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    impl->kind = (uint8_t)kind;
    impl->thread = t;
    return impl;
}

/* Returns a new greenlet without a parent, or NULL with an exception.  Dead
 * objects of exactly this type are kept for reuse, linked by `parent`. */
static PyGreenlet *
allocate(PfThread *t, PyTypeObject *type)
{
    PfSpare *spare = &t->spare[PF_SPARE_GREENLETS];
    PyGreenlet *g = spare->first;
    if (g != NULL && type == &PfGreenlet_Type) {
        spare->first = IMPL(g)->parent;
        spare->count--;
        *IMPL(g) = (PfGreenlet){.kind = PF_GREENLET_OWN, .thread = t};
        pf_fiber_revive((PyObject *)g);
        return g;
    }
    g = (PyGreenlet *)type->tp_alloc(type, 0);
    if (g != NULL) {
        g->pimpl = pf_greenlet_impl_new(t, PF_GREENLET_OWN);
        if (g->pimpl == NULL) {
            Py_CLEAR(g);
        }
    }
    return g;
}

/* Keeps the memory of a cleared greenlet for reuse, or frees it. */
static void
free_greenlet(PyGreenlet *g)
{
    PyTypeObject *type = Py_TYPE(g);
    PfGreenlet *impl = IMPL(g);
    PfSpare *spare = pf_thread_place_to_spare(PF_SPARE_GREENLETS);
    if (type == &PfGreenlet_Type && impl != NULL && !impl->finalized &&
        spare != NULL) {
        g->weakreflist = NULL;
        impl->parent = spare->first;
        spare->first = g;
        spare->count++;
        return;
    }
    PyMem_Free(impl);
    type->tp_free(g);
}

void
pf_greenlets_free_spare(PfThread *t)
{
    GreenThread *green = pf_greenlet_thread(t);
    if (t->ending) { /* code that ran since the end began may have set it */
        Py_CLEAR(green->trace);
        Py_CLEAR(green->origin);
    }
    PyGreenlet *g = pf_thread_empty_spare(t, PF_SPARE_GREENLETS);
    while (g != NULL) {
        PyGreenlet *next = IMPL(g)->parent;
        PyMem_Free(IMPL(g));
        PyObject_GC_Del(g);
        g = next;
    }
}

PyObject *
pf_greenlet_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args;
    (void)kwargs;
    PfThread *t = pf_thread_this();
    if (t == NULL) {
        return NULL;
    }
    if (PF_UNLIKELY((t->pending & PF_PENDING_POSTS) && t->no_switch == 0)) {
        pf_pending_take_posts(t);
    }
    if (PF_UNLIKELY(type->tp_flags & Py_TPFLAGS_IS_ABSTRACT)) {
        /* object.__new__ raises an error that names the abstract methods. */
        return PyBaseObject_Type.tp_new(type, args, NULL);
    }
    PyGreenlet *parent = pf_greenlet_current(t); /* running, so alive */
    PyGreenlet *g = parent == NULL ? NULL : allocate(t, type);
    if (g != NULL) {
        IMPL(g)->parent = (PyGreenlet *)Py_NewRef((PyObject *)parent);
    }
    return (PyObject *)g;
}

static int
set_run(PyGreenlet *g, PyObject *run)
{
    if (IMPL(g)->kind != PF_GREENLET_OWN) {
        PyErr_SetString(PyExc_AttributeError,
                        "Main greenlets do not have a run attribute.");
        return -1;
    }
    bool stopped = pf_greenlet_stop_world(g);
    bool started = IMPL(g)->started;
    PyObject *before = IMPL(g)->run;
    if (!started) {
        IMPL(g)->run = Py_XNewRef(run);
    }
    pf_world_start(stopped);
    if (started) {
        PyErr_SetString(PyExc_AttributeError,
                        "run cannot be set after the start of the greenlet");
        return -1;
    }
    Py_XDECREF(before);
    return 0;
}

int
pf_greenlet_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"run", "parent", NULL};
    PyGreenlet *g = (PyGreenlet *)op;
    PyObject *run = NULL, *parent = NULL;
    if (kwargs == NULL && PyTuple_GET_SIZE(args) == 1) {
        return set_run(g, PyTuple_GET_ITEM(args, 0));
    }
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|OO:greenlet", names, &run,
                                     &parent)) {
        return -1;
    }
    Py_XINCREF(parent); /* dropping the old `run` may run code */
    int rc = run == NULL ? 0 : set_run(g, run);
    if (rc == 0 && parent != NULL && parent != Py_None) {
        rc = pf_greenlet_set_parent(g, parent);
    }
    Py_XDECREF(parent);
    return rc;
}

/* The fast path of greenlet(fn), without packed arguments.  Subclasses do not
 * inherit this slot. */
static PyObject *
greenlet_vectorcall(PyObject *type, PyObject *const *args, size_t nargsf,
                    PyObject *kwnames)
{
    Py_ssize_t nargs = PyVectorcall_NARGS(nargsf);
    if (nargs <= 1 && kwnames == NULL) {
        PyObject *g = pf_greenlet_new((PyTypeObject *)type, NULL, NULL);
        if (g != NULL && nargs == 1) {
            IMPL((PyGreenlet *)g)->run = Py_NewRef(args[0]);
        }
        return g;
    }
    return pf_arguments_make(type, args, nargs, kwnames);
}

/* ----------------------------------------------------------------- the end */

static int
greenlet_traverse(PyObject *op, visitproc visit, void *arg)
{
    PyGreenlet *g = (PyGreenlet *)op;
    Py_VISIT(g->dict);
    if (g->pimpl == NULL) {
        return 0; /* the constructor ran out of memory */
    }
    Py_VISIT(IMPL(g)->fiber);
    Py_VISIT(IMPL(g)->parent);
    Py_VISIT(IMPL(g)->main);
    Py_VISIT(IMPL(g)->run);
    Py_VISIT(IMPL(g)->context);
    return 0;
}

static int
greenlet_clear(PyObject *op)
{
    PyGreenlet *g = (PyGreenlet *)op;
    Py_CLEAR(g->dict);
    if (g->pimpl == NULL || pf_greenlet_active(g)) {
        return 0; /* the greenlet's code has not ended and needs the rest */
    }
    PF_CLEAR_LINK(IMPL(g)->parent);
    Py_CLEAR(IMPL(g)->main);
    Py_CLEAR(IMPL(g)->run);
    Py_CLEAR(IMPL(g)->context);
    return 0;
}

static bool
has_own_fiber(PyGreenlet *g)
{
    return g->pimpl != NULL && IMPL(g)->kind == PF_GREENLET_OWN &&
           IMPL(g)->fiber != NULL;
}

/* Asks under pf_greenlet_stop_world(), as the fiber's thread may be ending at
 * this moment. */
static bool
must_be_ended(PyGreenlet *g)
{
    return has_own_fiber(g) && pf_greenlet_is_active(g);
}

/* Reports a greenlet that has caught GreenletExit and switched away.  The
 * greenlet's stack is in use, so the object is never freed. */
static void
report_survivor(PyGreenlet *g)
{
    PyObject *pending = pystate_take_exception();
    PyObject *file = PySys_GetObject("stderr");
    Py_INCREF(g); /* for good */
    if (file != NULL && file != Py_None) {
        Py_INCREF(file);
        if (PyFile_WriteString("GreenletExit did not kill ", file) < 0 ||
            PyFile_WriteObject((PyObject *)g, file, 0) < 0 ||
            PyFile_WriteString("\n", file) < 0) {
            PyErr_WriteUnraisable((PyObject *)g);
        }
        Py_DECREF(file);
    }
    pystate_restore_exception(pending);
}

/* Ends an active greenlet whose last reference is gone (the caller holds a
 * temporary one).  A suspended one gets GreenletExit, here or on its own
 * thread.  A running one keeps a reference that is dropped when its fiber is
 * left.  After the interpreter's shut-down the fiber is only detached, and its
 * stack is not touched. */
static void
end_dropped(PyGreenlet *g)
{
    FiberObject *fiber = IMPL(g)->fiber;
    PfThread *t = pf_thread_current;
    bool stopped = pf_greenlet_stop_world(g), ours = false;
    if (pf_state_is_shut_down()) {
        IMPL(g)->fiber = NULL;
        fiber->view = NULL;
    } else if (fiber->core.state == PF_RUNNING) {
        Py_INCREF(g);
        fiber->held = true;
    } else if (fiber->thread != t || pf_home_must_stay(t)) {
        pf_pending_leave(fiber->thread, Py_NewRef((PyObject *)g));
    } else {
        ours = true;
    }
    pf_world_start(stopped);
    if (ours) {
        pf_greenlet_kill(t, g);
        if (Py_REFCNT(g) == 1 && pf_greenlet_active(g)) {
            report_survivor(g);
        }
    }
}

static void
greenlet_finalize(PyObject *op)
{
    if (((PyGreenlet *)op)->pimpl != NULL) {
        IMPL((PyGreenlet *)op)->finalized = true;
    }
    if (must_be_ended((PyGreenlet *)op)) {
        end_dropped((PyGreenlet *)op);
    }
}

/* Ends a greenlet in tp_dealloc, if the finalizer has not: that runs only once
 * in an object's life, and a subclass with __del__ replaces it.  The object is
 * resurrected meanwhile.  Returns false if the object stays alive. */
static bool
end_resurrected(PyObject *op)
{
    Py_SET_REFCNT(op, 1);
    if (must_be_ended((PyGreenlet *)op)) {
        end_dropped((PyGreenlet *)op);
    }
    if (Py_REFCNT(op) == 1) {
        Py_SET_REFCNT(op, 0);
        return true;
    }
    if (PyType_HasFeature(Py_TYPE(op), Py_TPFLAGS_HEAPTYPE)) {
        Py_INCREF(Py_TYPE(op)); /* the subclass' tp_dealloc drops it */
    }
    Py_DECREF(op); /* no plain store: other threads may hold references */
    return false;
}

static void
greenlet_dealloc(PyObject *op)
{
    PyGreenlet *g = (PyGreenlet *)op;
    /* While the reference count is 0 and the object is tracked, this thread
     * must not let others run: a collector there would find an object without
     * references. */
    if (PF_UNLIKELY(has_own_fiber(g))) {
        if (Py_TYPE(op) == &PfGreenlet_Type &&
            PyObject_CallFinalizerFromDealloc(op) < 0) {
            return;
        }
        if (!end_resurrected(op)) {
            return;
        }
    }
    PyObject_GC_UnTrack(op);
    if (g->weakreflist != NULL) {
        PyObject_ClearWeakRefs(op);
    }
    PfGreenlet *impl = g->pimpl;
    if (impl != NULL) {
        if (impl->kind == PF_GREENLET_MAIN) {
            pf_fetch_sub(&pf_greenlet_mains, 1);
        } else if (impl->kind == PF_GREENLET_OWN && impl->fiber != NULL) {
            pf_greenlet_end_dead(g);
        }
        greenlet_clear(op);
    }
    Py_CLEAR(g->dict);
    free_greenlet(g);
}

/* ------------------------------------------------------------------ attributes */

static int
check_parent(PyGreenlet *g, PyObject *value)
{
    if (value == NULL) {
        PyErr_SetString(PyExc_AttributeError, "can't delete attribute");
        return -1;
    }
    if (IMPL(g)->kind != PF_GREENLET_OWN) {
        PyErr_SetString(PyExc_AttributeError,
                        "cannot set the parent of a main greenlet");
        return -1;
    }
    if (!pf_greenlet_check(value)) {
        PyErr_Format(PyExc_TypeError,
                     "GreenletChecker: Expected any type of greenlet, not %s",
                     Py_TYPE(value)->tp_name);
        return -1;
    }
    PyGreenlet *main = NULL;
    for (PyGreenlet *p = (PyGreenlet *)value; p != NULL; p = IMPL(p)->parent) {
        if (p == g) {
            PyErr_SetString(PyExc_ValueError, "cyclic parent chain");
            return -1;
        }
        main = pf_greenlet_main(p);
    }
    if (main == NULL) {
        PyErr_SetString(PyExc_ValueError,
                        "parent must not be garbage collected");
        return -1;
    }
    if (IMPL(g)->started && IMPL(g)->main != main) {
        PyErr_SetString(PyExc_ValueError,
                        "parent cannot be on a different thread");
        return -1;
    }
    return 0;
}

int
pf_greenlet_set_parent(PyGreenlet *g, PyObject *value)
{
    bool known = pf_greenlet_check(value);
    bool stopped = known && (pf_greenlet_stop_world(g) ||
                             pf_greenlet_stop_lineage((PyGreenlet *)value));
    int rc = check_parent(g, value);
    PyGreenlet *old = NULL;
    if (rc == 0) {
        old = IMPL(g)->parent;
        IMPL(g)->parent = (PyGreenlet *)Py_NewRef(value);
    }
    pf_world_start(stopped);
    Py_XDECREF(old);
    return rc;
}

PyObject *
pf_greenlet_parent(PyGreenlet *g)
{
    bool stopped = pf_greenlet_stop_world(g);
    PyObject *parent = Py_XNewRef((PyObject *)IMPL(g)->parent);
    pf_world_start(stopped);
    return parent;
}

static int
set_parent(PyObject *op, PyObject *value, void *closure)
{
    (void)closure;
    return pf_greenlet_set_parent((PyGreenlet *)op, value);
}

static PyObject *
get_parent(PyObject *op, void *closure)
{
    (void)closure;
    PyObject *parent = pf_greenlet_parent((PyGreenlet *)op);
    return parent != NULL ? parent : Py_NewRef(Py_None);
}

static PyObject *
get_run(PyObject *op, void *closure)
{
    (void)closure;
    PyGreenlet *g = (PyGreenlet *)op;
    if (IMPL(g)->kind != PF_GREENLET_OWN) {
        PyErr_SetString(PyExc_AttributeError,
                        "Main greenlets do not have a run attribute.");
        return NULL;
    }
    bool stopped = pf_greenlet_stop_world(g);
    PyObject *run = IMPL(g)->started ? NULL : Py_XNewRef(IMPL(g)->run);
    pf_world_start(stopped);
    if (run == NULL) {
        PyErr_SetString(PyExc_AttributeError, "run");
    }
    return run;
}

static int
set_run_attribute(PyObject *op, PyObject *value, void *closure)
{
    (void)closure;
    return set_run((PyGreenlet *)op, value);
}

bool
pf_greenlet_is_active(PyGreenlet *g)
{
    bool stopped = pf_greenlet_stop_world(g);
    bool active = pf_greenlet_active(g);
    pf_world_start(stopped);
    return active;
}

bool
pf_greenlet_is_dead(PyGreenlet *g)
{
    bool stopped = pf_greenlet_stop_world(g);
    bool dead = IMPL(g)->started && !pf_greenlet_active(g);
    pf_world_start(stopped);
    return dead;
}

static PyObject *
get_dead(PyObject *op, void *closure)
{
    (void)closure;
    return PyBool_FromLong(pf_greenlet_is_dead((PyGreenlet *)op));
}

static PyObject *
get_frame(PyObject *op, void *closure)
{
    (void)closure;
    PyGreenlet *g = (PyGreenlet *)op;
    PfThread *t = pf_thread_this();
    if (t == NULL) {
        return NULL;
    }
    bool stopped = pf_greenlet_stop_world(g);
    FiberObject *fiber = (FiberObject *)Py_XNewRef((PyObject *)IMPL(g)->fiber);
    pf_world_start(stopped);
    if (fiber == NULL) {
        Py_RETURN_NONE;
    }
    bool thread_gone = fiber->core.state == PF_DONE && fiber->thread == NULL &&
                       fiber->fiber.stack != NULL;
    PyObject *frame = NULL;
    /* `saved` is NULL if there was no memory for the frames: see abandon(). */
    if (!thread_gone) {
        frame = pf_look_frame(t, fiber);
    } else if (fiber->saved == NULL ||
               (frame = pystate_frame(t->tstate, fiber->saved)) == NULL) {
        frame = Py_NewRef(Py_None);
    }
    Py_DECREF(fiber);
    return frame;
}

/* Returns a pointer to the greenlet's contextvars context, or NULL with
 * ValueError if the greenlet runs on another thread.  The caller has called
 * pf_greenlet_stop_world(). */
static PyObject **
context_slot(PfThread *t, PyGreenlet *g, const char *what)
{
    FiberObject *fiber = IMPL(g)->fiber;
    if (fiber == NULL) {
        return &IMPL(g)->context;
    }
    if (fiber == CURRENT(t)) {
        return pystate_context(t->tstate);
    }
    if (fiber->core.state == PF_RUNNING) {
        PyErr_Format(PyExc_ValueError,
                     "cannot %s context of a greenlet that is running in a "
                     "different thread",
                     what);
        return NULL;
    }
    return &fiber->context;
}

static PyObject *
get_context(PyObject *op, void *closure)
{
    (void)closure;
    PfThread *t = pf_thread_this();
    if (t == NULL) {
        return NULL;
    }
    bool stopped = pf_greenlet_stop_world((PyGreenlet *)op);
    PyObject **slot = context_slot(t, (PyGreenlet *)op, "get");
    PyObject *context =
        slot == NULL ? NULL : Py_NewRef(*slot == NULL ? Py_None : *slot);
    pf_world_start(stopped);
    return context;
}

static int
set_context(PyObject *op, PyObject *value, void *closure)
{
    (void)closure;
    if (value == NULL) {
        PyErr_SetString(PyExc_AttributeError,
                        "can't delete context attribute");
        return -1;
    }
    if (value != Py_None && !PyContext_CheckExact(value)) {
        PyErr_SetString(PyExc_TypeError,
                        "greenlet context must be a contextvars.Context or "
                        "None");
        return -1;
    }
    PfThread *t = pf_thread_this();
    if (t == NULL) {
        return -1;
    }
    bool stopped = pf_greenlet_stop_world((PyGreenlet *)op);
    PyObject **slot = context_slot(t, (PyGreenlet *)op, "set");
    PyObject *old = NULL;
    if (slot != NULL) {
        old = *slot;
        *slot = value == Py_None ? NULL : Py_NewRef(value);
        pystate_context_changed(t->tstate);
    }
    pf_world_start(stopped);
    Py_XDECREF(old);
    return slot == NULL ? -1 : 0;
}

/* In the package greenlet: the bytes of stack that a switch has copied away.
 */
static PyObject *
get_stack_saved(PyObject *op, void *closure)
{
    (void)op;
    (void)closure;
    return PyLong_FromLong(0);
}

static int
greenlet_bool(PyObject *op)
{
    return pf_greenlet_is_active((PyGreenlet *)op);
}

static PyObject *
greenlet_getstate(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    PyErr_Format(PyExc_TypeError, "cannot serialize '%s' object",
                 Py_TYPE(op)->tp_name);
    return NULL;
}

static PyObject *
greenlet_repr(PyObject *op)
{
    PyGreenlet *g = (PyGreenlet *)op;
    const char *name = Py_TYPE(op)->tp_name;
    void *owner = pf_greenlet_main(g);
    if (pf_greenlet_is_dead(g)) {
        return PyUnicode_FromFormat(
            "<%s object at %p (otid=%p) %sdead>", name, op, owner,
            pf_greenlet_thread_gone(g) ? "(thread exited) " : "");
    }
    PfThread *t = pf_thread_current;
    bool started = IMPL(g)->started;
    bool current = t != NULL && CURRENT(t)->view == op;
    return PyUnicode_FromFormat(
        "<%s object at %p (otid=%p)%s%s%s%s>", name, op, owner,
        current   ? " current"
        : started ? " suspended"
                  : "",
        pf_greenlet_is_active(g) ? " active" : "",
        started ? " started" : " pending",
        IMPL(g)->kind == PF_GREENLET_MAIN ? " main" : "");
}

/* -------------------------------------------------------------------- the type */

PyDoc_STRVAR(greenlet_doc, "greenlet(run=None, parent=None)\n--\n\n\
A call of run() on a separate stack, which can be suspended anywhere.\n\
\n\
switch() starts or resumes it. A subclass may define run() instead of passing\n\
it. When run() ends, its result goes to the greenlet `parent`, by default the\n\
one that was current when this one was made.");
PyDoc_STRVAR(switch_doc, "switch($self, /, *args, **kwargs)\n--\n\n\
Leave the current greenlet for this one.\n\
\n\
A new greenlet calls run(*args, **kwargs). In a suspended one its own switch()\n\
returns: the one argument, the tuple of several, the dict of keywords, or a\n\
pair of both. The parent of a dead greenlet gets the value instead.\n\
\n\
Returns what the switch back passes to the current greenlet. greenlet.error if\n\
the target belongs to another thread.");
PyDoc_STRVAR(throw_doc,
             "throw($self, typ=GreenletExit, val=None, tb=None, /)\n\
--\n\n\
Leave the current greenlet for this one and raise the exception there.\n\
\n\
A new greenlet ends without running, and its parent gets the exception.\n\
Returns and raises as switch().");

static PyMethodDef greenlet_methods[] = {
    PF_METHOD("switch", pf_greenlet_switch_method, switch_doc),
    {"throw", pf_greenlet_throw_method, METH_VARARGS, throw_doc},
    {"__getstate__", greenlet_getstate, METH_NOARGS, "Raises TypeError."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef greenlet_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {"run", get_run, set_run_attribute,
     "The function to call. AttributeError once the greenlet has begun.",
     NULL},
    {"parent", get_parent, set_parent,
     "The greenlet that gets the result. ValueError for a cycle of parents or "
     "a greenlet of another thread.",
     NULL},
    {"gr_frame", get_frame, NULL,
     "The frame where the greenlet is suspended, or None.", NULL},
    {"gr_context", get_context, set_context,
     "The contextvars.Context the greenlet runs in; None: an empty one.",
     NULL},
    {"dead", get_dead, NULL,
     "True once the greenlet, or its thread, has ended.", NULL},
    {"_stack_saved", get_stack_saved, NULL, "0: no stack is ever copied.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

/* constant after import, but for what the interpreter does with types */
static PyNumberMethods greenlet_number = {
    .nb_bool = greenlet_bool,
};

/* This is a static type, because a compiled class that is itself static could
 * not have a heap type as its base.  The name is that of the package greenlet,
 * which pickles, reprs and checks of programs rely on.  (constant after
 * import, but for what the interpreter does with types) */
PyTypeObject PfGreenlet_Type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "greenlet.greenlet",
    .tp_basicsize = sizeof(PyGreenlet),
    .tp_dealloc = greenlet_dealloc,
    .tp_finalize = greenlet_finalize,
    .tp_repr = greenlet_repr,
    .tp_as_number = &greenlet_number,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_doc = greenlet_doc,
    .tp_traverse = greenlet_traverse,
    .tp_clear = greenlet_clear,
    .tp_weaklistoffset = offsetof(PyGreenlet, weakreflist),
    .tp_dictoffset = offsetof(PyGreenlet, dict),
    .tp_methods = greenlet_methods,
    .tp_getset = greenlet_getset,
    .tp_new = pf_greenlet_new,
    .tp_init = pf_greenlet_init,
    .tp_vectorcall = greenlet_vectorcall,
};
