/* The scheduler's slow paths; scheduler.h describes the functions and which
 * thread may call them. */
#include "engine/core/scheduler.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"

#define container_of(pointer, type, field)                                    \
    ((type *)(void *)&((char *)(pointer))[-(ptrdiff_t)offsetof(type, field)])

/* ------------------------------------------------------- scheduler --- */

int
pf_scheduler_init(pf_scheduler *s, pf_thread *thread)
{
    int error;
    memset(s, 0, sizeof *s);
    pf_timers_init(&s->timers);
    s->thread = thread;
    s->hub = thread->current;
    s->until_poll = PF_POLL_EVERY;
    s->looked_at = pf_clock_monotonic();
    s->poller = pf_poller_new_default(&error);
    pf_descriptors_init(&s->descriptors, s->poller);
    return error;
}

/* Messages in the inbox are neither run nor freed: the host must empty the
 * inbox with pf_scheduler_poll before, once no thread can post any more. */
void
pf_scheduler_finish(pf_scheduler *s)
{
    pf_timers_clear(&s->timers);
    pf_scheduler_set_poller(s, NULL);
    pf_descriptors_finish(&s->descriptors);
}

/* Takes ownership of the poller and closes the previous one.  Must not be
 * called while another thread may post. */
void
pf_scheduler_set_poller(pf_scheduler *s, pf_poller *poller)
{
    pf_poller *last = s->poller;
    s->poller = poller;
    s->descriptors.poller = poller;
    if (last != NULL) {
        last->ops->close(last);
    }
}

void
pf_scheduler_stats_get(const pf_scheduler *s, pf_scheduler_stats *stats)
{
    *stats = (pf_scheduler_stats){
        .switches = s->switches,
        .wakeups = s->wakeups,
        .messages = s->messages,
        .timeouts = s->timeouts,
        .waits = s->waits,
        .preemptions = s->preemptions,
        .ready = s->ready.count,
        .timers = s->timers.count,
    };
}

static void
put_in_front(pf_scheduler *s, pf_task *task)
{
    s->ahead++;
    pf_queue_push_front(&s->ready, task);
}

static void
make_ready_in_front(pf_scheduler *s, pf_task *task)
{
    task->state = PF_READY;
    s->wakeups++;
    put_in_front(s, task);
}

static bool
may_pass(pf_scheduler *s)
{
    if (s->passed == PF_MAY_PASS) {
        return false;
    }
    s->passed++;
    return true;
}

bool
pf_scheduler_prefer(pf_scheduler *s, pf_task *task)
{
    if (!pf_task_is_fresh(task)) {
        return false;
    }
    pf_task *first = s->ready.head;
    if (first ==
        pf_scheduler_hub_task(s)) { /* ends a pass of the loop, is no turn */
        first = first->next;
    }
    if (task == first || !may_pass(s)) {
        return false;
    }
    pf_queue_remove(&s->ready, task);
    put_in_front(s, task);
    return true;
}

bool
pf_scheduler_wake_next(pf_scheduler *s, pf_task *task, pf_wake why)
{
    if (task->state != PF_PARKED || !may_pass(s)) {
        return pf_scheduler_wake(s, task, why);
    }
    task->wake = (uint8_t)why;
    make_ready_in_front(s, task);
    return true;
}

/* `run` may free a message, so the next one is read before. */
static void
run_messages(pf_scheduler *s, pf_message *m)
{
    while (m != NULL) {
        pf_message *next = m->next;
        s->messages++;
        m->ops->run(m, s);
        m = next;
    }
}

static void
take_messages(pf_scheduler *s)
{
    if (pf_inbox_pending(&s->inbox)) {
        run_messages(s, pf_inbox_take(&s->inbox));
    }
}

void
pf_scheduler_close(pf_scheduler *s)
{
    run_messages(s, pf_inbox_close(&s->inbox));
}

static void
fire(pf_scheduler *s, pf_timer *timer)
{
    s->timeouts++;
    if (timer->kind == PF_TIMER_TASK) {
        pf_task *task = container_of(timer, pf_task, timer);
        pf_scheduler_wake(s, task,
                          PF_WAKE_TIMEOUT); /* no effect if woken already */
    } else {
        pf_timer_call *call = container_of(timer, pf_timer_call, timer);
        call->fire(call, s);
    }
}

