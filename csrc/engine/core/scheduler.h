/* The scheduler of a thread: chooses among the ready tasks (task.h), and holds
 * the inbox, the timers and the poller that make other tasks ready.
 *
 * The main functions:
 *   pf_scheduler_park           makes the running fiber wait
 *   pf_scheduler_make_ready     puts a task into the ready queue
 *   pf_scheduler_next           decides which fiber runs next
 *   pf_scheduler_post           posts a message, from any thread
 *
 * Any thread may use `inbox`, `sleeping`, `nudged`, `holds` and a task's
 * `posted` and `message`.  Only the scheduler's own thread uses everything
 * else.
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

/* Chooses a task from the ready queue, which is not empty, and removes it. */
typedef pf_task *(*pf_pick_fn)(pf_scheduler *s, void *data);
typedef int64_t (*pf_clock_fn)(void *data);
/* For tests.  `probe` is called at each check of messages and timers (and may
 * set until_poll to 1, so that every switch checks); `pop_due` takes one of
 * the timers due at `now`, or returns NULL to let them wait. */
typedef void (*pf_probe_fn)(pf_scheduler *s, void *data);
typedef pf_timer *(*pf_pop_due_fn)(pf_scheduler *s, int64_t now, void *data);

typedef struct pf_scheduler_stats {
    uint64_t switches;    /* tasks chosen by pf_scheduler_next */
    uint64_t wakeups;     /* tasks made ready */
    uint64_t messages;    /* taken from the inbox */
    uint64_t timeouts;    /* timers that fired */
    uint64_t waits;       /* times the poller was asked to block */
    uint64_t preemptions; /* tasks that the host has interrupted */
    size_t ready;         /* now */
    size_t timers;        /* now */
} pf_scheduler_stats;

struct pf_scheduler {
    pf_queue ready;
    pf_inbox inbox;
    uint32_t until_poll; /* switches left before timers are checked */
    uint32_t passed;     /* tasks that passed others since an ordinary turn */
    uint32_t ahead;      /* at most this many in the queue were put in front */
    PF_ATOMIC(uint8_t) sleeping; /* may be blocked: a post must wake it */
    PF_ATOMIC(uint8_t) nudged;   /* must check again before blocking */
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
    uint64_t events;      /* reported by the poller */
    uint64_t preemptions; /* counted by the host */
    pf_spin spin;
    /* The clock's value when it was last read: after each wait and once in
     * about PF_CLOCK_EVERY switches.  A fiber that parks takes its time from
     * here, because reading the clock costs as much as the switch. */
    int64_t looked_at;
};

/* Returns a number that changes with each message, timeout and event. */
static inline uint64_t
pf_scheduler_happened(const pf_scheduler *s)
{
    return s->messages + s->timeouts + s->events;
}

/* Initializes a scheduler with the default poller.  0 or -errno. */
int pf_scheduler_init(pf_scheduler *s, pf_thread *thread);
void pf_scheduler_finish(pf_scheduler *s);
void pf_scheduler_set_poller(pf_scheduler *s, pf_poller *poller);
void pf_scheduler_stats_get(const pf_scheduler *s, pf_scheduler_stats *stats);

static inline int64_t
pf_scheduler_now(pf_scheduler *s)
{
    return s->clock == NULL ? pf_clock_monotonic() : s->clock(s->clock_data);
}

/* The hub as an entry of the queue; NULL: the scheduler has no hub. */
static inline pf_task *
pf_scheduler_hub_task(const pf_scheduler *s)
{
    return (pf_task *)(void *)s->hub;
}

/* The hub, unpacked if it was packed (see pack.h). */
static inline pf_fiber *
pf_scheduler_hub(const pf_scheduler *s)
{
    return s->hub->task.has_stack
               ? s->hub
               : pf_pack_bring_home_anyhow(s->thread, s->hub);
}

/* Puts a task at the end of the ready queue. */
static inline void
pf_scheduler_make_ready(pf_scheduler *s, pf_task *task)
{
    task->state = PF_READY;
    s->wakeups++;
    pf_queue_push(&s->ready, task);
}

/* The same for a fiber that has never run and has no stack yet. */
static inline void
pf_scheduler_make_ready_fresh(pf_scheduler *s, pf_fiber *fiber)
{
    assert(!fiber->task.has_stack);
    fiber->task.wake = PF_WAKE_FRESH;
    fiber->before = s->ready.tail;
    pf_scheduler_make_ready(s, &fiber->task);
}

/* Wakes a parked task.  Does nothing and returns false if the task is not
 * PF_PARKED. */
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

/* Waiting for a fiber that has not begun is nearly a call.  So that fiber may
 * pass all others in the queue, and when it ends, so may the fiber that waits:
 * a tree of fibers that wait for their children is then walked depth first,
 * with few stacks and objects in use, all of them in the cache, instead of
 * breadth first.  ("Join helping" in Java's fork/join pools; Go's `runnext`
 * and tokio's LIFO slot do the same for wake-ups.)  To prevent starvation,
 * after this many in a row no task passes until the task that has been in the
 * queue longest has had a turn.  A turn that pf_scheduler_run_now gives does
 * not count.  Skynet, per leaf: 1.9 us in order, 0.8 us with passing. */
