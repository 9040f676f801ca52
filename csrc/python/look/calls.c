/* Lists the call stack of a fiber or thread as pairs (code object, line).
 *
 * Reports (ps, dump_fibers, DeadlockError) show stacks of other threads.
 * Without a GIL those threads may continue at any time, so a report cannot use
 * their frame objects.  The functions here stop the other threads, copy code
 * and line of each call, and let them go on.  inspect.c has the frames of
 * fibers that may be read in place; core/world.h has the rules.
 */
#include "python/look/calls.h"
#include "python/core/world.h"

#include "python/look/inspect.h"
#include "python/pack/pack.h"

/* Returns true if the fiber is running.  Another thread that the fiber belongs
 * to must be stopped, or this thread must hold the GIL. */
static bool
runs(const FiberObject *fiber)
{
    return fiber->thread != NULL && fiber->core.state != PF_DONE &&
           fiber == CURRENT(fiber->thread);
}

/* Makes a packed fiber's frames readable first, because that allocates memory.
 * With a GIL nothing can pack the fiber again before they are read.  Without
 * one no fiber is ever packed.
 *
 * Reads fiber->thread while that may still change.  Only one value leaves the
 * other threads running: this thread, and then no other thread can change it.
 * After the stop everything is read again. */
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

/* Returns the call stack of the thread with this identifier.  The caller has
 * stopped the other threads.  Returns NULL with an exception, or NULL without
 * one if the thread has no fibers.
 *
 * Waiting for pf_threads_lock cannot deadlock: a thread stops where it
 * attaches to the interpreter or runs Python code, and code that holds this
 * lock does neither.  A thread outside of the interpreter is not stopped, and
 * releases the lock soon. */
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
    /* A list; NULL with an exception; or an empty list if there is no such
     * thread. */
    return (calls != NULL || PyErr_Occurred()) ? calls : PyList_New(0);
}

/* Python calls this before it reads `fiber.frame`. */
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
     "(code, line) of each call on a fiber's stack, innermost first."},
    {"_thread_calls", mod_thread_calls, METH_O,
     "_thread_calls(ident, /)\n--\n\n"
     "(code, line) of each call on a thread's stack, innermost first; an\n"
     "empty list if the thread has no fibers. With a GIL None, because the\n"
     "frames themselves can be read then."},
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
