/* Fibers, the thread they run on, and the scheduler that chooses among them.
 *
 * One function for each hard thing:
 *   pf_switch         leaves one fiber for another
 *   pf_park           makes the running fiber wait
 *   pf_make_ready     puts a fiber into the ready queue
 *   pf_next           decides who runs next
 *   pf_post           hands a message to a scheduler from any thread
 *
 * No Python here: a host (the binding, or a C test) gives hooks.
 */
#ifndef PF_SCHEDULER_H
#define PF_SCHEDULER_H

#include "context/context.h"
#include "engine/inbox.h"
#include "engine/poller.h"
#include "engine/stack.h"
#include "engine/timers.h"

typedef struct pf_fiber pf_fiber;
typedef struct pf_thread pf_thread;
typedef struct pf_scheduler pf_scheduler;

typedef enum pf_state {
    PF_NEW,   /* no stack yet */
    PF_READY, /* in the ready queue */
    PF_RUNNING,
    PF_PARKED,    /* waits in its scheduler for a wake-up or a timer */
    PF_SUSPENDED, /* left by a direct switch: waits for a direct switch back */
    PF_DONE,
} pf_state;

/* Why pf_park returned. */
typedef enum pf_wake {
    PF_WAKE_NONE,
    PF_WAKE_NORMAL,
    PF_WAKE_TIMEOUT,
    PF_WAKE_CANCEL,
} pf_wake;

/* Embedded in the host's fiber object.  Invariants:
 * - `stack` is non-NULL from pf_fiber_prepare until the fiber is reaped; NULL
 *   for a thread's own fiber.
 * - `next` links the ready queue exactly while state is PF_READY.
 * - the timer is armed only while the fiber is parked or made ready by it.
 * - all fields but `message` and `posted` belong to the owner thread (in the
 *   binding: to whoever holds the GIL, on the owner thread).
 */
struct pf_fiber {
    pf_message message; /* for wake-ups from other threads */
    /* From here on every switch reads it: one or two cache lines with what
     * the host puts right behind. */
    pf_context context;
    pf_stack *stack;
    pf_scheduler *scheduler; /* NULL: raw, its user switches it */
    pf_fiber *next;
    PF_ATOMIC(uint8_t) posted; /* bits the host asked for; see pf_fiber_post */
    uint8_t state;             /* pf_state */
    uint8_t wake;              /* pf_wake */
    uint8_t host_byte;         /* the host's, as is host_bits */
    uint32_t host_bits;
    pf_timer timer;
};

typedef struct pf_host {
    /* Just before every switch, on the stack of `from`; thread->current is
     * already `to`.  Saves and loads what belongs to a fiber.  May be NULL. */
    void (*on_switch)(pf_thread *thread, pf_fiber *from, pf_fiber *to);
    /* A PF_NEW fiber that a scheduler is about to run for the first time, out
     * of the ready queue and still without a stack: stacks are taken as late
     * as this so that fibers that never wait share a few.  Prepares it and
     * returns it, or returns another fiber to run in its place (the host has
     * then ended it).  May be NULL if fibers are prepared before they are
     * made ready. */
    pf_fiber *(*on_first)(pf_scheduler *s, pf_fiber *fiber);
    /* The body of a fiber; returns who runs when it is over. */
    pf_fiber *(*run)(pf_thread *thread, pf_fiber *self);
    /* The fiber is done, its stack released; runs on whoever came next.  May
     * free the fiber. */
    void (*on_reap)(pf_thread *thread, pf_fiber *fiber);
    /* Bits posted to a fiber by pf_fiber_post arrive, on the owner thread. */
    void (*on_posted)(pf_scheduler *s, pf_fiber *fiber, unsigned bits);
    /* Around blocking in the poller (the binding drops the GIL). */
    void (*wait_begin)(pf_scheduler *s);
    void (*wait_end)(pf_scheduler *s);
} pf_host;

/* What a thread has: who runs now, its own fiber, its stacks. */
struct pf_thread {
    pf_fiber *current;
    pf_fiber *zombie; /* finished; reaped by whoever lands next */
    const pf_host *host;
    pf_fiber root;         /* the thread's own stack */
    pf_stack_pool **pools; /* one per stack size, most used first */
    unsigned pool_count;
    size_t room_size; /* of every stack of this thread */
};