/* Fires the due timers.  The clock is read once, and the loop stops at a timer
 * that has been armed meanwhile (`end`), so a timer that re-arms itself for
 * "now" cannot keep the scheduler here. */
static void
fire_timers(pf_scheduler *s)
{
    if (s->timers.count == 0) {
        return;
    }
    int64_t now = s->looked_at = pf_scheduler_now(s);
    uint64_t end = s->timers.sequence;
    while (s->timers.count != 0 && s->timers.heap[0].sequence < end) {
        pf_timer *timer = s->pop_due == NULL
                              ? pf_timers_pop_due(&s->timers, now)
                              : s->pop_due(s, now, s->pick_data);
        if (timer == NULL) {
            return;
        }
        fire(s, timer);
    }
}

/* Hands out the `found` events that the poller's wait has stored. */
static void
deliver(pf_scheduler *s, int found)
{
    if (found > 0) {
        s->events += (uint64_t)found;
        s->poller->ops->deliver(s->poller, s);
    }
}

void
pf_scheduler_look(pf_scheduler *s)
{
    s->until_poll = PF_POLL_EVERY;
    deliver(s, s->poller->ops->wait(s->poller, 0));
}

/* Called at any switch if there are messages; the poller's system call is due
 * only when the count of switches has run out. */
void
pf_scheduler_poll(pf_scheduler *s)
{
    bool due = s->until_poll == 0;
    if (due) {
        s->until_poll = PF_POLL_EVERY;
        if (s->switches % PF_CLOCK_EVERY < PF_POLL_EVERY) {
            s->looked_at = pf_scheduler_now(s);
        }
    }
    if (s->probe != NULL) {
        s->probe(s, s->pick_data);
    }
    take_messages(s);
    fire_timers(s);
    if (due && pf_poller_busy(s->poller)) {
        pf_scheduler_look(s);
    }
}

/* Runs the next fiber, which may be `self`.  The running fiber has already
 * recorded what it waits for. */
static void
run_next(pf_scheduler *s, pf_fiber *self)
{
    pf_fiber *to = pf_scheduler_next(s);
    if (to != self) {
        pf_fiber_switch(s->thread, to);
    }
    self->task.state = PF_RUNNING;
}

int
pf_scheduler_park(pf_scheduler *s, int64_t deadline)
{
    pf_fiber *self = s->thread->current;
    assert(self != s->hub);
    if (deadline != PF_NEVER &&
        pf_timers_add(&s->timers, &self->task.timer, deadline) != 0) {
        return -1;
    }
    self->task.wake = PF_WAKE_NONE;
    self->task.state = PF_PARKED;
    self->task.parked_at = s->looked_at;
    run_next(s, self);
    pf_timers_remove(&s->timers, &self->task.timer);
    return self->task.wake;
}

void
pf_scheduler_yield(pf_scheduler *s)
{
    pf_fiber *self = s->thread->current;
    self->task.wake = PF_WAKE_NORMAL;
    pf_scheduler_make_ready(s, &self->task);
    run_next(s, self);
}

void
pf_scheduler_run_now(pf_scheduler *s, pf_task *fresh)
{
    pf_fiber *self = s->thread->current;
    self->task.wake = PF_WAKE_NORMAL;
    make_ready_in_front(s, &self->task);
    make_ready_in_front(s, fresh);
    run_next(s, self);
}

/* ------------------------------------------------------------ idle --- */

static int64_t
time_left(pf_scheduler *s, int64_t deadline)
{
    int64_t first = pf_timers_next(&s->timers);
    if (deadline < first) {
        first = deadline;
    }
    if (first == PF_NEVER) {
        return PF_NEVER;
    }
    int64_t now = pf_scheduler_now(s);
    return first > now ? first - now : 0;
}

/* The last check for messages comes between setting `sleeping` and blocking.
 * A message pushed before the check is seen here; a producer that pushes after
 * the check sees the flag and wakes the poller. */
static bool
may_block(pf_scheduler *s)
{
    PF_TEST_POINT();
    pf_store(&s->sleeping, 1);
    PF_TEST_POINT();
    return pf_take(&s->nudged) == 0 && pf_load(&s->inbox.head) == NULL;
}

