/* The handle of a virtual thread: see virtual.h.
 *
 * The handle replaces the interpreter's `_thread._ThreadHandle`, which exists
 * since 3.13, and on earlier versions the lock of `_set_sentinel()`.  The fiber calls the handle, and the handle calls the thread's
 * function.
 *
 * The GIL guards all of this, as it guards the parking lot (patch/lot.h):
 * virtual threads need patch().
 */
#include "python/virtual/virtual.h"

#include "python/core/arguments.h"
#include "python/core/state.h"
#include "python/core/tstate.h"
#include "python/io/waiting.h"
#include "python/task/deadline.h"
#include "python/wait/in_line.h"

#include <structmember.h>

PyTypeObject *pf_handle_type; /* constant after import */

/* -------------------------------------------------------------- the thread */

/* Reports what a thread's function has raised.  The end of the program is no
 * failure, nor is the end of the thread. */
static void
report(PyObject *function)
{
    if (PyErr_ExceptionMatches(PyExc_SystemExit) ||
        PyErr_ExceptionMatches(pf.fiber_exit) ||
        PyErr_ExceptionMatches(pf.cancelled)) {
        PyErr_Clear();
        return;
    }
    pystate_unraisable_in_thread(function);
}

/* Calls the method as a thread's function, and takes the reference to it.  The
 * method object is freed before the call, as it would live as long as the
 * thread. */
static void
run_method(PyObject *method)
{
    PyObject *function = Py_NewRef(PyMethod_GET_FUNCTION(method));
    PyObject *self = Py_NewRef(PyMethod_GET_SELF(method));
    Py_DECREF(method);
    PyObject *result = PyObject_CallOneArg(function, self);
    if (result == NULL) {
        PyObject *raised = pystate_take_exception();
        method = PyMethod_New(function, self);
        PyErr_Clear();
        pystate_restore_exception(raised);
        report(method);
        Py_XDECREF(method);
    }
    Py_XDECREF(result);
    Py_DECREF(function);
    Py_DECREF(self);
}

static void
run_function(PyObject *function, PyObject *args, PyObject *kwargs)
{
    PyObject *result = PyObject_Call(function, args, kwargs);
    if (result == NULL) {
        report(function);
    }
    Py_XDECREF(result);
    Py_DECREF(function);
}

static PyObject *
handle_call(PyObject *op, PyObject *args, PyObject *kwargs)
{
    PfHandle *self = (PfHandle *)op;
    if (self->state != PF_HANDLE_STARTING || PyTuple_GET_SIZE(args) != 0 ||
        kwargs != NULL) {
        PyErr_SetString(PyExc_TypeError,
                        "a thread's handle is called by its fiber only");
        return NULL;
    }
    PyObject *function = self->function, *with = self->args,
             *named = self->kwargs;
    self->function = self->args = self->kwargs = NULL;
    pf_handle_set_state(self, PF_HANDLE_BEGUN);
    if (PyMethod_Check(function) && PyTuple_GET_SIZE(with) == 0 &&
        named == NULL) {
        run_method(function);
    } else {
        run_function(function, with, named);
    }
    Py_DECREF(with);
    Py_XDECREF(named);
    Py_RETURN_NONE;
}

static bool
is_done(const PfHandle *self)
{
    return self->state >= PF_HANDLE_DONE;
}

/* Wakes the starter, or those that join. */
void
pf_handle_set_state(PfHandle *self, PfHandleState state)
{
    self->state = (uint8_t)state;
    pf_waitq_grant_all(&self->waiters);
}

/* Calls the release() of the object that the thread's end releases. */
static void
release_sentinel(PfHandle *self)
{
    PyObject *lock = self->sentinel;
    self->sentinel = NULL;
    PyObject *done = PyObject_CallMethod(lock, "release", NULL);
    if (done == NULL && PyErr_ExceptionMatches(PyExc_RuntimeError)) {
        PyErr_Clear(); /* An exception in join() has released the lock. */
    } else if (done == NULL) {
        PyErr_WriteUnraisable(lock);
    }
    Py_XDECREF(done);
    Py_DECREF(lock);
}

