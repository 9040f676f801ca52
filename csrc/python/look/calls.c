/* The calls of fibers and threads as pairs of code and line: see calls.h. */
#include "python/look/calls.h"
#include "python/core/world.h"

#include "python/look/inspect.h"
#include "python/pack/pack.h"

/* Returns true if the fiber is running.  The fiber's thread is stopped, or is
 * this one. */
static bool
runs(const FiberObject *fiber)
{
    return fiber->thread != NULL && fiber->core.state != PF_DONE &&
           fiber == CURRENT(fiber->thread);
}

PyObject *
pf_calls_of(FiberObject *fiber)
{
    if (pf_pack_show_fiber(fiber) < 0) {
        return NULL;
    }
    bool stopped = pf_world_stop(fiber->thread);
    PyObject *calls = NULL;
    if (runs(fiber)) {
        calls = pystate_running_calls(fiber->thread->tstate);
    } else if (pf_look_has_frames(fiber)) {
        calls = pystate_calls(fiber->saved);
    } else {
        calls = PyList_New(0);
    }
    pf_world_start(stopped);
    return calls;
}

static PyObject *
mod_calls(PyObject *module, PyObject *op)
{
    (void)module;
    FiberObject *fiber = pf_fiber_expect(op);
    return fiber == NULL ? NULL : pf_calls_of(fiber);
}

/* Returns the calls that the thread with this identifier runs.  The other
 * threads are stopped.  NULL without an exception means that the thread has no
 * fibers. */
static PyObject *
calls_on(unsigned long ident)
{
    PyObject *calls = NULL;
    pf_mutex_lock(&pf_threads_lock);
    PfThread *t = pf_threads;
    while (t != NULL && pystate_thread(t->tstate) != ident) {
        t = t->next;
    }
    if (t != NULL) {
        calls = pystate_running_calls(t->tstate);
    }
    pf_mutex_unlock(&pf_threads_lock);
    return calls;
}

static PyObject *
mod_thread_calls(PyObject *module, PyObject *number)
{
    (void)module;
    unsigned long ident = PyLong_AsUnsignedLong(number);
    if (PyErr_Occurred()) {
        return NULL;
    }
    if (!PF_FREE_THREADED) {
        Py_RETURN_NONE;
    }
    bool stopped = pf_world_stop(NULL);
    PyObject *calls = calls_on(ident);
    pf_world_start(stopped);
    return calls != NULL || PyErr_Occurred() ? calls : PyList_New(0);
}

static PyObject *
mod_has_no_frames(PyObject *module, PyObject *op)
{
    (void)module;
    return PyBool_FromLong(PyObject_TypeCheck(op, pf_task_fiber_type) &&
                           pf_world_moves(((FiberObject *)op)->thread));
}

static PyMethodDef functions[] = {
    {"_calls", mod_calls, METH_O,
     "_calls(fiber, /)\n--\n\n"
     "(code, line) of each call of a fiber, innermost first."},
    {"_thread_calls", mod_thread_calls, METH_O,
     "_thread_calls(ident, /)\n--\n\n"
     "(code, line) of each call that a thread with fibers runs, innermost\n"
     "first. None with a GIL, where the frames themselves can be read."},
    {"_has_no_frames", mod_has_no_frames, METH_O,
     "_has_no_frames(fiber, /)\n--\n\n"
     "True if the fiber's frames cannot be read on this thread, because\n"
     "without a GIL another thread may run the fiber."},
    {NULL, NULL, 0, NULL},
};

int
pf_calls_init(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
