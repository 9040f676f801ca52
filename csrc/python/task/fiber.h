/* A fiber's object: a task with a stack.  What else a task's object has is in
 * task.h; `scope` and `base` are cancel/'s. */
#ifndef PF_TASK_FIBER_H
#define PF_TASK_FIBER_H

#include "python/core/pyinclude.h"

#include "python/core/list.h"
#include "python/core/thread.h"
#include "python/task/task.h"

typedef struct PfWaiter PfWaiter;

/* Invariants beside those of pf_fiber:
 * - thread is set when the fiber gets a stack or a scheduler, for life.
 * - a scheduled fiber that is not done is referenced by its scheduler.
 * - prev/next link it into thread->live from then until it is done.
 */
struct FiberObject {
    PF_TASK_HEAD
    bool daemon : 1;
    bool parent_set : 1; /* by the user: keep it */
    bool held : 1;       /* running, and the thread holds the last reference
                            until it is left */
    bool is_hub : 1;     /* is running a scheduler's loop */
    bool dying : 1;      /* being unwound by FiberExit */
    bool preferred : 1;  /* began before its turn, for a waiter */
    bool finalized : 1;  /* happens only once in an object's life */
    bool migrated : 1;   /* is away, or runs for one that is: see migrate.h */
    uint32_t number;     /* as an owner of locks; 0: it has never been one */
    union {
        pf_task core; /* what is known of tasks of any kind */
        pf_fiber fiber;
    };
    union {
        PyState *saved;    /* once it has a stack; NULL: that is packed */
        size_t stack_size; /* before; 0: the default; see PF_OWN_STACK */
    };
    PfThread *thread;
    PyObject *context; /* while not running */
    union {
        PyObject *kwargs;     /* before it is entered */
        PyObject *waiting_on; /* what it waits for; for reports */
    };
    PfWaiter *wait;     /* its own wait in a queue; see waitq.h */
    ScopeObject *scope; /* the innermost one entered; owns all of them */
    PyObject *view; /* the object that shows it, or is made of it, or NULL */
    PyObject *target;
    PyObject *args; /* NULL: none */
    PyObject *weakrefs;
    FiberObject *parent; /* raw fibers only */
    FiberObject *prev, *next;
};
_Static_assert(offsetof(FiberObject, core) == offsetof(PfTaskObject, core),
               "a fiber's object begins as every task's");

/* 256 bytes with the collector's header (or, without a GIL, the larger head of
 * objects), also in memory: the allocator's next size is 272. */
#if UINTPTR_MAX > UINT32_MAX && !PF_WITH_ASAN && !PF_WITH_TSAN
_Static_assert(sizeof(FiberObject) <= 224 + sizeof(PyObject),
               "a fiber takes 16 bytes more");
#endif

#define FIBER_OF(fiber_)                                                      \
    ((FiberObject *)((char *)(fiber_) - offsetof(FiberObject, fiber)))

#define CURRENT(t) FIBER_OF((t)->engine.current)

extern PF_ATOMIC(size_t) pf_fiber_default_stack_size; /* bytes */

static inline void
pf_fiber_link(PfThread *t, FiberObject *fiber)
{
    PF_LIST_PUSH(t->live, fiber);
}
static inline void
pf_fiber_unlink(FiberObject *fiber)
{
    if (fiber->thread != NULL) {
        PF_LIST_REMOVE(fiber->thread->live, fiber);
        if (PF_UNLIKELY(fiber->in_reserve)) {
            fiber->thread->in_reserve--;
            fiber->in_reserve = false;
        }
    }
}

/* Who begins a fiber claims it for its thread: without a GIL two may try at
 * once.  False: another one was faster. */
static inline bool
pf_fiber_claim(FiberObject *fiber, PfThread *t)
{
    if (PF_FREE_THREADED) {
        return pf_claim_pointer(&fiber->thread, t);
    }
    return true; /* the caller has looked, and goes on to set it */
}
static inline void
pf_fiber_unclaim(FiberObject *fiber)
{
    if (PF_FREE_THREADED) {
        pf_unclaim_pointer(&fiber->thread);
    }
}
/* To change a fiber that has not begun, so that no other thread begins it
 * meanwhile: 1, until it is unclaimed; 0: it has begun; -1: exception. */
