/* A fiber's object: a task with a stack, and how one is made and becomes a
 * scheduler's. task.h has what else is in a task's object; `scope` and `base`
 * belong to cancel/. */
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
    bool parent_set : 1; /* set by the user: never replaced */
    bool held : 1;       /* running, and the thread holds the last reference
                            until the fiber is left */
    bool is_hub : 1;     /* runs a scheduler's loop */
    bool dying : 1;      /* being unwound by FiberExit */
    bool preferred : 1;  /* began before its turn, for a join() */
    bool finalized : 1;  /* tp_finalize has run, as it does only once */
    bool migrated : 1;   /* runs elsewhere, or is a proxy: see migrate.h */
    uint32_t number;     /* as an owner of locks; 0: never was one */
    union {
        pf_task core; /* the part that all kinds of tasks have */
        pf_fiber fiber;
    };
    union {
        PyState *saved;    /* once the fiber has a stack; NULL: packed */
        size_t stack_size; /* before that; 0: the default; see PF_OWN_STACK */
    };
    PfThread *thread;
    PyObject *context; /* NULL while the fiber runs */
    union {
        PyObject *kwargs;     /* until its function is called */
        PyObject *waiting_on; /* for reports */
    };
    PfWaiter *wait;     /* the fiber's wait in a queue; see waitq.h */
    ScopeObject *scope; /* the innermost; owned, with those around it */
    PyObject *view; /* the object that shows the fiber or embeds it, or NULL */
    PyObject *target;
    PyObject *args; /* NULL: none */
    PyObject *weakrefs;
    FiberObject *parent; /* raw fibers only */
    FiberObject *prev, *next;
};
_Static_assert(offsetof(FiberObject, core) == offsetof(PfTaskObject, core),
               "a fiber's object begins as every task's");

/* 256 bytes with the collector's header (or, without a GIL, the larger object
 * header), which is also what the allocator takes: its next size is 272. */
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

/* Claims a fiber that is about to begin for thread `t`: without a GIL two
 * threads may try at once. False: another thread was faster. */
static inline bool
pf_fiber_claim(FiberObject *fiber, PfThread *t)
{
    if (PF_FREE_THREADED) {
        return pf_claim_pointer(&fiber->thread, t);
    }
    return true; /* the caller has checked, and sets it */
}
static inline void
pf_fiber_unclaim(FiberObject *fiber)
{
    if (PF_FREE_THREADED) {
        pf_unclaim_pointer(&fiber->thread);
    }
}
/* Claims a fiber that has not begun, to change it while no other thread can
 * begin it. 1: claimed, until pf_fiber_unclaim(); 0: it has begun; -1:
 * exception. */
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

/* In stack_size: the fiber shares its stack with no other. */
#define PF_OWN_STACK ((size_t)1 << (sizeof(size_t) * 8 - 1))

/* Make the collector track a fiber that is over again; or only the tuple of
 * its arguments, because other code gets that. */
void pf_fiber_track(FiberObject *fiber);
void pf_fiber_show_args(FiberObject *fiber);

/* Turns the memory of a dead object back into an object. All of it was cleared
 * except for the type (and the reference to the type, if there is one). */
static inline void
pf_fiber_revive(PyObject *op)
{
    _Py_NewReference(op);
    PyObject_GC_Track(op);
}

/* A new object of the type Fiber itself, all fields NULL. `t` is this thread,
 * or NULL if it has no record yet. NULL with an exception. */
FiberObject *pf_fiber_alloc(PfThread *t);
/* A new fiber of this type, with a copy of the running fiber's context, if
 * that has one. NULL with an exception. */
FiberObject *pf_fiber_make(PyTypeObject *type);
void pf_fiber_free(FiberObject *self); /* frees a cleared fiber */
void pf_fibers_free_spare(PfThread *t);

/* Sets what the fiber will run. If two threads spawn the same function, its
 * reference count moves to and fro between processors, 35 ns a fiber; so
 * scheduled fibers do not count this reference, where the collector can do
 * without. The target stays alive: a scheduler holds such a fiber until it is
 * done. */
static inline void
pf_fiber_set_target(FiberObject *fiber, PyObject *target)
{
    fiber->uncounted = pystate_is_deferred(target) && !pf_state_is_shut_down();
    fiber->target = fiber->uncounted ? target : Py_NewRef(target);
}
/* Makes the fiber count its reference to the target from here on. */
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
/* The target, for reports: NULL where it may be gone. */
static inline PyObject *
pf_fiber_target(const FiberObject *fiber)
{
    return fiber->uncounted && pf_state_is_shut_down() ? NULL : fiber->target;
}

FiberObject *pf_fiber_new(PyObject *target, PyObject *const *args,
                          Py_ssize_t nargs, PyObject *kwnames);

/* How a fiber becomes a scheduler's, in three steps:
 * - assign, on the thread that has made the fiber: it will belong to that
 *   scheduler and can be cancelled; -1 with FiberError if it has been started
 *   before
 * - enroll, on the scheduler's thread: the run counts it, and it enters the
 *   thread's list
 * - make ready, there as well. */
int pf_fiber_assign(SchedulerObject *s, FiberObject *fiber);
void pf_fiber_unassign(FiberObject *fiber); /* undoes assign */
void pf_fiber_enroll(SchedulerObject *s, FiberObject *fiber);
void pf_fiber_make_ready(SchedulerObject *s, FiberObject *fiber);
/* The first two steps, and all three, on the scheduler's thread. 0, or -1 with
 * FiberError. pf_fiber_start also drops the parent, which a fiber in the queue
 * does not need. */
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

/* Checks that an argument, which C code may have left NULL, is a Fiber.
 * Borrowed; NULL with TypeError. */
FiberObject *pf_fiber_expect(PyObject *object);

#endif
