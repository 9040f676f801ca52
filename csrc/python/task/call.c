/* Checks functions for run(), spawn() and similar functions. A wrong one is
 * refused here, where the traceback has the caller's line, and not in the new
 * fiber, whose traceback would show no line of the program. */
#include "python/task/call.h"

#include "python/core/compiler.h"
#include "python/task/fiber.h"

/* The Python function behind a function or method, else NULL. */
static PyFunctionObject *
function_of(PyObject *callable)
{
    if (PyMethod_Check(callable)) {
        callable = PyMethod_GET_FUNCTION(callable);
    }
    return PyFunction_Check(callable) ? (PyFunctionObject *)callable : NULL;
}

static bool
is_partial(PyObject *callable)
{
    return strcmp(Py_TYPE(callable)->tp_name, "functools.partial") == 0;
}

/* What a partial or an object with __call__ written in Python calls: a new
 * reference, or NULL without an exception. */
static PyObject *
called_by(PyObject *callable)
{
    PyObject *called = NULL;
    if (is_partial(callable)) {
        called = PyObject_GetAttrString(callable, "func");
    } else if (PyType_HasFeature(Py_TYPE(callable), Py_TPFLAGS_HEAPTYPE) &&
               !PyType_Check(callable)) {
        called =
            PyObject_GetAttrString((PyObject *)Py_TYPE(callable), "__call__");
    }
    PyErr_Clear(); /* unknown: the call will raise */
    return called;
}

/* How deeply partials of partials are followed; nobody nests them more deeply.
 */
#define DEEPEST 20

/* The Python function that a call runs in the end: a new reference, or NULL
 * without an exception. */
static PyFunctionObject *
function_within(PyObject *callable)
{
    PyObject *at = Py_NewRef(callable);
    for (int i = 0; i < DEEPEST && at != NULL; i++) {
        PyFunctionObject *function = function_of(at);
        if (function != NULL) {
            Py_INCREF(function);
            Py_DECREF(at);
            return function;
        }
        Py_SETREF(at, called_by(at));
    }
    Py_XDECREF(at);
    return NULL;
}

static PyCodeObject *
code_of(PyFunctionObject *function)
{
    return (PyCodeObject *)function->func_code;
}

static int
refuse_async(const char *caller, PyFunctionObject *function)
{
    PyErr_Format(PyExc_TypeError,
                 "%s takes an ordinary function, and %U() is an async one: "
                 "write it without async and await, which fibers do without; "
                 "or run it with asyncio.run() or pyfiber.grains.spawn()",
                 caller, function->func_qualname);
    return -1;
}

static int
refuse_generator(const char *caller, PyFunctionObject *function)
{
    PyErr_Format(PyExc_TypeError,
                 "%s takes an ordinary function, and %U() is a generator "
                 "function, whose call runs none of its code: spawn a "
                 "function that iterates over it; for values from any depth "
                 "of calls there is pyfiber.generator, for generators that "
                 "the loop steps pyfiber.grains.spawn()",
                 caller, function->func_qualname);
    return -1;
}

static int
refuse_uncallable(const char *caller, PyObject *object)
{
    const char *hint =
        PyCoro_CheckExact(object)
            ? "run coroutines with asyncio.run() or pyfiber.grains.spawn()"
        : PyGen_CheckExact(object)
            ? "iterate over generators in a function, or step them with "
              "pyfiber.grains.spawn()"
            : "give it the function, and its arguments after it, not the "
              "result of a call";
    PyErr_Format(PyExc_TypeError, "%s takes a function, not '%.200s': %s",
                 caller, Py_TYPE(object)->tp_name, hint);
    return -1;
}

int
pf_call_check_slow(const char *caller, PyObject *object)
{
    if (!PyCallable_Check(object)) {
        return refuse_uncallable(caller, object);
    }
    PyFunctionObject *function = function_within(object);
    int rc = 0;
    if (function != NULL && !pf_call_is_plain(function)) {
        rc = (code_of(function)->co_flags & CO_COROUTINE
                  ? refuse_async
                  : refuse_generator)(caller, function);
    }
    Py_XDECREF(function);
    return rc;
}

/* -------------------------------------------------- do the arguments fit it? */

/* The position of the parameter that a keyword names, or -1. */
static Py_ssize_t
find_parameter(PyObject *names, Py_ssize_t from, Py_ssize_t to, PyObject *key)
{
    for (Py_ssize_t i = from; i < to; i++) {
        if (PyTuple_GET_ITEM(names, i) == key) {
            return i;
        }
    }
    for (Py_ssize_t i = from; i < to; i++) {
        if (PyUnicode_Compare(PyTuple_GET_ITEM(names, i), key) == 0) {
            return i;
        }
    }
    return -1;
}

typedef uint64_t Set; /* a set of parameters */

static inline Set
first(Py_ssize_t n)
{
    return n <= 0 ? 0 : n >= 64 ? ~(Set)0 : ((Set)1 << n) - 1;
}

