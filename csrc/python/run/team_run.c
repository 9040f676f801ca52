/* A run on several threads: how it begins, ends, reports a deadlock and
 * survives a fork.  team.c moves fibers between the members. */
#include "python/run/members.h"

#include "python/core/facade.h"
#include "python/core/import.h"
#include "python/core/state.h"
#include "python/core/tstate.h"
#include "python/switch/switch.h"
#include "python/task/fiber.h"
#include "python/task/life.h"
#include "python/task/migrate.h"
#include "python/task/post.h"
#include "python/wait/wait.h"

/* ------------------------------------------------------------------- reports */

/* Removes from `list`, which may be NULL, the main fiber of `s`: in members
 * other than the first it only keeps the run going.  Returns the list; NULL
 * with an exception. */
static PyObject *
without_keeper(SchedulerObject *s, PyObject *list)
{
    Py_ssize_t i = list == NULL ? 0 : PyList_GET_SIZE(list);
    while (--i >= 0 && PyList_GET_ITEM(list, i) != (PyObject *)s->main) {
    }
    if (i >= 0 && PyList_SetSlice(list, i, i + 1, NULL) < 0) {
        Py_CLEAR(list);
    }
    return list;
}

PyObject *
pf_team_fibers(SchedulerObject *s, PyObject *list)
{
    size_t count =
        s->team == NULL || PF_FREE_THREADED ? 0 : pf_load(&s->team->count);
    for (size_t i = 0; list != NULL && i < count; i++) {
        SchedulerObject *other = s->team->members[i].scheduler;
        PyObject *more =
            other == s ? NULL : without_keeper(other, pf_run_fibers(other));
        Py_ssize_t end = PyList_GET_SIZE(list);
        if (other != s &&
            (more == NULL || PyList_SetSlice(list, end, end, more) < 0)) {
            Py_CLEAR(list);
        }
        Py_XDECREF(more);
    }
    return list;
}

/* --- without a GIL: each member reports itself, through a SimpleQueue --- */

/* Returns None unless this member is stuck: it runs nothing and expects
 * nothing.  If it is, returns the text of a report, empty if it has no
 * fibers.  NULL with an exception. */
static PyObject *
own_report(SchedulerObject *s)
{
    if (s->core.ready.head != NULL || s->ending || pf_load(&s->coming) != 0 ||
        pf_scheduler_expects(&s->core)) {
        Py_RETURN_NONE;
    }
    PyObject *fibers = without_keeper(s, pf_run_waiting_ones(s));
    PyObject *text = NULL;
    if (fibers != NULL && PyList_GET_SIZE(fibers) == 0) {
        text = PyUnicode_FromString("");
    } else if (fibers != NULL) {
        text = PyObject_CallOneArg(pf_facade.deadlock_text, fibers);
    }
    Py_XDECREF(fibers);
    return text;
}

/* On each member's thread: puts its report into the queue. */
static void
answer(SchedulerObject *s, PyObject *queue, PyObject *ignored)
{
    (void)ignored;
    PyObject *text = own_report(s);
    PyObject *done =
        text == NULL ? NULL : PyObject_CallMethod(queue, "put", "O", text);
    if (done == NULL) {
        PyErr_WriteUnraisable((PyObject *)s);
    }
    Py_XDECREF(done);
    s->member->said_stuck = text == Py_None ? 0 : s->core.switches + 1;
    Py_XDECREF(text);
}

/* Asks all members but the first.  Returns a list of their texts, in any
 * order.  NULL, perhaps with an exception: a member is not stuck, or does not
 * answer within a second. */
