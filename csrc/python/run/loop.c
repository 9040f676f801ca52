/* The loop: what runs next, how it waits, and how a run ends.
 *
 * The fiber that calls run() becomes the hub.  The hub gets control when no
 * fiber is ready (then it waits, with the GIL released) and when a fiber's end
 * may be the end of the run.  Fibers that yield or park switch to each other
 * directly, without the hub.
 *
 * This long file is not split, because the beginning of a run, its loop and
 * its end change the same state. */
#include "python/cancel/cancel.h"
#include "python/core/facade.h"
#include "python/core/parts.h"
#include "python/core/state.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/pack/pack.h"
#include "python/run/help.h"
#include "python/run/run.h"
#include "python/run/team.h"
#include "python/switch/pending.h"
#include "python/switch/switch.h"
#include "python/switch/unwind.h"
#include "python/task/cancelling.h"
#include "python/task/explore.h"
#include "python/task/fiber.h"
#include "python/task/life.h"
#include "python/task/outcome.h"
#include "python/task/post.h"
#include "python/task/scheduler.h"
#include "python/task/unhandled.h"

#include "engine/stack/overflow.h"

#include <errno.h>

PF_ATOMIC(int64_t) pf_run_stall_limit; /* shared, one word */

/* -------------------------------------------------------------- ending a run */

void
pf_run_cancel_all(SchedulerObject *s, PyObject *reason)
{
    PyObject *why = pf_cancel_why(reason, Py_None);
    for (FiberObject *f = s->thread->live; f != NULL; f = f->next) {
        if (f->core.scheduler == &s->core && f->scheduled &&
            pf_parts_hooks.cancelling->is_top(f) &&
            !pf_fiber_kind(f)->serves) {
            pf_cancel_now(f, why);
        }
    }
    PF_EACH_PART(part, cancel_all) {
        part->cancel_all(s, why);
    }
    Py_XDECREF(why);
}

static void
fail_with_raised(SchedulerObject *s)
{
    pf_scheduler_fail(s, pystate_take_exception());
}

/* Cancels every fiber of the run for this reason.  Making the objects may
 * start the collector, which may run any code, so no switch is allowed. */
void
pf_run_cancel_because(SchedulerObject *s, const char *reason)
{
    pf_thread_no_switch_begin(s->thread, "while a run is cancelled");
    PyObject *text = pf_cancel_text(reason);
    pf_run_cancel_all(s, text);
    Py_DECREF(text);
    pf_thread_no_switch_end(s->thread);
}

/* Drops a reference in the hub.  Code that runs as objects die must not leave
 * the hub, because nothing would switch back to it. */
static void
drop_in_hub(SchedulerObject *s, PyObject *object)
{
    pf_thread_no_switch_begin(s->thread, "in a scheduler's loop");
    Py_XDECREF(object);
    pf_thread_no_switch_end(s->thread);
}

/* ------------------------------------------------------------------- the loop */

/* Finds a fiber of `s`, or a raw one that waits in it, that is ready, parked
 * or suspended; a new reference, or NULL.  A new one is in a message that has
 * not been read: it is for the next run, or for close(). */
static FiberObject *
find_leftover(SchedulerObject *s)
{
    for (FiberObject *f = s->thread->live; f != NULL; f = f->next) {
        if (f->core.scheduler == &s->core && f->core.state != PF_RUNNING &&
            f->core.state != PF_NEW && f->core.state != PF_DONE &&
            f != CURRENT(s->thread)) {
            return (FiberObject *)Py_NewRef((PyObject *)f);
        }
    }
    return NULL;
}

/* Ends one task of the rooms above, grains for example, that is left in the
 * run.  Returns false if there was none. */
static bool
abandon_another(SchedulerObject *s)
{
    PF_EACH_PART(part, abandon) {
        if (part->abandon(s)) {
            return true;
        }
    }
    return false;
}

/* Takes all fibers from the ready queue and marks them as parked.  (To remove
 * each from the middle when it is unwound would take quadratic time.) */