/* Calls the poller's wait.  The host need not release its lock for a check
 * that does not wait (`timeout` 0). */
static int
block(pf_scheduler *s, int64_t timeout)
{
    const pf_host *host = s->thread->host;
    s->waits++;
    PF_TEST_POINT();
    if (host->wait_begin != NULL && timeout > 0) {
        host->wait_begin(s);
    }
    int found = s->poller->ops->wait(s->poller, timeout);
    if (host->wait_end != NULL && timeout > 0) {
        host->wait_end(s);
    }
    return found;
}

/* Checks messages and timers once more before a wait.  False if anything
 * happened, even if no task became ready: that may have been the last thing
 * the caller was waiting for, so the caller must check again. */
static bool
nothing_happens(pf_scheduler *s)
{
    uint64_t before = pf_scheduler_happened(s);
    pf_scheduler_poll(s);
    return s->ready.head == NULL && pf_scheduler_happened(s) == before;
}

static bool
has_mail(pf_scheduler *s)
{
    return pf_load_relaxed(&s->inbox.head) != NULL ||
           pf_load_relaxed(&s->nudged) != 0;
}

/* Spins before sleeping, where that pays.  True if a message or a nudge has
 * come; its sender did not have to wake this thread.  A descriptor that
 * becomes ready has to wait until the spinning ends. */
static bool
spin_for_message(pf_scheduler *s, int64_t timeout)
{
    if (!pf_spin_pays(&s->spin) || timeout <= PF_SPIN_NS) {
        return false;
    }
    int64_t until = pf_clock_monotonic() + PF_SPIN_NS;
    do {
        PF_TEST_POINT();
        for (int i = 0; i < 16 && !has_mail(s); i++) {
            pf_spin_rest();
        }
    } while (!has_mail(s) && pf_clock_monotonic() < until);
    bool came = has_mail(s);
    pf_spin_tried(&s->spin, came);
    if (came) {
        pf_store(&s->nudged, 0); /* the caller checks again */
    }
    return came;
}

/* Waits, and records for `spin` how long the wait took. */
static int
sleep_on(pf_scheduler *s, int64_t timeout)
{
    if (!s->spin.allowed) {
        return block(s, timeout);
    }
    int64_t began = pf_clock_monotonic();
    int found = block(s, timeout);
    pf_spin_slept(&s->spin, pf_clock_monotonic() - began, has_mail(s));
    return found;
}

int
pf_scheduler_block(pf_scheduler *s, int64_t timeout)
{
    bool came = spin_for_message(s, timeout);
    int found = !came && may_block(s) ? sleep_on(s, timeout) : 0;
    PF_TEST_POINT();
    pf_store(&s->sleeping, 0);
    PF_TEST_POINT();
    s->until_poll = PF_POLL_EVERY; /* the wait has checked the poller */
    deliver(s, found);
    if (s->timers.count == 0) { /* otherwise fire_timers reads the clock */
        s->looked_at = pf_scheduler_now(s);
    }
    pf_scheduler_poll(s);
    return found < 0 ? found : 0;
}

int
pf_scheduler_wait(pf_scheduler *s, int64_t deadline)
{
    PF_TEST_POINT();
    if (!nothing_happens(s)) {
        return 0;
    }
    int64_t left = time_left(s, deadline);
    if (left > 0) {
        int64_t again = pf_thread_let_stacks_decay(s->thread, s->switches);
        left = again < left ? again : left; /* the caller checks again */
    }
    return pf_scheduler_block(s, left);
}

void
pf_scheduler_rest(pf_scheduler *s)
{
    pf_store(&s->sleeping, 1);
    PF_TEST_POINT();
    if (pf_load(&s->inbox.head) != NULL || s->ready.head != NULL) {
        pf_scheduler_notify(s);
    }
}

void
pf_scheduler_notify(pf_scheduler *s)
{
    if (pf_take(&s->sleeping)) {
        s->poller->ops->wake(s->poller);
    }
}

void
pf_scheduler_unrest(pf_scheduler *s)
{
    pf_store(&s->sleeping, 0);
}