/* The thread's fiber has ended, or will never begin. */
void
pf_handle_ended(PfHandle *self)
{
    self->fiber = NULL;
    if (!is_done(self)) {
        pf_handle_set_state(self, self->state == PF_HANDLE_BEGUN
                                      ? PF_HANDLE_DONE
                                      : PF_HANDLE_REFUSED);
    }
    if (self->sentinel != NULL) {
        release_sentinel(self);
    }
}

/* The thread is one that this process, a fork's child, does not have, nor
 * does it have those that wait for the thread. */
void
pf_handle_lost(PfHandle *self)
{
    self->fiber = NULL;
    self->waiters = (PfWaitq){NULL};
    self->state = PF_HANDLE_DONE;
}

/* -------------------------------------------------------------------- waiting */

int
pf_handle_await_begin(PfHandle *self, PfThread *t)
{
    int rc = 0;
    while (rc == 0 && self->state == PF_HANDLE_STARTING) {
        PfWait *wait = pf_wait_new(t, NULL);
        if (wait == NULL) {
            return -1;
        }
        wait->waiter.shielded = true;
        PyObject *fiber = Py_NewRef((PyObject *)self->fiber);
        rc = pf_wait_for(wait, &self->waiters, NULL, t, PF_NEVER, fiber);
        Py_DECREF(fiber);
        pf_wait_free(t, wait);
    }
    return rc;
}

/* Waits once for a change of the state: 0, 1 when the deadline has passed, or
 * -1 with an exception.  Reports say that the fiber waits for the thread's
 * fiber, if there is one. */
static int
wait_once(PfHandle *self, PfThread *t, int64_t deadline)
{
    PyObject *end = Py_NewRef(self->fiber != NULL ? (PyObject *)self->fiber
                                                  : (PyObject *)self);
    bool before = pf_io_patched_begin(t, true);
    int rc = pf_wait_once(&self->waiters, NULL, t, deadline, end);
    pf_io_patched_end(t, before);
    Py_DECREF(end);
    return rc;
}

static int
refuse_join(const PfHandle *self, const PfThread *t)
{
    const char *why = NULL;
    if (self->state == PF_HANDLE_NEW) {
        why = "thread not started";
    } else if (self->fiber != NULL && self->fiber == pf_virtual_here(t)) {
        why = "Cannot join current thread";
    }
    if (why != NULL) {
        PyErr_SetString(PyExc_RuntimeError, why);
    }
    return why == NULL ? 0 : -1;
}

