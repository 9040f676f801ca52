/* task/: what a task is.
 *
 *   task.h       what the objects of fibers and grains have in common
 *   fiber.h      a fiber's object
 *   scheduler.h  the scheduler's object, as far as tasks know it
 *   post.h       what other threads want of a scheduler's thread
 *   life.h       waiting for the end of one, its result, its end
 *   outcome.h    results and failures; unhandled.h: failures nobody looks at
 *   deadline.h, call.h, name.h   time-outs, functions to call, names
 *   cancelling.h, explore.h, migrate.h   tables that rooms above fill in
 *
 * Called by every room above.
 *
 * What the objects of tasks have in common, of fibers as of grains: their
 * outcome and who waits for it, their name, their place in a scope, what was
 * asked of them; and the operations in which their kinds differ.
 *
 * The kinds are: a plain fiber (fiber/), a greenlet's fiber (greenlet/), a
 * runner, which is a fiber that runs in the turns of tasks without a stack, a
 * grain, a pool's turn and the asker (grain/).  Rooms below those of a kind
 * know it by its operations alone.
 */
#ifndef PF_PYTHON_TASK_H
#define PF_PYTHON_TASK_H

#include "python/core/pyinclude.h"

#include "engine/core/scheduler.h"
#include "python/core/compiler.h"
#include "python/core/thread.h"

typedef struct FiberObject FiberObject;
typedef struct PfNode PfNode;
typedef struct PfSlot PfSlot;
typedef struct PfTaskObject PfTaskObject;
typedef struct PfUnhandled PfUnhandled;
typedef struct SchedulerObject SchedulerObject;
typedef struct ScopeObject ScopeObject;

/* Who waits, in order; see waitq.h. */
typedef struct PfWaitq {
    PfNode *head;
} PfWaitq;

/* What few tasks have. */
typedef struct PfRare {
    PyObject *callbacks; /* list, or NULL */
    PyObject *cancel;    /* (reason, by) of cancel_called, or NULL */
    /* See cancel/told.c: the number of the latest cancel(), and up to which
     * number cancellations have been raised in the task. */
    size_t cancelled_at, told;
    PfUnhandled *unhandled; /* it has failed: see unhandled.c */
    PyObject *traceback;    /* ... and this is where; see pf_outcome_value */
    /* --- fibers alone --- */
    PfSlot *slots; /* in locals */
    /* Of a generator's body, who waits for what it emits, and the other way
     * round; see generator.c. */
    FiberObject *puller, *pulled;
    FiberObject *other; /* owned; see migrate.h */
    unsigned lends;     /* calls of the C API in which it waits */
    /* What its frames refer to, since the collector has found it to be garbage;
     * hidden from that, until the fiber has ended.  Or NULL. */
    PyObject *referents;
} PfRare;

/* How a task that is done has ended. */
enum {
    PF_OUTCOME_NONE,
    PF_OUTCOME_OK,
    PF_OUTCOME_FAILED,
    PF_OUTCOME_CANCELLED
};

/* The head of each task's object; behind it come a byte and a word of the
 * kind's own, then the task.  What no switch reads fills the first cache line,
 * so that a switch reads two: the rest of this with the task, and what is
 * right behind.
 *
 * - the head of the list of a scope's children has the tail as base_prev.
 */
/* (The formatter would tear the comments of a macro apart.) */
/* clang-format off */
#define PF_TASK_HEAD                                                          \
    PyObject_HEAD                                                             \
    PyObject *name;                                                           \
    PfWaitq waiters;   /* who waits for its end */                            \
    PfRare *rare;      /* NULL: nothing of that; see pf_task_rare */          \
    ScopeObject *base; /* the one it was born in; NULL: the run's */          \
    PfTaskObject *base_prev, *base_next; /* born there, too */                \
    PyObject *value; /* result or exception when it is done; before that, */  \
                     /* kept for its next turn: a permit's value, say */      \
    uint8_t outcome : 2;    /* PF_OUTCOME_ */                                 \
    bool scheduled : 1;     /* a scheduler's, or it will be; if not, its */   \
                            /* maker switches to it */                        \
    bool entered : 1;       /* its function has been called */                \
    bool permit : 1;        /* unpark() came before park() */                 \
    bool in_park : 1;       /* waits in park(): unpark() wakes it */          \
    bool under_cancel : 1;  /* raise Cancelled at every park point: its */    \
                            /* innermost scope is cancelled, by itself or */  \
                            /* by what is around it */                        \
    bool cancel_called : 1; /* on the task itself */                          \
    bool looked_at : 1;     /* somebody saw the failure */                    \
    bool dropped : 1;       /* the last reference is held by a wake-up on */  \
                            /* its way, or by its own thread, which will */   \
                            /* end it */                                      \
    bool grouped : 1;       /* a TaskGroup waits for its end */               \
    bool watched : 1;       /* ... and does not mind its failure */           \
    bool tracked : 1;       /* an explorer knows it; see testing.h */         \
    bool untracked : 1;         /* its run holds it: unknown to the collector */  \
    bool uncounted : 1;     /* a fiber's reference to its target */           \
    bool patched : 1;       /* in a call that patch() has changed: a */       \
                            /* cancellation is raised there only once */      \
    bool in_reserve : 1;    /* a fiber was left with its reserve open */      \
    uint8_t deliveries : 7; /* how often Cancelled was raised in vain */
