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

#include <assert.h>

#include "context/context.h"
#include "engine/base/clock.h"
#include "engine/core/inbox.h"
#include "engine/io/poller.h"
#include "engine/stack/stack.h"
#include "engine/core/timers.h"

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
    PF_WAKE_FRESH, /* not at all: it has never run */
} pf_wake;

/* Embedded in the host's fiber object.  Invariants:
 * - `stack` is non-NULL from pf_fiber_prepare until the fiber is reaped; NULL
 *   for a thread's own fiber.
 * - `next` links the ready queue exactly while state is PF_READY.
 * - `before` is who comes before it there, while it is fresh (pf_is_fresh) and
 *   not the first.
 * - the timer is armed only while the fiber is parked or made ready by it.
 * - all fields but `message` and `posted` belong to the owner thread (in the
 *   binding: to whoever holds the GIL, on the owner thread).
 */
struct pf_fiber {
    pf_message message; /* for wake-ups from other threads */
    /* From here on every switch reads it: one or two cache lines with what
     * the host puts right behind. */
    union {
        pf_context context;
        pf_fiber *before; /* while it has no context yet */
    };
    pf_stack *stack;
    pf_scheduler *scheduler; /* NULL: raw, its user switches it */
    pf_fiber *next;
    PF_ATOMIC(uint8_t) posted; /* bits the host asked for; see pf_fiber_post */
    uint8_t state;             /* pf_state */
    uint8_t wake;              /* pf_wake */
    uint8_t host_byte;         /* the host's, as is host_bits */
    uint32_t host_bits;
    pf_timer timer;
    uint32_t host_word; /* the host's, too */
};

/* How many lines of the room a host may name for pf_prefetch_stack. */
#define PF_HOT_LINES 3

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
    /* Offsets into a stack's room of the cache lines that every switch and
     * what follows it touch; all may be 0. */
    uint16_t hot_lines[PF_HOT_LINES];
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
/* Take a pool without live stacks into use, on this thread: 0 or -ENOMEM. */
int pf_thread_add_pool(pf_thread *thread, pf_stack_pool *pool);
/* The pool used last, which the caller frees or adds elsewhere; NULL: none. */
pf_stack_pool *pf_thread_take_pool(pf_thread *thread);
pf_stack_pool *pf_thread_pool(pf_thread *thread, size_t stack_size);
void pf_thread_settle(pf_thread *thread); /* pf_stack_pool_settle for all */

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
/* For tests.  `probe` sees every look at messages and timers (and may set
 * until_poll to 1, so that there is one at every switch); `pop_due` takes one
 * of the timers due at `now`, or none for the time being (NULL). */
typedef void (*pf_probe_fn)(pf_scheduler *s, void *data);
typedef pf_timer *(*pf_pop_due_fn)(pf_scheduler *s, int64_t now, void *data);

typedef struct pf_queue {
    pf_fiber *head;
    pf_fiber *tail;
    size_t count;
    /* Cursors of pf_prefetch_queue: the next fibers whose lines, pages and
     * fields it will ask for.  They mean nothing while `fields` is NULL. */
    pf_fiber *lines;
    pf_fiber *pages;
    pf_fiber *fields;
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
    uint32_t passed;     /* fibers that passed others since one had its turn */
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
};

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

/* In a ready queue for the first time. */
static inline bool
pf_is_fresh(const pf_fiber *fiber)
{
    return fiber->wake == PF_WAKE_FRESH && fiber->state == PF_READY;
}

static inline void
pf_queue_push_front(pf_queue *queue, pf_fiber *fiber)
{
    fiber->next = queue->head;
    if (queue->head == NULL) {
        queue->tail = fiber;
    } else if (pf_is_fresh(queue->head)) {
        queue->head->before = fiber;
    }
    queue->head = fiber;
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
            queue->fields = NULL; /* drained: the cursors point at nobody */
        }
        fiber->next = NULL;
        queue->count--;
    }
    return fiber;
}

/* Take a fiber out of the middle; at once if it is fresh, else it is looked for
 * from the front.  False: it is not there. */
bool pf_queue_remove(pf_queue *queue, pf_fiber *fiber);
/* The same if it is known who comes before it (NULL: it is the first). */
void pf_queue_unlink(pf_queue *queue, pf_fiber *before, pf_fiber *fiber);

/* Owner thread only. */
static inline void
pf_make_ready(pf_scheduler *s, pf_fiber *fiber)
{
    fiber->state = PF_READY;
    s->wakeups++;
    pf_queue_push(&s->ready, fiber);
}

