/* Grains: generators that the loop steps, like fibers.
 *
 *   grain_type.c     the Grain type; grain_inspect.c: its attributes
 *   grain_run.c      the life of a runner fiber; what the loop asks of grains
 *   grain_step.c     one turn: resume, dispatch what was yielded, calls, the end
 *   grain_wait.c     what a grain waits for, wake-ups, other threads' requests
 *   grain_move.c     coming to a scheduler and leaving it
 *   grain_cancel.c   cancelling; the scope that a grain was born in
 *   grain_pool.c     the native half of GrainPool
 *   grain_turn.c     which runner takes an entry without a stack; predicates
 *   grain_start.c    what a grain is made of
 *   until.c          the awaitable that passes a request out of a coroutine
 *
 * A grain has no stack.  Like a fiber it is an entry of the scheduler's ready
 * queue (it embeds a pf_task), so the queue's order, timers, wake-ups and the
 * choices of a testing scheduler work for both.  When a grain's turn comes,
 * pf_grains_first() hands it to a runner: an ordinary fiber whose C code
 * resumes the generator and then takes the next entry, without a switch as
 * long as grains follow each other.
 *
 * A grain's code may call anything that waits.  Then the runner waits in the
 * middle of that step.  The next grain finds no idle runner and gets a new
 * one. So a grain that blocks has a stack for that time.
 */
#ifndef PF_GRAIN_H
#define PF_GRAIN_H

#include "python/cancel/scope.h"
#include "python/core/objlock.h"
#include "python/core/thread.h"
#include "python/task/fiber.h"
#include "python/task/scheduler.h"
#include "python/waitq/waitq.h"

typedef struct GrainObject GrainObject;
typedef struct PfGrains PfGrains;

typedef struct GrainPoolObject GrainPoolObject;

/* What a grain that has not ended waits for. */
enum {
    PF_WAIT_NOTHING, /* only for a turn */
    PF_WAIT_TIME,
    PF_WAIT_END,    /* the end of the Fiber or Grain `yielded` */
    PF_WAIT_FUTURE, /* the end of `yielded`, which has add_done_callback */
    PF_WAIT_ANSWER, /* a positive answer of the predicate `yielded` */
    PF_WAIT_UNPARK,
    PF_WAIT_GRANT, /* the Event or channel operation `yielded` */
};

/* A generator that waits for the one that it called. */
typedef struct GrainCaller {
    struct GrainCaller *below;
    PyObject *iterator;
} GrainCaller;

/* A waiting grain's node in a wait queue, for the waits that need one. */
typedef struct GrainWait {
    PfWait line;
    PyObject *notice; /* the done-callback of a future */
} GrainWait;

/* Invariants in addition to those of pf_task:
 * - The scheduler of a grain that has not ended has a reference to it, and
 *   links it into PfGrains.live by prev/next.
 * - In state PF_SUSPENDED the grain is in its pool's dict of ready grains
 *   (`offered`), or it was taken out of its pool and belongs to no scheduler.
 * - `wait` is read only while the grain is parked or ready, or until the wait
 *   is dismantled; `runner` only while it is running: NULL outside of a step.
 */
struct GrainObject {
    PF_TASK_HEAD /* `value`: to send or throw; arguments, before the start */
        uint8_t waits_for; /* PF_WAIT_ */
    bool throws : 1;       /* `value` is an exception to throw in */
    bool calls : 1;        /* waits for a grain that it has started */
    bool offered : 1;      /* ready; the pool's policy chooses it */
    bool leaves : 1;       /* leaves its pool after the present step */
    bool slowed : 1;       /* cancelled, but waits for a while */
    bool on_hold : 1;      /* ready, in no queue until the step's time is
                              reported to the policy */
    pf_task core;
    PyObject *iterator; /* innermost; before the start: what it is made of */
    PyObject *permit_value; /* the value given to unpark() */
    PyObject *yielded;      /* what it has yielded last */
    union {
        GrainWait *wait;
        FiberObject *runner;
    };
    GrainCaller *callers;
    PyObject *context;
    GrainPoolObject *pool;
    GrainObject *prev, *next;
    PyObject *weakrefs;
};
_Static_assert(offsetof(GrainObject, core) == offsetof(PfTaskObject, core),
               "a grain's object must begin as every task's");
