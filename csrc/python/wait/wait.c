/* Waiting: the one function that parks a fiber, and the functions that use it.
 *
 * A wait checks for a cancellation (task/cancelling.h) before the fiber parks,
 * and when the fiber was woken because of one.  A wake-up that came before the
 * cancellation has precedence: the value is delivered, and the cancellation is
 * raised at the next park point.
 */
#include "python/wait/wait.h"

#include "python/core/compiler.h"
#include "python/core/parts.h"
#include "python/core/state.h"
#include "python/core/thread.h"
#include "python/switch/pending.h"
#include "python/switch/switch.h"
#include "python/switch/unwind.h"
#include "python/task/cancelling.h"
#include "python/task/deadline.h"
#include "python/task/explore.h"
#include "python/task/fiber.h"
#include "python/task/life.h"
#include "python/task/migrate.h"
#include "python/task/post.h"
#include "python/task/scheduler.h"
#include "python/wait/asyncio.h"
#include "python/wait/in_line.h"
#include "python/wait/remote.h"
#include "python/waitq/waitq.h"

/* ------------------------------------------------- requests from other threads */

/* Unparks the proxy that runs in place of this fiber on another thread. */
static void
unpark_proxy(FiberObject *fiber, PyObject *value)
{
    if (pf_wait_unpark(PF_TASK(fiber->rare->other), value) < 0) {
        PyErr_Clear(); /* the proxy has ended, or there is no memory */
    }
}

static void
unpark_arrived(SchedulerObject *s, PyObject *target, PyObject *value)
{
    (void)s;
    FiberObject *fiber = (FiberObject *)target;
    if (PF_UNLIKELY(pf_migrate_is_away(fiber))) {
        unpark_proxy(fiber, value);
    } else if (fiber->core.state != PF_DONE &&
               pf_task_give_permit(PF_TASK(fiber), value) == 0) {
        pf_wait_warn_second_permit(target, value);
    }
}

void
pf_wait_posted(pf_scheduler *s, pf_task *core, unsigned bits)
{
    FiberObject *fiber = (FiberObject *)(void *)pf_task_object(core);
    pf_thread_no_switch_begin((PfThread *)s->thread, "inside the scheduler");
    if (bits & PF_POST_UNPARK) {
        unpark_arrived(SCHEDULER_OF(s), (PyObject *)fiber, Py_None);
    }
    if (bits & PF_POST_WAKE) {
        pf_waitq_posted(fiber);
    }
    if (bits & PF_POST_SEEN) {
        fiber->looked_at = true;
    }
    if (bits & PF_POST_LEFT) { /* the post owns a reference to the fiber */
        if (core->state == PF_DONE) {
            Py_DECREF(fiber);
        } else {
            fiber->dropped = true; /* see pf_switch_run */
        }
    }
    pf_thread_no_switch_end((PfThread *)s->thread);
}

/* ------------------------------------------------------------------- parking */

/* Called when something other than a wake-up has resumed the parked fiber: the
 * fiber is being unwound.  (To switch to it is an error.)  Returns -1 with an
 * exception. */
static int
resumed_by_transfer(PfThread *t)
{
    PyObject *value = pf_switch_landed(t);
    if (value != NULL) {
        Py_DECREF(value);
        PyErr_SetString(pf.fiber_error, "a waiting fiber was switched to");
    }
    return -1;
}

/* A raw fiber continues after a wait that ended for the reason `why`: the
 * scheduler has it no longer. */
static void
raw_resumed(PfThread *t, FiberObject *self, int why)
{
    self->core.scheduler = NULL;
    if (why != PF_WAKE_CANCEL) {
        pf_parts_hooks.main_program->resumed(t, self);
    }
}

/* Parks the running fiber.  Returns a pf_wake, or -1 with an exception.  A raw
 * fiber may wait, too; it belongs to the scheduler meanwhile. */
