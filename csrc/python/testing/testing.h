/* testing/: runs under test, whose schedules are explored and whose time is
 * virtual.
 *
 * Both use hooks of the engine's scheduler: an explorer sets `pick`, `probe`
 * and `pop_due`; a virtual clock sets `clock` and replaces the loop's wait.
 * Outside of a test every hook is NULL.
 *
 *   choices.c   makes, records and replays choices, such as which fiber is next
 *   explorer.c  the object _Explorer, which configures and starts runs
 *   ties.c      chooses among timers that are due together
 *   pct.c       the number and priority of each fiber
 *   points.c    where a fiber can be interrupted between two waits
 *   vclock.c    the virtual clock
 */
#ifndef PF_RUNS_UNDER_TEST_H
#define PF_RUNS_UNDER_TEST_H

#include "python/core/compiler.h"
#include "python/core/parts.h"
#include "python/task/fiber.h"
#include "python/task/scheduler.h"

/* --- pct.c: the number and priority that an explorer gives each task --- */
typedef struct PfKnown {
    const pf_task *task; /* not a reference: see PfKnownTable */
    uint32_t number;     /* in the order of first turns, from 1; 0: none yet */
    uint32_t priority;
    uint32_t imports; /* the number of imports it is in: see points.h */
} PfKnown;

/* A hash table, with open addressing, keyed by address.  An entry may belong
 * to a task that is gone, and a new task may have its address: the new one's
 * `tracked` is false until it has been looked up. */
typedef struct PfKnownTable {
    PfKnown *slots;
    uint32_t capacity; /* a power of two, or 0 */
    uint32_t used;
    uint32_t numbered;
} PfKnownTable;

void pf_pct_known_reset(PfKnownTable *table);
void pf_pct_known_free(PfKnownTable *table);
/* Returns the task's entry, or NULL without memory.  *fresh: the entry is new,
 * and the rest is 0. */
PfKnown *pf_pct_known_find(PfKnownTable *table, pf_task *task, bool *fresh);

/* SplitMix64, a random generator that is small, fast, and gives the same
 * numbers on every platform. */
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

/* Returns a random number from 0 to n-1.  (The bias of one in 2^32 does not
 * matter here.) */
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
    bool stands;            /* only advance() and spend() move it */
    bool threads;           /* an idle run may wait in real time */
    SchedulerObject *user;  /* the scheduler that uses it; not a reference */
    PfClockWaiter *waiters; /* fibers in advance() or run_until_idle() */
} PfClockObject;

/* Called when nothing is ready: moves the clock, or waits in real time.
 * Returns false if neither can make a fiber ready. */
bool pf_vclock_idle(SchedulerObject *s, int64_t deadline);
/* Moves the clock of a run in progress to the next timer, if there is one. */
void pf_vclock_skip(SchedulerObject *s);
/* Makes `s` use the clock.  0, or -1 with TypeError, or FiberError if the
 * clock or the scheduler is in use. */
int pf_vclock_install(SchedulerObject *s, PyObject *clock);
extern PfKeeps pf_vclock_of_scheduler;
/* Undoes pf_vclock_install; does nothing without a clock. */
void pf_vclock_remove(SchedulerObject *s);
int pf_vclock_traverse(SchedulerObject *s, visitproc visit, void *arg);

extern PyType_Spec pf_vclock_spec;
extern PyTypeObject *pf_explorer_clock_type;
extern PyType_Spec pf_points_spec;

/* --- choices.c --- */
int pf_testing_init(PyObject *module);
extern const PfPart pf_testing_part;

#endif
