/* fiber/: one fiber and what it does: runs, is left and gone back to, waits,
 * ends.
 *
 *   fiber.h     the object and the Fiber type
 *   switch.h    leaving one for another
 *   unwind.h    ending one that nobody needs any more
 *   attend.h    what has to be done before the running one is left
 *   wait.h      park, sleep, yield, join
 *   waitq.h     waiting in line, what primitives are made of
 *   deadline.h  time-outs
 *   hub.h       the scheduler's object, as far as fibers know it
 *   outcome.h   results and failures; unseen.h: failures nobody looks at
 *   call.h      functions that are given to run(), spawn() and their like
 *   inspect.h   attributes, for reports and debuggers
 *   overflow.h  what the handler of faults asks
 *
 * Called by every room above.  It owns pf_fiber's host fields and everything
 * in FiberObject but `scope` and `base`, which are cancel/'s.
 */
#ifndef PF_FIBER_H
#define PF_FIBER_H

#include "engine/core/scheduler.h"
#include "python/core/list.h"
#include "python/core/compiler.h"
#include "python/core/thread.h"

typedef struct FiberObject FiberObject;
typedef struct SchedulerObject SchedulerObject;
typedef struct PfWaiter PfWaiter;
typedef struct ScopeObject ScopeObject;
typedef struct PfNode PfNode;
typedef struct PfSlot PfSlot;
typedef struct PfUnseen PfUnseen;

/* Bits of pf_fiber.host_bits */
enum {
    PF_F_DAEMON = 1 << 0,
    PF_F_SCHEDULED = 1 << 1,  /* start() was called: the scheduler's */
    PF_F_PARENT_SET = 1 << 2, /* by the user: keep it */
    PF_F_PERMIT = 1 << 3,     /* unpark() came before park() */
    PF_F_CANCEL = 1 << 4,     /* raise Cancelled at every park point: the
                                 fiber's innermost scope is cancelled, by
                                 itself or by what is around it */
    PF_F_LOOKED_AT = 1 << 5,  /* somebody saw the failure */
    PF_F_HELD = 1 << 6,       /* running, and the thread holds the last
                                    reference until it is left */
    PF_F_DROPPED = 1 << 7,    /* last reference dropped on another thread */
    PF_F_FINALIZED = 1 << 8,  /* as an object is once in its life */
    PF_F_IN_PARK = 1 << 9,    /* waits in park(): unpark() wakes it */
    PF_F_HUB = 1 << 10,       /* runs a scheduler's loop just now */
    PF_F_DYING = 1 << 11,     /* being unwound by FiberExit */
    PF_F_ENTERED = 1 << 12,   /* target has been called */
    PF_F_CANCELLED = 1 << 13, /* cancel() was called on the fiber itself */
    PF_F_GROUPED = 1 << 14,   /* a TaskGroup waits for its end */
    PF_F_WATCHED = 1 << 15,   /* ... and does not mind its failure */
    PF_F_PREFERRED = 1 << 16, /* it began before its turn, as somebody waits */
    PF_F_TRACKED = 1 << 23,   /* an explorer knows it; see schedule.h */
    PF_F_GREENLET = 1 << 21,  /* the stack of a greenlet: see greenlet.h */
    PF_F_PINNED = 1 << 22,    /* its thread is gone, its stack must stay */
};
/* In the upper bits: how often Cancelled was raised without effect. */
#define PF_F_DELIVERIES_SHIFT 24

/* ... and of entries of the ready queue that have no stack: see grain.h. */
enum {
    PF_F_GRAIN = 1 << 17,
    PF_F_ASKER = 1 << 18,
    PF_F_POOL = 1 << 19,
    PF_F_RUNNER = 1 << 20, /* a fiber that steps grains */
};
#define PF_STACKLESS_BITS ((uint32_t)(PF_F_GRAIN | PF_F_ASKER | PF_F_POOL))

/* pf_fiber.host_byte of a finished fiber */
enum {
    PF_OUTCOME_NONE,
    PF_OUTCOME_OK,
    PF_OUTCOME_FAILED,
    PF_OUTCOME_CANCELLED
};

/* Who waits, in order; see waitq.h. */
typedef struct PfWaitq {
    PfNode *head;
} PfWaitq;

/* What few fibers have. */
typedef struct PfRare {
    PyObject *callbacks; /* list, or NULL */
    PyObject *cancel;    /* (reason, by) of PF_F_CANCELLED, or NULL */
    PfSlot *slots;       /* in locals */
    /* Of a generator's body, who waits for what it emits, and the other way
     * round; see generator.c. */
    FiberObject *puller, *pulled;
    PfUnseen *unseen; /* it has failed: see unseen.c */
} PfRare;