/* The required keyword-only parameters. Holds the code object, because a key
 * of the defaults may compare by code that gives the function another one. */
static Set
needed_keywords(PyFunctionObject *function, PyObject *names)
{
    PyCodeObject *code =
        (PyCodeObject *)Py_NewRef((PyObject *)code_of(function));
    PyObject *defaults = Py_XNewRef(function->func_kwdefaults);
    Set set = 0;
    for (int i = 0; i < code->co_kwonlyargcount; i++) {
        Py_ssize_t place = code->co_argcount + i;
        PyObject *name = PyTuple_GET_ITEM(names, place);
        if (defaults == NULL || PyDict_Contains(defaults, name) != 1) {
            set |= (Set)1 << place;
        }
    }
    Py_XDECREF(defaults);
    PyErr_Clear(); /* a comparison failed: the call will raise */
    Py_DECREF(code);
    return set;
}

/* The required parameters. */
static Set
needed(PyFunctionObject *function, PyObject *names)
{
    Py_ssize_t count = code_of(function)->co_argcount;
    if (function->func_defaults != NULL) {
        count -= PyTuple_GET_SIZE(function->func_defaults);
    }
    return first(count) | needed_keywords(function, names);
}

/* Adds the parameters that the keywords name to *given. False if the function
 * cannot take one of them. */
static bool
add_keywords(PyCodeObject *code, PyObject *names, PyObject *kwnames,
             Set *given)
{
    Py_ssize_t total = code->co_argcount + code->co_kwonlyargcount;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(kwnames); i++) {
        Py_ssize_t place = find_parameter(names, code->co_posonlyargcount,
                                          total, PyTuple_GET_ITEM(kwnames, i));
        if (place < 0 && !(code->co_flags & CO_VARKEYWORDS)) {
            return false;
        }
        if (place >= 0 && (*given & ((Set)1 << place))) {
            return false;
        }
        *given |= place < 0 ? 0 : (Set)1 << place;
    }
    return true;
}

/* Would Python bind these arguments? fits() handles the simplest calls. */
static bool
fits_slowly(PyFunctionObject *function, Py_ssize_t nargs, PyObject *kwnames)
{
    PyCodeObject *code = code_of(function);
    if (code->co_argcount + code->co_kwonlyargcount > 64) {
        return true; /* the call will raise */
    }
    if (nargs > code->co_argcount && !(code->co_flags & CO_VARARGS)) {
        return false;
    }
    PyObject *names = PyCode_GetVarnames(code);
    if (names == NULL) {
        PyErr_Clear(); /* no memory: the call will raise */
        return true;
    }
    Set given = first(Py_MIN(nargs, code->co_argcount));
    bool fits =
        (kwnames == NULL || add_keywords(code, names, kwnames, &given)) &&
        (needed(function, names) & ~given) == 0;
    Py_DECREF(names);
    return fits;
}

/* The common case: a function with exactly this many parameters. */
static inline bool
fits(PyFunctionObject *function, Py_ssize_t nargs, PyObject *kwnames)
{
    PyCodeObject *code = code_of(function);
    return nargs == code->co_argcount && kwnames == NULL &&
           code->co_kwonlyargcount == 0;
}

/* Calls a function that does not take the arguments, so that Python raises its
 * own error; no code of the function runs. */
static int
refuse_arguments(PyObject *fn, PyObject *const *args, Py_ssize_t nargs,
                 PyObject *kwnames)
{
    PyObject *result = PyObject_Vectorcall(fn, args, (size_t)nargs, kwnames);
    if (result != NULL) {
        Py_DECREF(result);
        PyErr_Format(PyExc_TypeError, "%R does not take these arguments", fn);
    }
    return -1;
}

static int
check_call(const char *caller, PyObject *const *args, Py_ssize_t nargs,
           PyObject *kwnames)
{
    if (nargs < 1) {
        PyErr_Format(PyExc_TypeError, "%s needs a function", caller);
        return -1;
    }
    PyObject *fn = args[0];
    if (pf_call_check(caller, fn) < 0) {
        return -1;
    }
    PyFunctionObject *function = function_of(fn);
    Py_ssize_t count = nargs - 1 + (fn != (PyObject *)function);
    return function == NULL || fits(function, count, kwnames) ||
                   fits_slowly(function, count, kwnames)
               ? 0
               : refuse_arguments(fn, args + 1, nargs - 1, kwnames);
}

/* Makes a fiber for spawn(fn, ...): `args` begins with the function. */
FiberObject *
pf_call_fiber(const char *caller, PyObject *const *args, Py_ssize_t nargs,
              PyObject *kwnames)
{
    bool plain = nargs >= 1 && PyFunction_Check(args[0]) &&
                 pf_call_is_plain((PyFunctionObject *)args[0]) &&
                 fits((PyFunctionObject *)args[0], nargs - 1, kwnames);
    return PF_LIKELY(plain) || check_call(caller, args, nargs, kwnames) == 0
               ? pf_fiber_new(args[0], args + 1, nargs - 1, kwnames)
               : NULL;
}
