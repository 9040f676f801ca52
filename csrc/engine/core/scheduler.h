/* The scheduler: it chooses among the ready tasks (task.h), and knows what the
 * others wait for.
 *
 * One function for each hard thing:
 *   pf_scheduler_park           makes the running fiber wait
 *   pf_scheduler_make_ready     puts a task into the ready queue
 *   pf_scheduler_next           decides who runs next
 *   pf_scheduler_post           hands a message to a scheduler from any thread
 *
 * Whose is what: `inbox`, `sleeping`, `nudged`, `holds` and a task's `posted`
 * and `message` are for any thread; all else is its own thread's alone.
 */
#ifndef PF_SCHEDULER_H
#define PF_SCHEDULER_H

#include <assert.h>

#include "engine/base/clock.h"
#include "engine/core/fiber.h"
#include "engine/core/inbox.h"
#include "engine/core/pack.h"
#include "engine/core/queue.h"
#include "engine/core/spin.h"
#include "engine/core/task.h"
#include "engine/core/timers.h"
#include "engine/io/descriptor.h"
#include "engine/io/poller.h"

/* Chooses and removes a task from the ready queue (never empty if asked). */
typedef pf_task *(*pf_pick_fn)(pf_scheduler *s, void *data);
typedef int64_t (*pf_clock_fn)(void *data);
/* For tests.  `probe` sees every look at messages and timers (and may set
 * until_poll to 1, so that there is one at every switch); `pop_due` takes one
 * of the timers due at `now`, or none for the time being (NULL). */
typedef void (*pf_probe_fn)(pf_scheduler *s, void *data);
typedef pf_timer *(*pf_pop_due_fn)(pf_scheduler *s, int64_t now, void *data);

typedef struct pf_scheduler_stats {
    uint64_t switches; /* tasks chosen by pf_scheduler_next */
    uint64_t wakeups;  /* tasks made ready */
    uint64_t messages; /* taken from the inbox */
    uint64_t timeouts; /* timers that fired */
    uint64_t waits;    /* times the poller was asked to block */
    size_t ready;      /* now */
    size_t timers;     /* now */
} pf_scheduler_stats;

struct pf_scheduler {
    pf_queue ready;
    pf_inbox inbox;
    uint32_t until_poll; /* switches left before timers are checked */
    uint32_t passed;     /* tasks that passed others since an ordinary turn */
    uint32_t ahead;      /* at most this many in the queue were put in front */
    PF_ATOMIC(uint8_t) sleeping; /* may be blocked: a push must wake it */
    PF_ATOMIC(uint8_t) nudged;   /* check again before blocking */
    pf_thread *thread;
    pf_fiber *hub; /* gets control when no task is ready */
    pf_timers timers;
    pf_poller *poller;
    pf_descriptors descriptors;
    pf_pick_fn pick; /* NULL: first in, first out */
    void *pick_data;
    pf_clock_fn clock; /* NULL: the monotonic clock */
    void *clock_data;
    pf_probe_fn probe;     /* NULL: none */
    pf_pop_due_fn pop_due; /* NULL: the earliest; data is pick_data */
    PF_ATOMIC(size_t)
    holds; /* expected wake-ups from outside; see pf_scheduler_hold */
    uint64_t switches, wakeups, messages, timeouts, waits;
    uint64_t events; /* reported by the poller */
    pf_spin spin;
    /* The clock when it was last read: after each wait and once in about
     * PF_CLOCK_EVERY switches.  A fiber that parks takes its time from here,
     * because to read the clock costs as much as the switch. */
    int64_t looked_at;
};

/* Changes when something has come from outside, or a time has passed. */
static inline uint64_t
pf_scheduler_happened(const pf_scheduler *s)
{
    return s->messages + s->timeouts + s->events;
}

