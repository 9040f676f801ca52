/* Checks and converts arguments of methods, and deallocates and makes types:
 * see arguments.h. */
#include "python/core/arguments.h"

#include "python/core/state.h"

#include <math.h>

static int
find_name(const char *const *names, PyObject *name)
{
    for (int i = 0; names[i] != NULL; i++) {
        if (PyUnicode_CompareWithASCIIString(name, names[i]) == 0) {
            return i;
        }
    }
    return -1;
}

static int
by_name(const char *function, const char *const *names, PyObject *const *args,
        Py_ssize_t nargs, PyObject *kwnames, PyObject **out)
{
    Py_ssize_t count = kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, i);
        int index = find_name(names, name);
        if (index < 0) {
            PyErr_Format(PyExc_TypeError,
                         "%s() got an unexpected keyword argument '%U'",
                         function, name);
            return -1;
        }
        if (index < nargs) {
            PyErr_Format(PyExc_TypeError,
                         "%s() got multiple values for argument '%U'",
                         function, name);
            return -1;
        }
        out[index] = args[nargs + i];
    }
    return 0;
}

int
pf_arguments(const char *function, const char *const *names, int required,
             PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
             PyObject **out)
{
    int most = 0;
    while (names[most] != NULL) {
        most++;
    }
    if (nargs > most) {
        PyErr_Format(PyExc_TypeError,
                     "%s() takes at most %d argument%s (%zd given)", function,
                     most, most == 1 ? "" : "s", nargs);
        return -1;
    }
    for (Py_ssize_t i = 0; i < nargs; i++) {
        out[i] = args[i];
    }
    if (by_name(function, names, args, nargs, kwnames, out) < 0) {
        return -1;
    }
    for (int i = 0; i < required; i++) {
        if (out[i] == NULL) {
            PyErr_Format(PyExc_TypeError, "%s() is missing its argument '%s'",
                         function, names[i]);
            return -1;
        }
    }
    return 0;
}

PyObject *
pf_arguments_tuple(PyObject *const *items, Py_ssize_t count)
{
    PyObject *tuple = PyTuple_New(count);
    for (Py_ssize_t i = 0; tuple != NULL && i < count; i++) {
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(items[i]));
    }
    return tuple;
}

static PyObject *
dict_of(PyObject *const *values, PyObject *names)
{
    PyObject *dict = PyDict_New();
    for (Py_ssize_t i = 0; dict != NULL && i < PyTuple_GET_SIZE(names); i++) {
        if (PyDict_SetItem(dict, PyTuple_GET_ITEM(names, i), values[i]) < 0) {
            Py_CLEAR(dict);
        }
    }
    return dict;
}

int
pf_arguments_pack(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                  PyObject **tuple, PyObject **dict)
{
    bool named = kwnames != NULL && PyTuple_GET_SIZE(kwnames) > 0;
    *tuple = pf_arguments_tuple(args, nargs);
    *dict = NULL;
    if (*tuple != NULL && named) {
        *dict = dict_of(args + nargs, kwnames);
        if (*dict == NULL) {
            Py_CLEAR(*tuple);
        }
    }
    return *tuple == NULL ? -1 : 0;
}

PyObject *
pf_arguments_make(PyObject *type, PyObject *const *args, Py_ssize_t nargs,
                  PyObject *kwnames)
{
    PyObject *tuple, *dict;
    if (pf_arguments_pack(args, nargs, kwnames, &tuple, &dict) < 0) {
        return NULL;
    }
    PyObject *self = PyType_Type.tp_call(type, tuple, dict);
    Py_DECREF(tuple);
    Py_XDECREF(dict);
    return self;
}

/* -------------------------------------------------------------------- numbers */

#define NS_PER_SECOND 1e9

/* Converts a number to a double. 0, or -1 with an exception; NaN is refused. A
 * number's __float__ may run code that leaves the run, takes the lock, or ends
 * the fiber in question; so callers convert a number once, before they check
 * any state. */
