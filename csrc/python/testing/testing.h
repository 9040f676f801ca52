/* Runs under test: schedules that are explored, time that is virtual.
 *
 * Both use the engine's hooks: an explorer the scheduler's `pick`, `probe` and
 * `pop_due`, a virtual clock its `clock` and the loop's wait.  Outside of a
 * test every hook is NULL.
 *
 *   choices.c   makes, records and replays every choice, such as who runs next
 *   explorer.c   the object that configures it
 *   pct.c        fibers by number and priority
 *   vclock.c     the virtual clock
 */
#ifndef PF_RUNS_UNDER_TEST_H
#define PF_RUNS_UNDER_TEST_H

#include "python/core/compiler.h"
#include "python/core/parts.h"
#include "python/task/fiber.h"
#include "python/task/scheduler.h"

/* --- pct.c: what an explorer knows of each fiber --- */
typedef struct PfKnown {
    const pf_task *task; /* not a reference: see pf_pct_known_find */
    uint32_t number;     /* in the order in which they first ran, from 1 */
    uint32_t priority;
} PfKnown;

/* An open-addressing table keyed by address.  An address may belong to a fiber
 * that is gone; its `tracked` says whether its present owner was seen.
 */
typedef struct PfKnownTable {
    PfKnown *slots;
    uint32_t capacity; /* a power of two, or 0 */
    uint32_t used;
    uint32_t numbered;
} PfKnownTable;

void pf_pct_known_reset(PfKnownTable *table);
void pf_pct_known_free(PfKnownTable *table);
/* NULL without memory.  *fresh: seen for the first time. */
PfKnown *pf_pct_known_find(PfKnownTable *table, pf_task *task, bool *fresh);

/* SplitMix64: small, fast, the same everywhere. */
static inline uint64_t
pf_testing_random_mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

static inline uint64_t
pf_testing_random_next(uint64_t *state)
{
    *state += UINT64_C(0x9E3779B97F4A7C15);
    return pf_testing_random_mix(*state);
}

/* One of 0..n-1.  (The bias of one in 2^32 does not matter here.) */
static inline uint32_t
pf_testing_random_below(uint64_t *state, uint32_t n)
{
    return (uint32_t)(((pf_testing_random_next(state) >> 32) * n) >> 32);
}

/* --- vclock.c --- */
typedef struct PfClockWaiter PfClockWaiter;

typedef struct PfClockObject {
    PyObject_HEAD
    int64_t now;            /* nanoseconds */
    bool stands;            /* only advance() moves it */
    bool threads;           /* an idle run may wait for other threads */
    SchedulerObject *user;  /* the scheduler that uses it; not a reference */
    PfClockWaiter *waiters; /* fibers in advance() or run_until_idle() */
} PfClockObject;

/* Nothing is ready: move the clock.  False if there is nothing to move to. */
bool pf_vclock_idle(SchedulerObject *s, int64_t deadline);
/* 0, or -1 with an exception: the clock serves another scheduler. */
int pf_vclock_install(SchedulerObject *s, PyObject *clock);
extern PfKeeps pf_vclock_of_scheduler;
void pf_vclock_remove(SchedulerObject *s); /* if it has one */
int pf_vclock_traverse(SchedulerObject *s, visitproc visit, void *arg);

extern PyType_Spec pf_vclock_spec;
extern PyTypeObject *pf_explorer_clock_type;

/* --- choices.c --- */
int pf_testing_init(PyObject *module);
extern const PfPart pf_testing_part;

#endif
