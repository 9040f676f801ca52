/* Gates, and attributes of the interpreter's own types.
 *
 * A gate takes the place of a callable, its `outside`.  Where a wait would
 * park a fiber of a run, the gate calls `inside`; everywhere else it calls
 * `outside`. Either gets the very arguments of the call.
 *
 * There are two types of gate, because an attribute of a class must bind as
 * the original did.  A built-in function does not get the instance as its
 * first argument (Gate); a function of Python and a method descriptor do
 * (MethodGate).
 *
 * A closed gate always calls `outside`, so code that has taken a reference to
 * the gate while the patch was in force keeps working after the patch is
 * undone.
 */
#include "python/core/arguments.h"
#include "python/core/compiler.h"
#include "python/core/thread.h"
#include "python/io/waiting.h"
#include "python/patch/lot.h"
#include "python/patch/methods.h"
#include "python/patch/patch.h"
#include "python/task/deadline.h"
#include "python/wait/wait.h"

#include <structmember.h>

typedef struct GateObject {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *outside, *inside; /* constant for the gate's life */
    vectorcallfunc call_outside;
    PyObject *weakrefs;
    char open; /* a bool */
} GateObject;

static PyTypeObject *gate_type;   /* constant after import */
static PyTypeObject *method_type; /* constant after import: one that binds */

/* --------------------------------------------------------------- the call */

/* Returns the function by which gate_call() calls the target.  Built-in
 * functions and method descriptors never change their vectorcall, so it is
 * called directly.  The checks of PyObject_Vectorcall() are not missed: the
 * gate's caller checks the result anyway. */
static vectorcallfunc
vectorcall_of(PyObject *target)
{
    bool keeps_it = Py_IS_TYPE(target, &PyMethodDescr_Type) ||
                    Py_IS_TYPE(target, &PyCFunction_Type);
    vectorcallfunc call = keeps_it ? PyVectorcall_Function(target) : NULL;
    return call != NULL ? call : PyObject_Vectorcall;
}

/* Calls `inside`, and marks the waits in it as waits in a call that patch()
 * has changed. */
static PyObject *
call_inside(PyObject *inside, PfThread *t, PyObject *const *args,
            size_t nargsf, PyObject *kwnames)
{
    bool before = pf_io_patched_begin(t, true);
    PyObject *result = PyObject_Vectorcall(inside, args, nargsf, kwnames);
    pf_io_patched_end(t, before);
    return result;
}

static PyObject *
gate_call(PyObject *op, PyObject *const *args, size_t nargsf,
          PyObject *kwnames)
{
    GateObject *self = (GateObject *)op;
    PfThread *t = pf_lot_parks();
    return PF_LIKELY(t == NULL) || !self->open
               ? self->call_outside(self->outside, args, nargsf, kwnames)
               : call_inside(self->inside, t, args, nargsf, kwnames);
}

static PyObject *
gate_bind(PyObject *op, PyObject *instance, PyObject *type)
{
    (void)type;
    return instance == NULL ? Py_NewRef(op) : PyMethod_New(op, instance);
}

/* ------------------------------------- a gate looks like what it replaced */

/* Returns the original's attribute.  A lookup without this getter would find
 * what every type has under such a name, the gate type's own. */
static PyObject *
gate_of_outside(PyObject *op, void *name)
{
    return PyObject_GetAttrString(((GateObject *)op)->outside, name);
}

static PyObject *
gate_getattro(PyObject *op, PyObject *name)
{
    PyObject *value = PyObject_GenericGetAttr(op, name);
    if (value == NULL && PyErr_ExceptionMatches(PyExc_AttributeError)) {
        PyErr_Clear();
        value = PyObject_GetAttr(((GateObject *)op)->outside, name);
    }
    return value;
}

static PyObject *
gate_repr(PyObject *op)
{
    return PyUnicode_FromFormat("<pyfiber gate to %R>",
                                ((GateObject *)op)->outside);
}

/* Pickles by the original's qualified name, as a function does, or as a method
 * descriptor does.  Unpickling where nothing is patched gives the original. */
static PyObject *
gate_reduce(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    PyObject *outside = ((GateObject *)op)->outside;
    if (PyObject_HasAttrString(outside, "__objclass__")) {
        return PyObject_CallMethod(outside, "__reduce__", NULL);
    }
    return PyObject_GetAttrString(outside, "__qualname__");
}

