/* The record of a Python thread that uses fibers: see thread.c. */
#ifndef PF_THREAD_H
#define PF_THREAD_H

#include "python/core/pyinclude.h"

#include "engine/base/mutex.h"
#include "engine/core/scheduler.h"
#include "python/core/compiler.h"
#include "python/core/state.h"
#include "python/core/tstate.h"

typedef struct FiberObject FiberObject;
typedef struct SchedulerObject SchedulerObject;
typedef struct PfThread PfThread;
typedef struct PfTrace PfTrace;

/* Reasons for the slow path at the next switch. */
enum {
    PF_PENDING_NO_SWITCH = 1 << 0, /* no_switch > 0 */
    PF_PENDING_GC = 1 << 1,        /* a fiber of ours is `collecting` */
    PF_PENDING_POSTS = 1 << 2,     /* other threads have posted: see post.h */
    PF_PENDING_RESERVE = 1 << 3,   /* a fiber's reserve is open */
    PF_PENDING_ASYNCIO = 1 << 4,   /* an inner loop of asyncio's is inside */
};

/* Objects that have died and are kept for the next ones, so many of each kind:
 * the allocator and the collector are a good part of what making and freeing
 * one costs, as for the interpreter's own frames and tuples.  Not where somebody
 * looks for uses of freed memory. */
#if PF_WITH_ASAN || defined(PYFIBER_HARDTEST) || defined(Py_TRACE_REFS)
#define PF_MOST_SPARE 0
#else
#define PF_MOST_SPARE 256
#endif
typedef enum PfSpareKind {
    PF_SPARE_FIBERS,
    PF_SPARE_SCOPES,
    PF_SPARE_GREENLETS,
    PF_SPARE_SMALL_WAITS, /* memory only: see waitq/wait_memory.h */
    PF_SPARE_WAITS,       /* ... for a PfWait: see waitq/waitq.h */
    PF_SPARE_KINDS
} PfSpareKind;
typedef struct PfSpare {
    void *first; /* linked as the kind does it */
    unsigned count;
} PfSpare;

struct PfThread {
    pf_thread engine; /* first: the engine hands us pf_thread pointers */
    PyThreadState *tstate;
    uint64_t tstate_id; /* another state may later have its address */
    uint32_t pending; /* changed by pf_thread_pend and pf_thread_unpend only */
    uint32_t no_switch; /* depth of no-switch regions */
    const char *no_switch_why;
    PyObject *transfer;          /* the value of the present switch */
    bool throwing;               /* ... which is an exception to raise */
    FiberObject *root;           /* the thread's own stack */
    FiberObject *unwinder;       /* of the running fiber, if that is DYING */
    pf_fiber *collecting;        /* the collector runs on it; or NULL */
    SchedulerObject *scheduler;  /* whose loop runs on this thread, or NULL */
    FiberObject *live;           /* head of the list of unfinished fibers */
    SchedulerObject *schedulers; /* made on this thread */
    pf_scheduler_stats ended;    /* counted by those that are gone */
    FiberObject *left_profiled;  /* by the present switch: see profiled.h */
    bool zombie_lives_on;        /* ... which alone made a zombie of it */
    PfTrace *spare_traces;       /* for new fibers: see switch/tracing.h */
    bool keeps_tracing;          /* of a greenlet's switch through the mover */
    PyState root_state;
    unsigned given;             /* stacks so far */
    int64_t collection;         /* ns that the last one for stacks took */
    int64_t collect_after;      /* it freed none: no other before this time */
    bool ending;                /* no new schedulers */
    bool lost;                  /* in the child of a fork: another's */
    PF_ATOMIC(uint8_t) watched; /* see overflow.c */
    size_t in_reserve;          /* fibers left with their reserve open */
    PfThread *next;             /* all threads */
    PfSpare spare[PF_SPARE_KINDS];
    pf_inbox inbox;   /* what other threads want: see post.h */
    uintptr_t native; /* the system's name of it; see interrupt.h */
};

extern PF_TLS PfThread *pf_thread_current;
extern PF_TLS bool pf_thread_collects; /* the collector runs here */
PfThread *pf_thread_create(void);      /* NULL with an exception */
static inline PfThread *
pf_thread_this(void)
{
    PfThread *t = pf_thread_current;
    return PF_LIKELY(t != NULL) ? t : pf_thread_create();
}
/* Where an object that has just died may be kept; NULL: it may not. */
static inline PfSpare *
pf_thread_place_to_spare(PfSpareKind kind)
{
    PfThread *t = pf_thread_current;
    return PF_LIKELY(t != NULL && t->spare[kind].count != PF_MOST_SPARE)
               ? &t->spare[kind]
               : NULL;
}
/* They are going to be freed; no others are kept from then on. */
static inline void *
pf_thread_empty_spare(PfThread *t, PfSpareKind kind)
{
    void *first = t->spare[kind].first;
    t->spare[kind] = (PfSpare){NULL, PF_MOST_SPARE};
    return first;
}
/* Other threads set PF_PENDING_POSTS: without a GIL at any time. */
static inline void
pf_thread_pend(PfThread *t, uint32_t reasons)
{
    if (PF_FREE_THREADED) {
        pf_fetch_or32(&t->pending, reasons);
    } else {
        t->pending |= reasons;
    }
}
static inline void
pf_thread_unpend(PfThread *t, uint32_t reasons)
{
    if (PF_FREE_THREADED) {
        pf_fetch_and32(&t->pending, ~reasons);
    } else {
        t->pending &= ~reasons;
    }
}
/* Between the two calls no switch is allowed. */
static inline void
pf_thread_no_switch_begin(PfThread *t, const char *why)
{
    if (t->no_switch++ == 0) {
        t->no_switch_why = why;
    }
    pf_thread_pend(t, PF_PENDING_NO_SWITCH);
}
static inline void
pf_thread_no_switch_end(PfThread *t)
{
    if (--t->no_switch == 0) {
        pf_thread_unpend(t, PF_PENDING_NO_SWITCH);
    }
}

/* The collector begins or ends on the running fiber's stack.  Greenlets may
 * still switch meanwhile; only this fiber must not be left. */
static inline void
pf_thread_mark_collector(PfThread *t, bool runs)
{
    t->collecting = runs ? t->engine.current : NULL;
    if (runs) {
        pf_thread_pend(t, PF_PENDING_GC);
    } else {
        pf_thread_unpend(t, PF_PENDING_GC);
    }
}

int pf_thread_module_init(PyObject *module);

/* The start is a plain pointer read for signal handlers. */
PfThread *pf_thread_peek(void);

/* All, by `next`.  Who holds the lock may also follow thread->scheduler, even
 * without the GIL: a scheduler passes it before it is freed. */
extern PfThread *pf_threads;
extern pf_mutex pf_threads_lock;

#endif
