/* The virtual clock: time stands still while anything can run, and jumps to
 * the next timer when nothing can.
 *
 * A fiber may move the clock with advance(), which waits until the time is
 * reached and everything due before has happened, or with spend(), which does
 * not wait.  In a run, only these two move a clock that `stands`.
 */
#include "python/core/arguments.h"
#include "python/core/state.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/run/run.h"
#include "python/task/fiber.h"
#include "python/task/scheduler.h"
#include "python/testing/testing.h"
#include "python/wait/wait.h"
#include "python/waitq/wait_memory.h"

#include <errno.h>

/* A fiber in advance() or run_until_idle(); in memory of pf_wait_memory(). */
struct PfClockWaiter {
    PfClockWaiter *next; /* came after this one */
    FiberObject *fiber;
    int64_t until; /* virtual time, nanoseconds */
};
_Static_assert(sizeof(PfClockWaiter) <= PF_WAIT_BYTES,
               "a wait needs more memory");

static int64_t
read_clock(void *data)
{
    return ((PfClockObject *)data)->now;
}

/* constant after import */
PfKeeps pf_vclock_of_scheduler = {.size = sizeof(PfClockObject *)};

static PfClockObject **
clock_of(SchedulerObject *s)
{
    return pf_scheduler_keeps(s, &pf_vclock_of_scheduler);
}

int
pf_vclock_traverse(SchedulerObject *s, visitproc visit, void *arg)
{
    Py_VISIT(*clock_of(s));
    return 0;
}

/* ------------------------------------------------------------- installation */

int
pf_vclock_install(SchedulerObject *s, PyObject *op)
{
    if (!PyObject_TypeCheck(op, pf_explorer_clock_type)) {
        PyErr_Format(PyExc_TypeError, "expected a VirtualClock, not '%.200s'",
                     Py_TYPE(op)->tp_name);
        return -1;
    }
    PfClockObject *clock = (PfClockObject *)op;
    if (clock->user != NULL || s->core.clock != NULL ||
        s->core.timers.count != 0) {
        PyErr_SetString(pf.fiber_error,
                        "the clock, or the scheduler, is in use: give each "
                        "run a virtual clock of its own");
        return -1;
    }
    clock->user = s;
    pf_store(&s->time_slice, 0); /* a slice is a length of real time */
    *clock_of(s) = (PfClockObject *)Py_NewRef(op);
    s->core.clock = read_clock;
    s->core.clock_data = clock;
    s->core.looked_at = pf_scheduler_now(&s->core);
    return 0;
}

void
pf_vclock_remove(SchedulerObject *s)
{
    PfClockObject *clock = *clock_of(s);
    if (clock == NULL) {
        return;
    }
    clock->user = NULL;
    s->core.clock = NULL;
    s->core.clock_data = NULL;
    s->core.looked_at = pf_scheduler_now(&s->core);
    Py_CLEAR(*clock_of(s));
}

/* ------------------------------------------------------------------- waiting */

/* Finds the waiter with the earliest time; of several, the one that came
 * first. */
static PfClockWaiter *
first_waiter(const PfClockObject *clock)
{
    PfClockWaiter *best = clock->waiters;
    for (PfClockWaiter *w = best; w != NULL; w = w->next) {
        if (w->until < best->until) {
            best = w;
        }
    }
    return best;
}

static void
fail(SchedulerObject *s, const char *text)
{
    PyErr_SetString(pf.fiber_error, text);
    pf_scheduler_fail(s, pystate_take_exception());
}

/* Waits at most `timeout` nanoseconds of real time for something outside. */
static void
block(SchedulerObject *s, int64_t timeout)
{
    int rc = pf_scheduler_block(&s->core, timeout);
    if (rc < 0) {
        errno = -rc;
        PyErr_SetFromErrno(PyExc_OSError);
        pf_scheduler_fail(s, pystate_take_exception());
    }
}

/* Waits in real time, because something outside has promised to wake this run,
 * or nothing else can.  If the clock does not allow that, the run fails with
 * `refusal`; while it ends after that, cancelled fibers may still have to
 * wait.  Always returns true. */
static bool
wait_for_outside(SchedulerObject *s, const PfClockObject *clock,
                 int64_t timeout, const char *refusal)
{
    if (!clock->threads && !s->ending) {
        fail(s, refusal);
    } else {
        block(s, timeout);
    }
    return true;
}

static const char waits_for_threads[] =
    "the run has virtual time but waits for another thread (to_thread(), "
    "say), which takes real time: replace that call in the test, or allow it "
    "with threads=True";
