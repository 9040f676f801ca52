/* Objects made when the module is imported: see state.h. */
#include "python/core/state.h"

#include "python/core/tstate.h"

#include <string.h>

PfConstants pf;                        /* constant after import */
PF_ATOMIC(uint8_t) pf_state_shut_down; /* shared, one word */

static PyObject *
new_exception(PyObject *module, const char *name, const char *doc,
              PyObject *base)
{
    PyObject *type = PyErr_NewExceptionWithDoc(name, doc, base, NULL);
    const char *dot = strrchr(name, '.');
    if (type != NULL && PyModule_AddObjectRef(module, dot + 1, type) < 0) {
        Py_CLEAR(type);
    }
    return type;
}

static int
make_exceptions(PyObject *module)
{
    pf.fiber_error = new_exception(
        module, "pyfiber.FiberError",
        "A fiber was used in a way it cannot be; the text says what to do.",
        PyExc_RuntimeError);
    pf.fiber_exit = new_exception(
        module, "pyfiber.FiberExit",
        "Raised in a suspended fiber whose last reference is gone, so that\n"
        "its finally blocks run.",
        PyExc_BaseException);
    pf.deadlock_error = new_exception(
        module, "pyfiber.DeadlockError",
        "Every fiber waits and nothing can wake one; the text lists them.",
        PyExc_RuntimeError);
    return pf.fiber_error && pf.fiber_exit && pf.deadlock_error ? 0 : -1;
}

static int
make_strings(void)
{
    pf.s_run = PyUnicode_InternFromString("run");
    pf.s_park = PyUnicode_InternFromString("park()");
    pf.s_sleep = PyUnicode_InternFromString("sleep()");
    pf.s_select = PyUnicode_InternFromString("select()");
    pf.s_yield = PyUnicode_InternFromString("yield_now()");
    pf.s_slice = PyUnicode_InternFromString("the line of preempted fibers");
    pf.s_failed =
        PyUnicode_InternFromString("another fiber of the group failed");
    pf.s_log = PyUnicode_InternFromString("log");
    pf.s_raise = PyUnicode_InternFromString("raise");
    pf.s_on_unhandled = PyUnicode_InternFromString("on_unhandled");
    pf.s_watchdog = PyUnicode_InternFromString("watchdog");
    return pf.s_run && pf.s_park && pf.s_sleep && pf.s_select && pf.s_yield &&
                   pf.s_slice && pf.s_failed && pf.s_log && pf.s_raise &&
                   pf.s_on_unhandled && pf.s_watchdog
               ? 0
               : -1;
}

/* Finds out whether two threads can run Python code at the same time. 0 or -1.
 */
static int
count_processors(void)
{
    if (!PF_FREE_THREADED) {
        return 0;
    }
    PyObject *os = PyImport_ImportModule("os");
    PyObject *count =
        os == NULL ? NULL : PyObject_CallMethod(os, "process_cpu_count", NULL);
    pf.in_parallel = count != NULL && count != Py_None &&
                     PyLong_AsLong(count) > 1; /* None: unknown */
    Py_XDECREF(count);
    Py_XDECREF(os);
    return PyErr_Occurred() ? -1 : 0;
}

int
pf_state_init(PyObject *module)
{
    return make_strings() < 0 || count_processors() < 0
               ? -1
               : make_exceptions(module);
}