#if UINTPTR_MAX > UINT32_MAX
_Static_assert(sizeof(GrainObject) <= 184 + sizeof(PyObject),
               "a grain's object has outgrown its size class of 16 bytes");
#endif

/* A scheduler's record of its grains. */
struct PfGrains {
    GrainObject *live;
    FiberObject *runner;    /* the idle runner, or NULL */
    pf_task *turn;          /* what the runner just entered is to run */
    PyObject *pools;        /* list of the pools bound to this scheduler */
    GrainPoolObject *asker; /* in its turn, the predicates are asked */
    PfWaitq sleepers;       /* grains that wait for their predicates */
    size_t asking;          /* how many grains are in `sleepers` */
    uint64_t asked_at;      /* activity() when they were last asked */
};
extern PfKeeps pf_grains_of_scheduler;
static inline PfGrains *
pf_grains_at(const SchedulerObject *s)
{
    return pf_scheduler_keeps(s, &pf_grains_of_scheduler);
}

/* A pool.  If it has a policy, its ready grains are in `ready` instead of the
 * scheduler's queue, and `turn` is the entry for all of them there.
 * (PfGrains.asker is such an object, too, without grains.) */
struct GrainPoolObject {
    PF_TASK_HEAD
    pf_task turn;
    PF_OBJECT_MUTEX /* for `scheduler`, which other threads read */
        SchedulerObject *scheduler; /* borrowed; NULL: not started, or over */
    PyObject *policy;               /* NULL: first in, first out */
    PyObject *ready;   /* dict, in the order in which they became ready */
    PyObject *members; /* dict of the grains that have not ended */
    PyObject *weakrefs;
};

_Static_assert(offsetof(GrainPoolObject, turn) == offsetof(PfTaskObject, core),
               "a pool's object must begin as every task's");

static inline GrainObject *
pf_grain_of(pf_task *task)
{
    return (GrainObject *)(void *)pf_task_object(task);
}

static inline GrainPoolObject *
pf_grain_pool_of(pf_task *task)
{
    return (GrainPoolObject *)(void *)pf_task_object(task);
}

/* The caller knows that the grain has a scheduler. */
static inline SchedulerObject *
pf_grain_scheduler(GrainObject *g)
{
    return SCHEDULER_OF(g->core.scheduler);
}

static inline bool
pf_grain_is_here(GrainObject *g)
{
    return g->core.scheduler != NULL &&
           pf_grain_scheduler(g)->thread == pf_thread_current;
}

/* --- grain_type.c --- */
extern const PfTaskOps pf_grain_ops;

/* --- grain_start.c --- */
/* May a grain be made of the object?  Returns 0, or -1 with TypeError. */
int pf_grain_check_start(PyObject *start);
int pf_grain_may_start(GrainObject *g);
int pf_grain_prepare(GrainObject *g);

/* --- grain_inspect.c --- */
PyObject *pf_grain_name(GrainObject *g);
PyObject *pf_grain_name_of(PfTaskObject *task); /* pf_grain_name() */
PyObject *pf_grain_repr(PyObject *op);
PyObject *pf_grain_stack(PyObject *op, PyObject *ignored);
extern PyGetSetDef pf_grain_getset[];

/* --- grain_step.c --- */
void pf_grain_step(PfThread *t, GrainObject *g);
void pf_grain_finish(PfThread *t, GrainObject *g, PyObject *result);
void pf_grain_abandon(PfThread *t, GrainObject *g);
void pf_grain_fail(PfThread *t, GrainObject *g);
void pf_grain_no_turn(SchedulerObject *s, pf_task *task);
int pf_grain_dispatch(PfThread *t, GrainObject *g, PyObject *what);