static const char waits_for_input[] =
    "the run has virtual time but waits for a descriptor that nobody in it "
    "makes ready, which takes real time: let a fiber be the other side, or "
    "allow real waiting with threads=True";

/* Returns the next instant to jump to; PF_NEVER: none. */
static int64_t
next_moment(const SchedulerObject *s, const PfClockObject *clock,
            int64_t deadline)
{
    const PfClockWaiter *waiter = first_waiter(clock);
    int64_t next = pf_timers_next(&s->core.timers);
    if (waiter != NULL && waiter->until < next) {
        next = waiter->until;
    } else if (waiter == NULL && clock->stands) {
        next = PF_NEVER;
    }
    return deadline < next ? deadline : next;
}

/* Moves the clock forward and fires what is due.  If timers and a waiter are
 * due at the same instant, the timers come first, and the waiter after
 * everything that they have caused. */
static void
move_to(SchedulerObject *s, PfClockObject *clock, int64_t moment)
{
    if (moment > clock->now) {
        clock->now = moment;
    }
    PfClockWaiter *waiter = first_waiter(clock);
    if (waiter != NULL && waiter->until <= clock->now &&
        pf_timers_next(&s->core.timers) > clock->now) {
        pf_scheduler_wake(&s->core, &waiter->fiber->core, PF_WAKE_NORMAL);
    }
    pf_scheduler_poll(&s->core);
}

/* Something outside may be about to make a descriptor ready for which a fiber
 * waits.  Until then virtual time moves as fast as real time, so that it never
 * jumps past that. */
static void
move_at_real_pace(SchedulerObject *s, PfClockObject *clock, int64_t moment)
{
    int64_t begun = pf_clock_monotonic();
    block(s, moment == PF_NEVER    ? PF_NEVER
             : moment > clock->now ? moment - clock->now
                                   : 0);
    int64_t now = pf_timers_later(clock->now, pf_clock_monotonic() - begun);
    if (now >= moment) {
        move_to(s, clock, moment);
    } else if (!clock->stands) {
        move_to(s, clock, now);
    }
}

/* Called while fibers wait for descriptors, none of which is ready.  If the
 * run may wait in real time (`threads`), something outside may make one ready,
 * so time moves at real pace, except for advance() and run_until_idle().
 * Otherwise only fibers of the run can make one ready: time may jump to when
 * they run, and if there is no such time the run fails.  Returns false if the
 * caller has to move the clock. */
static bool
wait_for_descriptors(SchedulerObject *s, PfClockObject *clock, int64_t moment)
{
    if (clock->threads && clock->waiters == NULL) {
        move_at_real_pace(s, clock, moment);
        return true;
    }
    return moment == PF_NEVER &&
           wait_for_outside(s, clock, PF_NEVER, waits_for_input);
}

bool
pf_vclock_idle(SchedulerObject *s, int64_t deadline)
{
    PfClockObject *clock = *clock_of(s);
    uint64_t before = pf_scheduler_happened(&s->core);
    bool busy = pf_poller_busy(s->core.poller);
    pf_scheduler_poll(&s->core);
    if (busy) {
        pf_scheduler_look(&s->core);
    }
    if (s->core.ready.head != NULL ||
        pf_scheduler_happened(&s->core) != before) {
        return true;
    }
    if (pf_load(&s->core.holds) != 0) {
        return wait_for_outside(s, clock, PF_NEVER, waits_for_threads);
    }
    int64_t moment = next_moment(s, clock, deadline);
    if (busy && wait_for_descriptors(s, clock, moment)) {
        return true;
    }
    if (moment != PF_NEVER) {
        move_to(s, clock, moment);
        return true;
    }
    if (clock->stands && s->core.timers.count != 0) {
        fail(s, "every fiber waits for a time that does not come: the clock "
                "stands, and no fiber is left to call advance()");
        return true;
    }
    int64_t patience = clock->threads ? pf_run_wait_for_help(s) : -1;
    return patience > 0
               ? wait_for_outside(s, clock, patience, waits_for_threads)
               : patience == 0;
}

void
pf_vclock_skip(SchedulerObject *s)
{
    PfClockObject *clock = s->core.clock == NULL ? NULL : *clock_of(s);
    int64_t moment =
        clock == NULL ? PF_NEVER : next_moment(s, clock, PF_NEVER);
    if (moment != PF_NEVER) {
        move_to(s, clock, moment);
    }
}

static void
unlink_waiter(PfClockObject *clock, PfClockWaiter *waiter)
{
    PfClockWaiter **link = &clock->waiters;
    while (*link != NULL && *link != waiter) {
        link = &(*link)->next;
    }
    if (*link == waiter) {
        *link = waiter->next;
    }
}