/* `root` becomes current.  0 or -errno. */
int pf_thread_init(pf_thread *thread, const pf_host *host, size_t room_size);
void pf_thread_finish(pf_thread *thread);
pf_stack_pool *pf_thread_pool(pf_thread *thread, size_t stack_size);

/* Give a PF_NEW fiber a stack so that it can be switched to.  0, or -errno
 * with *limit telling what was hit. */
int pf_fiber_prepare(pf_thread *thread, pf_fiber *fiber, size_t stack_size,
                     pf_limit *limit);

/* Release the stack of the fiber that ended, and tell the host. */
void pf_reap(pf_thread *thread, pf_fiber *zombie);

/* Leave the current fiber for `to`, which must be prepared and not done.
 * States are the caller's to set. `on_switch` is a parameter so that a hot
 * caller that knows it gets it inlined. */
static inline void
pf_switch_with(pf_thread *thread, pf_fiber *to,
               void (*on_switch)(pf_thread *, pf_fiber *, pf_fiber *))
{
    pf_fiber *from = thread->current;
    thread->current = to;
    if (on_switch != NULL) {
        on_switch(thread, from, to);
    }
    pf_context_switch(&from->context, &to->context);
    if (thread->zombie != NULL) {
        pf_reap(thread, thread->zombie);
    }
}

static inline void
pf_switch(pf_thread *thread, pf_fiber *to)
{
    pf_switch_with(thread, to, thread->host->on_switch);
}

/* Chooses and removes a fiber from the ready queue (never empty if asked). */
typedef pf_fiber *(*pf_pick_fn)(pf_scheduler *s, void *data);
typedef int64_t (*pf_clock_fn)(void *data);

typedef struct pf_queue {
    pf_fiber *head;
    pf_fiber *tail;
    size_t count;
} pf_queue;

typedef struct pf_scheduler_stats {
    uint64_t switches; /* fibers chosen by pf_next */
    uint64_t wakeups;  /* fibers made ready */
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
    PF_ATOMIC(size_t) holds; /* what may wake us from outside; see pf_hold */
    uint64_t switches, wakeups, messages, timeouts, waits;
};

/* 0 or -errno.  The poller is the default one. */
int pf_scheduler_init(pf_scheduler *s, pf_thread *thread);
void pf_scheduler_finish(pf_scheduler *s);
void pf_scheduler_set_poller(pf_scheduler *s, pf_poller *poller);
void pf_scheduler_stats_get(const pf_scheduler *s, pf_scheduler_stats *stats);

int64_t pf_monotonic(void); /* nanoseconds */

static inline int64_t
pf_now(pf_scheduler *s)
{
    return s->clock == NULL ? pf_monotonic() : s->clock(s->clock_data);
}

static inline void
pf_queue_push(pf_queue *queue, pf_fiber *fiber)
{
    fiber->next = NULL;
    if (queue->tail == NULL) {
        queue->head = fiber;
    } else {
        queue->tail->next = fiber;
    }
    queue->tail = fiber;
    queue->count++;
}

static inline void
pf_queue_push_front(pf_queue *queue, pf_fiber *fiber)
{
    fiber->next = queue->head;
    queue->head = fiber;
    if (queue->tail == NULL) {
        queue->tail = fiber;
    }
    queue->count++;
}

static inline pf_fiber *
pf_queue_pop(pf_queue *queue)
{
    pf_fiber *fiber = queue->head;
    if (fiber != NULL) {
        queue->head = fiber->next;
        if (queue->head == NULL) {
            queue->tail = NULL;
        }
        fiber->next = NULL;
        queue->count--;
    }
    return fiber;
}

/* Take a fiber out of the middle (a testing scheduler's choice). */
bool pf_queue_remove(pf_queue *queue, pf_fiber *fiber);

/* Owner thread only. */
static inline void
pf_make_ready(pf_scheduler *s, pf_fiber *fiber)
{
    fiber->state = PF_READY;
    s->wakeups++;
    pf_queue_push(&s->ready, fiber);
}

/* Wake a parked fiber: false (and nothing done) unless it is PF_PARKED. */
static inline bool
pf_wake_fiber(pf_scheduler *s, pf_fiber *fiber, pf_wake why)
{
    if (fiber->state != PF_PARKED) {
        return false;
    }
    fiber->wake = (uint8_t)why;
    pf_make_ready(s, fiber);
    return true;
}

/* Take messages, fire due timers, look at the poller; never blocks. */
void pf_poll(pf_scheduler *s);

