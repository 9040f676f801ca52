/* Notifying profilers of switches: see profiled.h. */
#include "python/switch/profiled.h"

#include "python/core/facade.h"
#include "python/core/thread.h"
#include "python/task/fiber.h"

void
pf_profiled_leave(PfThread *t, FiberObject *from)
{
    t->left_profiled = (FiberObject *)Py_NewRef((PyObject *)from);
    if (t->engine.zombie == NULL) {
        t->engine.zombie = &from->fiber;
        t->zombie_lives_on = true;
    }
}

/* Notifies the profiler. The façade's function knows how: it returns None, or
 * a function and its arguments. */
static PyObject *
notify_profiler(PyObject *left, PyObject *entered)
{
    PyObject *call = PyObject_CallFunctionObjArgs(pf_facade.profiled_switch,
                                                  left, entered, NULL);
    if (call == NULL || call == Py_None) {
        return call;
    }
    PyObject *arguments = PyTuple_GetSlice(call, 1, PyTuple_GET_SIZE(call));
    PyObject *result =
        arguments == NULL
            ? NULL
            : PyObject_CallObject(PyTuple_GET_ITEM(call, 0), arguments);
    Py_XDECREF(arguments);
    Py_DECREF(call);
    return result;
}

bool
pf_profiled_land(PfThread *t)
{
    FiberObject *from = t->left_profiled;
    bool lives_on = t->zombie_lives_on;
    t->left_profiled = NULL;
    t->zombie_lives_on = false;
    pf_thread_no_switch_begin(t, "while a profiler is notified of a switch");
    PyThreadState_EnterTracing(t->tstate); /* hidden from the profiler */
    PyObject *done = notify_profiler((PyObject *)from, (PyObject *)CURRENT(t));
    PyThreadState_LeaveTracing(t->tstate);
    if (done == NULL) {
        PyErr_WriteUnraisable(pf_facade.profiled_switch);
    }
    Py_XDECREF(done);
    Py_DECREF(from);
    pf_thread_no_switch_end(t);
    return lives_on;
}