/* --- grain_wait.c --- */
void pf_grain_ready(GrainObject *g);
PyObject *pf_grain_take_value(GrainObject *g);
void pf_grain_unwait(GrainObject *g);
bool pf_grain_was_granted(GrainObject *g);
bool pf_grain_receives(GrainObject *g); /* does it receive from a channel? */
int pf_grain_sleep(GrainObject *g, PyObject *seconds);
int pf_grain_wait_end(GrainObject *g, PfWaitq *waiters, bool done);
int pf_grain_wait_event(GrainObject *g, PyObject *event);
int pf_grain_wait_case(GrainObject *g, PyObject *op);
int pf_grain_wait_answer(GrainObject *g);
int pf_grain_wait_future(GrainObject *g, PyObject *future);
int pf_grain_wait_unpark(GrainObject *g);
int pf_grain_wait_slowly(GrainObject *g, int64_t ns);
int pf_grain_join(PfThread *t, GrainObject *g, int64_t deadline);
int pf_grain_unpark(PfTaskObject *task, PyObject *value);
/* Wakes the grain if it is parked. */
void pf_grain_wake(GrainObject *g, pf_wake why);
int pf_grain_post_cancel(GrainObject *g, PyObject *why);
int pf_grain_post_leave(GrainObject *g);
int pf_grain_post_attach(SchedulerObject *s, GrainObject *g);
void pf_grain_posted(pf_scheduler *s, pf_task *core, unsigned bits);
extern PyType_Spec pf_grain_notice_spec;

/* --- grain_move.c --- */
int pf_grain_attach(SchedulerObject *s, GrainObject *g);
void pf_grain_detach(GrainObject *g);
void pf_grain_leave(GrainObject *g);

/* --- grain_cancel.c --- */
/* Raises Cancelled.  Returns -1. */
int pf_grain_raise_cancelled(GrainObject *g);
int pf_grain_cancel(PfTaskObject *task, PyObject *reason);
void pf_grain_cancel_now(GrainObject *g, PyObject *why);
bool pf_grain_is_top(const GrainObject *g);
/* Starts a grain that pf_grain_prepare() has prepared. */
int pf_grain_start_in(SchedulerObject *s, ScopeObject *base, GrainObject *g,
                      GrainPoolObject *pool);
void pf_grain_refresh(PfTaskObject *task);
void pf_grain_cancel_task(PfTaskObject *task, PyObject *why);
/* The runner calls these before a step of the grain and, if the runner has a
 * base then, after it. */
void pf_grain_enter_step(FiberObject *runner, GrainObject *g);
void pf_grain_leave_step(FiberObject *runner);

/* --- grain_turn.c --- */
pf_fiber *pf_grains_first(pf_scheduler *core, pf_task *task);
/* Makes the scheduler's list of pools and its asker, before it has any grains.
 * Returns 0, or -1 with an exception. */
int pf_grains_begin(SchedulerObject *s);
void pf_grains_poke(SchedulerObject *s);
bool pf_grains_ask_again(SchedulerObject *s);
GrainObject *pf_grain_current(PfThread *t);
extern const PfTaskOps pf_grain_runner_ops;
static inline bool
pf_grain_is_runner(const FiberObject *fiber)
{
    return pf_fiber_kind(fiber) == &pf_grain_runner_ops;
}
/* A PfTaskOps.no_turn, for entries that are not grains. */
void pf_grain_turn_failed(SchedulerObject *s, pf_task *task);

/* --- grain_run.c --- */
extern PyMethodDef pf_grain_runner_method;

/* --- grain_pool.c --- */
extern PyType_Spec pf_grain_pool_spec;
void pf_grain_pool_add(GrainPoolObject *pool, GrainObject *g);
/* Sets the pool's scheduler, which may be NULL. */
void pf_grain_pool_bind(GrainPoolObject *pool, SchedulerObject *s);
int pf_grain_pool_enter(GrainPoolObject *pool, GrainObject *g);
/* The grain is no longer ready, so the pool's policy forgets it. */
void pf_grain_pool_forget(GrainObject *g);
void pf_grain_pool_leave(GrainObject *g);
void pf_grain_pool_ended(GrainPoolObject *pool, GrainObject *g);

/* --- until.c --- */
extern PyType_Spec pf_until_spec;
PyObject *pf_until_new(PyObject *what);
PyObject *pf_until_await(PyObject *op);   /* see PfHooks */
PyObject *pf_until_what(PyObject *until); /* borrowed */

extern PyTypeObject *pf_grain_type, *pf_grain_pool_type, *pf_grain_notice_type,
    *pf_grain_until_type;
/* Constants of the module, set at import. */
typedef struct PfGrainConstants {
    PyObject *runner_main; /* the main function of runners */
    PyObject *s_result;
} PfGrainConstants;
extern PfGrainConstants pf_grain;

#endif
