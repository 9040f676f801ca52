/* Where a run under test makes choices, lets another fiber run first, or sees
 * a failure. testing/ implements that; outside of a test these functions do
 * nothing. */
#ifndef PF_TASK_EXPLORE_H
#define PF_TASK_EXPLORE_H

#include "python/core/parts.h"
#include "python/core/pyinclude.h"

#include "engine/base/atomics.h"
#include "python/core/compiler.h"
#include "python/task/scheduler.h"

/* What is chosen. The numbers are part of recorded choices, so they never
 * change. */
typedef enum PfChoiceKind {
    PF_CHOOSE_READY,   /* the task to run next */
    PF_CHOOSE_TIMER,   /* the due timer that fires; the last one: none now */
    PF_CHOOSE_WAITER,  /* the waiter that gets the lock, the item, ... */
    PF_CHOOSE_SELECT,  /* the ready case of a select */
    PF_CHOOSE_USER,    /* pyfiber.testing.choose() */
    PF_CHOOSE_PREEMPT, /* 0: continue; n: the n-th ready fiber runs first */
    PF_CHOOSE_FAULT,   /* 0: all goes well; n: the n-th fault happens */
} PfChoiceKind;

/* Operations of testing/, which also moves virtual time. */
typedef struct PfExplorerOps {
    int (*preempt)(void);
    uint32_t (*choose)(SchedulerObject *s, uint32_t n, PfChoiceKind kind);
    bool (*failed)(SchedulerObject *s, PyObject *op);
    /* Nothing is ready in a run with a virtual clock: advance the clock. False
     * if nothing could become ready. */
    bool (*idle)(SchedulerObject *s, int64_t deadline);
    int (*traced)(void);
} PfExplorerOps;
extern PF_ATOMIC(size_t) pf_explore_runs; /* number of runs under test */

/* Lets other fibers run first in a run under test. Called when the running
 * fiber is about to do something that others may do, too, or has done
 * something they may react to. 0, or -1 with an exception (the fiber is being
 * unwound). */
static inline int
pf_explore_preempt(void)
{
    return PF_LIKELY(pf_load_relaxed(&pf_explore_runs) == 0)
               ? 0
               : pf_parts_hooks.explorer->preempt();
}

/* Chooses one of 0..n-1 (n > 0); always 0 unless a test runs. */
static inline uint32_t
pf_explore_choose(SchedulerObject *s, uint32_t n, PfChoiceKind kind)
{
    return PF_LIKELY(s->explorer == NULL)
               ? 0
               : pf_parts_hooks.explorer->choose(s, n, kind);
}

/* Called when the running fiber has got its own trace function: a run under
 * test that uses one puts its own in front. 0, or -1 with an exception. */
static inline int
pf_explore_traced(void)
{
    return PF_LIKELY(pf_load_relaxed(&pf_explore_runs) == 0)
               ? 0
               : pf_parts_hooks.explorer->traced();
}

/* Called when a scheduled fiber or a grain has failed: an explorer checks
 * whether the failure is looked at. False: no explorer has taken it over. */
static inline bool
pf_explore_failed(SchedulerObject *s, PyObject *op)
{
    return s->explorer != NULL && pf_parts_hooks.explorer->failed(s, op);
}

#endif
