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

/* Reasons for the slow path at the next switch: bits of PfThread.pending. */
enum {
    PF_PENDING_NO_SWITCH = 1 << 0, /* no_switch > 0 */
    PF_PENDING_GC = 1 << 1,        /* PfThread.collecting is set */
    PF_PENDING_POSTS = 1 << 2,     /* other threads have posted: see post.h */
    PF_PENDING_RESERVE = 1 << 3,   /* a fiber has its reserve open */
    PF_PENDING_ASYNCIO = 1 << 4,   /* an inner asyncio loop runs */
};

/* Dead objects that are reused for new ones, at most PF_MOST_SPARE of each
 * kind: calls to the allocator and the collector are a good part of what it
 * costs to make and free an object. The interpreter does the same for its
 * frames and tuples. Builds that look for uses of freed memory reuse nothing.
 */
#if PF_WITH_ASAN || defined(PYFIBER_HARDTEST) || defined(Py_TRACE_REFS)
#define PF_MOST_SPARE 0
#else
#define PF_MOST_SPARE 256
#endif
typedef enum PfSpareKind {
    PF_SPARE_FIBERS,
    PF_SPARE_SCOPES,
    PF_SPARE_GREENLETS,
    PF_SPARE_SMALL_WAITS, /* only memory: see waitq/wait_memory.h */
    PF_SPARE_WAITS,       /* ... for a PfWait: see waitq/waitq.h */
    PF_SPARE_KINDS
} PfSpareKind;
typedef struct PfSpare {
    void *first; /* how they are linked is the kind's affair */
    unsigned count;
} PfSpare;

struct PfThread {
    pf_thread engine; /* first: the engine passes pf_thread pointers */
    PyThreadState *tstate;
    uint64_t tstate_id; /* a later state may have the same address */
    uint32_t pending; /* changed by pf_thread_pend and pf_thread_unpend only */
    uint32_t no_switch; /* depth of no-switch regions */
    const char *no_switch_why;
    PyObject *transfer;          /* what the switch in progress carries */
    bool throwing;               /* `transfer` is an exception to raise */
    uint32_t unwind_depth;       /* no_switch where `unwinder` waits */
    FiberObject *root;           /* the thread's own stack */
    FiberObject *unwinder;       /* waits while the running fiber is unwound */
    pf_fiber *collecting;        /* the fiber the collector runs on; or NULL */
    SchedulerObject *scheduler;  /* the one whose loop runs here; or NULL */
    FiberObject *live;           /* head of the list of unfinished fibers */
    SchedulerObject *schedulers; /* all that were made on this thread */
    pf_scheduler_stats ended;    /* sums of schedulers that are gone */
    FiberObject *left_profiled;  /* the fiber just left: see profiled.h */
    bool zombie_lives_on;        /* `left_profiled` is the engine's zombie,
                                    but has not ended */
    PfTrace *spare_traces;       /* for new fibers: see switch/tracing.h */
    bool keeps_tracing;          /* in a greenlet's switch through the mover */
    PyState root_state;
    unsigned given;             /* stacks given to fibers so far */
    int64_t collection;         /* ns; the last collection to free stacks */
    int64_t collect_after;      /* not earlier again, as it freed nothing */
    bool ending;                /* refuses new schedulers */
    bool lost;                  /* in a fork's child: the parent's thread */
    PF_ATOMIC(uint8_t) watched; /* a stack check is due: see overflow.c */
    size_t in_reserve;          /* suspended fibers whose reserve is open */
    PfThread *next;             /* links all threads */
    PfSpare spare[PF_SPARE_KINDS];
    pf_inbox inbox;   /* requests from other threads: see post.h */
    uintptr_t native; /* the system's number for the thread; see interrupt.h */
};

extern PF_TLS PfThread *pf_thread_current;
extern PF_TLS bool pf_thread_collects; /* the collector runs on this thread */
PfThread *pf_thread_create(void);
static inline PfThread *
pf_thread_this(void)
{
    PfThread *t = pf_thread_current;
    return PF_LIKELY(t != NULL) ? t : pf_thread_create();
}
/* Where to keep an object that has just died. NULL: free it instead. */
static inline PfSpare *
pf_thread_place_to_spare(PfSpareKind kind)
{
    PfThread *t = pf_thread_current;
    return PF_LIKELY(t != NULL && t->spare[kind].count != PF_MOST_SPARE)
               ? &t->spare[kind]
               : NULL;
}
/* Takes all dead objects of a kind, which the caller frees, and lets none be
 * kept from then on. */
static inline void *
pf_thread_empty_spare(PfThread *t, PfSpareKind kind)
{
    void *first = t->spare[kind].first;
    t->spare[kind] = (PfSpare){NULL, PF_MOST_SPARE};
    return first;
}
/* Atomic without a GIL, because other threads set PF_PENDING_POSTS at any
 * time. */
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
/* Forbids switches until pf_thread_no_switch_end(), and may be nested. `why`
 * completes the message "cannot leave this fiber ..."; that of the outermost
 * region is shown. */
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

/* Notes that the collector begins or ends on the running fiber's stack.
 * Greenlets may still switch meanwhile; only this fiber must not be left. */
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

/* pf_thread_current, for signal handlers: a plain read of a pointer. */
PfThread *pf_thread_peek(void);

/* All threads, linked by `next`, and the lock of that list. A thread that
 * holds the lock may also follow thread->scheduler, even without the GIL: a
 * scheduler takes the lock once more before it is freed. */
extern PfThread *pf_threads;
extern pf_mutex pf_threads_lock;

#endif
