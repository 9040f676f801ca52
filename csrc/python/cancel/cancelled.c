/* The exception Cancelled: how it is raised in a fiber, and its type. */
#include "python/cancel/cancel.h"

#include "python/cancel/scope.h"
#include "python/core/state.h"
#include "python/task/fiber.h"

#include <structmember.h>

/* -------------------------------------------------- delivery: the exception */

/* Returns the outermost cancelled scope or fiber around the fiber's code, also
 * outside of shields: borrowed, or NULL.  A fiber needs this if it was woken
 * to be cancelled and a shield was set since: then its source is NULL. */
static PyObject *
source_beyond_shields(FiberObject *fiber)
{
    PyObject *found = NULL;
    ScopeObject *scope = fiber->scope;
    while (fiber != NULL) {
        for (; scope != NULL; scope = scope->outer) {
            found = scope->cancelled ? (PyObject *)scope : found;
        }
        if (fiber->cancel_called) {
            found = (PyObject *)fiber;
        }
        scope = fiber->base;
        fiber = scope == NULL ? NULL : scope->fiber;
    }
    return found;
}

static CancelledObject *
new_cancelled(PyObject *reason)
{
    return (
        CancelledObject *)(reason == NULL || reason == Py_None
                               ? PyObject_CallNoArgs(pf.cancelled)
                               : PyObject_CallOneArg(pf.cancelled, reason));
}

/* Holds both arguments, because creating the exception may run code that
 * leaves the scope or drops the reason. */
int
pf_cancelled_raise_with(PyObject *why, PyObject *scope)
{
    Py_XINCREF(why);
    Py_XINCREF(scope);
    PyObject *reason = why == NULL ? NULL : pf_scope_reason_in(why);
    CancelledObject *exc = new_cancelled(reason);
    if (exc != NULL) {
        exc->reason = Py_XNewRef(reason);
        exc->by = why == NULL ? NULL : Py_NewRef(PyTuple_GET_ITEM(why, 1));
        exc->scope = Py_XNewRef(scope);
        PyErr_SetObject(pf.cancelled, (PyObject *)exc);
        Py_DECREF(exc);
    }
    Py_XDECREF(scope);
    Py_XDECREF(why);
    return -1;
}

int
pf_cancelled_raise_by(PyObject *source)
{
    if (source == NULL) {
        return pf_cancelled_raise_with(NULL, NULL);
    }
    return PyObject_TypeCheck(source, pf_scope_type)
               ? pf_cancelled_raise_with(((ScopeObject *)source)->why, source)
               : pf_cancelled_raise_with(
                     pf_fiber_rare((FiberObject *)source)->cancel, NULL);
}

/* Reads the latest number before it looks for the source.  A cancellation that
 * begins in between may be raised twice, but does not count as raised without
 * having been found. */
int
pf_cancelled_raise_in(FiberObject *fiber)
{
    if (pf_parts_hooks.main_program->raise_thrown(fiber) < 0) {
        return -1;
    }
    size_t latest = pf_delivery_latest();
    PyObject *source = fiber->patched ? pf_delivery_find_news(fiber) : NULL;
    if (source == NULL) {
        source = pf_scope_source_of(fiber);
    }
    if (source == NULL) {
        source = source_beyond_shields(fiber);
    }
    pf_delivery_note(fiber, latest);
    return pf_cancelled_raise_by(source);
}

void
pf_cancelled_retract(FiberObject *fiber)
{
    pf_delivery_note(fiber, 0);
}

/* ------------------------------------------------------------- the type */

static int
cancelled_traverse(PyObject *op, visitproc visit, void *arg)
{
    CancelledObject *self = (CancelledObject *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->reason);
    Py_VISIT(self->by);
    Py_VISIT(self->scope);
    return ((PyTypeObject *)PyExc_BaseException)->tp_traverse(op, visit, arg);
}

static int
cancelled_clear(PyObject *op)
{
    CancelledObject *self = (CancelledObject *)op;
    Py_CLEAR(self->reason);
    Py_CLEAR(self->by);
    Py_CLEAR(self->scope);
    return ((PyTypeObject *)PyExc_BaseException)->tp_clear(op);
}

/* Tracks the object again at the end, because the tp_dealloc of BaseException
 * expects a tracked object. */
static void
cancelled_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    CancelledObject *self = (CancelledObject *)op;
    Py_CLEAR(self->reason);
    Py_CLEAR(self->by);
    Py_CLEAR(self->scope);
    PyObject_GC_Track(op);
    ((PyTypeObject *)PyExc_BaseException)->tp_dealloc(op);
    Py_DECREF(type);
}

static PyMemberDef cancelled_members[] = {
    {"reason", T_OBJECT, offsetof(CancelledObject, reason), 0,
     "The argument of cancel(), or None."},
    {"by", T_OBJECT, offsetof(CancelledObject, by), 0,
     "The fiber that called cancel(); None if no fiber did."},
    {NULL, 0, 0, 0, NULL},
};

PyDoc_STRVAR(cancelled_doc,
             "Raised in a cancelled fiber at every park point.\n\n"
             "`reason` is what was given to cancel(), `by` the fiber that "
             "called it. Let\nit pass: the scope that was cancelled stops it, "
             "or else the fiber ends as\ncancelled.");

static PyType_Slot cancelled_slots[] = {
    {Py_tp_doc, (void *)cancelled_doc}, {Py_tp_traverse, cancelled_traverse},
    {Py_tp_clear, cancelled_clear},     {Py_tp_dealloc, cancelled_dealloc},
    {Py_tp_members, cancelled_members}, {0, NULL},
};

PyType_Spec pf_cancelled_spec = {
    .name = "pyfiber.Cancelled",
    .basicsize = sizeof(CancelledObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = cancelled_slots,
};
