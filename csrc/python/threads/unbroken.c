/* Steps of the façade that must not be interrupted half-way.
 *
 * A trace function or a signal handler may raise between any two lines of
 * Python code, also before the first line of a function and at the end of a
 * `with` block.  These functions are in C, where nothing raises in between.
 */
#include "python/core/arguments.h"
#include "python/core/tstate.h"
#include "python/threads/threads.h"

/* _holding(lock, fn, *args).  If both fn and the release fail, the exception
 * of the release is raised. */
static PyObject *
call_holding(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    if (nargs < 2) {
        PyErr_SetString(PyExc_TypeError, "_holding() takes a lock and a call");
        return NULL;
    }
    PyObject *held = PyObject_CallMethod(args[0], "acquire", NULL);
    if (held == NULL) {
        return NULL;
    }
    Py_DECREF(held);
    PyObject *result =
        PyObject_Vectorcall(args[1], args + 2, (size_t)nargs - 2, NULL);
    PyObject *raised = result == NULL ? pystate_take_exception() : NULL;
    PyObject *released = PyObject_CallMethod(args[0], "release", NULL);
    if (released == NULL) {
        Py_CLEAR(result);
        Py_XDECREF(raised);
        return NULL;
    }
    Py_DECREF(released);
    pystate_restore_exception(raised);
    return result;
}

/* Calls `fn` until it returns, at most PF_MOST_ATTEMPTS times.  Then raises
 * the first exception, if there was one. */
static PyObject *
call_until_done(PyObject *fn, PyObject *const *args, Py_ssize_t nargs)
{
    PyObject *first = NULL;
    PyObject *result = NULL;
    for (int i = 0; i < PF_MOST_ATTEMPTS && result == NULL; i++) {
        result = PyObject_Vectorcall(fn, args, (size_t)nargs, NULL);
        PyObject *raised = result == NULL ? pystate_take_exception() : NULL;
        if (first == NULL) {
            first = raised;
        } else {
            Py_XDECREF(raised);
        }
    }
    if (first != NULL) {
        Py_CLEAR(result);
        pystate_restore_exception(first);
    }
    return result;
}

static PyMethodDef insistent_method = {"insistent", PF_FAST(call_until_done),
                                       METH_FASTCALL, NULL};

static PyObject *
make_insistent(PyObject *module, PyObject *fn)
{
    (void)module;
    return PyCFunction_New(&insistent_method, fn);
}

static PyMethodDef functions[] = {
    {"_holding", PF_FAST(call_holding), METH_FASTCALL,
     "_holding(lock, fn, /, *args)\n--\n\n"
     "Call fn(*args) with the lock held, and release the lock in any case."},
    {"_insistent", make_insistent, METH_O,
     "_insistent(fn, /)\n--\n\n"
     "A function that calls fn again while it raises, up to some number of\n"
     "times. Even if a later call succeeds, it raises the first exception."},
    {NULL, NULL, 0, NULL},
};

int
pf_threads_unbroken_init(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
