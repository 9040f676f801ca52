/* The life of a task: see life.h. */
#include "python/task/life.h"

#include "python/core/arguments.h"
#include "python/core/compiler.h"
#include "python/core/facade.h"
#include "python/core/state.h"
#include "python/core/tstate.h"
#include "python/core/world.h"
#include "python/task/deadline.h"
#include "python/task/explore.h"
#include "python/task/name.h"
#include "python/task/outcome.h"
#include "python/task/post.h"
#include "python/task/scheduler.h"
#include "python/task/unhandled.h"

static inline const PfTaskOps *
kind_of(PyObject *op)
{
    return pf_task_kind(&PF_TASK(op)->core);
}

/* ----------------------------------------------------- waiting for the end */

/* Waits for the end of a task. 0: done; 1: timed out; -1: exception. */
static inline int
wait_done(PyObject *op, const char *method, PyObject *const *args,
          Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *timeout = Py_None;
    PfThread *t = pf_thread_this();
    int64_t deadline;
    if (t == NULL ||
        pf_arguments_optional(method, "timeout", args, nargs, kwnames,
                              &timeout) < 0 ||
        pf_deadline(timeout, &deadline) < 0) {
        return -1;
    }
    return kind_of(op)->join(PF_TASK(op), t, timeout, deadline);
}

PyObject *
pf_task_join(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
             PyObject *kwnames)
{
    int rc = wait_done(op, "join", args, nargs, kwnames);
    return rc < 0 ? NULL : PyBool_FromLong(rc == 0);
}

static int
must_be_done(PyObject *op, const char *method, PyObject *const *args,
             Py_ssize_t nargs, PyObject *kwnames)
{
    int rc = wait_done(op, method, args, nargs, kwnames);
    if (rc == 1) {
        PyErr_Format(PyExc_TimeoutError, "the %s has not finished yet",
                     kind_of(op)->noun);
    }
    return rc == 0 ? 0 : -1;
}

/* Notes that code has seen how the task ended. Only the task's own thread
 * changes its bits; another one posts PF_POST_SEEN, which pf_unhandled_has
 * checks even before it arrives. */
static void
look(PfTaskObject *task)
{
    if (!PF_FREE_THREADED || !pf_task_is_remote(task)) {
        task->looked_at = true;
    } else if (task->outcome == PF_OUTCOME_FAILED) {
        pf_task_post(task->core.scheduler, &task->core, PF_POST_SEEN);
    }
}

PyObject *
pf_task_value(PfTaskObject *task)
{
    look(task);
    return pf_outcome_value(task);
}

PyObject *
pf_task_result(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
               PyObject *kwnames)
{
    int rc = must_be_done(op, "result", args, nargs, kwnames);
    return rc < 0 ? NULL : pf_task_value(PF_TASK(op));
}

PyObject *
pf_task_exception(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                  PyObject *kwnames)
{
    PfTaskObject *task = PF_TASK(op);
    if (must_be_done(op, "exception", args, nargs, kwnames) < 0) {
        return NULL;
    }
    look(task);
    if (task->outcome == PF_OUTCOME_FAILED) {
        return Py_NewRef(task->value);
    }
    if (task->outcome == PF_OUTCOME_CANCELLED) {
        pf_outcome_raise_cancelled(op, task->value);
        return NULL;
    }
    Py_RETURN_NONE;
}

PyObject *
pf_task_done(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    return PyBool_FromLong(pf_task_is_done(PF_TASK(op)));
}

PyObject *
pf_task_cancelled(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    return PyBool_FromLong(pf_task_is_done(PF_TASK(op)) &&
                           PF_TASK(op)->outcome == PF_OUTCOME_CANCELLED);
}

/* -------------------------------------------------------------------- requests */

PyObject *
pf_task_cancel(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
               PyObject *kwnames)
{
    PyObject *reason = Py_None;
    if (pf_arguments_optional("cancel", "reason", args, nargs, kwnames,
                              &reason) < 0) {
        return NULL;
    }
    int rc = kind_of(op)->cancel(PF_TASK(op), reason);
    return rc < 0 ? NULL : PyBool_FromLong(rc);
}

PyObject *
pf_task_unpark(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
               PyObject *kwnames)
{
    PyObject *value = Py_None;
    if (pf_arguments_optional("unpark", "value", args, nargs, kwnames,
                              &value) < 0) {
        return NULL;
    }
    int rc = kind_of(op)->unpark(PF_TASK(op), value);
    return rc < 0 ? NULL : PyBool_FromLong(rc);
}