/* clang-format on */
#define PF_MOST_DELIVERIES 127

struct PfTaskObject {
    PF_TASK_HEAD
    uint8_t own_byte;
    uint32_t own_word;
    pf_task core;
};

typedef struct PfTaskOps {
    pf_task_ops core;
    const char *noun; /* "fiber", for messages; NULL: nobody gets to see it */
    const char *nature; /* "a stack": what it is, and why it is not copied */

    /* --- what users see --- */
    PyObject *(*name_of)(PfTaskObject *task);
    /* Wait for its end, until `deadline`, which is what `timeout` means here.
     * 0: done; 1: not in time; -1: exception. */
    int (*join)(PfTaskObject *task, PfThread *t, PyObject *timeout,
                int64_t deadline);
    /* 1: asked; 0: it is done; -1: exception.  Any thread. */
    int (*cancel)(PfTaskObject *task, PyObject *reason);
    /* 1: woken or permit given; 0: a permit was there; -1: exception.  Any
     * thread. */
    int (*unpark)(PfTaskObject *task, PyObject *value);
    size_t permit_value; /* where in the object that of a permit is kept */

    /* --- fibers --- */
    /* It is suspended, on this thread, and nobody needs it: let it end, as
     * pf_unwind_fiber does.  NULL: in the usual way. */
    void (*unwind)(PfThread *t, FiberObject *fiber);
    /* It is part of another object, which ends it and is referred to in its
     * stead: its own last reference means nothing. */
    bool is_part;
    /* It runs in the turns of others: the run does not count it, and neither
     * waits for it nor cancels it. */
    bool serves;

    /* --- tasks that never have a stack: their turn, on one that has --- */
    void (*turn)(PfThread *t, pf_task *task);
    /* No fiber can be had for it: the exception raised tells why. */
    void (*no_turn)(SchedulerObject *s, pf_task *task);

    /* --- those of them that users make --- */
    /* May it be started?  If so get ready for that, which may run code: to be
     * asked again.  0 or -1. */
    int (*prepare)(PfTaskObject *task, SchedulerObject *s);
    /* Start it as one born in `base`, after another look: 0, or -1. */
    int (*start_in)(PfTaskObject *task, SchedulerObject *s, ScopeObject *base);
    /* What is around it has changed.  Runs no code. */
    void (*refresh)(PfTaskObject *task);
    /* Cancel it, on its own thread; the first reason stays.  Runs no code. */
    void (*cancel_now)(PfTaskObject *task, PyObject *why);
} PfTaskOps;

/* The object that a task of any kind is in. */
static inline PfTaskObject *
pf_task_object(pf_task *task)
{
    return (PfTaskObject *)(void *)((char *)task -
                                    offsetof(PfTaskObject, core));
}

#define PF_TASK(op) ((PfTaskObject *)(void *)(op))

static inline const PfTaskOps *
pf_task_kind(const pf_task *task)
{
    return (const PfTaskOps *)(const void *)pf_task_ops_of(task);
}

/* Any thread: its outcome and value are complete, and stay.  Whoever writes
 * PF_DONE publishes it; its thread writes the other states plainly, bytes of
 * which this asks only whether they are that one. */
static inline bool
pf_task_is_done(const PfTaskObject *task)
{
    return pf_published_byte(&task->core.state) == PF_DONE;
}

static inline void
pf_task_set_kind(pf_task *task, const PfTaskOps *kind)
{
    pf_task_set_ops(task, &kind->core);
}

/* The fiber that a task is; NULL: it never has a stack. */
static inline FiberObject *
pf_task_fiber(PfTaskObject *task)
{
    return pf_task_kind(&task->core)->turn == NULL
               ? (FiberObject *)(void *)task
               : NULL;
}

/* --- task.c --- */

/* Fiber; and that of the tasks without a stack that users make: Grain.  Set at
 * import. */
extern PyTypeObject *pf_task_fiber_type, *pf_task_stackless_type;
bool pf_task_check(PyObject *op); /* of one of these */

/* To read: all NULL if it has nothing of that. */
extern const PfRare pf_task_no_rare;
static inline const PfRare *
pf_task_rare(const PfTaskObject *task)
{
    return PF_LIKELY(task->rare == NULL) ? &pf_task_no_rare : task->rare;
}
/* To write; NULL with MemoryError. */
PfRare *pf_task_rare_of(PfTaskObject *task);

/* For the collector, and for the end of the object. */
int pf_task_traverse(PfTaskObject *task, visitproc visit, void *arg);
void pf_task_free_rare(PfTaskObject *task);

/* am_await of Fiber and Grain: grain/ knows what that is. */
PyObject *pf_task_await(PyObject *op);

#endif