static inline int
park(PfThread *t, FiberObject *self, int64_t deadline, PyObject *what)
{
    SchedulerObject *s = t->scheduler;
    bool raw = self->core.scheduler == NULL;
    if (PF_UNLIKELY(raw)) { /* only then: other threads may read the field of
                               a scheduled fiber, so it is not written */
        self->core.scheduler = &s->core;
    }
    self->waiting_on = Py_NewRef(what);
    int why = pf_scheduler_park(&s->core, deadline);
    PyObject *waited_on = self->waiting_on;
    self->waiting_on = NULL;
    if (PF_UNLIKELY(raw)) {
        raw_resumed(t, self, why);
    }
    if (PF_UNLIKELY(t->transfer != NULL)) {
        why = resumed_by_transfer(t);
    } else if (PF_UNLIKELY(why == -1)) {
        PyErr_NoMemory();
    }
    Py_XDECREF(waited_on); /* may run code, so after the transfer is taken */
    return why;
}

int
pf_wait_anyhow(PfThread *t, int64_t deadline, PyObject *what)
{
    if (PF_UNLIKELY(t->pending != 0)) {
        if (pf_pending_run(t) < 0) {
            return -1;
        }
        PF_ASYNCIO_WAITS(t, int, -1, pf_wait_anyhow(t, deadline, what));
    }
    return park(t, CURRENT(t), deadline, what);
}

/* A fiber that is already cancelled does not wait, unless it has swallowed
 * Cancelled too often.  Then it waits for a while, to let others run, and even
 * gets what it waits for if that arrives in this time. */
static int
park_cancelled(PfThread *t, FiberObject *self, PyObject *what)
{
    int64_t delay = pf_cancelling_delay(t, PF_TASK(self));
    if (PF_LIKELY(delay <= 0)) {
        return delay == 0 ? PF_WAKE_CANCEL : -1;
    }
    int why =
        park(t, self, pf_scheduler_now(&t->scheduler->core) + delay, what);
    return why == -1 || why == PF_WAKE_NORMAL ? why : PF_WAKE_CANCEL;
}

static inline int
park_unless_cancelled(PfThread *t, int64_t deadline, PyObject *what)
{
    FiberObject *self = CURRENT(t);
    return pf_cancelling_is_here(self) ? park_cancelled(t, self, what)
                                       : park(t, self, deadline, what);
}

/* Returns the result of a wait that ended because of `why`, a pf_wake or -1:
 * 0, 1 or -1 as pf_wait, with Cancelled raised if a cancellation ended it. */
static inline int
answer(PfThread *t, int why)
{
    switch (why) {
    case PF_WAKE_TIMEOUT:
        return 1;
    case PF_WAKE_CANCEL:
        return pf_cancelling_raise(CURRENT(t));
    default:
        return why < 0 ? -1 : 0;
    }
}

int
pf_wait(PfThread *t, int64_t deadline, PyObject *what)
{
    if (PF_UNLIKELY(t->pending != 0)) {
        if (pf_pending_before_wait(t) < 0) {
            return -1;
        }
        PF_ASYNCIO_WAITS(t, int, -1, pf_wait(t, deadline, what));
    }
    return answer(t, park_unless_cancelled(t, deadline, what));
}

static inline bool
is_granted(PfWaiter *waiter)
{
    return PF_SHARED_GET(&waiter->taken) != NULL;
}

/* As is_granted, after a wait that ended because of `why`.  Without a GIL
 * other threads may grant the waiter until its nodes are unlinked. */
static inline bool
was_granted(PfWaiter *waiter, int why)
{
    if (PF_FREE_THREADED && why != PF_WAKE_NORMAL) {
        pf_waitq_leave(waiter);
    }
    return is_granted(waiter);
}

/* Checks for a grant after pf_pending_run, which runs code that may grant what
 * this is about to wait for. */
int
pf_wait_granted(PfThread *t, PfWaiter *waiter, int64_t deadline,
                PyObject *what)
{
    if (PF_UNLIKELY(t->pending != 0)) {
        if (pf_pending_before_wait(t) < 0) {
            return -1;
        }
        PF_ASYNCIO_WAITS(t, int, -1,
                         pf_wait_granted(t, waiter, deadline, what));
    }
    if (PF_UNLIKELY(is_granted(waiter))) {
        return 0;
    }
    int why = park_unless_cancelled(t, deadline, what);
    if (was_granted(waiter, why) && why >= 0) {
        return 0;
    }
    int rc = answer(t, why);
    if (PF_UNLIKELY(is_granted(waiter) && why == PF_WAKE_CANCEL)) {
        PyErr_Clear(); /* granted while Cancelled was being created */
        pf_parts_hooks.cancelling->retract(CURRENT(t));
        return 0;
    }
    return rc;
}

