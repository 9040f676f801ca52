/* Which thread of the program the running code belongs to: see virtual.h. */
#include "python/virtual/virtual.h"

#include "python/switch/tracing.h"
#include "python/task/scheduler.h"

/* A raw fiber runs on behalf of the fiber that has entered it, and the body of
 * a generator on behalf of the fiber that waits for its next value. */
static FiberObject *
entered_by(const FiberObject *fiber)
{
    FiberObject *puller = pf_fiber_rare(fiber)->puller;
    return puller != NULL ? puller : fiber->parent;
}

FiberObject *
pf_virtual_here(const PfThread *t)
{
    FiberObject *fiber = CURRENT(t);
    while (fiber != NULL && !fiber->scheduled) {
        fiber = entered_by(fiber);
    }
    return fiber != NULL && pf_virtual_is(fiber) ? fiber : NULL;
}

static FiberObject *
here(void)
{
    PfThread *t = pf_thread_current;
    return t == NULL || t->scheduler == NULL ? NULL : pf_virtual_here(t);
}

static PyObject *
get_ident(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    FiberObject *fiber = here();
    return fiber == NULL ? PyLong_FromUnsignedLong(PyThread_get_thread_ident())
                         : PyLong_FromSize_t(pf_virtual_ident(fiber));
}

static PyObject *
get_native_id(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    FiberObject *fiber = here();
    return fiber == NULL || fiber->target == NULL
               ? PyLong_FromUnsignedLong(PyThread_get_thread_native_id())
               : PyLong_FromUnsignedLongLong(pf_virtual_native_id(fiber));
}

static PyObject *
running_thread(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    FiberObject *fiber = here();
    return Py_NewRef(fiber == NULL || fiber->target == NULL ? Py_None
                                                            : fiber->target);
}

bool
pf_virtual_is_one_of_several(PfThread *t)
{
    return t != NULL && t->scheduler != NULL &&
           (here() != NULL || pf_virtual_in_main(t));
}

static PyObject *
set_tracing(PyObject *original, PyObject *function)
{
    PfThread *t = pf_thread_current;
    if (pf_virtual_is_one_of_several(t) && pf_tracing_own(t) < 0) {
        return NULL;
    }
    return PyObject_CallOneArg(original, function);
}

static PyObject *
settrace(PyObject *module, PyObject *function)
{
    (void)module;
    return set_tracing(pf_tracing_settrace, function);
}

static PyObject *
setprofile(PyObject *module, PyObject *function)
{
    (void)module;
    return set_tracing(pf_tracing_setprofile, function);
}

static PyMethodDef functions[] = {
    {"settrace", settrace, METH_O,
     "settrace(function, /)\n--\n\nSet the trace function of this thread."},
    {"setprofile", setprofile, METH_O,
     "setprofile(function, /)\n--\n\n"
     "Set the profile function of this thread."},
    {"get_ident", get_ident, METH_NOARGS,
     "get_ident()\n--\n\n"
     "Return a non-zero integer that uniquely identifies the current thread\n"
     "amongst other threads that exist simultaneously."},
    {"get_native_id", get_native_id, METH_NOARGS,
     "get_native_id()\n--\n\n"
     "Return a non-negative integer identifying the thread. That of a thread\n"
     "that is a fiber is larger than the system's, and never used again."},
    {"_running_thread", running_thread, METH_NOARGS,
     "_running_thread()\n--\n\n"
     "The handle of the virtual thread that runs here, or None."},
    {NULL, NULL, 0, NULL},
};

int
pf_virtual_ident_init(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
