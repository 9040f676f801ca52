/* Unhandled failures: those at which nobody has looked, by result(), a group
 * or `outcome`, say. None may be lost.
 *
 * A fiber or grain of a scheduler that fails is put into the scheduler's list,
 * which does not keep it alive. The failure is reported once: when the task's
 * last reference is dropped, because then nobody can look any more, or else at
 * the end of the run, or when the scheduler is closed. The scheduler's
 * on_unhandled says how: logged, passed to a function, or raised by run().
 * Fibers that succeed pay nothing for this.
 */
#include "python/task/unhandled.h"

#include "python/core/compiler.h"
#include "python/core/facade.h"
#include "python/core/list.h"
#include "python/core/state.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/task/outcome.h"
#include "python/task/post.h"
#include "python/task/scheduler.h"

#define LOST "%r failed and nobody looked at it"
#define HANDLER_FAILED "the on_unhandled function failed, called for %r"
#define CLOSED "%r was closed with failures that nobody looked at"

bool
pf_unhandled_has(PyObject *op)
{
    PfTaskObject *task = PF_TASK(op);
    return task->core.state == PF_DONE && task->outcome == PF_OUTCOME_FAILED &&
           !task->looked_at && task->scheduled &&
           !(pf_load_relaxed(&task->core.posted) & PF_POST_SEEN) &&
           task->value != NULL; /* else the collector has cleared it */
}

/* ------------------------------------------------------------------- the list */

/* Guards all schedulers' lists, and the entries' `scheduler`, because a task
 * may die on another thread. */
static pf_mutex unhandled_lock = PF_MUTEX_INIT;

/* Appends an entry to the list, which is in the order in which tasks failed.
 */
static void
link_last(SchedulerObject *s, PfUnhandled *node)
{
    pf_mutex_lock(&unhandled_lock);
    node->scheduler = s;
    node->prev = s->last_unhandled;
    node->next = NULL;
    if (s->last_unhandled != NULL) {
        s->last_unhandled->next = node;
    } else {
        s->unhandled = node;
    }
    s->last_unhandled = node;
    pf_mutex_unlock(&unhandled_lock);
}

/* Takes an entry out of its list. The caller holds the lock. */
static void
unlink_held(PfUnhandled *node)
{
    SchedulerObject *s = node->scheduler;
    if (s == NULL) {
        return;
    }
    if (s->last_unhandled == node) {
        s->last_unhandled = node->prev;
    }
    PF_LIST_REMOVE(s->unhandled, node);
    node->scheduler = NULL;
}

static void
unlink_node(PfUnhandled *node)
{
    pf_mutex_lock(&unhandled_lock);
    unlink_held(node);
    pf_mutex_unlock(&unhandled_lock);
}

/* Takes the oldest task out of the list: a new reference, or NULL. (Tasks that
 * are dying on other threads are skipped, and reported there.) */
static PyObject *
take_first(SchedulerObject *s)
{
    PyObject *op = NULL;
    pf_mutex_lock(&unhandled_lock);
    while (op == NULL && s->unhandled != NULL) {
        PfUnhandled *node = s->unhandled;
        unlink_held(node);
        op = pystate_try_incref(node->op) ? node->op : NULL;
    }
    pf_mutex_unlock(&unhandled_lock);
    return op;
}

void
pf_unhandled_forget(PfUnhandled **place)
{
    if (*place != NULL) {
        unlink_node(*place);
        PyMem_Free(*place);
        *place = NULL;
    }
}

void
pf_unhandled_leave(PyObject *op)
{
    PfRare *rare = PF_TASK(op)->rare;
    if (rare != NULL) {
        pf_unhandled_forget(&rare->unhandled);
    }
}

void
pf_unhandled_forget_all(SchedulerObject *s)
{
    pf_mutex_lock(&unhandled_lock);
    while (s->unhandled != NULL) {
        unlink_held(s->unhandled);
    }
    pf_mutex_unlock(&unhandled_lock);
}

/* --------------------------------------------------------------- reporting */

/* Logs `exc` of `op`, which `text` names by its %r. 0; -1 if the log raised
 * KeyboardInterrupt or SystemExit. */