static PyObject *
wait_until(PfClockObject *clock, PfThread *t, int64_t until, const char *what)
{
    PyObject *name = PyUnicode_FromString(what);
    if (name == NULL) {
        return NULL;
    }
    PfClockWaiter *waiter = pf_wait_memory(t);
    if (waiter == NULL) {
        Py_DECREF(name);
        return NULL;
    }
    *waiter = (PfClockWaiter){NULL, CURRENT(t), until};
    PfClockWaiter **link = &clock->waiters;
    while (*link != NULL) {
        link = &(*link)->next;
    }
    *link = waiter;
    Py_INCREF(clock);
    int rc = pf_wait(t, PF_NEVER, name);
    unlink_waiter(clock, waiter);
    pf_wait_memory_free(t, waiter);
    Py_DECREF(clock);
    Py_DECREF(name);
    return rc < 0 ? NULL : Py_NewRef(Py_None);
}

/* ---------------------------------------------------------------- methods */

/* Does this thread run a scheduler that uses the clock? */
static bool
runs_by(const PfClockObject *clock, const PfThread *t)
{
    return t->scheduler != NULL && t->scheduler == clock->user;
}

static int
check_user(PfClockObject *clock, PfThread *t)
{
    if (clock->user != NULL && clock->user->thread != t) {
        PyErr_SetString(pf.fiber_error,
                        "the clock serves a run on another thread");
        return -1;
    }
    return 0;
}

/* Converts `seconds`, by which `what` moves the clock, to nanoseconds.  0, or
 * -1 with an exception. */
static int
forward(PfClockObject *clock, PyObject *seconds, const char *what, int64_t *ns)
{
    if (pf_arguments_seconds(seconds, what, ns) < 0) {
        return -1;
    }
    if (*ns < 0) {
        PyErr_Format(PyExc_ValueError,
                     "time does not go backwards: %s needs a number of "
                     "seconds that is not negative",
                     what);
        return -1;
    }
    if (pf_timers_later(clock->now, *ns) == PF_NEVER) {
        PyErr_SetString(PyExc_OverflowError,
                        "that is beyond the end of time (292 years)");
        return -1;
    }
    return 0;
}

static PyObject *
clock_advance(PyObject *op, PyObject *seconds)
{
    PfClockObject *clock = (PfClockObject *)op;
    PfThread *t = pf_thread_this();
    int64_t ns;
    if (t == NULL || forward(clock, seconds, "advance()", &ns) < 0 ||
        check_user(clock, t) < 0) {
        return NULL;
    }
    if (runs_by(clock, t)) {
        return wait_until(clock, t, clock->now + ns, "clock.advance()");
    }
    clock->now += ns;
    Py_RETURN_NONE;
}

static PyObject *
clock_spend(PyObject *op, PyObject *seconds)
{
    PfClockObject *clock = (PfClockObject *)op;
    PfThread *t = pf_thread_this();
    int64_t ns;
    if (t == NULL || forward(clock, seconds, "spend()", &ns) < 0 ||
        check_user(clock, t) < 0) {
        return NULL;
    }
    clock->now += ns;
    Py_RETURN_NONE;
}

static PyObject *
clock_run_until_idle(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    PfClockObject *clock = (PfClockObject *)op;
    PfThread *t = pf_thread_this();
    if (t == NULL || check_user(clock, t) < 0) {
        return NULL;
    }
    if (!runs_by(clock, t)) {
        PyErr_SetString(pf.fiber_error,
                        "run_until_idle() lets the other fibers run: call it "
                        "from a fiber of a run that has this clock");
        return NULL;
    }
    return wait_until(clock, t, clock->now, "clock.run_until_idle()");
}

static PyObject *
clock_now(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    return PyFloat_FromDouble((double)((PfClockObject *)op)->now / 1e9);
}

static PyObject *
clock_now_ns(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    return PyLong_FromLongLong(((PfClockObject *)op)->now);
}

static PyObject *
clock_set_ns(PyObject *op, PyObject *number)
{
    PfClockObject *clock = (PfClockObject *)op;
    long long ns = PyLong_AsLongLong(number);
    if (ns == -1 && PyErr_Occurred()) {
        return NULL;
    }
    if (clock->user != NULL) {
        PyErr_SetString(pf.fiber_error,
                        "a run uses this clock, so it cannot be set");
        return NULL;
    }
    clock->now = ns;
    Py_RETURN_NONE;
}

