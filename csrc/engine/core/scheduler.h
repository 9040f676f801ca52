/* The scheduler: it chooses among the tasks that are ready (task.h), and
 * knows what the others wait for.
 *
 * One function for each hard thing:
 *   pf_park           makes the running fiber wait
 *   pf_make_ready     puts a task into the ready queue
 *   pf_next           decides who runs next
 *   pf_post           hands a message to a scheduler from any thread
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
#include "engine/core/queue.h"
#include "engine/core/task.h"
#include "engine/core/timers.h"
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
    uint64_t switches; /* tasks chosen by pf_next */
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
    uint32_t until_poll; /* switches left before timers are looked at */
    uint32_t passed;     /* tasks that passed others since one had its turn */
    uint32_t ahead;      /* of the queue, at most so many were put in front */
    PF_ATOMIC(uint8_t) sleeping; /* may be blocked: pushes must wake it */
    PF_ATOMIC(uint8_t) nudged;   /* look again before blocking */
    pf_thread *thread;
    pf_fiber *hub; /* who gets control when nobody is ready */
    pf_timers timers;
    pf_poller *poller;
    pf_pick_fn pick; /* NULL: first in, first out */
    void *pick_data;
    pf_clock_fn clock; /* NULL: the monotonic clock */
    void *clock_data;
    pf_probe_fn probe;       /* NULL: none */
    pf_pop_due_fn pop_due;   /* NULL: the earliest; data is pick_data */
    PF_ATOMIC(size_t) holds; /* what may wake us from outside; see pf_hold */
    uint64_t switches, wakeups, messages, timeouts, waits;
    uint64_t events; /* told by the poller */
};

/* A different number: something has come from outside, or a time. */
static inline uint64_t
pf_happened(const pf_scheduler *s)
{
    return s->messages + s->timeouts + s->events;
}

/* 0 or -errno.  The poller is the default one. */
int pf_scheduler_init(pf_scheduler *s, pf_thread *thread);
void pf_scheduler_finish(pf_scheduler *s);
void pf_scheduler_set_poller(pf_scheduler *s, pf_poller *poller);
void pf_scheduler_stats_get(const pf_scheduler *s, pf_scheduler_stats *stats);

static inline int64_t
pf_now(pf_scheduler *s)
{
    return s->clock == NULL ? pf_monotonic() : s->clock(s->clock_data);
}

/* The hub as an entry of the queue; NULL: there is none. */
static inline pf_task *
pf_hub_task(const pf_scheduler *s)
{
    return (pf_task *)(void *)s->hub;
}

/* Owner thread only. */
static inline void
pf_make_ready(pf_scheduler *s, pf_task *task)
{
    task->state = PF_READY;
    s->wakeups++;
    pf_queue_push(&s->ready, task);
}

/* A fiber that has never run and has no stack yet. */
static inline void
pf_make_ready_fresh(pf_scheduler *s, pf_fiber *fiber)
{
    assert(!fiber->task.has_stack);
    fiber->task.wake = PF_WAKE_FRESH;
    fiber->before = s->ready.tail;
    pf_make_ready(s, &fiber->task);
}

/* Wake a parked task: false (and nothing done) unless it is PF_PARKED. */
static inline bool
pf_wake_task(pf_scheduler *s, pf_task *task, pf_wake why)
{
    if (task->state != PF_PARKED) {
        return false;
    }
    task->wake = (uint8_t)why;
    pf_make_ready(s, task);
    return true;
}

/* Waiting for a fiber that has not begun is nearly a call, so it may pass all
 * others, and so may whoever waited when it ends: a tree of fibers that wait
 * for their children is then walked in depth, with few stacks and objects in
 * use, all of them in the cache, instead of in breadth.  ("Join helping" in
 * Java's fork/join pools; Go's `runnext` and tokio's LIFO slot do the like for
 * wake-ups.)  So that nobody starves, after so many in a row nobody passes
 * until the one who is longest in the queue has had a turn; pf_run_now does
 * not count as one.  Skynet, per leaf: 1.9 us in order, 0.8 like this. */
#define PF_MAY_PASS 256