int
pf_outcome_log(PyObject *op, PyObject *exc, const char *text)
{
    if (pf_facade.log_failure == NULL) {
        return 0;
    }
    PyObject *logged =
        PyObject_CallFunction(pf_facade.log_failure, "OOs", op, exc, text);
    if (logged == NULL) {
        pf_outcome_raised_instead_of(exc);
        if (!PyErr_ExceptionMatches(PyExc_Exception)) {
            return -1;
        }
        PyErr_WriteUnraisable(op);
    }
    Py_XDECREF(logged);
    return 0;
}

/* Makes the loop check whether the run has to end. Any thread may call
 * wake_loop(). */
static void
look(SchedulerObject *s, PyObject *target, PyObject *argument)
{
    (void)target;
    (void)argument;
    pf_scheduler_wake_hub(s);
}

static void
wake_loop(SchedulerObject *s)
{
    if (s->thread == NULL || s->thread == pf_thread_current) {
        pf_scheduler_wake_hub(s);
        pf_scheduler_notify_host(s);
        return;
    }
    PyObject *pending = pystate_take_exception();
    if (pf_post_call(s, look, NULL, NULL) < 0) {
        PyErr_Clear(); /* the loop checks when it next runs */
    }
    pystate_restore_exception(pending);
}

/* Keeps the failure to be raised by the run, which ends now. -1 without
 * memory. */
static int
keep_for_run(SchedulerObject *s, PyObject *op, PyObject *exc)
{
    if (s->errors == NULL && (s->errors = PyList_New(0)) == NULL) {
        return -1;
    }
    PyObject *name = pf_task_kind(&PF_TASK(op)->core)->name_of(PF_TASK(op));
    PyObject *both = name == NULL ? NULL : PyTuple_Pack(2, name, exc);
    int rc = both == NULL ? -1 : PyList_Append(s->errors, both);
    Py_XDECREF(both);
    Py_XDECREF(name);
    if (rc == 0) {
        wake_loop(s);
    }
    return rc;
}

static int
call_handler(PyObject *handler, PyObject *op, PyObject *exc)
{
    PyObject *done = PyObject_CallFunctionObjArgs(handler, op, exc, NULL);
    if (done != NULL) {
        Py_DECREF(done);
        return 0;
    }
    if (!PyErr_ExceptionMatches(PyExc_Exception)) {
        return -1;
    }
    PyObject *raised = pystate_take_exception();
    int rc = pf_outcome_log(op, raised, HANDLER_FAILED);
    Py_DECREF(raised);
    return rc < 0 ? -1 : pf_outcome_log(op, exc, LOST); /* not handled */
}

/* Reports in the way that `s` asks for (NULL: it is gone or closed). Returns
 * what pf_outcome_log returns. */
static int
report(SchedulerObject *s, PyObject *op)
{
    PF_TASK(op)->looked_at = true;
    PyObject *exc = Py_NewRef(PF_TASK(op)->value);
    PyObject *how = s == NULL ? NULL : Py_XNewRef(s->on_unhandled);
    int rc = 0;
    if (how == NULL || how == pf.s_log) {
        rc = pf_outcome_log(op, exc, LOST);
    } else if (how != pf.s_raise) {
        rc = call_handler(how, op, exc);
    } else if (keep_for_run(s, op, exc) < 0) {
        PyErr_Clear(); /* no memory to keep it until the end of the run */
        rc = pf_outcome_log(op, exc, LOST);
    }
    Py_XDECREF(how);
    Py_DECREF(exc);
    return rc;
}

/* Forbids switches, so that code that gets the report does not leave the
 * reporting fiber. (NULL: this thread has no fibers.) */
static PfThread *
begin_report(void)
{
    PfThread *t = pf_thread_current;
    if (t != NULL) {
        pf_thread_no_switch_begin(t, "while an unhandled failure is reported");
    }
    return t;
}

static void
end_report(PfThread *t)
{
    if (t != NULL) {
        pf_thread_no_switch_end(t);
    }
}

/* Reports where no caller can get an exception: KeyboardInterrupt and
 * SystemExit end the run. */