int
pf_task_may_unpark(PfTaskObject *task)
{
    if (PF_LIKELY(!pf_task_is_done(task))) {
        return 0;
    }
    PyErr_Format(pf.fiber_error,
                 "the %s has finished: there is nothing to unpark",
                 pf_task_kind(&task->core)->noun);
    return -1;
}

int
pf_task_give_permit(PfTaskObject *task, PyObject *value)
{
    if (task->permit) {
        return 0;
    }
    size_t offset = pf_task_kind(&task->core)->permit_value;
    PyObject **place = (PyObject **)(void *)((char *)task + offset);
    task->permit = true;
    Py_XSETREF(*place, Py_NewRef(value));
    if (task->in_park) {
        pf_scheduler_wake(task->core.scheduler, &task->core, PF_WAKE_NORMAL);
        pf_scheduler_notify_host(SCHEDULER_OF(task->core.scheduler));
    }
    return 1;
}

/* --------------------------------------------------------------- done-callbacks */

/* Calls a done-callback, and logs what it raises. */
static void
call_back(PyObject *op, PyObject *callback)
{
    PyObject *done = PyObject_CallOneArg(callback, op);
    if (done != NULL) {
        Py_DECREF(done);
        return;
    }
    PyObject *exc = pystate_take_exception();
    if (pf_outcome_log(op, exc, "a done-callback of %r failed") < 0) {
        PyErr_WriteUnraisable(callback);
    }
    Py_DECREF(exc);
}

void
pf_task_run_callbacks(PfTaskObject *task)
{
    PyObject *callbacks = pf_task_rare(task)->callbacks;
    if (callbacks == NULL) {
        return;
    }
    task->rare->callbacks = NULL;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(callbacks); i++) {
        PyObject *callback = Py_NewRef(PyList_GET_ITEM(callbacks, i));
        call_back((PyObject *)task, callback);
        Py_DECREF(callback);
    }
    Py_DECREF(callbacks);
}

/* Gives the task a list of callbacks. Making the list may run the collector,
 * and so code that ends the task or adds a callback. */
static int
make_callbacks(PfTaskObject *task)
{
    PfRare *rare = pf_task_rare_of(task);
    PyObject *list = rare == NULL ? NULL : PyList_New(0);
    if (list == NULL) {
        return -1;
    }
    if (rare->callbacks == NULL) {
        rare->callbacks = list;
    } else {
        Py_DECREF(list);
    }
    return 0;
}

static int
call_back_now(PyObject *op, PyObject *fn)
{
    PfThread *t = pf_thread_this();
    if (t == NULL) {
        return -1;
    }
    pf_thread_no_switch_begin(t, "in a done-callback");
    call_back(op, fn);
    pf_thread_no_switch_end(t);
    return 0;
}

/* Adds a callback, with `list`, which is empty, if the task has none yet. 1:
 * added; 0: the task is done; -1: exception. */
static int
add_to_callbacks(PfTaskObject *task, PyObject *list, PyObject *fn)
{
    if (task->core.state == PF_DONE) {
        return 0;
    }
    PfRare *rare = pf_task_rare_of(task);
    if (rare != NULL && rare->callbacks == NULL) {
        rare->callbacks = Py_NewRef(list);
    }
    return rare == NULL || PyList_Append(rare->callbacks, fn) < 0 ? -1 : 1;
}

/* Adds a callback to another thread's task, which may end at any time. */
static int
add_elsewhere(PfTaskObject *task, PyObject *fn)
{
    PyObject *list = PyList_New(0);
    if (list == NULL) {
        return -1;
    }
    bool stopped = pf_world_stop(NULL);
    int rc = add_to_callbacks(task, list, fn);
    pf_world_start(stopped);
    Py_DECREF(list);
    if (rc == 0) {
        return call_back_now((PyObject *)task, fn);
    }
    return rc < 0 ? -1 : 0;
}

int
pf_task_add_callback(PfTaskObject *task, PyObject *fn)
{
    if (pf_world_moves(pf_task_owner(task))) {
        return add_elsewhere(task, fn);
    }
    if (task->core.state != PF_DONE && pf_task_rare(task)->callbacks == NULL &&
        make_callbacks(task) < 0) {
        return -1;
    }
    if (task->core.state == PF_DONE) {
        return call_back_now((PyObject *)task, fn);
    }
    return PyList_Append(task->rare->callbacks, fn);
}

