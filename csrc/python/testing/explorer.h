/* The object _Explorer: state and functions that choices.c, which makes
 * choices, and explorer.c, which configures runs, share. */
#ifndef PF_EXPLORER_H
#define PF_EXPLORER_H

#include "python/task/explore.h"
#include "python/task/fiber.h"
#include "python/task/scheduler.h"
#include "python/testing/testing.h"

typedef enum Strategy {
    STRATEGY_FIFO,
    STRATEGY_RANDOM,
    STRATEGY_PCT,
    STRATEGY_COUNT
} Strategy;

/* The first argument of the trace callback. */
enum { TRACE_RUNS, TRACE_LEAVES, TRACE_CHOICE, TRACE_POINT };

typedef struct Choice {
    uint32_t count; /* of possibilities; in a script 0: not known */
    uint32_t taken; /* from 0 to count - 1 */
    uint32_t kind;  /* PfChoiceKind */
} Choice;

typedef struct Choices {
    Choice *items;
    size_t count, capacity;
} Choices;

#define MAX_DEPTH 16
#define MAX_FAULTS 16
#define NOT_DRAWN UINT32_MAX
/* A fiber that is chosen this many times in a row probably spins, and loses its
 * priority: PCT's strict priorities would starve the fibers it waits for. */
#define PATIENCE 64
/* The same for points passed without a wait, under every strategy: a loop that
 * spins until another fiber has done something must end. */
#define PATIENCE_AT_POINTS 20000
/* A run may pass this many points for each step of max_steps. */
#define POINTS_A_STEP 5

typedef struct PfExplorer {
    PyObject_HEAD
    SchedulerObject *scheduler;
    /* How to choose. */
    Strategy strategy;
    uint64_t random;
    Choices script;
    bool lenient; /* a script that does not fit is adapted, not reported */
    bool preempt; /* switch at pf_explore_preempt(), too */
    bool unfair;  /* choose among waiters and select()'s cases, too */
    uint64_t max_steps;
    uint64_t inject;  /* the event at which to cancel; 0: none */
    PyObject *points; /* a PointsObject, or NULL: switch where fibers wait */
    bool hot;         /* place switches at hot points only */
    bool directed;    /* switch back after a conflict: see directed() */
    uint32_t bound;   /* offer only this many switches at points */
    uint32_t faults;  /* how many faults one run may have */
    uint64_t usual_places; /* for a fault, in runs so far */
    /* What was chosen. */
    Choices made;
    Choices branch;       /* the next script of a depth-first search */
    bool lost;            /* there was no memory to record everything */
    bool over;            /* past the limit of steps: no more choices */
    bool diverged;        /* the script did not fit */
    Choice wanted, found; /* the choice where it first did not */
    size_t diverged_at;
    uint64_t steps;  /* fibers chosen */
    uint64_t events; /* places for an injected cancellation; from 1 */
    uint64_t hash;   /* of everything that happened */
    /* pf_explore_preempt has chosen the next fiber: 1 + place in the queue */
    uint32_t forced;
    uint64_t
        tie_passed; /* timers of lower sequence numbers were passed over */
    uint32_t tie_rest, tie_count; /* see next_tie */
    uint64_t tie_sequence;
    int64_t tie_when;
    /* Points: see points.h */
    uint64_t passed;  /* points */
    bool at_point;    /* the running fiber has used nothing since a point */
    uint64_t stretch; /* points since the last step */
    uint64_t places;  /* points where another fiber could run */
    uint64_t hot_places;
    uint32_t switched;   /* switches at points */
    uint32_t before;     /* directed: the site that a fiber was kept from; 0 */
    const pf_task *kept; /* the fiber, only compared */
    bool ripe;        /* another fiber has just changed what it uses there */
    uint32_t running; /* the number of the fiber that was chosen last */
    /* PCT lowers a priority at these ticks, and the random strategy switches
     * at them. A tick is a point where another fiber could run (under `hot`, a
     * hot one), and for PCT also a step. */
    uint64_t ticks;
    uint64_t change_at[MAX_DEPTH];
    uint32_t depth;
    uint64_t wakeups; /* the queue's, when PCT last compared priorities */
    /* Faults of a network in memory: the places so far, how many of them had
     * one, and the places that the strategy has drawn. */
    uint64_t fault_places;
    uint32_t faulty, drawn; /* `drawn` may be NOT_DRAWN */
    uint64_t fault_at[MAX_FAULTS];
    /* PCT */
    PfKnownTable known;
    uint32_t lowest;     /* the last priority given to a fiber that gave way */
    const pf_task *last; /* chosen last, and how many times in a row */
    uint32_t in_a_row;
    /* Python's part. */
    PyObject *trace;    /* or NULL */
    PyObject *on_limit; /* makes the exception for too many steps */
    PyObject *is_own;   /* (fiber) -> does it run only pyfiber's own code? */
    PyObject *failures; /* list of fibers that failed */
    PyObject *injected; /* the fiber that was cancelled at event `inject` */
    bool injected_waiting; /* cancelled as it began to wait; else as it ran */
    bool installed;
} ExplorerObject;

/* Returns false without memory. */
bool pf_choices_append(Choices *choices, Choice choice);

/* Is the hub among the ready tasks?  The hub is never a possibility. */
static inline bool
pf_explorer_hub_waits(const pf_scheduler *core)
{
    return core->hub != NULL && core->hub->task.state == PF_READY;
}

/* The number of ready tasks, the hub not counted. */
static inline uint32_t
pf_explorer_ready(const pf_scheduler *core)
{
    return (uint32_t)core->ready.count - pf_explorer_hub_waits(core);
}

/* PfExplorerOps.choose */
uint32_t pf_explorer_choose(SchedulerObject *s, uint32_t n, PfChoiceKind kind);

/* The engine's hooks. */
pf_task *pf_explorer_pick(pf_scheduler *core, void *data);
void pf_explorer_probe(pf_scheduler *core, void *data);
pf_timer *pf_explorer_pop_due(pf_scheduler *core, int64_t now, void *data);

extern const PfExplorerOps pf_explorer;

/* The running fiber of the run passes a point: another fiber may run first. 0,
 * or -1 with an exception (the fiber is being unwound). */
int pf_explorer_pass(ExplorerObject *x, uint32_t site, bool hot);
/* The same for a loop without points: only after many turns of the loop does
 * another fiber run. */
int pf_explorer_pass_quietly(ExplorerObject *x);
/* The number of imports that the running fiber is in. NULL without memory. */
uint32_t *pf_explorer_imports(ExplorerObject *x);

#endif