static PyGetSetDef getset[] = {
    {"__name__", gate_of_outside, NULL, NULL, (void *)"__name__"},
    {"__qualname__", gate_of_outside, NULL, NULL, (void *)"__qualname__"},
    {"__module__", gate_of_outside, NULL, NULL, (void *)"__module__"},
    {"__doc__", gate_of_outside, NULL, NULL, (void *)"__doc__"},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(GateObject, vectorcall),
     READONLY, NULL},
    {"__wrapped__", T_OBJECT, offsetof(GateObject, outside), READONLY, NULL},
    {"_inside", T_OBJECT, offsetof(GateObject, inside), READONLY, NULL},
    {"_open", T_BOOL, offsetof(GateObject, open), 0, NULL},
    PF_WEAKREFS(GateObject),
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef methods[] = {
    {"__reduce__", gate_reduce, METH_NOARGS, "By its name."},
    {NULL, NULL, 0, NULL},
};

/* ------------------------------------------------------- birth and death */

static PyObject *
gate_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"outside", "inside", NULL};
    PyObject *outside, *inside;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:Gate", names, &outside,
                                     &inside)) {
        return NULL;
    }
    if (!PyCallable_Check(outside) || !PyCallable_Check(inside)) {
        PyErr_SetString(PyExc_TypeError, "Gate() takes two callables: what to "
                                         "call outside and inside of a run");
        return NULL;
    }
    GateObject *self = (GateObject *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->vectorcall = gate_call;
        self->outside = Py_NewRef(outside);
        self->call_outside = vectorcall_of(outside);
        self->inside = Py_NewRef(inside);
        self->open = 1;
    }
    return (PyObject *)self;
}

static int
gate_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(((GateObject *)op)->outside);
    Py_VISIT(((GateObject *)op)->inside);
    return 0;
}

/* Called by the deallocator only.  There is no tp_clear, because an object
 * that dies in the same cycle may still call the gate.  The callables that the
 * gate refers to break the cycle. */
static int
drop(PyObject *op)
{
    Py_CLEAR(((GateObject *)op)->outside);
    Py_CLEAR(((GateObject *)op)->inside);
    return 0;
}

static void
gate_dealloc(PyObject *op)
{
    pf_arguments_dealloc_with(op, drop);
}

/* No Py_tp_doc: it would hide the original's docstring. */
#define GATE_SLOTS                                                            \
    {Py_tp_new, gate_new}, {Py_tp_dealloc, gate_dealloc},                     \
        {Py_tp_traverse, gate_traverse}, {Py_tp_getattro, gate_getattro},     \
        {Py_tp_call, PyVectorcall_Call}, {Py_tp_repr, gate_repr},             \
        {Py_tp_getset, getset}, {Py_tp_members, members},                     \
    {                                                                         \
        Py_tp_methods, methods                                                \
    }

#define GATE_FLAGS                                                            \
    (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL)

static PyType_Slot gate_slots[] = {
    GATE_SLOTS,
    {0, NULL},
};

static PyType_Slot method_gate_slots[] = {
    {Py_tp_descr_get, gate_bind},
    GATE_SLOTS,
    {0, NULL},
};

static PyType_Spec gate_spec = {
    .name = "pyfiber._engine.Gate",
    .basicsize = sizeof(GateObject),
    .flags = GATE_FLAGS,
    .slots = gate_slots,
};

static PyType_Spec method_gate_spec = {
    .name = "pyfiber._engine.MethodGate",
    .basicsize = sizeof(GateObject),
    .flags = GATE_FLAGS | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .slots = method_gate_slots,
};

/* ------------------------------------------ the interpreter's own types */

/* Can _set_in_type() change the type?  _set_in_type() serves types that Python
 * code may not change, and writes to the type's dict.  Instances look up an
 * attribute there, through a cache that PyType_Modified() empties; a special
 * method that has a slot in the type is not affected.  Static types of
 * extensions have such a dict as well.  Static types of the interpreter may
 * have none (tp_dict is NULL): then each interpreter keeps one elsewhere. */
static bool
is_ours_to_set(PyObject *type, PyObject *name)
{
    if (!PyType_Check(type) || !PyUnicode_Check(name) ||
        ((PyTypeObject *)type)->tp_dict == NULL) {
        PyErr_SetString(
            PyExc_TypeError,
            "_set_in_type() takes a type that has a tp_dict, and a "
            "str");
        return false;
    }
    return true;
}

