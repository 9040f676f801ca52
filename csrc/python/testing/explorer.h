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
enum { TRACE_RUNS, TRACE_LEAVES, TRACE_CHOICE };

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
    uint64_t inject;       /* the event at which to cancel; 0: none */
    uint32_t faults;       /* how many faults one run may have */
    uint64_t usual_places; /* for a fault, in runs so far */
    /* What was chosen. */
    Choices made;
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
    uint64_t passed; /* timers of lower sequence numbers were passed over */
    uint32_t tie_rest, tie_count; /* see next_tie */
    uint64_t tie_sequence;
    int64_t tie_when;
    /* Faults of a network in memory: the places so far, how many of them had
     * one, and the places that the strategy has drawn. */
    uint64_t fault_places;
    uint32_t faulty, drawn; /* `drawn` may be NOT_DRAWN */
    uint64_t fault_at[MAX_FAULTS];
    /* PCT */
    PfKnownTable known;
    uint32_t depth;
    uint64_t change_at[MAX_DEPTH];
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

/* The engine's hooks. */
pf_task *pf_explorer_pick(pf_scheduler *core, void *data);
void pf_explorer_probe(pf_scheduler *core, void *data);
pf_timer *pf_explorer_pop_due(pf_scheduler *core, int64_t now, void *data);

extern const PfExplorerOps pf_explorer;

#endif