static void
report_now(SchedulerObject *s, PyObject *op)
{
    PyObject *pending = pystate_take_exception();
    Py_XINCREF(s);
    PfThread *t = begin_report();
    if (report(s, op) < 0) {
        if (s != NULL && s->running) {
            pf_scheduler_fail(s, pystate_take_exception());
            wake_loop(s);
        } else {
            PyErr_WriteUnraisable(op);
        }
    }
    end_report(t);
    Py_XDECREF(s);
    pystate_restore_exception(pending);
}

/* ----------------------------------------------------- when it is reported */

/* Puts a fiber or grain of `s` that has failed into the list: the failure will
 * be reported unless somebody looks at it. */
void
pf_unhandled_add(SchedulerObject *s, PyObject *op)
{
    if (!pf_unhandled_has(op)) {
        return;
    }
    PfRare *rare = pf_task_rare_of(PF_TASK(op));
    PfUnhandled *node = rare == NULL ? NULL : PyMem_Calloc(1, sizeof(*node));
    if (node == NULL) {
        PyErr_Clear(); /* no memory for an entry: report now */
        report_now(s, op);
        return;
    }
    node->op = op;
    pystate_prepare_try_incref(op);
    pystate_prepare_try_incref((PyObject *)s);
    rare->unhandled = node;
    link_last(s, node);
}

/* Arrives on the scheduler's thread; `op` may have been looked at after all.
 */
static void
lost_arrived(SchedulerObject *s, PyObject *op, PyObject *ignored)
{
    (void)ignored;
    if (pf_unhandled_has(op)) {
        report_now(s, op);
    }
}

/* Takes an entry out of its list and returns the scheduler whose list it was:
 * a new reference, or NULL. */
static SchedulerObject *
take_out(PfUnhandled *node)
{
    pf_mutex_lock(&unhandled_lock);
    SchedulerObject *s = node->scheduler;
    unlink_held(node);
    if (s != NULL && !pystate_try_incref((PyObject *)s)) {
        s = NULL;
    }
    pf_mutex_unlock(&unhandled_lock);
    return s;
}

/* Leaves the report to the scheduler's thread, if that is another one; a
 * posted call then holds `op`. False: report here. */
static bool
report_there(SchedulerObject *s, PyObject *op)
{
    if (!PF_FREE_THREADED || s->thread == NULL ||
        s->thread == pf_thread_current) {
        return false;
    }
    bool posted = pf_post_call(s, lost_arrived, op, NULL) > 0;
    PyErr_Clear(); /* no memory, or the scheduler is closed */
    return posted;
}

/* Called when the last reference is gone; `op` is alive again for this call.
 */
void
pf_unhandled_lost(PyObject *op)
{
    PfUnhandled *node = pf_task_rare(PF_TASK(op))->unhandled;
    SchedulerObject *s = node == NULL ? NULL : take_out(node);
    if (s == NULL || !report_there(s, op)) {
        report_now(s, op);
    }
    Py_XDECREF(s);
}

/* Reports all failures in the list, until a report returns -1. The list is
 * empty afterwards: tasks that were left are reported when they are freed. */
static int
report_all(SchedulerObject *s)
{
    int rc = 0;
    PfThread *t = begin_report();
    PyObject *op;
    while (rc == 0 && (op = take_first(s)) != NULL) {
        if (pf_unhandled_has(op)) {
            rc = report(s, op);
        }
        Py_DECREF(op);
    }
    pf_unhandled_forget_all(s);
    end_report(t);
    return rc;
}

/* Keeps failures that could not be joined, for the reason `exc`, as context of
 * `exc`. `errors` is the list that keep_for_run() made. */
static void
keep_as_context(PyObject *exc, PyObject *errors, PyObject *raised)
{
    if (raised != NULL && !pf_outcome_ends_programs(raised)) {
        pf_outcome_add_context(exc, raised);
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(errors); i++) {
        PyObject *both = PyList_GET_ITEM(errors, i);
        pf_outcome_add_context(exc, PyTuple_GET_ITEM(both, 1));
    }
}

/* Joins `raised` (stolen, or NULL) and the failures to raise into one
 * exception. NULL: there is nothing to raise. */