static inline int
real(PyObject *number, const char *what, double *value)
{
    if (PyFloat_CheckExact(number)) {
        *value = PyFloat_AS_DOUBLE(number);
    } else if (PyLong_CheckExact(number)) {
        *value = PyLong_AsDouble(number);
    } else if (PyNumber_Check(number) && !PyComplex_Check(number)) {
        *value = PyFloat_AsDouble(number);
    } else {
        PyErr_Format(PyExc_TypeError, "%s must be a number, not '%.200s'",
                     what, Py_TYPE(number)->tp_name);
        return -1;
    }
    if (*value == -1.0 && PyErr_Occurred()) {
        return -1;
    }
    if (isnan(*value)) {
        PyErr_Format(PyExc_ValueError, "%s must not be NaN", what);
        return -1;
    }
    return 0;
}

int
pf_arguments_real(PyObject *number, const char *what, double *value)
{
    return real(number, what, value);
}

int64_t
pf_arguments_nanoseconds(double seconds)
{
    double scaled = seconds * NS_PER_SECOND;
    if (scaled >= 9.2e18) {
        return PF_NEVER;
    }
    return scaled <= -9.2e18 ? INT64_MIN : (int64_t)ceil(scaled);
}

int
pf_arguments_seconds(PyObject *number, const char *what, int64_t *ns)
{
    double seconds;
    if (real(number, what, &seconds) < 0) {
        return -1;
    }
    *ns = pf_arguments_nanoseconds(seconds);
    return 0;
}

int
pf_arguments_length(PyObject *timeout, int64_t *ns)
{
    double seconds;
    *ns = PF_NEVER;
    if (timeout == NULL || timeout == Py_None) {
        return 0;
    }
    if (pf_arguments_real(timeout, "timeout", &seconds) < 0) {
        return -1;
    }
    if (seconds < 0) {
        PyErr_SetString(PyExc_ValueError, "timeout must not be negative");
        return -1;
    }
    *ns = pf_arguments_nanoseconds(seconds);
    return 0;
}

int
pf_arguments_too_late(const char *why)
{
    PyErr_Format(pf.fiber_error,
                 "__init__ comes too late: %s; make a new object", why);
    return -1;
}

PyObject *
pf_arguments_refuse_pickle(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    PyErr_Format(PyExc_TypeError, "cannot pickle or copy '%.200s' object",
                 Py_TYPE(op)->tp_name);
    return NULL;
}

static void
dealloc_now(PyObject *op, PyTypeObject *type, inquiry clear)
{
    if (type->tp_weaklistoffset > 0) {
        PyObject_ClearWeakRefs(op);
    }
    if (clear != NULL) {
        clear(op);
    }
    type->tp_free(op);
    Py_DECREF(type);
}

/* Deallocates an object in steps that fit on a small stack, as for a queue of
 * a queue of a queue. (Subclasses made in Python do that themselves, and
 * objects that the collector does not track contain no such nesting.) */
void
pf_arguments_dealloc_with(PyObject *op, inquiry clear)
{
    PyTypeObject *type = Py_TYPE(op);
    if (!PyType_IS_GC(type)) {
        dealloc_now(op, type, clear);
        return;
    }
    bool ours = PyType_HasFeature(type, Py_TPFLAGS_IMMUTABLETYPE);
    destructor dealloc = ours ? type->tp_dealloc : NULL;
    (void)dealloc; /* unused from 3.14 on */
    PyObject_GC_UnTrack(op);
    Py_TRASHCAN_BEGIN(op, dealloc);
    dealloc_now(op, type, clear);
    Py_TRASHCAN_END;
}

void
pf_arguments_dealloc(PyObject *op)
{
    pf_arguments_dealloc_with(op, NULL);
}

PyTypeObject *
pf_arguments_add_type(PyObject *module, PyType_Spec *spec, PyTypeObject *base)
{
    spec->flags |= Py_TPFLAGS_IMMUTABLETYPE;
    PyTypeObject *type = (PyTypeObject *)PyType_FromModuleAndSpec(
        module, spec, (PyObject *)base);
    if (type != NULL && PyModule_AddType(module, type) < 0) {
        Py_CLEAR(type);
    }
    return type;
}
