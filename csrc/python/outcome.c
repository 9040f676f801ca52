/* How a finished fiber ended: its result, or what to raise instead. */
#include "python/binding.h"

PyObject *
pf_fiber_cancelled_type(void)
{
    if (pf.fiber_cancelled == NULL) {
        PyObject *futures = PyImport_ImportModule("concurrent.futures");
        PyObject *base =
            futures == NULL
                ? NULL
                : PyObject_GetAttrString(futures, "CancelledError");
        PyObject *dict =
            base == NULL ? NULL : Py_BuildValue("{sO}", "reason", Py_None);
        if (dict != NULL) {
            pf.fiber_cancelled = PyErr_NewExceptionWithDoc(
                "pyfiber.FiberCancelled",
                "The result of a fiber was asked for that was cancelled.\n\n"
                "`reason` is what was given to cancel().",
                base, dict);
        }
        Py_XDECREF(dict);
        Py_XDECREF(base);
        Py_XDECREF(futures);
    }
    return pf.fiber_cancelled;
}

/* The reason a cancelled fiber was cancelled for; a new reference. */
PyObject *
pf_fiber_cancel_reason(FiberObject *self)
{
    PyObject *reason = PyObject_GetAttrString(self->value, "reason");
    if (reason == NULL) {
        PyErr_Clear();
        return Py_NewRef(Py_None);
    }
    return reason;
}

void
pf_raise_fiber_cancelled(FiberObject *self)
{
    PyObject *type = pf_fiber_cancelled_type();
    PyObject *reason = pf_fiber_cancel_reason(self);
    PyObject *exc = NULL;
    if (type != NULL) {
        exc = reason == Py_None ? PyObject_CallNoArgs(type)
                                : PyObject_CallOneArg(type, reason);
    }
    if (exc != NULL && PyObject_SetAttrString(exc, "reason", reason) == 0) {
        PyErr_SetObject(type, exc);
    }
    Py_XDECREF(exc);
    Py_DECREF(reason);
}

/* result() of a finished fiber. */
PyObject *
pf_fiber_outcome_value(FiberObject *self)
{
    self->core.host_bits |= PF_F_LOOKED_AT;
    switch (self->core.host_byte) {
    case PF_OUTCOME_OK:
        return Py_NewRef(self->value);
    case PF_OUTCOME_CANCELLED:
        pf_raise_fiber_cancelled(self);
        return NULL;
    default:
        PyErr_SetObject((PyObject *)Py_TYPE(self->value), self->value);
        return NULL;
    }
}