static void
empty_queue(SchedulerObject *s)
{
    pf_task *core;
    while ((core = pf_queue_pop(&s->core.ready)) != NULL) {
        core->state =
            core == pf_scheduler_hub_task(&s->core) ? PF_RUNNING : PF_PARKED;
    }
}

/* Unwinds the remaining fibers with FiberExit.  An exception that is set on
 * entry stays set. */
void
pf_run_abandon(SchedulerObject *s)
{
    PyObject *pending = pystate_take_exception();
    FiberObject *fiber;
    s->ending = true;
    do {
        empty_queue(s); /* closing a grain may have started some */
        while ((fiber = find_leftover(s)) != NULL) {
            if (fiber->fiber.stack != NULL) {
                pf_unwind_fiber(s->thread, fiber);
            } else {
                PyErr_SetNone(pf.fiber_exit);
                pf_switch_end(s->thread, fiber, NULL);
            }
            drop_in_hub(s, (PyObject *)fiber);
            empty_queue(s); /* unwinding may have woken others */
        }
    } while (abandon_another(s));
    pystate_restore_exception(pending);
}

/* Does the fiber only wait for work, as an idle runner of grains does? */
static bool
is_idle(FiberObject *f)
{
    if (pf_fiber_kind(f)->serves) {
        PF_EACH_PART(part, is_idle) {
            if (part->is_idle(f)) {
                return true;
            }
        }
    }
    return false;
}

/* Includes fibers that other threads have sent here and that this thread has
 * not accepted yet, at the end, as the youngest. */
PyObject *
pf_run_fibers(SchedulerObject *s)
{
    PyObject *list = PyList_New(0);
    if (list != NULL && pf_post_list(s, pf_run_soon_arrived, list) < 0) {
        Py_CLEAR(list);
    }
    for (FiberObject *f = s->thread->live; list != NULL && f != NULL;
         f = f->next) {
        if (f->core.scheduler == &s->core && !is_idle(f) &&
            PyList_Append(list, (PyObject *)f) < 0) {
            Py_CLEAR(list);
        }
    }
    if (list != NULL && PyList_Reverse(list) < 0) {
        Py_CLEAR(list);
    }
    return list;
}

