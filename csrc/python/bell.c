/* The _Bell type: one fiber waits until somebody rings.
 *
 * For what the façade builds of fibers; unlike park() it shares nothing with
 * the user's own parking.  Nothing is remembered: who waits looks first at
 * what it waits for, and nobody can come in between.
 */
#include "python/scope.h"

typedef struct BellObject {
    PyObject_HEAD
    PyObject *what;      /* for reports */
    FiberObject *waiter; /* borrowed */
} BellObject;

#define BELL(op) ((BellObject *)(op))

static PyObject *
bell_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *what;
    if (kwargs != NULL || !PyArg_ParseTuple(args, "U:_Bell", &what)) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "_Bell() takes no keywords");
        }
        return NULL;
    }
    BellObject *self = BELL(type->tp_alloc(type, 0));
    if (self != NULL) {
        self->what = Py_NewRef(what);
    }
    return (PyObject *)self;
}

static void
bell_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    Py_CLEAR(BELL(op)->what);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyObject *
bell_wait(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    BellObject *self = BELL(op);
    PfThread *t = pf_this_thread();
    if (t == NULL || pf_active(t, "waiting") == NULL) {
        return NULL;
    }
    if (self->waiter != NULL) {
        PyErr_Format(pf.fiber_error, "%R waits for %U already", self->waiter,
                     self->what);
        return NULL;
    }
    self->waiter = CURRENT(t);
    int rc = pf_wait(t, PF_NEVER, self->what);
    self->waiter = NULL;
    return rc < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *
bell_ring(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    FiberObject *waiter = BELL(op)->waiter;
    if (waiter != NULL) {
        pf_wake_fiber(waiter->core.scheduler, &waiter->core, PF_WAKE_NORMAL);
    }
    Py_RETURN_NONE;
}

static PyMethodDef bell_methods[] = {
    {"wait", bell_wait, METH_NOARGS,
     "Wait for ring(); FiberError if somebody else does."},
    {"ring", bell_ring, METH_NOARGS,
     "Wake who waits, on this thread; nothing otherwise."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot bell_slots[] = {
    {Py_tp_doc, "_Bell(what, /)\n--\n\nOne fiber waits, others ring."},
    {Py_tp_new, bell_new},
    {Py_tp_dealloc, bell_dealloc},
    {Py_tp_methods, bell_methods},
    {0, NULL},
};

PyType_Spec pf_bell_spec = {
    .name = "pyfiber._engine._Bell",
    .basicsize = sizeof(BellObject),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = bell_slots,
};
