/* The explorer's internals, shared by choices.c and explorer.c. */
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

/* What the trace callback is told. */
enum { TRACE_RUNS, TRACE_LEAVES, TRACE_CHOICE };

typedef struct Choice {
    uint32_t count; /* of possibilities; in a script 0: not known */
    uint32_t taken;
    uint32_t kind;
} Choice;

typedef struct Choices {
    Choice *items;
    size_t count, capacity;
} Choices;

#define MAX_DEPTH 16
/* A fiber chosen this many times in a row while others are ready spins: PCT's
 * strict priorities would starve the fibers it waits for. */
#define PATIENCE 64

/* Makes the choices of runs; explorer.c configures it, choices.c chooses. */
typedef struct PfExplorer {
    PyObject_HEAD
    SchedulerObject *scheduler;
    /* How to choose. */
    Strategy strategy;
    uint64_t random;
    Choices script;
    bool lenient; /* a script that does not fit is adapted, not reported */
    bool preempt;
    bool unfair; /* choose among waiters and select()'s cases, too */
    uint64_t max_steps;
    uint64_t inject; /* the event at which to cancel; 0: none */
    /* What was chosen. */
    Choices made;
    bool lost; /* there was no memory to record it */
    bool over; /* past the limit of steps: no more choices */
    bool diverged;
    Choice wanted, found; /* where it diverged first */
    size_t diverged_at;
    uint64_t steps;  /* fibers chosen */
    uint64_t events; /* places for an injected cancellation; from 1 */
    uint64_t hash;   /* of everything that happened */
    uint32_t
        forced; /* pf_explore_preempt has chosen: 1 + place in the queue */
    uint64_t passed;              /* timers before this one were passed over */
    uint32_t tie_rest, tie_count; /* see next_tie */
    uint64_t tie_sequence;
    int64_t tie_when;
    /* PCT */
    PfKnownTable known;
    uint32_t depth;
    uint64_t change_at[MAX_DEPTH];
    uint32_t lowest; /* the last priority assigned */
    const pf_task *last;
    uint32_t in_a_row;
    /* Python's part. */
    PyObject *trace;    /* or NULL */
    PyObject *on_limit; /* makes the exception for too many steps */
    PyObject *is_own;   /* (fiber): does only pyfiber's own code wait in it? */
    PyObject *failures; /* fibers that failed */
    PyObject *injected;
    bool injected_waiting; /* while it waited, not as it continued */
    bool installed;
} ExplorerObject;

/* False without memory. */
bool pf_choices_append(Choices *choices, Choice choice);

/* The engine's hooks. */
pf_task *pf_explorer_pick(pf_scheduler *core, void *data);
void pf_explorer_probe(pf_scheduler *core, void *data);
pf_timer *pf_explorer_pop_due(pf_scheduler *core, int64_t now, void *data);

extern const PfExplorerOps pf_explorer;

#endif
