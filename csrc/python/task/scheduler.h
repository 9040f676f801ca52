/* The scheduler's object, as far as fibers and code that wakes them need it:
 * they notify the hub that there is work, or that the run fails. The Scheduler
 * type and the loop are in run/. */
#ifndef PF_TASK_SCHEDULER_H
#define PF_TASK_SCHEDULER_H

#include "python/core/pyinclude.h"

#include "engine/core/scheduler.h"
#include "python/core/compiler.h"
#include "python/core/parts.h"
#include "python/core/thread.h"
#include "python/task/task.h"

/* A watchdog limit for debugging: calls that block are reported, each place
 * once. */
#define PF_WATCH_BLOCKING (-1)

/* What a recorder of turns does when a run begins while pf_scheduler_turns_on,
 * and when the loop waits or ends while a turn is recorded. Set at import. */
typedef struct PfTurnOps {
    void (*begin_run)(SchedulerObject *s);
    void (*end)(SchedulerObject *s);
} PfTurnOps;
extern bool pf_scheduler_turns_on;

struct SchedulerObject {
    PyObject_HEAD
    PyObject *weakrefs;
    pf_scheduler core;
    PfThread *thread;             /* NULL once the thread has ended */
    SchedulerObject *prev, *next; /* in thread->schedulers */
    Py_ssize_t alive;             /* fibers not done */
    Py_ssize_t foreground;        /* of these, not daemons */
    PF_ATOMIC(size_t) coming;     /* fibers posted to it, not yet enrolled */
    FiberObject *main;            /* the fiber of run(fn) */
    PyObject *fatal;              /* the exception that ends the run */
    PyObject *on_unhandled;       /* "log", "raise", a function; NULL: log */
    PyObject *errors;             /* list of (name, exception) to raise */
    PfUnhandled *unhandled, *last_unhandled; /* failures; see unhandled.c */
    PyThreadState *blocked;
    struct PfExplorer *explorer; /* during a run under test, or NULL */
    size_t slots;  /* stacks that its fibers share; 0: none are shared */
    bool running;  /* inside run or run_once */
    bool untracks; /* inside run: hides its fibers from the collector */
    bool closed;
    bool ending;             /* new fibers are cancelled, too */
    bool hosted;             /* another loop waits for fileno() */
    bool in_turn;            /* inside turn(), which returns the next time */
    int interrupts;          /* number of Ctrl-Cs */
    pf_registration signals; /* the descriptor for signals; see signals.c */
    bool open;               /* the engine's part is initialised */
    PyObject *watch;         /* called when an interrupted run ends */
    int64_t stalled_since;   /* since then only another thread could help, */
    uint64_t stalled_at;     /* the activity counter at that time */
    bool stall_reported;
    bool inherited;         /* ran at the fork of this process: see loop.c */
    bool nested;            /* the hub is a fiber of `outer` */
    bool blocks;            /* waits for events block the thread: this is a
                               fork's child, the other fibers are the
                               parent's */
    SchedulerObject *outer; /* the inherited one that it runs inside */
    PF_ATOMIC(uint8_t) lacks_gil; /* woken, and waits for the GIL */
    /* For the watchdog, in nanoseconds; 0: the process-wide limit. */
    PF_ATOMIC(int64_t) watch_limit;
    PF_ATOMIC(int64_t) time_slice; /* nanoseconds; 0: none */
    bool in_turn_record;     /* this turn is recorded: see watch/turns.c */
    bool pokes;              /* PfPart.poke must be called */
    struct PfTeam *team;     /* a run on several threads, or NULL */
    struct PfMember *member; /* this scheduler's part of it */
};

#define SCHEDULER_OF(core_)                                                   \
    ((SchedulerObject *)((char *)(core_) - offsetof(SchedulerObject, core)))

/* A room's data for this scheduler. */
static inline void *
pf_scheduler_keeps(const SchedulerObject *s, const PfKeeps *keeps)
{
    return (char *)(s + 1) + keeps->at;
}

extern PyTypeObject *pf_scheduler_type;

/* The number of fibers that are not done, and of those that keep a run going.
 * A fiber that another thread has posted counts in both from that moment:
 * whether it is a daemon is seen only when it arrives. */
static inline Py_ssize_t
pf_scheduler_unfinished(SchedulerObject *s)
{
    return s->alive + (Py_ssize_t)pf_load_relaxed(&s->coming);
}
static inline Py_ssize_t
pf_scheduler_foreground(SchedulerObject *s)
{
    return s->foreground + (Py_ssize_t)pf_load_relaxed(&s->coming);
}

/* Append the thread's schedulers to a list, until an append fails: 0, or -1
 * with an exception. `t` is this thread, or is stopped. Without a GIL a
 * scheduler may be dying on another thread, and stays in the list until that
 * thread takes it out: such a one is skipped. */
int pf_scheduler_list(const PfThread *t, PyObject *list);

/* The thread that the task belongs to. NULL: it belongs to none; or it has no
 * stack and belongs to another thread. */
const PfThread *pf_task_owner(PfTaskObject *task);

/* Does the task belong to another thread that has not ended? */
bool pf_task_is_remote(const PfTaskObject *task);

/* Convert a watchdog limit, in seconds. 0, or -1 with TypeError or ValueError.
 */
int pf_scheduler_watch_limit(PyObject *seconds, int64_t *ns);
/* Convert a time slice, in seconds; None gives the default, which is 0 (no
 * slices) unless PYFIBER_TIME_SLICE sets it. 0, or -1 with TypeError,
 * ValueError or, without a GIL, NotImplementedError. */
int pf_scheduler_time_slice(PyObject *seconds, int64_t *ns);
extern int64_t pf_scheduler_default_slice; /* constant after import */
void pf_scheduler_notify_host(SchedulerObject *s);
void pf_scheduler_wake_hub(SchedulerObject *s);
void pf_scheduler_fail(SchedulerObject *s, PyObject *exc); /* steals `exc` */

/* Raise FiberError: `what` needs a run. NULL. Python code finds out what to
 * advise at this place, so the caller holds no lock. */
pf_scheduler *pf_scheduler_refuse_outside(const char *what);

/* The scheduler that runs on this thread, or NULL with FiberError. */
static inline pf_scheduler *
pf_scheduler_active(PfThread *t, const char *what)
{
    return PF_LIKELY(t->scheduler != NULL) ? &t->scheduler->core
                                           : pf_scheduler_refuse_outside(what);
}

#endif