PyObject *
pf_task_add_done_callback(PyObject *op, PyObject *fn)
{
    if (!PyCallable_Check(fn)) {
        PyErr_Format(PyExc_TypeError,
                     "a done-callback must be callable, not '%.200s'",
                     Py_TYPE(fn)->tp_name);
        return NULL;
    }
    return pf_task_add_callback(PF_TASK(op), fn) < 0 ? NULL
                                                     : Py_NewRef(Py_None);
}

/* -------------------------------------------------------------- attributes */

PyObject *
pf_task_reduce(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    PyErr_Format(PyExc_TypeError,
                 "cannot pickle or copy '%.200s' object: a %s is %s",
                 Py_TYPE(op)->tp_name, kind_of(op)->noun, kind_of(op)->nature);
    return NULL;
}

PyObject *
pf_task_get_name(PyObject *op, void *closure)
{
    (void)closure;
    return kind_of(op)->name_of(PF_TASK(op));
}

int
pf_task_set_name(PyObject *op, PyObject *value, void *closure)
{
    (void)closure;
    PyObject *name = pf_name_check(value);
    if (name == NULL) {
        return -1;
    }
    bool stopped = pf_world_stop(NULL); /* others may read or set it */
    PyObject *before = PF_TASK(op)->name;
    PF_TASK(op)->name = name;
    pf_world_start(stopped);
    Py_XDECREF(before);
    return 0;
}

PyObject *
pf_task_get_outcome(PyObject *op, void *closure)
{
    (void)closure;
    PfTaskObject *task = PF_TASK(op);
    if (!pf_task_is_done(task) || pf_facade.make_outcome == NULL) {
        Py_RETURN_NONE;
    }
    look(task);
    return pf_outcome_make(task->outcome, task->value);
}

/* ----------------------------------------------------------------- the end */

/* The former value, of a permit that nobody took, is dropped last: code that
 * this runs may look at the task, and must find it done. */
void
pf_task_record_outcome(PfTaskObject *task, PyObject *result)
{
    uint8_t kind = PF_OUTCOME_OK;
    if (result == NULL) {
        result = pystate_take_exception();
        assert(result != NULL);
        kind = PF_OUTCOME_FAILED;
        if (PyObject_TypeCheck(result, (PyTypeObject *)pf.cancelled) ||
            PyObject_TypeCheck(result, (PyTypeObject *)pf.fiber_exit)) {
            kind = PF_OUTCOME_CANCELLED;
        }
    }
    PyObject *before = task->value;
    task->value = result;
    task->outcome = kind;
    if (kind == PF_OUTCOME_FAILED) {
        pf_outcome_keep_traceback(task);
    }
    task->permit = false;
    task->in_park = false;
    pf_publish_byte(&task->core.state, PF_DONE); /* for pf_task_is_done */
    Py_XDECREF(before);
}

void
pf_task_failed(SchedulerObject *s, PfTaskObject *task)
{
    if (pf_outcome_ends_programs(task->value)) {
        task->looked_at = true;
        pf_scheduler_fail(s, Py_NewRef(task->value));
    } else if (s->explorer == NULL ||
               !pf_explore_failed(s, (PyObject *)task)) {
        pf_unhandled_add(s, (PyObject *)task);
    }
}

/* --------------------------------------------------- the end of the object */

bool
pf_task_revived_for(PyObject *op, void (*act)(PyObject *op))
{
    Py_SET_REFCNT(op, 1);
    act(op);
    if (Py_REFCNT(op) == 1) {
        Py_SET_REFCNT(op, 0);
        return true;
    }
    Py_DECREF(op); /* others may count meanwhile */
    return false;
}

/* Sets the count before pf_task_leave, because afterwards the arrival may drop
 * the reference at any time. */
bool
pf_task_awaits_post(PfTaskObject *task)
{
    if (pf_load_acquire(&task->core.posted) == 0) {
        return false;
    }
    Py_SET_REFCNT((PyObject *)task, 1);
    if (pf_task_leave(&task->core)) {
        Py_SET_REFCNT((PyObject *)task, 0);
        return false;
    }
    return true;
}