/* 0 or -errno.  The poller is the default one. */
int pf_scheduler_init(pf_scheduler *s, pf_thread *thread);
void pf_scheduler_finish(pf_scheduler *s);
void pf_scheduler_set_poller(pf_scheduler *s, pf_poller *poller);
void pf_scheduler_stats_get(const pf_scheduler *s, pf_scheduler_stats *stats);

static inline int64_t
pf_scheduler_now(pf_scheduler *s)
{
    return s->clock == NULL ? pf_clock_monotonic() : s->clock(s->clock_data);
}

/* The hub as an entry of the queue; NULL: there is none. */
static inline pf_task *
pf_scheduler_hub_task(const pf_scheduler *s)
{
    return (pf_task *)(void *)s->hub;
}

/* The hub, in its home (see pack.h). */
static inline pf_fiber *
pf_scheduler_hub(const pf_scheduler *s)
{
    return s->hub->task.has_stack
               ? s->hub
               : pf_pack_bring_home_anyhow(s->thread, s->hub);
}

/* Owner thread only. */
static inline void
pf_scheduler_make_ready(pf_scheduler *s, pf_task *task)
{
    task->state = PF_READY;
    s->wakeups++;
    pf_queue_push(&s->ready, task);
}

/* A fiber that has never run and has no stack yet. */
static inline void
pf_scheduler_make_ready_fresh(pf_scheduler *s, pf_fiber *fiber)
{
    assert(!fiber->task.has_stack);
    fiber->task.wake = PF_WAKE_FRESH;
    fiber->before = s->ready.tail;
    pf_scheduler_make_ready(s, &fiber->task);
}

/* Wake a parked task: false (and nothing done) unless it is PF_PARKED. */
static inline bool
pf_scheduler_wake(pf_scheduler *s, pf_task *task, pf_wake why)
{
    if (task->state != PF_PARKED) {
        return false;
    }
    task->wake = (uint8_t)why;
    pf_scheduler_make_ready(s, task);
    return true;
}

/* To wait for a fiber that has not begun is nearly a call.  So that fiber may
 * pass all others, and so may the waiting fiber when it ends: a tree of fibers
 * that wait for their children is then walked depth first, with few stacks and
 * objects in use, all of them in the cache, instead of breadth first.  ("Join
 * helping" in Java's fork/join pools; Go's `runnext` and tokio's LIFO slot do
 * the same for wake-ups.)  To prevent starvation, after this many in a row
 * none passes until the task that has been in the queue longest has had a
 * turn; pf_scheduler_run_now does not count as a turn.  Skynet, per leaf: 1.9 us in
 * order, 0.8 like this. */
#define PF_MAY_PASS 256

/* The running fiber is about to wait for the end of `task`: put that in front
 * of the queue.  False: it was not moved, because it is in front already, is
 * no longer fresh, or others have been passed too often. */
bool pf_scheduler_prefer(pf_scheduler *s, pf_task *task);
/* As pf_scheduler_wake, but it passes the others if it may. */
bool pf_scheduler_wake_next(pf_scheduler *s, pf_task *task, pf_wake why);

/* Take messages, fire due timers; at every PF_POLL_EVERY-th switch check a
 * busy poller, too; never blocks. */
void pf_scheduler_poll(pf_scheduler *s);
/* Check the poller now; never blocks. */
void pf_scheduler_look(pf_scheduler *s);

/* Switches between two checks of the timers. */
#if defined(PYFIBER_HARDTEST)
#define PF_POLL_EVERY 1
#else
#define PF_POLL_EVERY 61
#endif

/* Switches between two readings of the clock, where no timer needs it. */
#define PF_CLOCK_EVERY 1024

/* The system's work in between has driven the next one out of the cache. */
static PF_ALWAYS_INLINE void
pf_scheduler_prefetch_next(const pf_scheduler *s)
{
    if (s->ready.head != NULL) {
        pf_queue_prefetch_lines(s->ready.head, s->thread->host);
    }
}