int
pf_wait_granted_shielded(PfThread *t, PfWaiter *waiter, PyObject *what)
{
    if (PF_UNLIKELY(t->pending != 0)) {
        if (pf_pending_run(t) < 0) {
            return -1;
        }
        PF_ASYNCIO_WAITS(t, int, -1,
                         pf_wait_granted_shielded(t, waiter, what));
    }
    int why = PF_WAKE_NORMAL;
    while (!is_granted(waiter) && why >= 0) {
        why = park(t, CURRENT(t), PF_NEVER, what);
    }
    return why < 0 ? -1 : 0;
}

static PyObject *
take_permit(FiberObject *self)
{
    PyObject *value = self->value;
    self->value = NULL;
    self->permit = false;
    return value;
}

PyObject *
pf_wait_park(PfThread *t, int64_t deadline)
{
    FiberObject *self = CURRENT(t);
    if (PF_UNLIKELY(t->pending != 0)) {
        if (pf_pending_before_wait(t) < 0) {
            return NULL; /* checked first: code that runs there may take a
                            permit */
        }
        PF_ASYNCIO_WAITS(t, PyObject *, NULL, pf_wait_park(t, deadline));
    }
    if (!self->permit) {
        self->in_park = true;
        int rc = answer(t, park_unless_cancelled(t, deadline, pf.s_park));
        self->in_park = false;
        if (rc < 0) {
            return NULL;
        }
    }
    if (!self->permit) {
        PyErr_SetString(PyExc_TimeoutError, "park() timed out");
        return NULL;
    }
    return take_permit(self);
}

int
pf_wait_second_permit(PyObject *op, PyObject *value)
{
    return value == Py_None
               ? 0
               : PyErr_WarnFormat(
                     PyExc_RuntimeWarning, 1,
                     "unpark(%R) is dropped: %R has a permit that it has not "
                     "taken yet; send several values through a Queue or a "
                     "Channel",
                     value, op);
}

void
pf_wait_warn_second_permit(PyObject *op, PyObject *value)
{
    if (pf_wait_second_permit(op, value) < 0) {
        PyErr_WriteUnraisable(op);
    }
}

int
pf_wait_unpark(PfTaskObject *task, PyObject *value)
{
    FiberObject *fiber = (FiberObject *)(void *)task;
    PfThread *t = pf_thread_this();
    if (t == NULL || pf_task_may_unpark(task) < 0) {
        return -1;
    }
    if (fiber->thread == t && PF_UNLIKELY(pf_migrate_is_away(fiber))) {
        return pf_wait_unpark(PF_TASK(fiber->rare->other), value);
    }
    if (PF_FREE_THREADED && !fiber->scheduled && fiber->thread != NULL &&
        fiber->thread != t) {
        return pf_post_call_thread(fiber->thread, unpark_arrived,
                                   (PyObject *)fiber, value);
    }
    if (fiber->thread == t || fiber->core.scheduler == NULL) {
        int rc = pf_task_give_permit(task, value);
        if (PF_UNLIKELY(rc == 0) &&
            pf_wait_second_permit((PyObject *)fiber, value) < 0) {
            return -1;
        }
        return pf_explore_preempt() < 0 ? -1 : rc;
    }
    if (value == Py_None && fiber->scheduled) {
        pf_task_post(fiber->core.scheduler, &fiber->core, PF_POST_UNPARK);
        return 1;
    }
    SchedulerObject *s = SCHEDULER_OF(fiber->core.scheduler);
    return pf_post_call(s, unpark_arrived, (PyObject *)fiber, value) < 0 ? -1
                                                                         : 1;
}

/* -------------------------------------------------------------- yield, sleep */

/* Returns true if an inner loop of asyncio, which yields often, need not
 * yield: no other task is ready, no message has come, the fiber is not
 * cancelled, and the timers need no check yet.  The call then counts as a
 * switch towards that check. */
static bool
is_alone(SchedulerObject *s, FiberObject *self)
{
    if (self->under_cancel || s->core.until_poll == 1 ||
        s->core.ready.head != NULL || pf_inbox_pending(&s->core.inbox)) {
        return false;
    }
    s->core.until_poll--;
    return true;
}

