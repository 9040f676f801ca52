/* task/: what a task is.
 *
 *   task.h       what the objects of fibers and grains have in common
 *   fiber.h      a fiber's object
 *   scheduler.h  the scheduler's object, as far as tasks need it
 *   post.h       messages from other threads to a scheduler's thread
 *   life.h       waiting for a task's end, its result, its end
 *   outcome.h    results and failures; unhandled.h: failures nobody has seen
 *   deadline.h, call.h, name.h   timeouts, functions to call, names
 *   cancelling.h, explore.h, migrate.h   tables that rooms above fill in
 *
 * Every room above calls it.
 *
 * This file has what fibers and grains have in common: outcome and waiters,
 * name, place in a scope, requests; and the operations in which kinds of tasks
 * differ.
 *
 * The kinds are: a plain fiber (fiber/), a greenlet's fiber (greenlet/), a
 * runner, which is a fiber that runs in the turns of tasks without a stack, a
 * grain, a pool's turn and the asker (grain/). Rooms below those of a kind use
 * it only through its operations.
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

/* A queue of waiters, in order; see waitq.h. */
typedef struct PfWaitq {
    PfNode *head;
} PfWaitq;

/* Data that few tasks have. */
typedef struct PfRare {
    PyObject *callbacks; /* list of done-callbacks, or NULL */
    PyObject *cancel;    /* (reason, by) if cancel_called, else NULL */
    /* Numbers of cancellations, see pf_delivery_next_number: that of the latest
     * cancel() of the task, and up to which number cancellations have been
     * raised in it. */
    size_t cancelled_at, delivered;
    PfUnhandled *unhandled; /* after a failure: see unhandled.c */
    PyObject *traceback;    /* of the failure; see pf_outcome_value */
    /* --- fibers alone --- */
    PfSlot *slots; /* in local objects; see locals.h */
    /* In the fiber of a generator's body `puller` is the fiber that waits for
     * what it emits; in that fiber `pulled` is the body. See generator.c. */
    FiberObject *puller, *pulled;
    FiberObject *other; /* owned; see migrate.h */
    unsigned
        foreign_waits; /* C API calls it waits in; pf_packing.foreign_waits */
    unsigned unpreemptible; /* depth of no_preemption() blocks */
    /* What the fiber's frames refer to, from the moment when the collector has
     * found the fiber to be garbage until the fiber has ended; else NULL.
     * tp_traverse does not visit this. */
    PyObject *referents;
} PfRare;

/* How a task that is done has ended. */
enum {
    PF_OUTCOME_NONE,
    PF_OUTCOME_OK,
    PF_OUTCOME_FAILED,
    PF_OUTCOME_CANCELLED
};

/* The head of each task's object. Behind it come a byte and a word that each
 * kind uses as it likes, and then the task. Fields that no switch reads fill
 * the first cache line, so that a switch reads two: the rest of this with the
 * task, and what is right behind.
 *
 * - base_prev of the first of a scope's children is the last one.
 */
