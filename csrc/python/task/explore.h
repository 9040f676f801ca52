/* Where a run under test makes choices, lets another fiber go first, or learns
 * of a failure. testing/ does that; outside of a test these do nothing. */
#ifndef PF_TASK_EXPLORE_H
#define PF_TASK_EXPLORE_H

#include "python/core/parts.h"
#include "python/core/pyinclude.h"

#include "engine/base/atomics.h"
#include "python/core/compiler.h"
#include "python/task/scheduler.h"

/* What is chosen; part of a recorded choice, so the numbers stay. */
typedef enum PfChoiceKind {
    PF_CHOOSE_READY,   /* who runs next */
    PF_CHOOSE_TIMER,   /* which due timer fires; the last one: none now */
    PF_CHOOSE_WAITER,  /* who gets the lock, the item, ... */
    PF_CHOOSE_SELECT,  /* which ready case of a select */
    PF_CHOOSE_USER,    /* pyfiber.testing.choose() */
    PF_CHOOSE_PREEMPT, /* 0: go on; n: the n-th ready fiber runs first */
} PfChoiceKind;

/* What testing/ does about it, and about time that is virtual. */
typedef struct PfExplorerOps {
    int (*preempt)(void);
    uint32_t (*choose)(SchedulerObject *s, uint32_t n, PfChoiceKind kind);
    bool (*failed)(SchedulerObject *s, PyObject *op);
    /* Nothing is ready in a run that has a clock of its own: move that.  False
     * if it is vain. */
    bool (*idle)(SchedulerObject *s, int64_t deadline);
} PfExplorerOps;
extern PF_ATOMIC(size_t) pf_explore_runs; /* runs under test just now */

/* The running fiber is about to do something that others may do, too, or has
 * done something they may react to: a run under test may let them go first. 0,
 * or -1 with an exception (the fiber is being unwound). */
static inline int
pf_explore_preempt(void)
{
    return PF_LIKELY(pf_load_relaxed(&pf_explore_runs) == 0)
               ? 0
               : pf_parts_hooks.explorer->preempt();
}

/* One of 0..n-1 (n > 0); always 0 unless a test runs. */
static inline uint32_t
pf_explore_choose(SchedulerObject *s, uint32_t n, PfChoiceKind kind)
{
    return PF_LIKELY(s->explorer == NULL)
               ? 0
               : pf_parts_hooks.explorer->choose(s, n, kind);
}

/* A scheduled fiber or a grain failed: a test checks whether anybody looks.
 * False: no explorer has taken it over. */
static inline bool
pf_explore_failed(SchedulerObject *s, PyObject *op)
{
    return s->explorer != NULL && pf_parts_hooks.explorer->failed(s, op);
}

#endif