static PyObject *
clock_attach(PyObject *op, PyObject *scheduler)
{
    if (!PyObject_TypeCheck(scheduler, pf_scheduler_type)) {
        PyErr_Format(PyExc_TypeError, "expected a Scheduler, not '%.200s'",
                     Py_TYPE(scheduler)->tp_name);
        return NULL;
    }
    SchedulerObject *s = (SchedulerObject *)scheduler;
    return pf_run_may_run(s) < 0 || pf_vclock_install(s, op) < 0
               ? NULL
               : Py_NewRef(Py_None);
}

static PyObject *
clock_detach(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    PfClockObject *clock = (PfClockObject *)op;
    SchedulerObject *s = clock->user;
    if (s == NULL) {
        Py_RETURN_NONE;
    }
    if (s->running || s->core.timers.count != 0) {
        PyErr_SetString(pf.fiber_error,
                        "fibers of the scheduler still wait for this clock");
        return NULL;
    }
    pf_vclock_remove(s);
    Py_RETURN_NONE;
}

/* ---------------------------------------------------------------- the type */

static PyObject *
clock_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args; /* for __init__; a subclass may take different ones */
    (void)kwargs;
    return type->tp_alloc(type, 0);
}

static int
clock_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"start_ns", "stands", "threads", NULL};
    PfClockObject *clock = (PfClockObject *)op;
    long long start = 0;
    int stands = 0, threads = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|Lpp:_VirtualClock", names,
                                     &start, &stands, &threads)) {
        return -1;
    }
    if (clock->user != NULL) {
        PyErr_SetString(pf.fiber_error,
                        "a run uses this clock, so it cannot be set");
        return -1;
    }
    clock->now = start;
    clock->stands = stands;
    clock->threads = threads;
    return 0;
}

/* No scheduler uses the clock any more, because one that does holds a
 * reference. */
static void
clock_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMethodDef clock_methods[] = {
    {"advance", clock_advance, METH_O, "advance($self, seconds, /)\n--\n\n\
Let `seconds` pass: everything due meanwhile happens, in order.\n\
\n\
In a fiber of the run, it returns when that time is reached and nothing else\n\
can run. While no run uses the clock, it only sets the clock. ValueError for a\n\
negative number or NaN: time does not go backwards."},
    {"run_until_idle", clock_run_until_idle, METH_NOARGS,
     "run_until_idle($self, /)\n--\n\n\
Let the other fibers run until all of them wait; time does not move.\n\
\n\
FiberError outside of a run that has this clock."},
    {"now", clock_now, METH_NOARGS,
     "now($self, /)\n--\n\nThe time in seconds, as pyfiber.now() gives it."},
    {"now_ns", clock_now_ns, METH_NOARGS,
     "now_ns($self, /)\n--\n\nThe time in nanoseconds."},
    {"spend", clock_spend, METH_O, "spend($self, seconds, /)\n--\n\n\
Pretend that the running code computes for `seconds`: nothing else runs\n\
meanwhile. Raises what advance() raises."},
    {"_set_ns", clock_set_ns, METH_O,
     "Set the time, in nanoseconds, while no run uses the clock."},
    {"attach", clock_attach, METH_O, "attach($self, scheduler, /)\n--\n\n\
Make a Scheduler without timers use this clock."},
    {"detach", clock_detach, METH_NOARGS,
     "detach($self, /)\n--\n\nUndo attach(); does nothing if it is not "
     "attached."},
    {NULL, NULL, 0, NULL},
};

static PyObject *
clock_get_threads(PyObject *op, void *closure)
{
    (void)closure;
    return PyBool_FromLong(((PfClockObject *)op)->threads);
}

static int
clock_set_threads(PyObject *op, PyObject *value, void *closure)
{
    (void)closure;
    int may = value == NULL ? 0 : PyObject_IsTrue(value);
    if (may >= 0) {
        ((PfClockObject *)op)->threads = may;
    }
    return may < 0 ? -1 : 0;
}

static PyGetSetDef clock_getset[] = {
    {"threads", clock_get_threads, clock_set_threads,
     "Whether an idle run may wait, in real time, for other threads and\n"
     "descriptors.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot clock_slots[] = {
    {Py_tp_doc, (void *)"The native part of pyfiber.testing.VirtualClock."},
    {Py_tp_new, clock_new},
    {Py_tp_init, clock_init},
    {Py_tp_dealloc, clock_dealloc},
    {Py_tp_methods, clock_methods},
    {Py_tp_getset, clock_getset},
    {0, NULL},
};

PyType_Spec pf_vclock_spec = {
    .name = "pyfiber._engine._VirtualClock",
    .basicsize = sizeof(PfClockObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = clock_slots,
};