static PyObject *
handle_join(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
            PyObject *kwnames)
{
    PfHandle *self = (PfHandle *)op;
    PyObject *timeout = Py_None;
    int64_t deadline;
    PfThread *t = pf_thread_this();
    if (t == NULL ||
        pf_arguments_optional("join", "timeout", args, nargs, kwnames,
                              &timeout) < 0 ||
        pf_deadline_join(timeout, &deadline) < 0 || refuse_join(self, t) < 0) {
        return NULL;
    }
    int rc = 0;
    while (rc == 0 && !is_done(self)) {
        rc = wait_once(self, t, deadline);
    }
    return rc < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *
handle_is_done(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    return PyBool_FromLong(is_done((PfHandle *)op));
}

/* The thread's end does this, and in the child of a fork threading does it
 * for the threads that the child does not have. */
static PyObject *
handle_set_done(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    PfHandle *self = (PfHandle *)op;
    if (self->state == PF_HANDLE_NEW) {
        PyErr_SetString(PyExc_RuntimeError, "thread not started");
        return NULL;
    }
    self->fiber = NULL;
    if (!is_done(self)) {
        pf_handle_set_state(self, PF_HANDLE_DONE);
    }
    Py_RETURN_NONE;
}

/* --------------------------------------------------------------- attributes */

static PyObject *
handle_ident(PyObject *op, void *closure)
{
    (void)closure;
    return PyLong_FromSize_t(((PfHandle *)op)->ident);
}

static PyObject *
handle_fiber(PyObject *op, void *closure)
{
    (void)closure;
    PyObject *fiber = (PyObject *)((PfHandle *)op)->fiber;
    return Py_NewRef(fiber != NULL ? fiber : Py_None);
}

static PyObject *
handle_repr(PyObject *op)
{
    return PyUnicode_FromFormat("<_ThreadHandle object: ident=%zu>",
                                ((PfHandle *)op)->ident);
}

static PyGetSetDef getset[] = {
    {"ident", handle_ident, NULL, "The thread's number; 0: not started.",
     NULL},
    {"_fiber", handle_fiber, NULL, "The thread's fiber until it has ended.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef members[] = {
    {"_daemon", T_BOOL, offsetof(PfHandle, daemon), READONLY,
     "Does the end of the program not wait for the thread?"},
    {"_sentinel", T_OBJECT, offsetof(PfHandle, sentinel), 0,
     "A lock that the thread's end releases, or None."},
    PF_WEAKREFS(PfHandle),
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef methods[] = {
    PF_METHOD("join", handle_join,
              "join($self, /, timeout=None)\n--\n\nWait for the end."),
    {"is_done", handle_is_done, METH_NOARGS,
     "is_done($self, /)\n--\n\nHas the thread ended?"},
    {"_set_done", handle_set_done, METH_NOARGS,
     "_set_done($self, /)\n--\n\nCount the thread as ended."},
    PF_NO_PICKLE,
    {NULL, NULL, 0, NULL},
};

/* ------------------------------------------------------------------- the type */

static int
handle_traverse(PyObject *op, visitproc visit, void *arg)
{
    PfHandle *self = (PfHandle *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->function);
    Py_VISIT(self->args);
    Py_VISIT(self->kwargs);
    Py_VISIT(self->sentinel);
    return 0;
}

static int
handle_clear(PyObject *op)
{
    PfHandle *self = (PfHandle *)op;
    Py_CLEAR(self->function);
    Py_CLEAR(self->args);
    Py_CLEAR(self->kwargs);
    Py_CLEAR(self->sentinel);
    return 0;
}

static void
handle_dealloc(PyObject *op)
{
    PfHandle *self = (PfHandle *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs(op);
    }
    handle_clear(op);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)"_ThreadHandle()\n--\n\nThe handle of a thread that "
                        "is a fiber."},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_dealloc, handle_dealloc},
    {Py_tp_traverse, handle_traverse},
    {Py_tp_clear, handle_clear},
    {Py_tp_call, handle_call},
    {Py_tp_repr, handle_repr},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_tp_getset, getset},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "pyfiber._engine._ThreadHandle",
    .basicsize = sizeof(PfHandle),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};

/* _main_handle(): the handle of the main program, for which no fiber was
 * started; _set_done() ends it. */
static PyObject *
main_handle(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    PfHandle *self = (PfHandle *)pf_handle_type->tp_alloc(pf_handle_type, 0);
    if (self != NULL) {
        self->ident = (size_t)PyThread_get_thread_ident();
        self->state = PF_HANDLE_BEGUN;
    }
    return (PyObject *)self;
}

static PyMethodDef functions[] = {
    {"_main_handle", main_handle, METH_NOARGS,
     "_main_handle()\n--\n\n"
     "A handle of this thread itself, for those that join the main program."},
    {NULL, NULL, 0, NULL},
};

int
pf_handle_init(PyObject *module)
{
    pf_handle_type = pf_arguments_add_type(module, &spec, NULL);
    return pf_handle_type == NULL ? -1
                                  : PyModule_AddFunctions(module, functions);
}