void
pf_scheduler_resume(pf_scheduler *s)
{
    pf_store(&s->sleeping, 0);
    s->looked_at = pf_scheduler_now(s);
    pf_scheduler_look(s);
}

bool
pf_scheduler_expects(pf_scheduler *s)
{
    return s->ready.head != NULL || s->timers.count != 0 ||
           pf_inbox_pending(&s->inbox) || pf_load(&s->holds) != 0 ||
           pf_poller_busy(s->poller);
}

void
pf_scheduler_run(pf_scheduler *s)
{
    pf_fiber *self = s->thread->current;
    int error = 0;
    s->hub = self;
    do {
        while (s->ready.head != NULL) {
            self->task.state = PF_SUSPENDED;
            run_next(s, self);
        }
        if (!pf_scheduler_expects(s)) {
            break;
        }
        error = pf_scheduler_wait(s, PF_NEVER);
    } while (error == 0);
}

/* ---------------------------------------------- from other threads --- */

bool
pf_scheduler_post(pf_scheduler *s, pf_message *message)
{
    pf_pushed pushed = pf_inbox_push(&s->inbox, message);
    PF_TEST_POINT();
    if (pushed == PF_PUSHED_FIRST && pf_load(&s->sleeping)) {
        s->poller->ops->wake(s->poller);
    }
    return pushed != PF_PUSHED_NOT;
}

/* Have bits been posted while `posted` ran?  If not, this clears PF_POST_BUSY;
 * from then on the task must not be touched, because another thread may free
 * it.  If so, this posts the task's message again, so that a thread that posts
 * without end cannot keep the loop here.  True only if that fails because the
 * scheduler is closed: then the caller must deliver the bits. */
static bool
more_was_posted(pf_scheduler *s, pf_task *task)
{
    uint8_t seen = PF_POST_BUSY;
    PF_TEST_POINT();
    return !pf_cas_byte(&task->posted, &seen, 0) &&
           !pf_scheduler_post(s, &task->message);
}

/* PF_POST_BUSY is set while `posted` runs: a thread that posts meanwhile finds
 * `posted` not to be 0, and sends no message. */
void
pf_task_arrived(pf_message *message, pf_scheduler *s)
{
    pf_task *task = container_of(message, pf_task, message);
    bool left;
    do {
        PF_TEST_POINT();
        unsigned bits = pf_swap_byte(&task->posted, PF_POST_BUSY);
        left = (bits & PF_POST_LEFT) != 0;
        if (left) { /* nobody can post any more; the call may free the task */
            pf_store(&task->posted, 0);
        }
        pf_task_ops_of(task)->posted(s, task, bits & ~(unsigned)PF_POST_BUSY);
    } while (!left && more_was_posted(s, task));
}

bool
pf_task_leave(pf_task *task)
{
    uint8_t seen = pf_load_acquire(&task->posted);
    while (seen != 0 &&
           !pf_cas_byte(&task->posted, &seen, seen | PF_POST_LEFT)) {
        PF_TEST_POINT();
    }
    return seen == 0;
}

void
pf_task_post(pf_scheduler *s, pf_task *task, unsigned bits)
{
    if (pf_fetch_or(&task->posted, bits) == 0) {
        PF_TEST_POINT();
        if (!pf_scheduler_post(s, &task->message)) {
            (void)pf_take(&task->posted);
        }
    }
}

void
pf_scheduler_hold(pf_scheduler *s)
{
    pf_fetch_add(&s->holds, 1);
}

/* The loop may just be deciding to wait because of this hold.  `nudged` makes
 * it check again; otherwise it would wait for nothing. */
void
pf_scheduler_release(pf_scheduler *s)
{
    if (pf_fetch_sub(&s->holds, 1) == 1) {
        PF_TEST_POINT();
        pf_store(&s->nudged, 1);
        PF_TEST_POINT();
        if (pf_load(&s->sleeping)) {
            s->poller->ops->wake(s->poller);
        }
    }
}

/* Messages that other threads posted before the fork are in this inbox and
 * will run.  Holds of those threads have no owner any more; only the host can
 * know which they are. */
int
pf_scheduler_after_fork(pf_scheduler *s)
{
    pf_store(&s->sleeping, 0);
    pf_store(&s->nudged, 0);
    return s->poller->ops->after_fork(s->poller);
}
