/* What the rooms above do when a thread ends, when the interpreter exits, when
 * the process forks, at certain points of a run, and when a room below needs
 * them. Rooms below call rooms above only through this table.
 *
 * Each room fills in one part. module.c lists all parts, and this is the order
 * in which they are called; a missing operation is NULL.
 */
#ifndef PF_PARTS_H
#define PF_PARTS_H

#include "python/core/pyinclude.h"

#include "engine/core/scheduler.h"
#include "python/core/thread.h"

/* Operations of a thread's root: the fiber that is the thread's own stack. */
typedef struct PfRootOps {
    const pf_host *host;
    FiberObject *(*make)(void); /* may run code; NULL with an exception */
    /* Makes `root` the current fiber of the new record; runs no code. */
    void (*begin)(PfThread *t, FiberObject *root);
    bool (*runs)(const PfThread *t); /* is the root the current fiber? */
    void (*drop_posts)(PfThread *t); /* no other thread finds `t` any more */
    void (*end)(PfThread *t);        /* the record is about to be freed */
    /* The thread is gone, and its fibers can no longer be unwound: report that
     * some are left. */
    void (*report_left)(PfThread *t);
} PfRootOps;

/* What virtual/ does for rooms below. During a block of virtual threads the thread's own
 * stack, a raw fiber, is the main program, and waits in the run; signals and
 * exceptions for the main program come while other fibers run. */
typedef struct PfMainOps {
    /* The fiber's wait was ended as by a cancellation.  Raises what was thrown
     * into the main program, if the fiber is that and something was: -1;
     * else 0. */
    int (*raise_thrown)(FiberObject *fiber);
    /* A raw fiber continues after a wait that nothing thrown has ended.  Runs
     * no code. */
    void (*resumed)(PfThread *t, FiberObject *fiber);
    /* Is the fiber the main program? */
    bool (*is_main)(const FiberObject *fiber);
} PfMainOps;

/* Operations of rooms above that rooms below call. One part fills in each. */
typedef struct PfHooks {
    const PfRootOps *root;
    const struct PfCancelling *cancelling; /* task/cancelling.h */
    const struct PfExplorerOps *explorer;  /* task/explore.h */
    const struct PfMigrateOps *migrate;    /* task/migrate.h */
    const struct PfTurnOps *turns;         /* task/scheduler.h */
    /* The kind of a new fiber, unless another one is set. */
    const struct PfTaskOps *plain_fiber;
    PyObject *(*await)(PyObject *op); /* am_await of Fiber and Grain */
    /* A fiber with a view (the greenlet that shows it) has ended. */
    void (*view_done)(FiberObject *fiber);
    const PfMainOps *main_program;
} PfHooks;

/* A room's data for each thread, or for each scheduler: `size` bytes behind
 * the thread's record or the scheduler's object, all zero at first. */
typedef struct PfKeeps {
    size_t size;
    size_t at; /* from its end; constant after import */
} PfKeeps;

typedef struct PfPart {
    PfHooks hooks;
    PfKeeps *of_thread, *of_scheduler;

    /* --- a thread --- */
    /* The thread ends; called on that thread. Python code may run, but can
     * make no new scheduler and leave no fiber suspended. */
    void (*thread_end)(PfThread *t);
    /* The thread will never continue, so waits on it are over. Runs no code.
     */
    void (*thread_lost)(PfThread *t);
    /* Free what the thread keeps for reuse: it has ended, or the interpreter
     * exits. */
    void (*free_spare)(PfThread *t);

    /* --- the process --- */
    /* The interpreter exits, with everything still in place. Returns whether
     * code that runs later may need this thread's record. */
    bool (*needs_record)(void);
    void (*at_exit)(PfThread *t); /* while code can run */
    /* In the child of a fork, which has no other thread. `t` is this thread,
     * or NULL if it has no record. 0, or -1 with an exception. */
    int (*after_fork)(PfThread *t);

    /* --- a run --- */
    /* A run begins whose scheduler has a watchdog limit. */
    void (*run_begins)(SchedulerObject *s);
    /* run() or run_once() was called. May run code. 0, or -1 with an exception:
     * the run does not begin. */
    int (*run_may_begin)(SchedulerObject *s);
    void (*closed)(SchedulerObject *s); /* nothing runs in it any more */
    void (*poke)(SchedulerObject *s);   /* something is about to run */
    /* Nothing is ready. Returns true if this part has made something ready. */
    bool (*ask_again)(SchedulerObject *s);
    /* Could another thread wake a fiber here? */
    bool (*has_helpers)(const SchedulerObject *s);
    void (*cancel_all)(SchedulerObject *s, PyObject *why);
    /* The run is over and the ready queue is empty: end one task that is left.
     * False: there was none. */
    bool (*abandon)(SchedulerObject *s);
    bool (*are_left)(const SchedulerObject *s); /* is any not done? */
    /* Append this part's waiting tasks to a list, for a report. 0 or -1. */
    int (*list)(SchedulerObject *s, PyObject *list);
    /* Is this a fiber of this part that has no work at present? */
    bool (*is_idle)(FiberObject *fiber);
    int (*traverse)(SchedulerObject *s, visitproc visit, void *arg);
    void (*clear)(SchedulerObject *s); /* drop what may refer back to it */
    void (*free)(SchedulerObject *s);
} PfPart;

extern const PfPart *const *pf_parts;                    /* ends with NULL */
extern PfHooks pf_parts_hooks;                           /* of all parts */
extern size_t pf_parts_of_thread, pf_parts_of_scheduler; /* bytes, in all */
/* The data of a room behind a thread's record. pf_scheduler_keeps is the same
 * for a scheduler. */
static inline void *
pf_parts_at(PfThread *t, const PfKeeps *keeps)
{
    return (char *)(t + 1) + keeps->at;
}

void pf_parts_set(const PfPart *const *parts); /* at import, first of all */

/* For each part that has the operation. */
#define PF_EACH_PART(part, operation)                                         \
    for (const PfPart *const *each_ = pf_parts, *part;                        \
         (part = *each_) != NULL; each_++)                                    \
        if (part->operation != NULL)

#endif