/* _set_in_type(type, name[, value]) removes the name if there is no value. */
static PyObject *
set_in_type(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *type, *name, *value = NULL;
    if (!PyArg_ParseTuple(args, "OO|O:_set_in_type", &type, &name, &value) ||
        !is_ours_to_set(type, name)) {
        return NULL;
    }
    PyObject *dict = ((PyTypeObject *)type)->tp_dict;
    PyObject *old = Py_XNewRef(PyDict_GetItemWithError(dict, name));
    if (old == NULL && PyErr_Occurred()) {
        return NULL;
    }
    int rc = value != NULL ? PyDict_SetItem(dict, name, value)
                           : PyDict_DelItem(dict, name);
    PyType_Modified((PyTypeObject *)type);
    Py_XDECREF(old); /* only now: a lookup no longer finds it */
    return rc < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *
gate_outside(PyObject *module, PyObject *op)
{
    (void)module;
    bool is_gate = Py_IS_TYPE(op, gate_type) || Py_IS_TYPE(op, method_type);
    return Py_NewRef(is_gate ? ((GateObject *)op)->outside : op);
}

/* _call_patched(function, *args) is for replacements of standard objects that
 * have no gate, such as the sockets that are made in fibers. */
static PyObject *
call_patched(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    PfThread *t = pf_thread_current;
    if (nargs < 1) {
        PyErr_SetString(PyExc_TypeError, "_call_patched() takes a function");
        return NULL;
    }
    return t == NULL
               ? PyObject_Vectorcall(args[0], args + 1, (size_t)nargs - 1,
                                     NULL)
               : call_inside(args[0], t, args + 1, (size_t)nargs - 1, NULL);
}

#define LONGEST_SLEEP 9e9 /* seconds; a longer one takes centuries */

/* time.sleep() in a fiber.  Usual arguments are dealt with here and not in the
 * Python function `otherwise`, because the gate would call it from C, and a
 * stack on which C code has called back into Python is not packed. */
static PyObject *
sleep_inside(PyObject *otherwise, PyObject *seconds)
{
    PfThread *t = pf_lot_parks();
    int64_t ns;
    double value = PyFloat_CheckExact(seconds)  ? PyFloat_AS_DOUBLE(seconds)
                   : PyLong_CheckExact(seconds) ? PyLong_AsDouble(seconds)
                                                : -1;
    if (t == NULL || !(value >= 0 && value < LONGEST_SLEEP)) {
        PyErr_Clear();
        return PyObject_CallOneArg(otherwise, seconds);
    }
    if (pf_arguments_seconds(seconds, "sleep()'s argument", &ns) < 0 ||
        pf_wait_sleep_until(t, pf_deadline_in(NULL, ns)) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef sleep_method = {"sleep", sleep_inside, METH_O,
                                   "time.sleep() in a fiber."};

static PyObject *
sleep_or(PyObject *module, PyObject *otherwise)
{
    (void)module;
    return PyCFunction_New(&sleep_method, otherwise);
}

/* Called in the child of a fork, where the run's other fibers are copies of
 * the parent's.  A wait of the fiber that forked must not let these copies go
 * on. */
static PyObject *
block_from_now_on(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    PfThread *t = pf_thread_current;
    if (t != NULL && t->scheduler != NULL) {
        t->scheduler->blocks = true;
    }
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"_block_from_now_on", block_from_now_on, METH_NOARGS,
     "_block_from_now_on(): waits for events in this run no longer park."},
    {"_call_patched", (PyCFunction)(void (*)(void))call_patched, METH_FASTCALL,
     "_call_patched(function, /, *args)\n--\n\n"
     "Call it as if through a gate: a cancellation is raised there once."},
    {"_sleep_or", sleep_or, METH_O,
     "_sleep_or(otherwise, /)\n--\n\n"
     "time.sleep() in a fiber; otherwise(seconds) for unusual arguments."},
    {"_outside", gate_outside, METH_O,
     "_outside(callable): what a gate has replaced; of others themselves."},
    {"_set_in_type", set_in_type, METH_VARARGS,
     "_set_in_type(type, name, value=<nothing>, /)\n--\n\n"
     "An attribute without a slot, of a type that cannot be changed."},
    {NULL, NULL, 0, NULL},
};

int
pf_gate_init(PyObject *module)
{
    gate_type = pf_arguments_add_type(module, &gate_spec, NULL);
    method_type = pf_arguments_add_type(module, &method_gate_spec, NULL);
    return gate_type == NULL || method_type == NULL
               ? -1
               : PyModule_AddFunctions(module, functions);
}

int
pf_patch_init(PyObject *module)
{
    return pf_gate_init(module) < 0 || pf_standard_init(module) < 0 ||
                   pf_lot_init(module) < 0 || pf_methods_init(module) < 0 ||
                   pf_patch_lock_init(module) < 0 ||
                   pf_patch_event_init(module) < 0
               ? -1
               : pf_patch_local_init(module);
}