#define PF_MAY_PASS 256

/* Puts `task` in front of the queue, because the running fiber is about to
 * wait for its end.  False if the task was not moved: it is in front already,
 * is no longer fresh, or too many have passed others. */
bool pf_scheduler_prefer(pf_scheduler *s, pf_task *task);
/* As pf_scheduler_wake, but the task passes the others if it may. */
bool pf_scheduler_wake_next(pf_scheduler *s, pf_task *task, pf_wake why);

/* Takes messages and fires due timers; at every PF_POLL_EVERY-th switch checks
 * a busy poller, too.  Never blocks. */
void pf_scheduler_poll(pf_scheduler *s);
/* Checks the poller now.  Never blocks. */
void pf_scheduler_look(pf_scheduler *s);

/* Switches between two checks of the timers. */
#if defined(PYFIBER_HARDTEST)
#define PF_POLL_EVERY 1
#else
#define PF_POLL_EVERY 61
#endif

/* Switches between two readings of the clock, where no timer needs it. */
#define PF_CLOCK_EVERY 1024

/* Prefetches the first task of the queue, after a system call that has driven
 * the task out of the cache. */
static PF_ALWAYS_INLINE void
pf_scheduler_prefetch_next(const pf_scheduler *s)
{
    if (s->ready.head != NULL) {
        pf_queue_prefetch_lines(s->ready.head, s->thread->host);
    }
}

/* As pf_scheduler_next, but NULL if no fiber runs in the turn of the task that
 * was taken (see pf_task_ops.first). */
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
    } else { /* may remove a task from the middle, where a cursor points */
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

/* Returns the fiber to run next, removed from the queue; the hub if no task is
 * ready. */
static inline pf_fiber *
pf_scheduler_next(pf_scheduler *s)
{
    pf_fiber *next;
    do {
        next = pf_scheduler_next_or_none(s);
    } while (next == NULL);
    return next;
}

/* Makes the running fiber wait until pf_scheduler_wake, or until `deadline` of
 * the scheduler's clock (PF_NEVER: no deadline).  Returns the pf_wake that
 * says why the fiber runs again; -1: no memory for the timer, the fiber has
 * not waited. */
int pf_scheduler_park(pf_scheduler *s, int64_t deadline);

/* Puts the running fiber at the end of the queue and runs the next one. */
void pf_scheduler_yield(pf_scheduler *s);

/* Runs a new fiber at once; the running fiber continues before all others when
 * the new one waits or ends.  (A `pick` may choose otherwise.) */
void pf_scheduler_run_now(pf_scheduler *s, pf_task *fresh);

/* For the hub, with an empty ready queue: blocks until a message, a timer, the
 * poller or `deadline`.  0, or -errno. */
int pf_scheduler_wait(pf_scheduler *s, int64_t deadline);

/* The same without timers: blocks for at most `timeout` nanoseconds of real
 * time (PF_NEVER: no limit), regardless of the timers and the clock. */
int pf_scheduler_block(pf_scheduler *s, int64_t timeout);

/* For a host whose loop is driven by another event loop, which watches the
 * poller's descriptor.  pf_scheduler_rest begins a time in which this thread
 * does not wait here, and pf_scheduler_resume ends it.  In between the first
 * message, or one that came before, makes the descriptor readable.  The owner
 * thread makes the descriptor readable by pf_scheduler_notify, unless it is
 * already.  If the owner resumes soon in any case, it calls pf_scheduler_unrest:
 * from then on neither a message nor pf_scheduler_notify makes that system call.
 */
void pf_scheduler_rest(pf_scheduler *s);
void pf_scheduler_notify(pf_scheduler *s);
void pf_scheduler_unrest(pf_scheduler *s);
void pf_scheduler_resume(pf_scheduler *s);

/* Runs the messages that have come, and accepts none from now on.  For hosts
 * that no longer have other tasks. */
void pf_scheduler_close(pf_scheduler *s);

/* Is a task ready, or could a timer, a message, a hold or the poller make one
 * ready? */
bool pf_scheduler_expects(pf_scheduler *s);

/* A loop for hosts that need nothing between switches (C embedders, tests):
 * runs from the hub until nothing is ready and nothing is expected. */
void pf_scheduler_run(pf_scheduler *s);

/* From any thread, with no lock held: runs message->ops->run on the
 * scheduler's thread.  False if the scheduler is closed: the caller keeps the
 * message. */
bool pf_scheduler_post(pf_scheduler *s, pf_message *message);

/* From any thread.  A hold means that something outside will wake this
 * scheduler: meanwhile an idle loop waits instead of reporting a deadlock. */
void pf_scheduler_hold(pf_scheduler *s);
void pf_scheduler_release(pf_scheduler *s);

/* For the child of fork, on the surviving thread.  0 or -errno. */
int pf_scheduler_after_fork(pf_scheduler *s);

#endif
