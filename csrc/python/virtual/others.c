/* What a thread of the program does to others: see virtual.h.
 *
 * The interpreter's functions for this know one thread for all fibers.
 */
#include "python/virtual/virtual.h"

#include "python/core/arguments.h"
#include "python/pack/pack.h"
#include "python/switch/tracing.h"

/* --------------------------------------------------------------- exceptions */

/* Returns the fiber of the thread with this ident: borrowed, or NULL, without
 * an exception. */
static FiberObject *
find(FiberObject *main_fiber, size_t ident)
{
    if (ident == (size_t)PyThread_get_thread_ident() &&
        main_fiber->thread == pf_thread_current) {
        return main_fiber;
    }
    for (FiberObject *f = main_fiber->thread->live; f != NULL; f = f->next) {
        if (pf_virtual_is(f) && f->target != NULL &&
            ((PfHandle *)f->target)->state == PF_HANDLE_BEGUN &&
            pf_virtual_ident(f) == ident) {
            return f;
        }
    }
    return NULL;
}

static PyObject *
set_async_exc(PyObject *module, PyObject *args)
{
    (void)module;
    unsigned long long ident;
    PyObject *exc;
    if (!PyArg_ParseTuple(args, "KO:_set_async_exc", &ident, &exc)) {
        return NULL;
    }
    FiberObject *main_fiber = pf_virtual_main();
    FiberObject *fiber =
        main_fiber == NULL ? NULL : find(main_fiber, (size_t)ident);
    if (fiber == NULL) {
        Py_RETURN_FALSE;
    }
    if (pf_pack_show_fiber(fiber) < 0 ||
        pf_tracing_throw(fiber->thread, fiber, exc == Py_None ? NULL : exc) <
            0) {
        return NULL;
    }
    Py_RETURN_TRUE;
}

/* ---------------------------------------------------------- trace functions */

/* Returns the record of a fiber that has its own trace functions, else NULL.  A
 * fiber that has not begun has no saved state. */
static PfTrace *
own_trace(const FiberObject *fiber)
{
    PfTrace *trace = fiber->fiber.stack == NULL && fiber != fiber->thread->root
                         ? NULL
                         : pf_pack_state_of(fiber)->trace;
    return pf_tracing_is_own(trace) ? trace : NULL;
}

/* Appends the fiber if it is suspended and has its own trace functions. */
static int
append_owner(PyObject *list, const PfThread *t, FiberObject *fiber)
{
    return fiber != CURRENT(t) && own_trace(fiber) != NULL
               ? PyList_Append(list, (PyObject *)fiber)
               : 0;
}

static PyObject *
suspended_owners(const PfThread *t)
{
    PyObject *list = PyList_New(0);
    int rc = list == NULL ? -1 : append_owner(list, t, t->root);
    for (FiberObject *f = t->live; rc == 0 && f != NULL; f = f->next) {
        rc = append_owner(list, t, f);
    }
    if (rc < 0) {
        Py_CLEAR(list);
    }
    return list;
}

static PyObject *
set_in_all(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *one, *all, *function;
    PfThread *t = pf_thread_current;
    if (!PyArg_ParseTuple(args, "OOO:_set_in_all", &one, &all, &function)) {
        return NULL;
    }
    if (!pf_virtual_is_one_of_several(t)) {
        return PyObject_CallOneArg(all, function);
    }
    PyObject *owners = suspended_owners(t);
    if (owners == NULL) {
        return NULL;
    }
    pf_thread_no_switch_begin(t, "while all threads get a trace function");
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(owners); i++) {
        FiberObject *fiber = (FiberObject *)PyList_GET_ITEM(owners, i);
        if (pf_tracing_set(t, own_trace(fiber), one, function) < 0) {
            PyErr_WriteUnraisable((PyObject *)fiber);
        }
    }
    PfTrace *here = own_trace(CURRENT(t));
    if (here != NULL && pf_tracing_set(t, here, all, function) < 0) {
        PyErr_WriteUnraisable(all);
    }
    PyObject *done = PyObject_CallOneArg(here != NULL ? one : all, function);
    pf_thread_no_switch_end(t);
    Py_DECREF(owners);
    return done;
}

static PyMethodDef functions[] = {
    {"_set_async_exc", set_async_exc, METH_VARARGS,
     "_set_async_exc(ident, exc, /)\n--\n\n"
     "Raise the exception type in a thread soon, or for None nothing any "
     "more.\nFalse if no virtual thread, nor the main program, has that "
     "ident."},
    {"_set_in_all", set_in_all, METH_VARARGS,
     "_set_in_all(one, all, function, /)\n--\n\n"
     "Set the trace function of all threads, by the interpreter's functions "
     "for\none thread and for all."},
    {NULL, NULL, 0, NULL},
};

int
pf_virtual_others_init(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