/* The running fiber is about to wait for the end of `task`: put that in front
 * of the queue.  False: it stays where it is, since it is there already, is
 * no longer fresh, or others have been passed too often. */
bool pf_prefer(pf_scheduler *s, pf_task *task);
/* As pf_wake_task, but it passes the others if it may. */
bool pf_wake_next(pf_scheduler *s, pf_task *task, pf_wake why);

/* Take messages, fire due timers; at every PF_POLL_EVERY-th switch look at a
 * busy poller, too; never blocks. */
void pf_poll(pf_scheduler *s);
/* Look at the poller, now; never blocks. */
void pf_look(pf_scheduler *s);

/* Switches between two looks at timers. */
#if defined(PYFIBER_HARDTEST)
#define PF_POLL_EVERY 1
#else
#define PF_POLL_EVERY 61
#endif

/* Who runs next, removed from the queue; the hub when nobody is ready. */
static inline pf_fiber *
pf_next(pf_scheduler *s)
{
    if (--s->until_poll == 0 || pf_inbox_pending(&s->inbox)) {
        pf_poll(s);
    }
    if (s->ready.head == NULL) {
        return s->hub;
    }
    s->switches++;
    if (s->ahead != 0) {
        s->ahead--;
    } else {
        s->passed = 0; /* somebody's own turn */
    }
    pf_task *next;
    if (s->pick == NULL) {
        next = pf_queue_pop(&s->ready);
        pf_prefetch_queue(&s->ready, s->thread->host, s->switches);
    } else { /* it takes from the middle, perhaps one under a cursor */
        next = s->pick(s, s->pick_data);
        s->ready.fields = NULL;
    }
    if (next->has_stack) {
        return pf_fiber_of(next);
    }
    if (pf_is_fresh(next)) {
        next->wake = PF_WAKE_NONE;
    }
    return pf_ops_of(next)->first(s, next);
}

/* The running fiber waits until pf_wake_task, or until `deadline` of the
 * scheduler's clock (PF_NEVER: no deadline).  Returns why it runs again; -1:
 * no memory for the timer, nothing happened. */
int pf_park(pf_scheduler *s, int64_t deadline);

/* The running fiber goes to the back of the queue. */
void pf_yield(pf_scheduler *s);

/* A new fiber runs at once; the running one goes on before all others when
 * that waits or ends.  (A `pick` may choose otherwise.) */
void pf_run_now(pf_scheduler *s, pf_task *fresh);

/* For the hub, with an empty ready queue: block until a message, a timer, the
 * poller or `deadline`.  0, or -errno. */
int pf_scheduler_wait(pf_scheduler *s, int64_t deadline);

/* The same, but for messages alone: blocks at most `timeout` nanoseconds of
 * real time (PF_NEVER: no limit), whatever the timers and the clock say. */
int pf_scheduler_block(pf_scheduler *s, int64_t timeout);

/* For a host whose loop is run by another one: between pf_scheduler_rest and
 * pf_scheduler_resume nobody waits here, but every message makes the poller's
 * descriptor readable, as does one that has come already. */
void pf_scheduler_rest(pf_scheduler *s);
void pf_scheduler_resume(pf_scheduler *s);

/* Run the messages that have come; from now on there is nobody to take any.
 * For hosts that have let everybody else go. */
void pf_scheduler_close(pf_scheduler *s);

/* Is there anything that could make a fiber ready without outside help? */
bool pf_scheduler_expects(pf_scheduler *s);

/* The loop for hosts that need nothing between switches (C embedders, tests):
 * runs from the hub until nothing is ready and nothing is expected. */
void pf_scheduler_run(pf_scheduler *s);

/* From any thread, no lock held: message->ops->run runs on the scheduler's thread.
 * False if the scheduler is closed: the message stays the caller's. */
bool pf_post(pf_scheduler *s, pf_message *message);

/* A hold says "somebody outside will wake this scheduler": while one is held
 * an idle loop waits instead of reporting a deadlock.  Any thread. */
void pf_hold(pf_scheduler *s);
void pf_release(pf_scheduler *s);

/* In the child of fork, on the surviving thread. */
int pf_scheduler_after_fork(pf_scheduler *s);

#endif
