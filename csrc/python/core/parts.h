/* What the rooms above do when a thread ends, the interpreter exits, the
 * process forks, and on the occasions of a run: those below know them by this
 * table alone.
 *
 * A part is filled in by the room that offers it.  module.c lists them all, and
 * in that order they are asked, each time; an operation that a part does not
 * have is NULL.
 */
#ifndef PF_PARTS_H
#define PF_PARTS_H

#include "engine/core/scheduler.h"
#include "python/core/thread.h"

/* The thread's own stack is a fiber, too: the thread's root. */
typedef struct PfRootOps {
    const pf_host *host;
    FiberObject *(*make)(void); /* may run code; NULL with an exception */
    /* The new record takes the root over; runs no code. */
    void (*begin)(PfThread *t, FiberObject *root);
    bool (*runs)(const PfThread *t); /* not a fiber that left it? */
    void (*end)(PfThread *t);        /* the record goes */
    /* The thread is gone, and no fiber on it can be ended: tell that there are
     * some. */
    void (*tell_left)(PfThread *t);
} PfRootOps;

typedef struct PfPart {
    const PfRootOps *root; /* of one part alone */

    /* --- a thread --- */
    /* It ends, and we are on it.  Python code may run, but can make no new
     * scheduler, and leave no fiber suspended. */
    void (*thread_end)(PfThread *t);
    /* It will never go on: what waits there waits no more.  Runs no code. */
    void (*thread_lost)(PfThread *t);
    /* What it has kept for later use is freed: it is over, or the interpreter
     * exits. */
    void (*free_spare)(PfThread *t);
    /* Nothing runs on this thread: what to do about that, for a message; NULL:
     * nothing special. */
    const char *(*no_run)(void);

    /* --- the process --- */
    /* The interpreter exits, with everything still in place: may code that
     * runs later ask for this thread's record? */
    bool (*needs_record)(void);
    void (*at_exit)(PfThread *t); /* what ends while code can still run */
    /* In the child, where no other thread is.  `t`: this one, or NULL.  0, or
     * -1 with an exception. */
    int (*after_fork)(PfThread *t);

    /* --- a run --- */
    void (*stir)(SchedulerObject *s); /* something is about to run */
    /* Nothing is ready.  True: now something is. */
    bool (*ask_again)(SchedulerObject *s);
    /* Could another thread wake somebody here? */
    bool (*has_helpers)(const SchedulerObject *s);
    void (*cancel_all)(SchedulerObject *s, PyObject *why);
    /* Of what is left end one; nothing is in the ready queue.  False: there
     * was none. */
    bool (*abandon)(SchedulerObject *s);
    bool (*are_left)(const SchedulerObject *s); /* any that are not over? */
    /* Append those that wait, for a report. 0 or -1. */
    int (*list)(SchedulerObject *s, PyObject *list);
    /* Is it a fiber of the part's own that has nothing to do just now? */
    bool (*is_idle)(FiberObject *fiber);
    int (*traverse)(SchedulerObject *s, visitproc visit, void *arg);
    void (*free)(SchedulerObject *s);
} PfPart;

extern const PfPart *const *pf_parts; /* ends with NULL */
extern const PfRootOps *pf_root_ops;

void pf_parts_set(const PfPart *const *parts); /* at import, before all else */

/* For each part that has the operation. */
#define PF_EACH_PART(part, operation)                                         \
    for (const PfPart *const *each_ = pf_parts, *part;                        \
         (part = *each_) != NULL; each_++)                                    \
        if (part->operation != NULL)

#endif
