/* _Latch: a fiber waits until it is set, by any thread, once and for all.
 *
 * What the façade's futures wait on.  Unlike park() and unpark() it is private
 * to one wait: nobody else's wake-up can end it.
 */
#include "python/binding.h"

/* Invariants: `fiber` is who waits just now; the message is posted at most
 * once, by the one set() that finds the latch open on another thread. */
typedef struct LatchObject {
    PyObject_HEAD
    pf_message message;
    FiberObject *fiber; /* borrowed: it is suspended in latch_wait */
    bool set;
} LatchObject;

static void
wake(LatchObject *self)
{
    if (self->fiber != NULL) {
        pf_scheduler *s = self->fiber->core.scheduler;
        if (pf_wake_fiber(s, &self->fiber->core, PF_WAKE_NORMAL)) {
            pf_tell_host(SCHEDULER_OF(s));
        }
    }
}

static void
set_arrived(pf_message *message, pf_scheduler *s)
{
    LatchObject *self =
        (LatchObject *)((char *)message - offsetof(LatchObject, message));
    pf_no_switch_begin((PfThread *)s->thread, "inside the scheduler");
    wake(self);
    Py_DECREF(self);
    pf_no_switch_end((PfThread *)s->thread);
}

static PyObject *
latch_set(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    LatchObject *self = (LatchObject *)op;
    if (self->set) {
        Py_RETURN_NONE;
    }
    self->set = true;
    FiberObject *fiber = self->fiber;
    if (fiber == NULL || fiber->thread == pf_tls_thread) {
        wake(self);
        Py_RETURN_NONE;
    }
    self->message.run = set_arrived;
    Py_INCREF(self);
    if (!pf_post(fiber->core.scheduler, &self->message)) {
        Py_DECREF(self);
    }
    Py_RETURN_NONE;
}

/* 0: set; 1: timed out; -1: exception. */
static int
wait_until_set(LatchObject *self, PfThread *t, int64_t deadline,
               PyObject *what)
{
    int rc = 0;
    while (rc == 0 && !self->set) {
        self->fiber = CURRENT(t);
        rc = pf_wait(t, deadline, what);
        self->fiber = NULL;
    }
    return rc == 1 && self->set ? 0 : rc;
}

static PyObject *
latch_wait(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    LatchObject *self = (LatchObject *)op;
    int64_t deadline;
    if (nargs != 2) {
        PyErr_SetString(PyExc_TypeError, "wait() takes a timeout and what is "
                                         "waited for");
        return NULL;
    }
    PfThread *t = pf_this_thread();
    if (t == NULL || pf_deadline(args[0], &deadline) < 0) {
        return NULL;
    }
    if (self->set) {
        Py_RETURN_TRUE;
    }
    if (pf_active(t, "waiting for a future") == NULL) {
        return NULL;
    }
    if (self->fiber != NULL) {
        PyErr_SetString(pf.fiber_error, "another fiber waits for the latch");
        return NULL;
    }
    int rc = wait_until_set(self, t, deadline, args[1]);
    return rc < 0 ? NULL : PyBool_FromLong(rc == 0);
}

static PyObject *
latch_is_set(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    return PyBool_FromLong(((LatchObject *)op)->set);
}

static PyObject *
latch_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":_Latch", names)) {
        return NULL;
    }
    return type->tp_alloc(type, 0);
}

static void
latch_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMethodDef latch_methods[] = {
    {"set", latch_set, METH_NOARGS,
     "set($self, /)\n--\n\n"
     "From any thread: let the fiber that waits go on, now or when it comes."},
    {"wait", (PyCFunction)(void (*)(void))latch_wait, METH_FASTCALL,
     "wait($self, timeout, what, /)\n--\n\n"
     "Park until it is set; False after `timeout` seconds (None: no "
     "limit).\n\n"
     "`what` is what reports call it. A cancellation point."},
    {"is_set", latch_is_set, METH_NOARGS, "is_set($self, /)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot latch_slots[] = {
    {Py_tp_doc, (void *)"_Latch()\n--\n\nSet once, by any thread; one fiber "
                        "waits for it."},
    {Py_tp_new, latch_new},
    {Py_tp_dealloc, latch_dealloc},
    {Py_tp_methods, latch_methods},
    {0, NULL},
};

PyType_Spec pf_latch_spec = {
    .name = "pyfiber._engine._Latch",
    .basicsize = sizeof(LatchObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = latch_slots,
};