int
pf_wait_yield(PfThread *t)
{
    SchedulerObject *s = t->scheduler;
    if (PF_UNLIKELY(t->pending != 0)) {
        if (pf_unwind_cuts_off(t)) {
            return 0; /* nothing else may run */
        }
        if (pf_pending_run(t) < 0) {
            return -1;
        }
        if (*pf_asyncio_inside(t) != NULL && is_alone(s, CURRENT(t))) {
            return 0;
        }
        PF_ASYNCIO_WAITS(t, int, -1, pf_wait_yield(t));
    }
    FiberObject *self = CURRENT(t);
    if (pf_cancelling_is_here(self)) {
        return answer(t, park_cancelled(t, self, pf.s_yield));
    }
    bool raw = self->core.scheduler == NULL;
    if (PF_UNLIKELY(raw)) {
        self->core.scheduler = &s->core;
    }
    pf_scheduler_yield(&s->core);
    if (PF_UNLIKELY(raw)) {
        raw_resumed(t, self, 0);
    }
    if (PF_UNLIKELY(t->transfer != NULL)) {
        return resumed_by_transfer(t);
    }
    return pf_cancelling_check(self);
}

/* Not a cancellation point, because a caller of spawn_now() has not asked to
 * wait.  The caller has checked by pf_pending_run that a switch is allowed. */
int
pf_wait_run_now(PfThread *t, FiberObject *fresh)
{
    PF_ASYNCIO_WAITS(t, int, -1, pf_wait_run_now(t, fresh));
    SchedulerObject *s = t->scheduler;
    FiberObject *self = CURRENT(t);
    bool raw = self->core.scheduler == NULL;
    if (PF_UNLIKELY(raw)) {
        self->core.scheduler = &s->core;
    }
    pf_scheduler_run_now(&s->core, &fresh->core);
    if (PF_UNLIKELY(raw)) {
        raw_resumed(t, self, 0);
    }
    return PF_UNLIKELY(t->transfer != NULL) ? resumed_by_transfer(t) : 0;
}

int
pf_wait_sleep_until(PfThread *t, int64_t deadline)
{
    if (deadline <= pf_scheduler_now(&t->scheduler->core)) {
        return pf_wait_yield(t);
    }
    return pf_wait(t, deadline, pf.s_sleep) < 0 ? -1 : 0;
}

/* ----------------------------------------------------------------------- join */

int
pf_wait_refuse_join(PfThread *t, FiberObject *target)
{
    if (target == CURRENT(t)) {
        PyErr_SetString(pf.fiber_error, "a fiber cannot wait for its own end");
        return -1;
    }
    if (!target->scheduled) {
        PyErr_SetString(pf.fiber_error,
                        "the fiber was not started on a scheduler: start() it "
                        "before waiting for it");
        return -1;
    }
    if (target->thread != t &&
        !(t->scheduler != NULL && t->scheduler->team != NULL &&
          pf_parts_hooks.migrate->together(
              t->scheduler, SCHEDULER_OF(target->core.scheduler)))) {
        PyErr_SetString(pf.fiber_error,
                        "the fiber belongs to another thread: wait for it "
                        "there, or use add_done_callback()");
        return -1;
    }
    return pf_scheduler_active(t, "waiting for a fiber") == NULL ? -1 : 0;
}

/* Lets `target` run next if it has not begun, unless the wait for it will be
 * refused. */
static void
prefer(PfThread *t, FiberObject *target)
{
    pf_scheduler *s = &t->scheduler->core;
    if (target->core.scheduler == s && t->pending == 0 &&
        !CURRENT(t)->under_cancel && pf_scheduler_prefer(s, &target->core)) {
        target->preferred = true;
    }
}

int
pf_wait_join(PfThread *t, FiberObject *target, int64_t deadline)
{
    if (pf_task_is_done(PF_TASK(target))) {
        return 0;
    }
    if (pf_wait_refuse_join(t, target) < 0) {
        return -1;
    }
    if (PF_UNLIKELY(target->thread != t)) {
        return deadline == PF_NOW ? 1 : pf_remote_join(t, target, deadline);
    }
    prefer(t, target);
    return pf_wait_once(&target->waiters, NULL, t, deadline,
                        (PyObject *)target);
}