PyObject *
pf_run_waiting_ones(SchedulerObject *s)
{
    PyObject *list = pf_run_fibers(s);
    PF_EACH_PART(part, list) {
        if (list != NULL && part->list(s, list) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

/* Ends the run with DeadlockError.  If its text cannot be made, the run ends
 * with that failure, whose context is the DeadlockError. */
static void
deadlock(SchedulerObject *s)
{
    pf_thread_no_switch_begin(s->thread, "while a deadlock is reported");
    PyObject *fibers = pf_team_fibers(s, pf_run_waiting_ones(s));
    PyObject *text = NULL;
    if (fibers != NULL && pf_facade.deadlock_text != NULL) {
        text = PyObject_CallOneArg(pf_facade.deadlock_text, fibers);
    }
    text = pf_team_add_reports(s, text);
    Py_XDECREF(fibers);
    PyObject *failure = text == NULL ? pystate_take_exception() : NULL;
    if (text != NULL) {
        PyErr_SetObject(pf.deadlock_error, text);
        Py_DECREF(text);
    } else {
        PyErr_SetString(pf.deadlock_error,
                        "every fiber waits and nothing can wake one");
    }
    PyObject *error = pystate_take_exception();
    if (failure != NULL) {
        pf_outcome_add_context(failure, error);
        Py_SETREF(error, failure);
    }
    pf_thread_no_switch_end(s->thread);
    pf_scheduler_fail(s, error);
}

static void
warn_of_stall(SchedulerObject *s)
{
    pf_thread_no_switch_begin(s->thread, "while a stalled run is reported");
    PyObject *fibers = pf_run_waiting_ones(s);
    PyObject *done = fibers == NULL
                         ? NULL
                         : PyObject_CallOneArg(pf_facade.log_stall, fibers);
    Py_XDECREF(fibers);
    if (done != NULL) {
        Py_DECREF(done);
    } else if (PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_WriteUnraisable((PyObject *)s);
    } else {
        fail_with_raised(s);
    }
    pf_thread_no_switch_end(s->thread);
}

/* Called while only another thread could wake a fiber.  A library's thread
 * that never does would hide a deadlock for good, so when nothing has happened
 * for pf_run_stall_limit, this warns, once in a run.  Returns true if it has
 * just warned. */
static bool
watch_stall(SchedulerObject *s)
{
    uint64_t happened = s->core.switches + s->core.messages;
    int64_t now = pf_clock_monotonic();
    if (s->stalled_at != happened) {
        s->stalled_at = happened;
        s->stalled_since = now;
    }
    int64_t limit = pf_load_relaxed(&pf_run_stall_limit);
    if (limit <= 0 || s->stall_reported || now - s->stalled_since < limit) {
        return false;
    }
    s->stall_reported = true;
    warn_of_stall(s);
    return true;
}

/* Nanoseconds until the idle loop checks again whether another thread exists:
 * a thread's end does not wake the loop. */
#define LOOK_FOR_THREADS INT64_C(1000000000)

static int64_t
look_interval(void)
{
    int64_t limit = pf_load_relaxed(&pf_run_stall_limit);
    return limit > 0 && limit < LOOK_FOR_THREADS ? limit : LOOK_FOR_THREADS;
}

/* Runs Python's signal handlers while the loop is idle.  Handlers must not
 * switch, because the hub is in the middle of its work.  A failure ends the
 * run. */
static int
run_signal_handlers(SchedulerObject *s)
{
    pf_thread_no_switch_begin(s->thread,
                              "in a signal handler that interrupted the "
                              "idle scheduler");
    int rc = PyErr_CheckSignals();
    pf_thread_no_switch_end(s->thread);
    if (rc < 0) {
        fail_with_raised(s);
    }
    return rc;
}

/* ------------------------------------------ what another thread could wake */

/* Is `f` a fiber of the run, or a raw fiber whose end continues in one?  The
 * end of any other raw fiber leads out of the run. */
static bool
belongs_to(SchedulerObject *s, FiberObject *f)
{
    while (f != NULL && !f->scheduled) {
        f = f->parent;
    }
    return f != NULL && f->core.scheduler == &s->core;
}

/* Is `f` parked, and waits neither for another fiber of this run nor for a
 * group?  Then another thread may wake it. */
static bool
awaits_thread(SchedulerObject *s, FiberObject *f)
{
    if (f->core.scheduler != &s->core || f->core.state != PF_PARKED ||
        is_idle(f) || !belongs_to(s, f)) {
        return false;
    }
    PyObject *what = f->waiting_on;
    if (what == NULL) {
        return true;
    }
    bool fiber = PyObject_TypeCheck(what, pf_task_fiber_type);
    return fiber ? ((FiberObject *)what)->core.scheduler != &s->core
                 : !PyObject_TypeCheck(what, pf_cancel_group_type);
}

/* Finds the next raw fiber, from `f` on, that waits and was entered from this
 * run.  Cancelling the run's fibers does not reach it, so cancel_raw does.
 * Borrowed, or NULL. */
static FiberObject *
find_raw_to_cancel(SchedulerObject *s, FiberObject *f)
{
    while (f != NULL &&
           (!awaits_thread(s, f) || (f->scheduled || f->cancel_called))) {
        f = f->next;
    }
    return f;
}

/* Cancels the raw fibers that wait in the run, which is ending.  Returns true
 * if any fiber is ready afterwards. */
static bool
cancel_raw(SchedulerObject *s)
{
    if (find_raw_to_cancel(s, s->thread->live) != NULL) {
        pf_thread_no_switch_begin(s->thread, "while a run is cancelled");
        PyObject *reason = pf_cancel_text("the run is over");
        PyObject *why = pf_cancel_why(reason, Py_None);
        /* Creating these objects may have run code, so search again. */
        FiberObject *f = s->thread->live;
        while ((f = find_raw_to_cancel(s, f)) != NULL) {
            pf_cancel_now(f, why);
        }
        Py_XDECREF(why);
        Py_DECREF(reason);
        pf_thread_no_switch_end(s->thread);
    }
    return s->core.ready.head != NULL;
}

/* The run is ending: all fibers were cancelled and none is ready.  Fibers that
 * still wait are shielded, and another thread may wake them.  Suspended fibers
 * were left by a direct switch, which no other thread can undo. */
static bool
thread_could_end_it(SchedulerObject *s)
{
    PF_EACH_PART(part, are_left) {
        if (part->are_left(s)) {
            return true;
        }
    }
    for (FiberObject *f = s->thread->live; f != NULL; f = f->next) {
        if (awaits_thread(s, f)) {
            return true;
        }
    }
    return false;
}

/* No other thread is left.  Without a GIL the last one may have woken a fiber
 * of this run, and have ended, since the caller looked at the inbox.  With a
 * GIL nothing can happen in between. */
static bool
has_been_helped(SchedulerObject *s)
{
    return PF_FREE_THREADED &&
           (pf_inbox_pending(&s->core.inbox) || pf_load(&s->core.holds) != 0 ||
            pf_load(&s->coming) != 0);
}

int64_t
pf_run_wait_for_help(SchedulerObject *s)
{
    if (!pf_help_is_possible(s)) {
        return has_been_helped(s) || s->core.ready.head != NULL ? 0 : -1;
    }
    if (s->ending && cancel_raw(s)) {
        return 0;
    }
    if (s->ending && !thread_could_end_it(s)) {
        return -1;
    }
    /* The code that gets a stall warning may have woken a fiber. */
    return watch_stall(s) ? 0 : look_interval();
}

/* Asks the rooms above whether waits of theirs are over now, because of what
 * has run since.  Returns true if something is ready. */
static bool
ask_again(SchedulerObject *s)
{
    PF_EACH_PART(part, ask_again) {
        if (part->ask_again(s)) {
            return true;
        }
    }
    return false;
}

/* Notifies the rooms above that something is about to run. */
static inline void
poke(SchedulerObject *s)
{
    if (PF_UNLIKELY(s->pokes)) {
        PF_EACH_PART(part, poke) {
            part->poke(s);
        }
    }
}

/* Waits while nothing is ready: until `deadline`, or for a while if only
 * another thread could wake a fiber.  Returns false if nothing can wake one. */
static bool
idle(SchedulerObject *s, int64_t deadline)
{
    if (s->core.ready.head != NULL || run_signal_handlers(s) < 0 ||
        s->core.ready.head != NULL || ask_again(s)) {
        return true;
    }
    if (s->core.clock != NULL) {
        return pf_parts_hooks.explorer->idle(s, deadline);
    }
    if (s->team != NULL) {
        int64_t patience = pf_team_idle(s);
        if (patience < 0) {
            return false;
        }
        if (patience != PF_NEVER) {
            deadline = pf_scheduler_now(&s->core) + patience;
        }
    } else if (deadline == PF_NEVER && !pf_scheduler_expects(&s->core) &&
               pf_load(&s->coming) == 0) {
        int64_t patience = pf_run_wait_for_help(s);
        if (patience <= 0) {
            return patience == 0;
        }
        deadline = pf_scheduler_now(&s->core) + patience;
    }
    int rc = pf_scheduler_wait(&s->core, deadline);
    pf_team_awake(s);
    if (rc < 0) {
        errno = -rc;
        PyErr_SetFromErrno(PyExc_OSError);
        fail_with_raised(s);
        return true;
    }
    (void)run_signal_handlers(s);
    return true;
}

/* The hub has been switched to: because no other fiber is ready, because it
 * was made ready, or because a raw fiber whose parent is the hub has ended.
 * The failure of such a fiber ends the run. */
static void
back_in_hub(SchedulerObject *s, FiberObject *hub)
{
    hub->core.state = PF_RUNNING;
    if (s->thread->transfer == NULL) {
        return;
    }
    pf_queue_remove(&s->core.ready, &hub->core); /* in case it is ready, too */
    PyObject *value = pf_switch_landed(s->thread);
    if (value == NULL) {
        fail_with_raised(s);
    }
    drop_in_hub(s, value);
}

/* Lets the next ready fiber run.  Returns false if none is ready. */
static bool
run_next(SchedulerObject *s, FiberObject *hub)
{
    hub->core.state = PF_PARKED;
    pf_fiber *next = pf_scheduler_next(&s->core);
    if (next == &hub->fiber) {
        hub->core.state = PF_RUNNING;
        return s->core.ready.head != NULL;
    }
    poke(s);
    pf_fiber_switch_with(&s->thread->engine, next, pf_switch_on);
    back_in_hub(s, hub);
    return true;
}

/* In the child of a fork inside a run, the code that continues in the fiber is
 * often a separate program (with multiprocessing it is), which may start a
 * run, too.  The inherited run pauses meanwhile, and the fiber counts as a raw
 * one that runs a loop, not as a fiber of the inherited run. */
static void
borrow_hub(SchedulerObject *s, FiberObject *hub)
{
    s->nested = s->outer != NULL && hub->scheduled;
    if (s->nested) {
        hub->core.scheduler = NULL;
        hub->scheduled = false;
    }
}

static void
return_hub(SchedulerObject *s, FiberObject *hub)
{
    if (s->nested) {
        hub->core.scheduler = &s->outer->core;
        hub->scheduled = true;
    }
    s->nested = false;
}

/* Only in the child of a fork may a run begin inside of another one.  (A fiber
 * that runs grains may not: the run would belong to one of them.) */
bool
pf_run_may_nest(PfThread *t)
{
    return t->scheduler->inherited && !pf_fiber_kind(CURRENT(t))->serves;
}

/* Other threads read t->scheduler (pf_post_call_thread), without a GIL under
 * this lock. */
static void
set_scheduler(PfThread *t, SchedulerObject *s)
{
    if (PF_FREE_THREADED) {
        pf_mutex_lock(&pf_threads_lock);
    }
    t->scheduler = s;
    if (PF_FREE_THREADED) {
        pf_mutex_unlock(&pf_threads_lock);
    }
}

static FiberObject *
hub_begin(SchedulerObject *s)
{
    PfThread *t = s->thread;
    pf_pack_use(t, s->slots);
    FiberObject *hub = CURRENT(t);
    pf_overflow_renew();
    hub->is_hub = true;
    s->core.hub = &hub->fiber;
    s->running = true;
    s->outer = t->scheduler;
    borrow_hub(s, hub);
    set_scheduler(t, s);
    Py_INCREF(s);
    if (PF_UNLIKELY(pf_scheduler_turns_on)) {
        pf_parts_hooks.turns->begin_run(s);
    }
    if (s->hosted) {
        pf_scheduler_resume(&s->core);
    }
    return hub;
}

static bool
has_work(SchedulerObject *s)
{
    return s->core.ready.head != NULL || pf_inbox_pending(&s->core.inbox);
}

static void
hub_end(SchedulerObject *s, FiberObject *hub)
{
    PfThread *t = s->thread;
    if (PF_UNLIKELY(s->in_turn_record)) {
        pf_parts_hooks.turns->end(s);
    }
    pf_queue_remove(&s->core.ready, &hub->core);
    hub->core.state = PF_RUNNING;
    hub->is_hub = false;
    s->core.hub = NULL;
    s->running = false;
    return_hub(s, hub);
    set_scheduler(t, s->outer);
    if (s->outer != NULL) {
        pf_pack_use(t, s->outer->slots);
    } else {
        pf_pack_reset(t);
    }
    s->outer = NULL;
    if (s->hosted && !s->closed && !(s->in_turn && has_work(s))) {
        pf_scheduler_rest(&s->core);
    }
    s->in_turn = false;
    pf_team_left(s);
    Py_DECREF(s);
}

static bool
failed(SchedulerObject *s)
{
    return s->fatal != NULL || s->errors != NULL ||
           (s->main != NULL && s->main->core.state == PF_DONE &&
            s->main->outcome != PF_OUTCOME_OK);
}

/* Is it time to cancel the remaining fibers? */
static bool
must_end(SchedulerObject *s)
{
    return !s->ending &&
           ((pf_scheduler_foreground(s) == 0 && !pf_team_works(s)) ||
            failed(s));
}

static bool
must_stop(SchedulerObject *s, FiberObject *hub)
{
    return (pf_scheduler_unfinished(s) == 0 && !pf_team_works(s)) ||
           s->interrupts > 1 || hub->dying;
}

/* Runs until main and every non-daemon fiber are done.  Then, or when
 * something fails, cancels the rest and waits for them.  Fibers that do not
 * end because of that were left by a direct switch, where no cancellation
 * reaches them; the caller abandons them. */
static void
loop(SchedulerObject *s, FiberObject *hub)
{
    while (!must_stop(s, hub)) {
        if (must_end(s)) {
            /* Accept fibers that have been posted, so that they are cancelled
             * for this reason, too. */
            pf_scheduler_poll(&s->core);
            s->ending = true;
            pf_run_cancel_because(s, s->foreground == 0
                                         ? "the run is over"
                                         : "another fiber ended the run");
            pf_team_cancel(s);
        }
        if (!run_next(s, hub) && !must_stop(s, hub) && !must_end(s) &&
            !idle(s, PF_NEVER)) {
            if (!s->ending) {
                deadlock(s);
            } else if (!cancel_raw(s)) {
                break;
            }
        }
    }
}

static int
ask_parts(SchedulerObject *s)
{
    PF_EACH_PART(part, run_may_begin) {
        if (part->run_may_begin(s) < 0) {
            return -1;
        }
    }
    return 0;
}

int
pf_run_may_run(SchedulerObject *s)
{
    PfThread *t = pf_thread_this();
    if (t == NULL || (t->pending != 0 && pf_pending_run(t) < 0)) {
        return -1;
    }
    if (s->closed) {
        PyErr_SetString(pf.fiber_error, "the scheduler is closed");
        return -1;
    }
    if (s->thread != t) {
        PyErr_SetString(pf.fiber_error,
                        "the scheduler belongs to another thread: run it on "
                        "the thread that made it");
        return -1;
    }
    if (t->scheduler != NULL && (s->running || !pf_run_may_nest(t))) {
        PyErr_SetString(pf.fiber_error,
                        "a scheduler runs on this thread already: use spawn() "
                        "inside of it");
        return -1;
    }
    return 0;
}

/* The parts may run code, so this checks again after it has asked them. */
int
pf_run_prepare(SchedulerObject *s)
{
    return pf_run_may_run(s) < 0 || ask_parts(s) < 0 ? -1 : pf_run_may_run(s);
}

/* The run ends with `exc`.  If main has failed, too, its failure becomes the
 * context of `exc` and is not reported. */
static void
remember_failure(FiberObject *main, PyObject *exc)
{
    if (main->outcome != PF_OUTCOME_FAILED) {
        return;
    }
    main->looked_at = true;
    pf_outcome_add_context(exc, main->value);
}

/* Makes the result of run() when the loop is over.  This may run code, so the
 * fiber is no longer the hub when it is called. */
static PyObject *
run_result(SchedulerObject *s, FiberObject *main)
{
    if (s->fatal != NULL) {
        PyObject *exc = s->fatal;
        s->fatal = NULL;
        remember_failure(main, exc);
        pystate_restore_exception(exc);
        return NULL;
    }
    return pf_task_value(PF_TASK(main));
}

/* The module `signal` is Python code, so trace functions run in it.  The hub
 * must neither wait nor be left there, because nothing would switch back to
 * it. */
static int
begin_signals(SchedulerObject *s, PfSignals *saved)
{
    pf_thread_no_switch_begin(s->thread, "while a run begins");
    int rc = pf_signals_begin(s, saved);
    pf_thread_no_switch_end(s->thread);
    return rc;
}

static void
end_signals(SchedulerObject *s, PfSignals *saved)
{
    pf_thread_no_switch_begin(s->thread, "while a run ends");
    pf_signals_end(s, saved);
    pf_thread_no_switch_end(s->thread);
}

PyObject *
pf_loop_run(SchedulerObject *s, FiberObject *main)
{
    PfSignals signals;
    FiberObject *hub = hub_begin(s);
    s->interrupts = 0;
    s->ending = false;
    s->stall_reported = false;
    bool started = false;
    if (pf_load_relaxed(&s->watch_limit) != 0) {
        PF_EACH_PART(part, run_begins) {
            part->run_begins(s);
        }
    }
    if (begin_signals(s, &signals) == 0) {
        started = pf_fiber_start(s, main) == 0;
        if (started) {
            s->main = (FiberObject *)Py_NewRef((PyObject *)main);
            s->untracks = true;
            loop(s, hub);
            pf_run_abandon(s);
            s->untracks = false;
            Py_CLEAR(s->main); /* the caller has a reference */
        }
        end_signals(s, &signals);
    }
    pf_thread_load_over(&s->thread->engine);
    hub_end(s, hub);
    s->ending = false; /* fibers spawned from now on are for the next run */
    return pf_unhandled_end_run(s, started ? run_result(s, main) : NULL);
}

/* ------------------------------------------------------------------- run_once */

/* Runs every fiber that is ready now, once: the hub queues behind them. */
static void
one_pass(SchedulerObject *s, FiberObject *hub)
{
    pf_scheduler_poll(&s->core);
    if (s->core.ready.head == NULL) {
        return;
    }
    poke(s);
    pf_scheduler_make_ready(&s->core, &hub->core);
    pf_fiber *next = pf_scheduler_next(&s->core);
    if (next != &hub->fiber) {
        pf_fiber_switch_with(&s->thread->engine, next, pf_switch_on);
        back_in_hub(s, hub);
    }
    hub->core.state = PF_RUNNING;
    pf_queue_remove(&s->core.ready, &hub->core);
}

static void
wait_once(SchedulerObject *s, PyObject *timeout, int64_t deadline)
{
    pf_scheduler_poll(&s->core);
    bool wait = timeout == Py_None || deadline > pf_scheduler_now(&s->core);
    uint64_t before = pf_scheduler_happened(&s->core);
    while (wait && s->core.ready.head == NULL &&
           pf_scheduler_unfinished(s) > 0 && s->fatal == NULL &&
           pf_scheduler_happened(&s->core) == before) {
        int64_t began = pf_scheduler_now(&s->core);
        if (!idle(s, deadline)) {
            deadlock(s);
        }
        /* Continue if idle() has waited for as long as it waits between two
         * checks for other threads: then nothing has woken it. */
        wait = deadline == PF_NEVER &&
               pf_scheduler_now(&s->core) - began >= look_interval();
    }
}

/* run_once(): waits up to `timeout` for work, then runs it. */
void
pf_loop_once(SchedulerObject *s, PyObject *timeout, int64_t deadline)
{
    FiberObject *hub = hub_begin(s);
    wait_once(s, timeout, deadline);
    if (s->fatal == NULL) {
        one_pass(s, hub);
        /* What waits for a turn without work makes the next one find some. */
        if (s->core.ready.head == NULL) {
            (void)ask_again(s);
        }
    }
    hub_end(s, hub);
}