static inline int
pf_fiber_claim_new(FiberObject *fiber)
{
    PfThread *t = pf_thread_this();
    if (t == NULL) {
        return -1;
    }
    return fiber->core.state == PF_NEW && fiber->thread == NULL &&
           pf_fiber_claim(fiber, t);
}

/* In stack_size: the stack will be no other's. */
#define PF_OWN_STACK ((size_t)1 << (sizeof(size_t) * 8 - 1))

/* It is over: the collector may know it again; or somebody gets the tuple of
 * its arguments. */
void pf_fiber_track(FiberObject *fiber);
void pf_fiber_show_args(FiberObject *fiber);

/* Turn such memory back into an object.  It was cleared except for its type
 * (and its reference to the type, if it has one). */
static inline void
pf_fiber_revive(PyObject *op)
{
    _Py_NewReference(op);
    PyObject_GC_Track(op);
}

/* Of the type itself, all fields NULL.  `t`: this thread, or NULL if it has no
 * record yet. */
FiberObject *pf_fiber_alloc(PfThread *t);
/* Of this type, in a copy of the running fiber's context. */
FiberObject *pf_fiber_make(PyTypeObject *type);
void pf_fiber_free(FiberObject *self); /* its memory: it is cleared */
void pf_fibers_free_spare(PfThread *t);

/* What it will run.  Two threads that spawn one function would send the count
 * of references to it to and fro, 35 ns a fiber; so those of scheduled fibers
 * are not counted, where the collector can do without.  A scheduler holds such a
 * fiber until it is done. */
static inline void
pf_fiber_set_target(FiberObject *fiber, PyObject *target)
{
    fiber->uncounted = pystate_is_deferred(target) && !pf_state_is_shut_down();
    fiber->target = fiber->uncounted ? target : Py_NewRef(target);
}
/* From here on as any other reference. */
static inline void
pf_fiber_own_target(FiberObject *fiber)
{
    if (fiber->uncounted) {
        fiber->uncounted = false;
        Py_XINCREF(fiber->target);
    }
}
static inline void
pf_fiber_drop_target(FiberObject *fiber)
{
    PyObject *target = fiber->target;
    fiber->target = NULL;
    if (!fiber->uncounted) {
        Py_XDECREF(target);
    }
    fiber->uncounted = false;
}
/* For reports: NULL where it may be gone. */
static inline PyObject *
pf_fiber_target(const FiberObject *fiber)
{
    return fiber->uncounted && pf_state_is_shut_down() ? NULL : fiber->target;
}

FiberObject *pf_fiber_new(PyObject *target, PyObject *const *args,
                          Py_ssize_t nargs, PyObject *kwnames);

/* How a fiber becomes one of a scheduler's, in three steps:
 * - assigned, by who has made it, on any thread: it will be that scheduler's
 *   and can be cancelled; -1 with FiberError if it has been started before
 * - enrolled, on the scheduler's thread: the run counts it, and it is in the
 *   thread's list
 * - made ready, there as well. */
int pf_fiber_assign(SchedulerObject *s, FiberObject *fiber);
void pf_fiber_unassign(FiberObject *fiber); /* it could not be posted */
void pf_fiber_enroll(SchedulerObject *s, FiberObject *fiber);
void pf_fiber_make_ready(SchedulerObject *s, FiberObject *fiber);
/* The first two, and all three: on the scheduler's thread.  A fiber that is in
 * the queue needs its parent no longer: pf_fiber_start drops that. */
int pf_fiber_enlist(SchedulerObject *s, FiberObject *fiber);
int pf_fiber_start(SchedulerObject *s, FiberObject *fiber);

static inline const PfRare *
pf_fiber_rare(const FiberObject *fiber)
{
    return pf_task_rare((const PfTaskObject *)(const void *)fiber);
}

static inline PfRare *
pf_fiber_rare_of(FiberObject *fiber)
{
    return pf_task_rare_of(PF_TASK(fiber));
}

static inline const PfTaskOps *
pf_fiber_kind(const FiberObject *fiber)
{
    return pf_task_kind(&fiber->core);
}

/* An argument, which C may have left NULL.  Borrowed; NULL with TypeError. */
FiberObject *pf_fiber_expect(PyObject *object);

#endif