/* Invariants beside those of pf_fiber:
 * - thread is set when the fiber gets a stack or a scheduler, for life.
 * - a scheduled fiber that is not done is referenced by its scheduler.
 * - prev/next link it into thread->live from then until it is done.
 */
struct FiberObject {
    PyObject_HEAD
    union {
        pf_task core; /* what is known of tasks of any kind */
        pf_fiber fiber;
    };
    union {
        PyState *saved;    /* once it has a stack */
        size_t stack_size; /* before; 0: the default */
    };
    PfThread *thread;
    PyObject *context; /* while not running */
    union {
        PyObject *kwargs;     /* before it is entered */
        PyObject *waiting_on; /* while it waits; for reports */
    };
    PyObject *value; /* permit's value; result or exception when done */
    PyObject *weakrefs;
    PyObject *target;
    PyObject *args; /* NULL: none */
    PyObject *name;
    FiberObject *parent; /* raw fibers only */
    PyObject *greenlet;  /* its view, or whose stack it is, or NULL */
    PfWaitq waiters;     /* who waits for its end */
    PfWaiter *wait;      /* its own wait in a queue; see waitq.h */
    PfRare *rare;        /* NULL: nothing of that; see pf_rare */
    ScopeObject *scope;  /* the innermost it is in; owns all it is in */
    ScopeObject *base;   /* the one it was born in; NULL: the run's */
    FiberObject *base_prev, *base_next; /* born there, too */
    FiberObject *prev, *next;
};

/* 256 bytes with the collector's head, and so they are in memory: the next
 * size that the allocator has is 272. */
#if UINTPTR_MAX > UINT32_MAX && !PF_WITH_ASAN && !PF_WITH_TSAN
_Static_assert(sizeof(FiberObject) <= 240, "a fiber takes 16 bytes more");
#endif

#define FIBER_OF(fiber_)                                                      \
    ((FiberObject *)((char *)(fiber_) - offsetof(FiberObject, fiber)))

/* The object that a task of any kind is in: all begin alike. */
static inline PyObject *
pf_object_of(pf_task *task)
{
    return (PyObject *)(void *)((char *)task - offsetof(FiberObject, core));
}

#define CURRENT(t) FIBER_OF((t)->engine.current)

extern PyTypeObject *pf_fiber_type;

extern size_t pf_default_stack_size; /* default, bytes */

static inline void
pf_live_link(PfThread *t, FiberObject *fiber)
{
    PF_LIST_PUSH(t->live, fiber);
}
static inline void
pf_live_unlink(FiberObject *fiber)
{
    if (fiber->thread != NULL) {
        PF_LIST_REMOVE(fiber->thread->live, fiber);
    }
}

extern PyType_Spec pf_fiber_spec;
void pf_fiber_type_ready(PyTypeObject *type);
int pf_fiber_add_callback(FiberObject *fiber, PyObject *fn); /* 0 or -1 */

int pf_fiber_init(PyObject *op, PyObject *args, PyObject *kwds);

/* Fibers, scopes and greenlets that have died are kept for the next ones, so many of
 * each: the allocator and the collector are a good part of what making and
 * freeing one costs, as for the interpreter's own frames and tuples.  Not where
 * somebody looks for uses of freed memory. */
#if PF_WITH_ASAN || defined(PYFIBER_HARDTEST) || defined(Py_TRACE_REFS)
#define PF_MOST_SPARE 0
#else
#define PF_MOST_SPARE 256
#endif
/* Such a one, cleared but for its type (to which it kept its reference, if it
 * has one), is an object again. */
static inline void
pf_revive(PyObject *op)
{
    _Py_NewReference(op);
    PyObject_GC_Track(op);
}

/* Of the type itself, all fields NULL. */
FiberObject *pf_fiber_alloc(void);
void pf_fibers_free_spare(void);

FiberObject *pf_fiber_new(PyObject *target, PyObject *const *args,
                          Py_ssize_t nargs, PyObject *kwnames);
int pf_fiber_start(SchedulerObject *s, FiberObject *fiber);
void pf_fiber_make_ready(SchedulerObject *s,
                         FiberObject *fiber); /* enlisted */
int pf_fiber_enlist(SchedulerObject *s, FiberObject *fiber);

/* To read: all NULL if it has nothing of that. */
extern const PfRare pf_nothing_rare;
static inline const PfRare *
pf_rare(const FiberObject *fiber)
{
    return PF_LIKELY(fiber->rare == NULL) ? &pf_nothing_rare : fiber->rare;
}

/* To write; NULL with MemoryError. */
PfRare *pf_rare_of(FiberObject *fiber);

#endif