/* With thousands of ready fibers every switch lands on a cold stack.  The
 * queue tells who comes next but one: fetch what that switch will touch while
 * the next fiber runs, and the fiber behind it so that its fields can be read
 * then.  (10,000 fibers yielding in turn: 440 ns a switch without, 200 with.)
 * A short queue's stacks are in the cache anyway. */
#if defined(__GNUC__)
#define PF_PREFETCH(address) __builtin_prefetch(address)
/* A function that only prefetches is "pure" to gcc, which drops its calls. */
#define PF_ALWAYS_INLINE inline __attribute__((always_inline))
#else
#define PF_PREFETCH(address) ((void)0)
#define PF_ALWAYS_INLINE inline
#endif
#define PF_PREFETCH_FROM 1024  /* ready fibers */
#define PF_PREFETCH_FRAMES 832 /* bytes of the innermost C frames */
#define PF_PREFETCH_ROOM 448   /* bytes of header and room */
#define PF_CACHE_LINE 64

static PF_ALWAYS_INLINE void
pf_prefetch_stack(const pf_fiber *fiber)
{
    /* Numbers: a thread's own fiber has no header, and may have no frames. */
    uintptr_t frames = (uintptr_t)fiber->context.handle;
    uintptr_t header = (uintptr_t)fiber->stack;
    for (uintptr_t i = 0; i < PF_PREFETCH_FRAMES; i += PF_CACHE_LINE) {
        PF_PREFETCH((const void *)(frames + i));
    }
    for (uintptr_t i = PF_CACHE_LINE; i < PF_PREFETCH_ROOM;
         i += PF_CACHE_LINE) {
        PF_PREFETCH((const void *)(header + i));
    }
}

static PF_ALWAYS_INLINE void
pf_prefetch_queue(const pf_queue *queue)
{
    if (queue->count < PF_PREFETCH_FROM) {
        return;
    }
    const pf_fiber *fiber = queue->head->next;
    pf_prefetch_stack(fiber);
    PF_PREFETCH(&fiber->next->context);
    PF_PREFETCH((const char *)&fiber->next->context + PF_CACHE_LINE);
}

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
    pf_fiber *next =
        s->pick == NULL ? pf_queue_pop(&s->ready) : s->pick(s, s->pick_data);
    pf_prefetch_queue(&s->ready);
    if (next->stack == NULL && next != s->hub &&
        s->thread->host->on_first != NULL) {
        next = s->thread->host->on_first(s, next);
    }
    return next;
}

/* The running fiber waits until pf_wake_fiber, or until `deadline` of the
 * scheduler's clock (PF_NEVER: no deadline).  Returns why it runs again; -1:
 * no memory for the timer, nothing happened. */
int pf_park(pf_scheduler *s, int64_t deadline);

/* The running fiber goes to the back of the queue. */
void pf_yield(pf_scheduler *s);

/* For the hub, with an empty ready queue: block until a message, a timer, the
 * poller or `deadline`.  0, or -errno. */
int pf_scheduler_wait(pf_scheduler *s, int64_t deadline);

/* For a host whose loop is run by another one: between pf_scheduler_rest and
 * pf_scheduler_resume nobody waits here, but every message makes the poller's
 * descriptor readable, as does one that has come already. */
void pf_scheduler_rest(pf_scheduler *s);
void pf_scheduler_resume(pf_scheduler *s);

/* Is there anything that could make a fiber ready without outside help? */
bool pf_scheduler_expects(pf_scheduler *s);

/* The loop for hosts that need nothing between switches (C embedders, tests):
 * runs from the hub until nothing is ready and nothing is expected. */
void pf_scheduler_run(pf_scheduler *s);

/* From any thread, no lock held: message->run runs on the scheduler's thread.
 */
void pf_post(pf_scheduler *s, pf_message *message);

/* From any thread: set `bits` on the fiber; the host's on_posted gets them on
 * the owner thread, several posts perhaps as one call.  The fiber must stay
 * alive until then; the scheduler, too. */
void pf_fiber_post(pf_fiber *fiber, unsigned bits);

/* A hold says "somebody outside will wake this scheduler": while one is held
 * an idle loop waits instead of reporting a deadlock.  Any thread. */
void pf_hold(pf_scheduler *s);
void pf_release(pf_scheduler *s);

/* In the child of fork, on the surviving thread. */
int pf_scheduler_after_fork(pf_scheduler *s);

#endif