/* (The formatter breaks up the comments in a macro.) */
/* clang-format off */
#define PF_TASK_HEAD                                                          \
    PyObject_HEAD                                                             \
    PyObject *name;                                                           \
    PfWaitq waiters;   /* wait for the task's end */                          \
    PfRare *rare;      /* NULL: none of that data; see pf_task_rare */        \
    ScopeObject *base; /* the scope it is a child of; NULL: the run */        \
    PfTaskObject *base_prev, *base_next; /* among that scope's children */    \
    PyObject *value; /* the result or exception of a task that is done; */    \
                     /* before: kept for its next turn, as a permit's */      \
    uint8_t outcome : 2;    /* PF_OUTCOME_ */                                 \
    bool scheduled : 1;     /* a scheduler's, or will be; otherwise its */    \
                            /* maker switches to it */                        \
    bool entered : 1;       /* the task's function has been called */         \
    bool permit : 1;        /* unpark() came before park() */                 \
    bool in_park : 1;       /* waits in park(): unpark() wakes it */          \
    bool under_cancel : 1;  /* raise Cancelled at every park point: the */    \
                            /* innermost scope is cancelled, by itself or */  \
                            /* through a scope around it */                   \
    bool cancel_called : 1; /* on the task itself */                          \
    bool looked_at : 1;     /* the failure has been seen */                   \
    bool dropped : 1;       /* the last reference is held by a posted */      \
                            /* wake-up, or by the thread of the task, */      \
                            /* which will end it */                           \
    bool grouped : 1;       /* a TaskGroup waits for its end */               \
    bool watched : 1;       /* the group ignores the task's failure */        \
    bool tracked : 1;       /* an explorer has registered it: testing.h */    \
    bool untracked : 1;     /* hidden from the collector: its run holds it */ \
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
    const char *noun;   /* "fiber", for messages; NULL: users never see one */
    const char *nature; /* "a stack": what it is, as the reason why it
                           cannot be copied */

    /* --- what users see --- */
    PyObject *(*name_of)(PfTaskObject *task);
    /* Wait for the task's end, until `deadline`, which was computed from
     * `timeout`. 0: done; 1: timed out; -1: exception. */
    int (*join)(PfTaskObject *task, PfThread *t, PyObject *timeout,
                int64_t deadline);
    /* 1: requested; 0: the task is done; -1: exception. Any thread. */
    int (*cancel)(PfTaskObject *task, PyObject *reason);
    /* 1: woken, or a permit given; 0: it has one already; -1: exception. Any
     * thread. */
    int (*unpark)(PfTaskObject *task, PyObject *value);
    size_t permit_value; /* offset in the object of the permit's value */

    /* --- fibers --- */
    /* Unwind a fiber that is suspended on this thread and no longer needed.
     * NULL: pf_unwind_fiber does it in the usual way. */
    void (*unwind)(PfThread *t, FiberObject *fiber);
    /* The fiber is part of another object, which ends it. References go to
     * that object, so the fiber's own last reference means nothing. */
    bool is_part;
    /* The fiber runs in the turns of other tasks: the run does not count it,
     * and neither waits for it nor cancels it. */
    bool serves;
    /* The fiber is a thread of the program: tracing the thread that it runs on
     * does not trace it. */
    bool is_thread;
    /* The fiber, which has a number as an owner, has ended, and its locals are
     * gone; its target is still there.  NULL: nothing to do. */
    void (*ended)(FiberObject *fiber);

    /* --- tasks that never have a stack: a fiber runs their turn --- */
    void (*turn)(PfThread *t, pf_task *task);
    /* No fiber could be made for the turn; the reason is the exception that is
     * set. */
    void (*no_turn)(SchedulerObject *s, pf_task *task);

    /* --- tasks without a stack that users make --- */
    /* May the task be started? If so, prepare that, which may run code, so
     * start_in checks again. 0 or -1. */
    int (*prepare)(PfTaskObject *task, SchedulerObject *s);
    /* Check again, and start the task as a child of `base`. 0 or -1. */
    int (*start_in)(PfTaskObject *task, SchedulerObject *s, ScopeObject *base);
    /* The scopes around the task have changed: update under_cancel. Runs no
     * code. */
    void (*refresh)(PfTaskObject *task);
    /* Cancel the task, on its own thread; the first reason stays. Runs no
     * code. */
    void (*cancel_now)(PfTaskObject *task, PyObject *why);
} PfTaskOps;

/* The object that embeds a task of any kind. */
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

/* Is the task done? Then its outcome and value are complete, and stay. Any
 * thread may call this: PF_DONE is published with release order. The task's
 * thread writes the other states plainly; this only compares such a byte with
 * PF_DONE. */
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

/* The fiber, if the task is one; NULL: a task that never has a stack. */
static inline FiberObject *
pf_task_fiber(PfTaskObject *task)
{
    return pf_task_kind(&task->core)->turn == NULL
               ? (FiberObject *)(void *)task
               : NULL;
}

/* --- task.c --- */

/* The types Fiber and Grain (tasks without a stack that users make). Set at
 * import. */
extern PyTypeObject *pf_task_fiber_type, *pf_task_stackless_type;
bool pf_task_check(PyObject *op); /* is `op` of one of these types? */

/* The task's rare data, to read: all zero if it has none. */
extern const PfRare pf_task_no_rare;
static inline const PfRare *
pf_task_rare(const PfTaskObject *task)
{
    return PF_LIKELY(task->rare == NULL) ? &pf_task_no_rare : task->rare;
}
/* The task's rare data, to write: made if there is none yet. NULL with
 * MemoryError. */
PfRare *pf_task_rare_of(PfTaskObject *task);

/* For tp_traverse, and for tp_dealloc. */
int pf_task_traverse(PfTaskObject *task, visitproc visit, void *arg);
void pf_task_free_rare(PfTaskObject *task);

/* am_await of Fiber and Grain, implemented by grain/. */
PyObject *pf_task_await(PyObject *op);

#endif