/* pf_scheduler_next, if the task that it takes has a fiber for its turn; or NULL. */
static inline pf_fiber *
pf_scheduler_next_or_none(pf_scheduler *s)
{
    if (--s->until_poll == 0 || pf_inbox_pending(&s->inbox)) {
        pf_scheduler_poll(s);
    }
    if (s->ready.head == NULL) {
        return pf_scheduler_hub(s);
    }
    s->switches++;
    if (s->ahead != 0) {
        s->ahead--;
    } else {
        s->passed = 0; /* an ordinary turn */
    }
    pf_task *next;
    if (s->pick == NULL) {
        next = pf_queue_pop(&s->ready);
        pf_queue_prefetch(&s->ready, s->thread->host, s->switches);
    } else { /* it may take one from the middle, under a cursor */
        next = s->pick(s, s->pick_data);
        s->ready.fields = NULL;
    }
    if (next->has_stack) {
        return pf_fiber_of(next);
    }
    if (pf_task_is_fresh(next)) {
        next->wake = PF_WAKE_NONE;
    }
    return pf_task_ops_of(next)->first(s, next);
}

/* The fiber to run next, removed from the queue; the hub if none is ready. */
static inline pf_fiber *
pf_scheduler_next(pf_scheduler *s)
{
    pf_fiber *next;
    do {
        next = pf_scheduler_next_or_none(s);
    } while (next == NULL);
    return next;
}

/* The running fiber waits until pf_scheduler_wake, or until `deadline` of the
 * scheduler's clock (PF_NEVER: no deadline).  Returns why it runs again; -1:
 * no memory for the timer, nothing happened. */
int pf_scheduler_park(pf_scheduler *s, int64_t deadline);

/* The running fiber goes to the back of the queue. */
void pf_scheduler_yield(pf_scheduler *s);

/* A new fiber runs at once; the running one continues before all others when
 * the new one waits or ends.  (A `pick` may choose otherwise.) */
void pf_scheduler_run_now(pf_scheduler *s, pf_task *fresh);

/* For the hub, with an empty ready queue: block until a message, a timer, the
 * poller or `deadline`.  0, or -errno. */
int pf_scheduler_wait(pf_scheduler *s, int64_t deadline);

/* The same, but only for messages: blocks at most `timeout` nanoseconds of
 * real time (PF_NEVER: no limit), regardless of the timers and the clock. */
int pf_scheduler_block(pf_scheduler *s, int64_t timeout);

/* For a host whose loop is run by another one: between pf_scheduler_rest and
 * pf_scheduler_resume nothing waits here, but the first message makes the
 * poller's descriptor readable, as does one that has already come.  The owner
 * does it by pf_scheduler_tell, also once; or it resumes soon in any case:
 * pf_scheduler_stir saves everybody the system call. */
void pf_scheduler_rest(pf_scheduler *s);
void pf_scheduler_tell(pf_scheduler *s);
void pf_scheduler_stir(pf_scheduler *s);
void pf_scheduler_resume(pf_scheduler *s);

/* Run the messages that have come; from now on none are accepted.  For hosts
 * that no longer have other tasks. */
void pf_scheduler_close(pf_scheduler *s);

/* Is there anything that could make a fiber ready without outside help? */
bool pf_scheduler_expects(pf_scheduler *s);

/* The loop for hosts that need nothing between switches (C embedders, tests):
 * runs from the hub until nothing is ready and nothing is expected. */
void pf_scheduler_run(pf_scheduler *s);

/* From any thread, no lock held: message->ops->run runs on the scheduler's
 * thread.  False if the scheduler is closed: the caller keeps the message. */
bool pf_scheduler_post(pf_scheduler *s, pf_message *message);

/* A hold means that something outside will wake this scheduler: meanwhile an
 * idle loop waits instead of reporting a deadlock.  Any thread. */
void pf_scheduler_hold(pf_scheduler *s);
void pf_scheduler_release(pf_scheduler *s);

/* In the child of fork, on the surviving thread. */
int pf_scheduler_after_fork(pf_scheduler *s);

#endif