static PyObject *
ask_all(PfTeam *c, PyObject *queue)
{
    size_t count = pf_load(&c->count);
    for (size_t i = 1; i < count; i++) {
        if (pf_post_call(c->members[i].scheduler, answer, queue, NULL) <= 0) {
            return NULL;
        }
    }
    PyObject *list = PyList_New(0);
    for (size_t i = 1; list != NULL && i < count; i++) {
        PyObject *text = PyObject_CallMethod(queue, "get", "Od", Py_True, 1.0);
        if (text == NULL || text == Py_None || PyList_Append(list, text) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(text);
    }
    return list;
}

bool
pf_team_confirm(SchedulerObject *s)
{
    PfTeam *c = s->team;
    if (!PF_FREE_THREADED || pf_load(&c->count) == 1) {
        return true;
    }
    pf_thread_no_switch_begin(s->thread, "while a deadlock is looked for");
    PyObject *type = pf_import_from("queue", "SimpleQueue");
    PyObject *queue = type == NULL ? NULL : PyObject_CallNoArgs(type);
    Py_XSETREF(c->reports, queue == NULL ? NULL : ask_all(c, queue));
    PyErr_Clear();
    Py_XDECREF(queue);
    Py_XDECREF(type);
    pf_thread_no_switch_end(s->thread);
    return c->reports != NULL;
}

PyObject *
pf_team_add_reports(SchedulerObject *s, PyObject *text)
{
    PyObject *reports = s->team == NULL ? NULL : s->team->reports;
    Py_ssize_t count = reports == NULL ? 0 : PyList_GET_SIZE(reports);
    for (Py_ssize_t i = 0; text != NULL && i < count; i++) {
        PyObject *more = PyList_GET_ITEM(reports, i);
        if (PyObject_IsTrue(more) == 1) {
            Py_SETREF(text,
                      PyUnicode_FromFormat(
                          "%U\non another thread of the run: %U", text, more));
        }
    }
    return text;
}

/* --------------------------------------------------------------------- fork */

/* In the child of a fork: ends a fiber whose proxy ran on another thread,
 * which the child does not have. */
static void
proxy_lost(SchedulerObject *s, PyObject *fiber, PyObject *ignored)
{
    FiberObject *f = (FiberObject *)fiber;
    (void)ignored;
    if (!pf_migrate_is_away(f)) {
        return;
    }
    pf_team_come_back(s, f);
    f->looked_at = true; /* do not report it: its waiters get the error */
    PyErr_SetString(pf.fiber_error,
                    "the fiber ran on another thread, which the child of a "
                    "fork has not");
    pf_switch_end(s->thread, f, NULL);
}

/* In the child of a fork: makes `s` the only member.  The inboxes of the
 * others are closed, because a post to one would wake the parent's thread
 * through a descriptor that both processes share.  The schedulers are never
 * freed. */
static void
forget_others(SchedulerObject *s, PfTeam *c)
{
    size_t count = pf_load(&c->count);
    for (size_t i = 0; i < count; i++) {
        SchedulerObject *other = c->members[i].scheduler;
        if (other != s) {
            (void)pf_inbox_close(&other->core.inbox);
        }
    }
    c->joining = (pf_mutex)PF_MUTEX_INIT;
    c->members[0].scheduler = s;
    s->member = &c->members[0];
    pf_store(&c->count, 1);
    pf_store(&c->hungry, 0);
    pf_store(&s->member->hungry, SATED);
    c->found_stuck = false;
}

/* In the child only this member is left, and it decides when the run ends.  If
 * it was not the first, its main fiber only keeps the run going: wake it, so
 * that it ends. */
int
pf_team_after_fork(SchedulerObject *s)
{
    if (s->team == NULL) {
        return 0;
    }
    bool keeps = !pf_team_is_first(s);
    forget_others(s, s->team);
    for (FiberObject *f = s->thread->live; f != NULL; f = f->next) {
        if (f->core.scheduler == &s->core && pf_migrate_is_away(f) &&
            pf_post_call(s, proxy_lost, (PyObject *)f, NULL) < 0) {
            return -1;
        }
    }
    return keeps && s->main != NULL ? pf_wait_unpark(PF_TASK(s->main), Py_None)
                                    : 0;
}

/* ----------------------------------------------------------- begin and end */

static int
processors(Py_ssize_t *threads)
{
    PyObject *count = pf_import_from("pyfiber._team", "processors");
    Py_XSETREF(count, count == NULL ? NULL : PyObject_CallNoArgs(count));
    int rc = count == NULL ? -1 : pf_team_threads(count, threads);
    Py_XDECREF(count);
    return rc;
}

int
pf_team_threads(PyObject *value, Py_ssize_t *threads)
{
    if (value == Py_None) {
        return processors(threads);
    }
    if (!PyLong_Check(value) || PyBool_Check(value)) {
        PyErr_Format(PyExc_TypeError,
                     "threads must be an int or None, not '%.200s'",
                     Py_TYPE(value)->tp_name);
        return -1;
    }
    *threads = PyLong_AsSsize_t(value);
    if ((*threads == -1 && PyErr_Occurred()) || *threads < 1 ||
        *threads > MOST_THREADS) {
        PyErr_Format(PyExc_ValueError, "threads must be from 1 to %d, not %R",
                     MOST_THREADS, value);
        return -1;
    }
    return 0;
}

static PyObject *
mod_join(PyObject *module, PyObject *args)
{
    (void)module;
    SchedulerObject *first, *own;
    if (!PyArg_ParseTuple(args, "O!O!", pf_scheduler_type, &first,
                          pf_scheduler_type, &own)) {
        return NULL;
    }
    PfTeam *c = first->team;
    if (c == NULL || pf_load(&c->over)) {
        Py_RETURN_FALSE;
    }
    pf_store(&own->watch_limit, pf_load(&first->watch_limit));
    pf_store(&own->time_slice, 0);
    pf_team_join(own, c);
    own->slots = first->slots;
    /* Gifts that come before its loop runs wait in its inbox. */
    pf_team_get_hungry(own->member);
    Py_RETURN_TRUE;
}

static void
disband(PfTeam *c)
{
    size_t count = pf_load(&c->count);
    for (size_t i = 0; i < count; i++) {
        SchedulerObject *s = c->members[i].scheduler;
        s->core.probe = NULL;
        s->team = NULL;
        s->member = NULL;
        Py_DECREF(s);
    }
    PyMem_RawFree(c);
}

static void
forget_parts(PfTeam *c)
{
    Py_CLEAR(c->begin);
    Py_CLEAR(c->end);
    Py_CLEAR(c->reports);
}

/* Makes functools.partial(begin, s, threads, how); NULL with an exception. */
static PyObject *
prepare_begin(SchedulerObject *s, Py_ssize_t threads)
{
    PyObject *how = s->on_unhandled == NULL ? pf.s_log : s->on_unhandled;
    PyObject *prepare = pf_import_from("pyfiber._team", "prepare");
    PyObject *begin = prepare == NULL ? NULL
                                      : PyObject_CallFunction(prepare, "OnO",
                                                              s, threads, how);
    Py_XDECREF(prepare);
    return begin;
}

/* Called in the first member's loop.  A failure ends the run. */
void
pf_team_begin(SchedulerObject *s)
{
    PfTeam *c = s->team;
    c->begun = true;
    pf_thread_no_switch_begin(s->thread,
                              "while the threads of a run are started");
    PyObject *begun = PyObject_CallNoArgs(c->begin);
    PyObject *failure =
        begun == NULL ? pystate_take_exception() : PyTuple_GetItem(begun, 1);
    if (begun != NULL) {
        c->end = Py_NewRef(PyTuple_GET_ITEM(begun, 0));
        Py_INCREF(failure);
        Py_DECREF(begun);
    }
    pf_thread_no_switch_end(s->thread);
    if (failure != Py_None) {
        pf_scheduler_fail(s, Py_NewRef(failure));
    }
    Py_DECREF(failure);
}

/* Stops the other members and, if `wait`, waits until their threads have
 * ended.  0, or -1 with the failure of one. */
static int
wait_for_others(SchedulerObject *s, PfTeam *c, bool wait)
{
    pf_team_cancel(s);
    PyObject *ended = c->end == NULL
                          ? Py_NewRef(Py_None)
                          : PyObject_CallFunction(c->end, "i", (int)wait);
    Py_XDECREF(ended);
    return ended == NULL ? -1 : 0;
}

/* After a second Ctrl-C the run does not wait for the other threads, so the
 * team, which they may still use, is not freed. */
static PyObject *
end_run(SchedulerObject *s, PfTeam *c, PyObject *result)
{
    PyObject *raised = result == NULL ? pystate_take_exception() : NULL;
    bool wait = s->interrupts < 2;
    if (wait_for_others(s, c, wait) < 0 && raised == NULL) {
        Py_CLEAR(result);
        raised = pystate_take_exception();
    }
    PyErr_Clear();
    forget_parts(c);
    if (wait) {
        disband(c);
    }
    pystate_restore_exception(raised);
    return result;
}

PyObject *
pf_team_run(SchedulerObject *s, FiberObject *main, Py_ssize_t threads,
            int64_t watchdog)
{
    (void)watchdog;
    PyObject *begin = prepare_begin(s, threads);
    PfTeam *c = begin == NULL ? NULL : PyMem_RawCalloc(1, sizeof *c);
    if (c == NULL) {
        Py_DECREF(main);
        Py_XDECREF(begin);
        return begin == NULL ? NULL : PyErr_NoMemory();
    }
    c->joining = (pf_mutex)PF_MUTEX_INIT;
    c->begin = begin;
    pf_team_join(s, c);
    PyObject *result = pf_run_main(s, main);
    pf_store(&c->over, 1);
    return end_run(s, c, result);
}

static PyMethodDef functions[] = {
    {"_join_team", mod_join, METH_VARARGS,
     "_join_team(first, own, /)\n--\n\n"
     "Make the scheduler `own` a member of the run of `first`.\n\n"
     "Return False if that run is over."},
    {NULL, NULL, 0, NULL},
};

int
pf_team_run_init(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
