/* The scheduler's object, as far as fibers and the code that wakes them know
 * it: they tell the hub that there is work, or that the run fails.  The
 * Scheduler type and the loop are in run/. */
#ifndef PF_TASK_SCHEDULER_H
#define PF_TASK_SCHEDULER_H

#include "python/core/pyinclude.h"

#include "engine/core/scheduler.h"
#include "python/core/compiler.h"
#include "python/core/parts.h"
#include "python/core/thread.h"
#include "python/task/task.h"

/* A limit for debugging: calls that block are reported, each place once. */
#define PF_WATCH_BLOCKING (-1)

/* What a recorder of turns does when a run begins, while pf_scheduler_turns_on, and when
 * the loop waits or ends, if a turn is on.  Set at import. */
typedef struct PfTurnOps {
    void (*begin_run)(SchedulerObject *s);
    void (*end)(SchedulerObject *s);
} PfTurnOps;
extern bool pf_scheduler_turns_on;

struct SchedulerObject {
    PyObject_HEAD
    PyObject *weakrefs;
    pf_scheduler core;
    PfThread *thread;             /* NULL once that has ended */
    SchedulerObject *prev, *next; /* in thread->schedulers */
    Py_ssize_t alive;             /* fibers not done */
    Py_ssize_t foreground;        /* of these, not daemon */
    PF_ATOMIC(size_t) coming;     /* fibers posted here, not enrolled yet */
    FiberObject *main;            /* of run(fn) */
    PyObject *fatal;              /* exception that ends the run */
    PyObject *on_unhandled;       /* "log", "raise", a function; NULL: log */
    PyObject *errors;             /* list: (name, exception) to raise */
    PfUnhandled *unhandled, *last_unhandled; /* failures; see unhandled.c */
    PyThreadState *blocked;
    struct PfExplorer *explorer; /* during a run under test, or NULL */
    size_t slots;  /* stacks that its fibers share; 0: each its own */
    bool running;  /* inside run or run_once */
    bool untracks; /* inside run: the collector need not know its fibers */
    bool closed;
    bool ending;             /* everything is cancelled, new fibers as well */
    bool hosted;             /* another loop waits for fileno() */
    bool in_turn;            /* that loop learns when the next turn is due */
    int interrupts;          /* Ctrl-C's seen */
    pf_registration signals; /* watched for signals; see signals.c */
    bool open;               /* the engine's part is initialised */
    PyObject *watch;         /* to be called when an interrupted run ends */
    int64_t stalled_since;   /* since then only another thread could help, */
    uint64_t stalled_at;     /* ... and the activity counter at that time */
    bool stall_told;
    bool inherited;         /* ran when this process was forked: see loop.c */
    bool nested;            /* its hub is a fiber of `outer`, until it ends */
    bool blocks;            /* waits for events block the thread: a child of a
                               fork, whose other fibers are the parent's */
    SchedulerObject *outer; /* the inherited one that it runs inside of */
    PF_ATOMIC(uint8_t) lacks_gil; /* woken, and waits for that */
    /* For the watchdog, in nanoseconds; 0: no limit of its own. */
    PF_ATOMIC(int64_t) watch_limit;
    bool in_turn_record; /* the present turn is recorded: see watch/turns.c */
    bool pokes;          /* some part wants PfPart.poke */
    struct PfTeam *team; /* a run on several threads, or NULL */
    struct PfMember *member; /* its place there */
};

#define SCHEDULER_OF(core_)                                                   \
    ((SchedulerObject *)((char *)(core_) - offsetof(SchedulerObject, core)))

/* What a room above keeps of it. */
static inline void *
pf_scheduler_keeps(const SchedulerObject *s, const PfKeeps *keeps)
{
    return (char *)(s + 1) + keeps->at;
}

extern PyTypeObject *pf_scheduler_type;

/* Fibers that are not done, and of these the ones that keep a run going.  One
 * that another thread has posted counts in both from that moment, though what
 * it is comes to light only when it arrives. */
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

/* Append them to a list, as far as that goes: -1 with an exception.  `t` is this
 * thread, or stands still.  Without a GIL one of them may be dying elsewhere,
 * until that thread takes it out of the list: it is passed over. */
int pf_scheduler_list(const PfThread *t, PyObject *list);

/* The thread that the task belongs to.  NULL: none; or the task has no stack
 * and belongs to another thread. */
const PfThread *pf_task_owner(PfTaskObject *task);

/* Does another thread, which still runs, own it? */
bool pf_task_is_remote(const PfTaskObject *task);

/* How long a loop may stand still: 0, or -1 with TypeError or ValueError. */
int pf_scheduler_watch_limit(PyObject *seconds, int64_t *ns);
void pf_scheduler_tell_host(SchedulerObject *s);
void pf_scheduler_wake_hub(SchedulerObject *s);
void pf_scheduler_fail(SchedulerObject *s, PyObject *exc); /* steals */

/* NULL with FiberError: `what` needs a run.  The message advises what fits the
 * place, which Python code finds out: hold no lock. */
pf_scheduler *pf_scheduler_refuse_outside(const char *what);

/* The scheduler that runs here, or NULL with FiberError. */
static inline pf_scheduler *
pf_scheduler_active(PfThread *t, const char *what)
{
    return PF_LIKELY(t->scheduler != NULL) ? &t->scheduler->core
                                           : pf_scheduler_refuse_outside(what);
}

#endif
