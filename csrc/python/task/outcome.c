/* How a finished task ended: its result, or the exception to raise. See
 * outcome.h. */
#include "python/task/outcome.h"

#include "python/core/chain.h"
#include "python/core/facade.h"
#include "python/core/state.h"
#include "python/core/tstate.h"
#include "python/task/task.h"

/* The reason of the Cancelled that a task ended with: a new reference. */
PyObject *
pf_outcome_cancel_reason(PyObject *exc)
{
    PyObject *reason = PyObject_GetAttrString(exc, "reason");
    if (reason == NULL) {
        PyErr_Clear(); /* the attribute was deleted */
        return Py_NewRef(Py_None);
    }
    return reason;
}

/* Raises what result() of a fiber or grain raises that ended with `cancelled`.
 */
void
pf_outcome_raise_cancelled(PyObject *op, PyObject *cancelled)
{
    PyObject *exc = PyObject_CallFunctionObjArgs(pf_facade.fiber_cancelled, op,
                                                 cancelled, NULL);
    if (exc != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(exc), exc);
        Py_DECREF(exc);
    }
}

/* Is this an exception for the whole program, which no group collects? */
bool
pf_outcome_ends_programs(PyObject *exc)
{
    return PyErr_GivenExceptionMatches(exc, PyExc_KeyboardInterrupt) ||
           PyErr_GivenExceptionMatches(exc, PyExc_SystemExit);
}

/* A chain of contexts that is longer is a cycle, or useless to a reader. */
#define LONGEST_CHAIN 1000

static bool
chain_has(PyObject *exc, PyObject *wanted)
{
    PyObject *at = Py_NewRef(exc);
    for (int i = 0; i < LONGEST_CHAIN && at != NULL && at != wanted; i++) {
        Py_SETREF(at, PyException_GetContext(at));
    }
    bool has = at == wanted;
    Py_XDECREF(at);
    return has;
}

/* Keeps `context`, instead of which `exc` is raised: it becomes the context of
 * the last exception in the chain of `exc`, unless one chain contains the
 * other exception already. */
void
pf_outcome_add_context(PyObject *exc, PyObject *context)
{
    if (chain_has(exc, context) || chain_has(context, exc)) {
        return;
    }
    PyObject *last = Py_NewRef(exc), *next = NULL;
    for (int i = 0; i < LONGEST_CHAIN; i++) {
        next = PyException_GetContext(last);
        if (next == NULL) {
            PyException_SetContext(last, Py_NewRef(context));
            break;
        }
        Py_SETREF(last, next);
    }
    Py_DECREF(last);
}

/* Adds `lost`, which could not be reported because of the exception being
 * raised, to that one as context; so a report of it shows both. */
void
pf_outcome_raised_instead_of(PyObject *lost)
{
    PyObject *raised = pystate_take_exception();
    pf_outcome_add_context(raised, lost);
    pystate_restore_exception(raised);
}

void
pf_outcome_keep_traceback(PfTaskObject *task)
{
    PfRare *rare = pf_task_rare_of(task);
    if (rare == NULL) {
        PyErr_Clear(); /* no memory: the traceback may grow */
        return;
    }
    Py_XSETREF(rare->traceback, PyException_GetTraceback(task->value));
}

/* Raises the failure with the traceback that it had at first. Each raise adds
 * the caller's frames to an exception's traceback, which keeps these alive. */
static void
raise_failure(PfTaskObject *task)
{
    PyObject *value = Py_NewRef(task->value);
    PyObject *traceback = Py_XNewRef(pf_task_rare(task)->traceback);
    if (traceback != NULL) {
        PyException_SetTraceback(value, traceback);
    }
    PyErr_SetObject((PyObject *)Py_TYPE(value), value);
    Py_XDECREF(traceback);
    Py_DECREF(value);
}

PyObject *
pf_outcome_value(PfTaskObject *task)
{
    switch (task->outcome) {
    case PF_OUTCOME_OK:
        return Py_NewRef(task->value);
    case PF_OUTCOME_CANCELLED:
        pf_outcome_raise_cancelled((PyObject *)task, task->value);
        return NULL;
    default:
        raise_failure(task);
        return NULL;
    }
}

static void
close_frames_of(PyObject *exc)
{
    PyObject *at = PyException_GetTraceback(exc);
    while (at != NULL) {
        PyTracebackObject *entry = (PyTracebackObject *)at;
        PyObject *done =
            PyObject_CallMethod((PyObject *)entry->tb_frame, "clear", NULL);
        if (done == NULL) {
            PyErr_Clear(); /* the frame still runs, or belongs to a
                              suspended generator */
        }
        Py_XDECREF(done);
        Py_SETREF(at, Py_XNewRef((PyObject *)entry->tb_next));
    }
}

void
pf_outcome_close_frames(void)
{
    bool exits = PyErr_ExceptionMatches(pf.fiber_exit);
    if (!exits && !PyErr_ExceptionMatches(pf.cancelled)) {
        return; /* a report of the failure shows the variables */
    }
    PyObject *exc = pystate_take_exception();
    if (exits) { /* nobody sees this exception, and a frame that is
                    referenced elsewhere keeps its variables */
        PyException_SetTraceback(exc, Py_None);
    } else {
        close_frames_of(exc);
    }
    pystate_restore_exception(exc);
}

/* Visits what a context refers to first: its variables or the context around
 * it. If there is neither, the collector has cleared the context. */
static int
look_into(PyObject *found, void *whole)
{
    *(bool *)whole = true;
    if (!PyContext_CheckExact(found)) {
        return 0;
    }
    bool around = false;
    Py_TYPE(found)->tp_traverse(found, look_into, &around);
    *(bool *)whole = around;
    return !around;
}

bool
pf_outcome_context_is_cleared(PyObject *context)
{
    bool whole = true;
    if (context != NULL) {
        look_into(context, &whole);
    }
    return !whole;
}

static void
drop(PfTaskObject *task)
{
    if (task->rare != NULL) {
        Py_CLEAR(task->rare->traceback);
    }
    PF_CLEAR_LINK(task->value);
}

void
pf_outcome_drop(PfTaskObject *task, PyObject *context)
{
    if (PF_LIKELY(context == NULL || task->value == NULL) ||
        pf_outcome_context_is_cleared(context)) {
        drop(task);
        return;
    }
    PyObject *pending = pystate_take_exception();
    Py_INCREF(context);
    bool entered = PyContext_Enter(context) == 0;
    PyErr_Clear(); /* entered already, here or further out */
    drop(task);
    if (entered && PyContext_Exit(context) < 0) {
        PyErr_Clear(); /* a finalizer has left another context entered */
    }
    Py_DECREF(context);
    pystate_restore_exception(pending);
}

/* Makes an Ok, Failed or CancelledOutcome. */
PyObject *
pf_outcome_make(int kind, PyObject *value)
{
    if (kind != PF_OUTCOME_CANCELLED) {
        return PyObject_CallFunction(pf_facade.make_outcome, "iO", kind,
                                     value);
    }
    PyObject *reason = pf_outcome_cancel_reason(value);
    PyObject *made =
        PyObject_CallFunction(pf_facade.make_outcome, "iO", kind, reason);
    Py_DECREF(reason);
    return made;
}
