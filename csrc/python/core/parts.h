/* What the rooms above do when a thread ends, when the interpreter exits, when
 * the process forks, at certain points of a run, and when a room below asks.
 * The rooms below know them only through this table.
 *
 * Each room fills in its own part. module.c lists all parts, and they are
 * always called in that order; a missing operation is NULL.
 */
#ifndef PF_PARTS_H
#define PF_PARTS_H

#include "python/core/pyinclude.h"

#include "engine/core/scheduler.h"
#include "python/core/thread.h"

/* The thread's own stack is a fiber, too: the thread's root. */
typedef struct PfRootOps {
    const pf_host *host;
    FiberObject *(*make)(void); /* may run code; NULL with an exception */
    /* The new record takes the root over; runs no code. */
    void (*begin)(PfThread *t, FiberObject *root);
    bool (*runs)(const PfThread *t); /* not a fiber that left it? */
    void (*drop_posts)(PfThread *t); /* other threads find it no longer */
    void (*end)(PfThread *t);        /* the record goes */
    /* The thread is gone, and no fiber on it can be ended: report that there
     * are some. */
    void (*tell_left)(PfThread *t);
} PfRootOps;

/* What rooms below ask of rooms above.  Each of these is filled in by one part. */
typedef struct PfHooks {
    const PfRootOps *root;
    const struct PfCancelling *cancelling; /* task/cancelling.h */
    const struct PfExplorerOps *explorer;  /* task/explore.h */
    const struct PfMigrateOps *migrate;    /* task/migrate.h */
    const struct PfTurnOps *turns;         /* task/scheduler.h */
    /* The kind of a fiber that nothing else is known of. */
    const struct PfTaskOps *plain_fiber;
    PyObject *(*await)(PyObject *op); /* am_await of Fiber and Grain */
    /* A fiber with a view, a greenlet that shows it, is over. */
    void (*view_done)(FiberObject *fiber);
} PfHooks;

/* What a room keeps for each thread, or for each scheduler: so many bytes
 * behind the record of the one, the object of the other; zero at first. */
typedef struct PfKeeps {
    size_t size;
    size_t at; /* from the end of that; constant after import */
} PfKeeps;

typedef struct PfPart {
    PfHooks hooks;
    PfKeeps *of_thread, *of_scheduler;

    /* --- a thread --- */
    /* It ends, and we are on it.  Python code may run, but can make no new
     * scheduler and leave no fiber suspended. */
    void (*thread_end)(PfThread *t);
    /* It will never continue: waits on it are over.  Runs no code. */
    void (*thread_lost)(PfThread *t);
    /* What it has kept for later use is freed: it is over, or the interpreter
     * exits. */
    void (*free_spare)(PfThread *t);

    /* --- the process --- */
    /* The interpreter exits, with everything still in place: may code that
     * runs later ask for this thread's record? */
    bool (*needs_record)(void);
    void (*at_exit)(PfThread *t); /* end what must end while code can run */
    /* In the child, which has no other thread.  `t`: this one, or NULL. 0, or
     * -1 with an exception. */
    int (*after_fork)(PfThread *t);

    /* --- a run --- */
    /* One with a watchdog's limit of its own begins. */
    void (*run_begins)(SchedulerObject *s);
    void (*poke)(SchedulerObject *s); /* something is about to run */
    /* Nothing is ready.  True: now something is. */
    bool (*ask_again)(SchedulerObject *s);
    /* Could another thread wake a fiber here? */
    bool (*has_helpers)(const SchedulerObject *s);
    void (*cancel_all)(SchedulerObject *s, PyObject *why);
    /* End one of those that are left; the ready queue is empty.  False: there
     * was none. */
    bool (*abandon)(SchedulerObject *s);
    bool (*are_left)(const SchedulerObject *s); /* any that are not over? */
    /* Append the waiting ones, for a report. 0 or -1. */
    int (*list)(SchedulerObject *s, PyObject *list);
    /* Is it a fiber of this part that has no work at present? */
    bool (*is_idle)(FiberObject *fiber);
    int (*traverse)(SchedulerObject *s, visitproc visit, void *arg);
    void (*clear)(SchedulerObject *s); /* what may lead back to it */
    void (*free)(SchedulerObject *s);
} PfPart;

extern const PfPart *const *pf_parts;                    /* ends with NULL */
extern PfHooks pf_parts_hooks;                           /* of all parts */
extern size_t pf_parts_of_thread, pf_parts_of_scheduler; /* bytes, in all */
/* (That of a scheduler: pf_scheduler_keeps.) */
static inline void *
pf_parts_at(PfThread *t, const PfKeeps *keeps)
{
    return (char *)(t + 1) + keeps->at;
}

void pf_parts_set(const PfPart *const *parts); /* at import, before all else */

/* For each part that has the operation. */
#define PF_EACH_PART(part, operation)                                         \
    for (const PfPart *const *each_ = pf_parts, *part;                        \
         (part = *each_) != NULL; each_++)                                    \
        if (part->operation != NULL)

#endif