PyObject *
pf_unhandled_joined(SchedulerObject *s, PyObject *raised)
{
    PyObject *errors = s->errors;
    if (errors == NULL) {
        return raised;
    }
    s->errors = NULL;
    PyObject *exc = PyObject_CallFunctionObjArgs(
        pf_facade.unhandled, errors, raised == NULL ? Py_None : raised, NULL);
    if (exc == NULL) {
        exc = pystate_take_exception();
        keep_as_context(exc, errors, raised);
    }
    Py_DECREF(errors);
    if (raised != NULL &&
        pf_outcome_ends_programs(raised)) { /* raised unchanged */
        pf_outcome_add_context(raised, exc);
        Py_DECREF(exc);
        return raised;
    }
    Py_XDECREF(raised);
    return exc;
}

/* Ends a run that is over, with `result` (stolen) or an exception. Returns the
 * run's final result, or NULL with an exception. */
PyObject *
pf_unhandled_end_run(SchedulerObject *s, PyObject *result)
{
    if (PF_LIKELY(s->unhandled == NULL && s->errors == NULL)) {
        return result;
    }
    PyObject *raised = result == NULL ? pystate_take_exception() : NULL;
    if (report_all(s) < 0) {
        PyObject *interrupt = pystate_take_exception();
        if (raised != NULL) {
            pf_outcome_add_context(interrupt, raised);
            Py_DECREF(raised);
        }
        raised = interrupt;
    }
    raised = pf_unhandled_joined(s, raised);
    if (raised != NULL) {
        Py_CLEAR(result);
        pystate_restore_exception(raised);
    }
    return result;
}

/* The scheduler has been closed: raises to the caller what is left to raise. 0
 * or -1. */
int
pf_unhandled_close(SchedulerObject *s)
{
    PyObject *done = pf_unhandled_end_run(s, Py_NewRef(Py_None));
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* The same where the caller can get no exception: logs that instead. */
void
pf_unhandled_close_quietly(SchedulerObject *s)
{
    PyObject *pending = pystate_take_exception();
    if (pf_unhandled_close(s) < 0) {
        PyObject *exc = pystate_take_exception();
        if (pf_outcome_log((PyObject *)s, exc, CLOSED) < 0) {
            PyErr_WriteUnraisable((PyObject *)s);
        }
        Py_DECREF(exc);
    }
    pystate_restore_exception(pending);
}

/* The interpreter exits, which ends every run of this thread. */
static void
at_exit(PfThread *t)
{
    SchedulerObject *s = t->schedulers;
    while (s != NULL) {
        if ((s->unhandled == NULL && s->errors == NULL) ||
            !pystate_try_incref((PyObject *)s)) { /* dying on another thread */
            s = s->next;
            continue;
        }
        pf_unhandled_close_quietly(s);
        Py_DECREF(s);
        s = t->schedulers; /* a receiver may have freed any of them */
    }
}

/* A thread that is gone in the child may have held the lock. */
static int
after_fork(PfThread *t)
{
    (void)t;
    unhandled_lock = (pf_mutex)PF_MUTEX_INIT;
    return 0;
}

const PfPart pf_unhandled_part = {
    .at_exit = at_exit,
    .after_fork = after_fork,
};

/* ----------------------------------------------------------------- the argument */

/* Checks the argument on_unhandled: a new reference to "log", "raise" or the
 * function; NULL with an exception. */
PyObject *
pf_unhandled_option(PyObject *value)
{
    PyObject *const words[] = {pf.s_log, pf.s_raise};
    for (int i = 0; i < 2 && PyUnicode_Check(value); i++) {
        if (PyUnicode_Compare(value, words[i]) == 0) {
            return Py_NewRef(words[i]);
        }
    }
    if (PyUnicode_Check(value)) {
        PyErr_Format(PyExc_ValueError,
                     "on_unhandled must be 'log', 'raise' or a function, not "
                     "%R",
                     value);
        return NULL;
    }
    if (!PyCallable_Check(value)) {
        PyErr_Format(PyExc_TypeError,
                     "on_unhandled must be 'log', 'raise' or a function, not "
                     "'%.200s'",
                     Py_TYPE(value)->tp_name);
        return NULL;
    }
    return Py_NewRef(value);
}
