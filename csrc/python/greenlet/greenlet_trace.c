/* greenlet.settrace(): a function of the thread that is called after each of
 * its greenlets' switches. */
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/greenlet/greenlet.h"

PyObject *
pf_greenlet_gettrace(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    PfThread *t = pf_thread_this();
    if (t == NULL) {
        return NULL;
    }
    return Py_NewRef(pf_greenlet_thread(t)->trace == NULL
                         ? Py_None
                         : pf_greenlet_thread(t)->trace);
}

PyObject *
pf_greenlet_settrace(PyObject *module, PyObject *callback)
{
    PyObject *previous = pf_greenlet_gettrace(module, NULL);
    if (previous == NULL) {
        return NULL;
    }
    PfThread *t = pf_thread_current;
    PyObject *old = pf_greenlet_thread(t)->trace;
    pf_greenlet_thread(t)->trace =
        callback == Py_None ? NULL : Py_NewRef(callback);
    Py_XDECREF(old);
    return previous;
}

/* Calls the trace function: returns its result, or NULL with an exception. */
static PyObject *
call(PfThread *t, PyObject *event, PyObject *origin, PyGreenlet *target)
{
    PyObject *callback = Py_NewRef(pf_greenlet_thread(t)->trace);
    PyObject *pair = PyTuple_Pack(2, origin, (PyObject *)target);
    PyObject *result = NULL;
    if (pair != NULL) {
        /* The functions of sys.settrace and sys.setprofile do not see this
         * call. */
        PyThreadState_EnterTracing(t->tstate);
        result = PyObject_CallFunctionObjArgs(callback, event, pair, NULL);
        PyThreadState_LeaveTracing(t->tstate);
    }
    Py_XDECREF(pair);
    Py_DECREF(callback);
    return result;
}

int
pf_greenlet_trace(PfThread *t, bool throwing)
{
    PyObject *origin = pf_greenlet_thread(t)->origin;
    pf_greenlet_thread(t)->origin = NULL;
    if (origin == NULL) {
        return 0; /* no greenlet's switch, or settrace() came in between */
    }
    PyGreenlet *target = pf_greenlet_current(t);
    PyObject *result = NULL;
    if (target != NULL) {
        result = call(t, throwing ? pf_greenlet.s_throw : pf_greenlet.s_switch,
                      origin, target);
    }
    Py_DECREF(origin);
    if (result == NULL) {
        PyObject *exc = pystate_take_exception();
        Py_CLEAR(pf_greenlet_thread(t)->trace);
        pystate_restore_exception(exc);
        return -1;
    }
    Py_DECREF(result);
    return 0;
}
