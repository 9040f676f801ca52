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

/* The reason for a cancellation, of the exception it ended with; a new
 * reference. */
PyObject *
pf_cancel_reason(PyObject *exc)
{
    PyObject *reason = PyObject_GetAttrString(exc, "reason");
    if (reason == NULL) {
        PyErr_Clear(); /* somebody deleted it */
        return Py_NewRef(Py_None);
    }
    return reason;
}

void
pf_raise_fiber_cancelled(PyObject *cancelled)
{
    PyObject *type = pf_fiber_cancelled_type();
    PyObject *reason = pf_cancel_reason(cancelled);
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

/* result() of what ended in that way: a new reference, or it is raised. */
PyObject *
pf_outcome_value(int kind, PyObject *value)
{
    switch (kind) {
    case PF_OUTCOME_OK:
        return Py_NewRef(value);
    case PF_OUTCOME_CANCELLED:
        pf_raise_fiber_cancelled(value);
        return NULL;
    default:
        PyErr_SetObject((PyObject *)Py_TYPE(value), value);
        return NULL;
    }
}

PyObject *
pf_fiber_outcome_value(FiberObject *self)
{
    self->core.host_bits |= PF_F_LOOKED_AT;
    return pf_outcome_value(self->core.host_byte, self->value);
}

/* Ok, Failed or CancelledOutcome. */
PyObject *
pf_make_outcome(int kind, PyObject *value)
{
    if (kind != PF_OUTCOME_CANCELLED) {
        return PyObject_CallFunction(pf.make_outcome, "iO", kind, value);
    }
    PyObject *reason = pf_cancel_reason(value);
    PyObject *made =
        PyObject_CallFunction(pf.make_outcome, "iO", kind, reason);
    Py_DECREF(reason);
    return made;
}

/* Nobody ever asked how `op`, a fiber or a grain, ended. */
void
pf_report_failure(PyObject *op, PyObject *exc)
{
    if (pf.log_failure == NULL || pf.shut_down) {
        return;
    }
    PyObject *pending = pf_take_exception();
    PfThread *t = pf_tls_thread;
    if (t != NULL) {
        pf_no_switch_begin(t, "while a lost failure is logged");
    }
    PyObject *logged =
        PyObject_CallFunctionObjArgs(pf.log_failure, op, exc, Py_False, NULL);
    if (logged == NULL) {
        PyErr_WriteUnraisable(op);
    }
    Py_XDECREF(logged);
    if (t != NULL) {
        pf_no_switch_end(t);
    }
    if (pending != NULL) {
        pf_restore_exception(pending);
    }
}