/* A fiber that has never run and has no stack yet. */
static inline void
pf_make_ready_fresh(pf_scheduler *s, pf_fiber *fiber)
{
    assert(fiber->stack == NULL);
    fiber->wake = PF_WAKE_FRESH;
    fiber->before = s->ready.tail;
    pf_make_ready(s, fiber);
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

/* Waiting for a fiber that has not begun is nearly a call, so it may pass all
 * others, and so may whoever waited when it ends: a tree of fibers that wait
 * for their children is then walked in depth, with few stacks and objects in
 * use, all of them in the cache, instead of in breadth.  ("Join helping" in
 * Java's fork/join pools; Go's `runnext` and tokio's LIFO slot do the like for
 * wake-ups.)  So that nobody starves, after so many in a row nobody passes
 * until the one who is longest in the queue has had a turn; pf_run_now does
 * not count as one.  Skynet, per leaf: 1.9 us in order, 0.8 like this. */
#define PF_MAY_PASS 256

/* The running fiber is about to wait for the end of `fiber`: put that in front
 * of the queue.  False: it stays where it is, since it is there already, is
 * no longer fresh, or others have been passed too often. */
bool pf_prefer(pf_scheduler *s, pf_fiber *fiber);
/* As pf_wake_fiber, but it passes the others if it may. */
bool pf_wake_next(pf_scheduler *s, pf_fiber *fiber, pf_wake why);

/* Take messages, fire due timers, look at the poller; never blocks. */
void pf_poll(pf_scheduler *s);

/* With thousands of ready fibers every switch lands on a cold stack: a page
 * that the TLB does not know and some ten cache lines, one after the other.
 * The queue tells who comes, so three cursors run ahead of its head:
 * - the farthest asks for a fiber's fields, so that its links can be followed;
 * - the middle one asks for pages, two at a time: a prefetch waits for its
 *   page walk before it retires, and the processor walks for two at once;
 * - the nearest asks for exactly the lines that a switch touches (more would
 *   crowd out the fill buffers, of which a core has ten or twelve).
 * A short queue's stacks are in the cache anyway. */
#if defined(__GNUC__)
#define PF_PREFETCH(address) __builtin_prefetch(address)
/* A function that only prefetches is "pure" to gcc, which drops its calls. */
#define PF_ALWAYS_INLINE inline __attribute__((always_inline))
#define PF_NEVER_INLINE __attribute__((noinline))
#else
#define PF_PREFETCH(address) ((void)0)
#define PF_ALWAYS_INLINE inline
#define PF_NEVER_INLINE
#endif
#define PF_PREFETCH_FROM 1024  /* ready fibers */
#define PF_PREFETCH_FRAMES 384 /* bytes of the innermost C frames */
#define PF_CACHE_LINE 64

/* A host's entry without a stack (see on_first) may keep a pointer to what
 * its turn will read in its context. */
#define PF_PREFETCH_STACKLESS 256 /* bytes */

static PF_ALWAYS_INLINE void
pf_prefetch_page(const pf_fiber *fiber)
{
    if (fiber->stack != NULL) { /* else it has not run yet */
        PF_PREFETCH(fiber->stack + 1);
    }
}

static PF_ALWAYS_INLINE void
pf_prefetch_lines(const pf_fiber *fiber, const pf_host *host)
{
    const char *frames = fiber->context.handle;
    if (fiber->stack == NULL) { /* (of a fresh one it is `before`: no harm) */
        for (int i = 0; frames != NULL && i < PF_PREFETCH_STACKLESS;
             i += PF_CACHE_LINE) {
            PF_PREFETCH(frames + i);
        }
        return;
    }
    const char *room = (const char *)(fiber->stack + 1); /* after its header */
    for (int i = 0; i < PF_PREFETCH_FRAMES; i += PF_CACHE_LINE) {
        PF_PREFETCH(frames + i);
    }
    for (int i = 0; i < PF_HOT_LINES; i++) {
        PF_PREFETCH(room + host->hot_lines[i]);
    }
}

void pf_prefetch_begin(pf_queue *queue);

static PF_ALWAYS_INLINE void
pf_prefetch_queue(pf_queue *queue, const pf_host *host, uint64_t turn)
{
    if (queue->count < PF_PREFETCH_FROM) {
        queue->fields = NULL;
        return;
    }
    if (queue->fields == NULL) { /* at the beginning, and if it met the end */
        pf_prefetch_begin(queue);
    }
    queue->fields = queue->fields->next;
    if (queue->fields == NULL) { /* many were put in front: begin anew */
        return;
    }
    PF_PREFETCH(&queue->fields->context);
    PF_PREFETCH((const char *)&queue->fields->context + PF_CACHE_LINE);
    if (turn % 2 == 0) {
        pf_prefetch_page(queue->pages);
        pf_prefetch_page(queue->pages->next);
        queue->pages = queue->pages->next->next;
    }
    pf_prefetch_lines(queue->lines, host);
    queue->lines = queue->lines->next;
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
    if (s->ahead != 0) {
        s->ahead--;
    } else {
        s->passed = 0; /* somebody's own turn */
    }
    pf_fiber *next;
    if (s->pick == NULL) {
        next = pf_queue_pop(&s->ready);
        pf_prefetch_queue(&s->ready, s->thread->host, s->switches);
    } else { /* it takes from the middle, perhaps one under a cursor */
        next = s->pick(s, s->pick_data);
        s->ready.fields = NULL;
    }
    if (next->stack == NULL && next != s->hub &&
        s->thread->host->on_first != NULL) {
        if (pf_is_fresh(next)) {
            next->wake = PF_WAKE_NONE;
        }
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

/* A new fiber runs at once; the running one goes on before all others when
 * that waits or ends.  (A `pick` may choose otherwise.) */
void pf_run_now(pf_scheduler *s, pf_fiber *fresh);

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

/* From any thread, no lock held: message->run runs on the scheduler's thread.
 * False if the scheduler is closed: the message stays the caller's. */
bool pf_post(pf_scheduler *s, pf_message *message);

/* From any thread: set `bits` on the fiber; the host's on_posted gets them on
 * the owner thread, several posts perhaps as one call.  The fiber must stay
 * alive until then; the scheduler, too.  Nothing happens if the scheduler is
 * closed. */
void pf_fiber_post(pf_fiber *fiber, unsigned bits);

/* A hold says "somebody outside will wake this scheduler": while one is held
 * an idle loop waits instead of reporting a deadlock.  Any thread. */
void pf_hold(pf_scheduler *s);
void pf_release(pf_scheduler *s);

/* In the child of fork, on the surviving thread. */
int pf_scheduler_after_fork(pf_scheduler *s);

#endif
