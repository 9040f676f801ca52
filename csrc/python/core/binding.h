/* What the files of the binding share: the objects, the thread's record, and
 * who defines what.
 *
 *   thread.c     one PfThread per Python thread: root fiber, attention flags
 *   switch.c     the transfer path: switch, throw, first run, end
 *   unwind.c     a suspended fiber that nobody needs any more
 *   chain.c      long chains of objects that die together
 *   wait.c       park, sleep, yield, join, result
 *   cancel.c     cancellation: the tree of scopes and fibers, Cancelled
 *   scope.c      the CancelScope type
 *   scope_functions.c  timeout, move_on_after, shield
 *   group.c      the TaskGroup type
 *   waitq.c      waiting in line, what primitives are made of
 *   lock.c semaphore.c event.c condition.c queue.c channel.c select.c local.c
 *                between fibers, one type or two in each
 *   queue_hooks.c  what subclasses of Queue may do their way
 *   hooked.c     ... and how their items and permits stay in step
 *   case.c       what select() chooses from, and its answers: see select.h
 *   call.c       what run(), spawn() and their like are given to call
 *   arguments.c  what methods take, and what types are made of
 *   list.h       lists through prev and next
 *   fiber.c      the Fiber type
 *   fiber_init.c what it is made with
 *   generator.c  functions that emit values, as iterators
 *   import.c     modules that are imported when they are first needed
 *   outcome.c    result() of a finished one
 *   unseen.c     failures that nobody looks at
 *   latch.c      what futures and pmap() wait on
 *   worker.c     threads that run functions for fibers
 *   limiter.c    how many of them at a time; to_thread()
 *   unbroken.c   steps of the façade that must not be left half-way
 *   portal.c     how threads wait for what they have called in a run
 *   inspect.c    its attributes, for reports and debuggers
 *   grain.h      generators stepped by the loop: the files grain*.c
 *   loop.c       the scheduler's loop: who runs, waiting, the end of a run
 *   scheduler.c  the Scheduler type
 *   schedule.h   runs under test: explored schedules, virtual time
 *   signals.c    Ctrl-C and waking the loop for signals
 *   overflow.c   what the fault handler asks
 *   capsule.c    the C API table
 *   greenlet*.c  greenlet's API on fibers: see greenlet.h
 *   module.c     module functions and set-up
 */
#ifndef PF_BINDING_H
#define PF_BINDING_H

#include "engine/core/scheduler.h"
#include "python/core/list.h"
#include "python/core/tstate.h"

#if defined(__GNUC__)
#define PF_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define PF_LIKELY(x) __builtin_expect(!!(x), 1)
#else
#define PF_UNLIKELY(x) (x)
#define PF_LIKELY(x) (x)
#endif

/* glibc keeps spare static TLS for libraries loaded late; elsewhere (musl)
 * the initial-exec model would make the library impossible to load. */
#if defined(__GLIBC__)
#define PF_TLS _Thread_local __attribute__((tls_model("initial-exec")))
#elif defined(_MSC_VER)
#define PF_TLS __declspec(thread)
#else
#define PF_TLS _Thread_local
#endif

typedef struct FiberObject FiberObject;
typedef struct SchedulerObject SchedulerObject;
typedef struct PfThread PfThread;
typedef struct PfWaiter PfWaiter;
typedef struct ScopeObject ScopeObject; /* scope.h */
typedef struct PfNode PfNode;
typedef struct PfSlot PfSlot;
typedef struct PfUnseen PfUnseen; /* unseen.h */
typedef struct GrainObject GrainObject;
typedef struct GrainMember GrainMember;
typedef struct PfGrains PfGrains;

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

/* ... and of entries of the ready queue that have no stack: see grain.h.  The
 * objects they are in begin as a FiberObject does, so FIBER_OF() gives those. */
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

/* Bits of pf_fiber.posted */
enum {
    PF_POST_UNPARK = 1 << 0,
    PF_POST_WAKE = 1 << 1, /* look whether your wait is over; see waitq.h */
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
    pf_fiber core;
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

/* Reasons for the slow path at the next switch. */
enum {
    PF_ATT_NO_SWITCH = 1 << 0, /* no_switch > 0 */
    PF_ATT_GC = 1 << 1,        /* a fiber of ours is `collecting` */
    PF_ATT_DROPPED = 1 << 2,   /* fibers to unwind: dropped by other threads */
    PF_ATT_RESERVE = 1 << 3,   /* the running fiber's reserve is open */
};

struct PfThread {
    pf_thread engine; /* first: the engine hands us pf_thread pointers */
    PyThreadState *tstate;
    uint64_t tstate_id; /* another state may come to lie where it was */
    uint32_t attention;
    uint32_t no_switch; /* depth of regions that must not be left */
    const char *no_switch_why;
    PyObject *transfer;          /* what travels with the switch under way */
    bool throwing;               /* ... is an exception to raise */
    FiberObject *root;           /* the thread's own stack */
    FiberObject *unwinder;       /* of the running fiber, if that is DYING */
    FiberObject *collecting;     /* the collector runs on it; or NULL */
    SchedulerObject *scheduler;  /* whose loop runs on this thread, or NULL */
    FiberObject *live;           /* head of the list of unfinished fibers */
    SchedulerObject *schedulers; /* made on this thread */
    PyObject *green_trace;       /* of greenlet.settrace(), or NULL */
    PyObject *green_origin;      /* who made the switch under way, for that */
    PyState root_state;
    unsigned given;             /* stacks so far */
    bool ending;                /* no new schedulers */
    PF_ATOMIC(uint8_t) watched; /* see overflow.c */
    PfThread *next;             /* all threads */
};

struct SchedulerObject {
    PyObject_HEAD
    PyObject *weakrefs;
    pf_scheduler core;
    PfThread *thread;               /* NULL once that has ended */
    SchedulerObject *prev, *next;   /* in thread->schedulers */
    Py_ssize_t alive;               /* fibers not done */
    Py_ssize_t foreground;          /* of them, not daemon */
    Py_ssize_t unread;              /* messages that hold it */
    FiberObject *main;              /* of run(fn) */
    PyObject *fatal;                /* exception that ends the run */
    PyObject *on_unhandled;         /* "log", "raise", a function; NULL: log */
    PyObject *errors;               /* list: (name, exception) to raise */
    PfUnseen *unseen, *last_unseen; /* failures; see unseen.c */
    PfGrains *grains;               /* NULL: it has never had any */
    PyThreadState *blocked;
    struct PfExplorer *explorer; /* during a run under test, or NULL */
    PyObject *clock;             /* virtual, or NULL; see schedule.h */
    bool running;                /* inside run or run_once */
    bool closed;
    bool ending;           /* everything is cancelled, new fibers as well */
    bool hosted;           /* another loop waits for fileno() */
    bool watches_signals;  /* they end its wait */
    int interrupts;        /* Ctrl-C's seen */
    bool open;             /* the engine's part is initialised */
    PyObject *watch;       /* to be called when an interrupted run ends */
    int64_t stalled_since; /* nobody but another thread could help, */
    uint64_t stalled_at;   /* ... and this had happened by then */
    bool stall_told;
    bool inherited;         /* ran when this process was forked: see loop.c */
    bool lent;              /* its hub is a fiber of `outer`, until it ends */
    SchedulerObject *outer; /* the inherited one that it runs inside of */
};

#define FIBER_OF(core_)                                                       \
    ((FiberObject *)((char *)(core_) - offsetof(FiberObject, core)))
#define SCHEDULER_OF(core_)                                                   \
    ((SchedulerObject *)((char *)(core_) - offsetof(SchedulerObject, core)))
#define CURRENT(t) FIBER_OF((t)->engine.current)

/* One interpreter per process (module.c refuses others), so plain globals,
 * written once at import under the import lock. */
typedef struct PfGlobals {
    PyTypeObject *fiber_type;
    PyTypeObject *scheduler_type;
    PyTypeObject *scope_type;
    PyTypeObject *group_type;
    PyTypeObject *clock_type; /* for tests: schedule.h */
    PyTypeObject *grain_type, *pool_type, *notice_type, *until_type;
    PyObject *runner_main; /* what the fibers that step grains run */
    PyObject *fiber_error;
    PyObject *fiber_exit;
    PyObject *cancelled;
    PyObject *deadlock_error;
    PyObject *fiber_cancelled; /* at first need: see outcome.c */
    /* Given by the façade: see _engine._set_hooks */
    PyObject *make_outcome, *log_failure, *deadlock_text, *stack_summary;
    PyObject *log_deaf, *log_stall, *unhandled, *group_text, *interrupted;
    /* interned */
    PyObject *s_run, *s_park, *s_sleep, *s_yield, *s_result;
    PyObject *s_failed, *s_log, *s_raise, *s_on_unhandled;
    PyObject *why_deadline, *why_body_ended; /* as of pf_reason_and_author */
    /* pyfiber.grains': see _engine._set_grain_hooks */
    PyObject *grain_ready, *grain_sleeping, *grain_stopped;
    PyObject *grain_join_elsewhere, *policy_failed;
    size_t stack_size;    /* default, bytes */
    int64_t stall_limit;  /* nanoseconds; 0: none */
    uint32_t last_number; /* given to a fiber; see PfOwner */
    PfThread *threads;
    uint32_t exploring; /* runs under test just now; see schedule.h */
    bool shut_down;     /* the interpreter is going away: switch no more */
} PfGlobals;
extern PfGlobals pf;

/* --- thread.c --- */
extern PF_TLS PfThread *pf_tls_thread;
extern PF_TLS bool pf_tls_collecting; /* the collector runs here */
PfThread *pf_thread_create(void);     /* NULL with an exception */
static inline PfThread *
pf_this_thread(void)
{
    PfThread *t = pf_tls_thread;
    return PF_LIKELY(t != NULL) ? t : pf_thread_create();
}
/* The code between the two must not be left for another fiber. */
static inline void
pf_no_switch_begin(PfThread *t, const char *why)
{
    if (t->no_switch++ == 0) {
        t->no_switch_why = why;
    }
    t->attention |= PF_ATT_NO_SWITCH;
}
static inline void
pf_no_switch_end(PfThread *t)
{
    if (--t->no_switch == 0) {
        t->attention &= ~(uint32_t)PF_ATT_NO_SWITCH;
    }
}
/* Deal with t->attention.  0, or -1 with FiberError. */
int pf_attend(PfThread *t);
/* Parts of that. */
void pf_close_reserve(PfThread *t);
void pf_unwind_dropped(PfThread *t);
/* As pf_unwind_dropped() for this thread, between pieces of its work: it may
 * never switch, which is where that is called otherwise. */
void pf_unwind_left_here(void);
int pf_thread_module_init(PyObject *module);
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
/* The start is a plain pointer read for signal handlers. */
PfThread *pf_thread_peek(void);

/* PyObject_CallNoArgs(), which asks a thread-local who runs and looks twice at
 * what a function returns; the function itself takes care of both. */
static inline PyObject *
pf_call(PyObject *callable)
{
    return PyFunction_Check(callable)
               ? ((PyFunctionObject *)callable)
                     ->vectorcall(callable, NULL, 0, NULL)
               : PyObject_CallNoArgs(callable);
}

/* --- switch.c --- */
extern const pf_host pf_python_host;
/* `value` is borrowed. */
PyObject *pf_fiber_switch(FiberObject *target, PyObject *value);
PyObject *pf_fiber_throw(FiberObject *target, PyObject *exc);
/* `target` is known to be one that may be entered just now, and nothing is to
 * be attended to. */
PyObject *pf_fiber_give(PfThread *t, FiberObject *target, PyObject *value);
/* A fiber ends without having run. `exc` stolen or NULL. */
void pf_fiber_end(PfThread *t, FiberObject *fiber, PyObject *result);
/* From here on the fiber belongs to this thread.  0, or -1 with MemoryError; or
 * PF_LOOK_AGAIN, once, after garbage has been collected for want of a stack:
 * code has run, so whatever the caller knew of the fiber is to be looked at
 * again.  `*collected` is false at the first call. */
int pf_fiber_give_stack(PfThread *t, FiberObject *fiber, bool *collected);
#define PF_LOOK_AGAIN 2
/* The same for a fiber that nobody else has seen yet: 0 or -1. */
static inline int
pf_fiber_give_stack_unseen(PfThread *t, FiberObject *fiber)
{
    bool collected = false;
    int rc;
    do {
        rc = pf_fiber_give_stack(t, fiber, &collected);
    } while (PF_UNLIKELY(rc == PF_LOOK_AGAIN));
    return rc;
}
void pf_fiber_take_stack(FiberObject *fiber);
PyObject *pf_fiber_leave_nothing(PfThread *t, FiberObject *self,
                                 PyObject *result);
void pf_fiber_forget_schedule(FiberObject *fiber);
void pf_on_switch(pf_thread *thread, pf_fiber *from, pf_fiber *to);
PyObject *pf_value_in_parent(PfThread *t);
/* An instance of an exception class, or the instance itself; new reference. */
PyObject *pf_exception_instance(PyObject *exc);
void pf_call_back(PyObject *self, PyObject *callback);

/* --- unwind.c --- */
/* Raise FiberExit in a suspended fiber of this thread and let it run to its
 * end: its code cannot leave it meanwhile.  The caller has a reference.
 * Nothing happens to one that has been entered since the caller looked. */
void pf_fiber_unwind(PfThread *t, FiberObject *fiber);
/* Is it suspended, and by nothing that must come back to it first? */
bool pf_fiber_can_unwind(FiberObject *fiber);
/* Before a fiber that is perhaps garbage is unwound. */
void pf_fiber_renew_context(FiberObject *fiber);

/* --- wait.c --- */
/* 0: woken; 1: timed out; -1: an exception is set (Cancelled, or FiberError
 * where the caller must not wait).  `what` is for reports. */
int pf_wait(PfThread *t, int64_t deadline, PyObject *what);
/* The same, but a cancellation is not raised, for waits whose end must be seen:
 * a pf_wake, and the caller looks again; or -1. */
int pf_wait_anyhow(PfThread *t, int64_t deadline, PyObject *what);
/* Wait until *granted is set, which beats a cancellation and the deadline.
 * Results as pf_wait; -1 with *granted set: unwound at the same time. */
int pf_wait_granted(PfThread *t, PfNode *const *granted, int64_t deadline,
                    PyObject *what);
/* The same, but cancellation has to wait until it is over. */
int pf_wait_granted_shielded(PfThread *t, PfNode *const *granted,
                             PyObject *what);
int pf_join(PfThread *t, FiberObject *target, int64_t deadline);
int pf_refuse_join(PfThread *t, FiberObject *target);
/* 1: woken or permit given; 0: a permit was there; -1: exception. */
int pf_fiber_unpark(FiberObject *fiber, PyObject *value);
/* There is a permit already.  Without a value it says no more the second time;
 * a value is lost, which a warning tells.  0, or -1 with that as an exception;
 * the other one is for where nobody can catch it. */
int pf_second_permit(PyObject *op, PyObject *value);
void pf_tell_second_permit(PyObject *op, PyObject *value);
PyObject *pf_park_value(PfThread *t, int64_t deadline);
int pf_yield_now(PfThread *t);
/* An enlisted fiber runs, then the running one again; -1: it is unwound. */
int pf_fiber_run_now(PfThread *t, FiberObject *fresh);
int pf_sleep_until(PfThread *t, int64_t deadline);
void pf_on_posted(pf_scheduler *s, pf_fiber *core, unsigned bits);
/* A timeout argument in seconds to a deadline; None: PF_NEVER. 0 or -1. */
int pf_deadline(PyObject *timeout, int64_t *deadline);
int pf_deadline_by(SchedulerObject *s, PyObject *timeout, int64_t *deadline);
/* Numbers; they are converted before a state is looked at.  0 or -1. */
int pf_real(PyObject *number, const char *what, double *value); /* no NaN */
int pf_seconds(PyObject *number, const char *what, int64_t *ns);
int pf_length(PyObject *timeout, int64_t *ns); /* of time; None: PF_NEVER */
int64_t pf_nanoseconds(double seconds);        /* +inf gives PF_NEVER */
/* So many from now, by the clock of `s`, NULL: of the run here, if one is. */
int64_t pf_deadline_in(SchedulerObject *s, int64_t ns);
pf_scheduler *pf_active(PfThread *t, const char *what); /* or FiberError */

/* --- cancel.c --- */
int pf_raise_cancelled(FiberObject *fiber);                  /* -1 */
int pf_raise_cancelled_with(PyObject *why, PyObject *scope); /* -1 */
static inline int
pf_check_cancelled(FiberObject *fiber)
{
    return PF_LIKELY(!(fiber->core.host_bits & PF_F_CANCEL))
               ? 0
               : pf_raise_cancelled(fiber);
}
int pf_fiber_cancel(FiberObject *fiber, PyObject *reason);
/* New references.  `why` is the pair that the latter makes, or NULL: who is
 * going to cancel makes it first, for that may run code. */
PyObject *pf_reason(const char *text);
PyObject *pf_reason_and_author(PyObject *reason, PyObject *by);
void pf_set_cancel(FiberObject *fiber, PyObject *why);
/* Owner thread.  The first reason stays.  Runs no Python code. */
void pf_cancel_now(FiberObject *fiber, PyObject *why);
/* The run ends: is it cancelled for itself, not with the scope around it? */
bool pf_fiber_is_top(const FiberObject *fiber);
/* Nanoseconds to wait before the next delivery to a fiber or grain that goes
 * on swallowing it; nearly always 0.  -1: an exception is set. */
int64_t pf_cancel_delay(PfThread *t, pf_fiber *core);
int pf_cancel_init(PyObject *module);

/* --- fiber.c --- */
extern PyType_Spec pf_fiber_spec;
void pf_fiber_type_ready(PyTypeObject *type);
int pf_fiber_add_callback(FiberObject *fiber, PyObject *fn); /* 0 or -1 */
int pf_fiber_init(PyObject *op, PyObject *args,
                  PyObject *kwds); /* fiber_init.c */
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
void pf_scopes_free_spare(void);
FiberObject *pf_fiber_new(PyObject *target, PyObject *const *args,
                          Py_ssize_t nargs, PyObject *kwnames);
int pf_fiber_start(SchedulerObject *s, FiberObject *fiber);
void pf_fiber_make_ready(SchedulerObject *s,
                         FiberObject *fiber); /* enlisted */
int pf_fiber_enlist(SchedulerObject *s, FiberObject *fiber);
int pf_fiber_start_soon(SchedulerObject *s, FiberObject *fiber);

/* --- grain_run.c: what the loop asks of the grains; see grain.h --- */
pf_fiber *pf_grains_first(SchedulerObject *s, pf_fiber *core);
bool pf_grains_ask_again(SchedulerObject *s);
void pf_grains_stir(SchedulerObject *s);
void pf_grains_cancel_all(SchedulerObject *s, PyObject *why);
bool pf_grains_abandon(SchedulerObject *s);
int pf_grains_list(SchedulerObject *s, PyObject *list);
bool pf_grains_are_left(SchedulerObject *s); /* not over */
int pf_grains_traverse(SchedulerObject *s, visitproc visit, void *arg);
void pf_grains_free(SchedulerObject *s);
bool pf_is_idle_runner(FiberObject *fiber);

/* --- grain_wait.c --- */
void pf_grain_posted(pf_fiber *core);
void pf_grains_forget_waits(SchedulerObject *s);

/* --- until.c --- */
PyObject *pf_await_self(PyObject *op); /* am_await of Fiber and Grain */

/* --- grain.c --- */
extern PyType_Spec pf_grain_spec;
int pf_grain_module_init(PyObject *module);

/* --- import.c --- */
/* New references. */
PyObject *pf_import(const char *module);
PyObject *pf_import_from(const char *module, const char *name);
int pf_import_init(PyObject *module);

/* --- outcome.c --- */
/* Or raises it. */
PyObject *pf_outcome_value(PyObject *op, int kind, PyObject *value);
PyObject *pf_cancel_reason(PyObject *exc);
bool pf_ends_programs(PyObject *exc);
void pf_add_context(PyObject *exc, PyObject *context);
void pf_raised_instead_of(PyObject *lost);
PyObject *pf_make_outcome(int kind, PyObject *value);
void pf_raise_fiber_cancelled(PyObject *op, PyObject *exc);
PyObject *pf_fiber_outcome_value(FiberObject *fiber); /* new reference */

/* --- unseen.c; the rest is in unseen.h --- */
int pf_log(PyObject *op, PyObject *exc, const char *text);

/* --- call.c --- */
int pf_check_function_slow(const char *who, PyObject *object);
static inline bool
pf_takes_plain_calls(PyFunctionObject *function)
{
    return !(((PyCodeObject *)function->func_code)->co_flags & CO_COROUTINE);
}
/* `who`, say "spawn()", is to call it: 0, or -1 with TypeError for what is not
 * callable or is an async function. */
static inline int
pf_check_function(const char *who, PyObject *object)
{
    return PF_LIKELY(PyFunction_Check(object) &&
                     pf_takes_plain_calls((PyFunctionObject *)object))
               ? 0
               : pf_check_function_slow(who, object);
}
/* A fiber for who(fn, *args, **kwargs); NULL with TypeError, also where fn does
 * not take the arguments. */
FiberObject *pf_fiber_to_call(const char *who, PyObject *const *args,
                              Py_ssize_t nargs, PyObject *kwnames);

/* --- inspect.c --- */
PyObject *pf_fiber_name(FiberObject *fiber);
/* For all that is made of something callable or running. */
PyObject *pf_name_after(PyObject *made_of);
int pf_set_name(PyObject **place, PyObject *value);
const char *pf_state_name(const pf_fiber *core);
/* Is it `fiber` itself, or does its result go there in the end?  There are no
 * cycles of parents. */
bool pf_descends_from(FiberObject *descendant, FiberObject *fiber);
extern PyGetSetDef pf_fiber_getset[];
/* Where it is suspended; None if it is not. New reference. */
PyObject *pf_fiber_frame(PfThread *t, FiberObject *fiber);
PyObject *pf_fiber_repr(PyObject *op);
PyObject *pf_fiber_stack(PyObject *op, PyObject *ignored);
int pf_inspect_init(PyObject *module);

/* --- latch.c, worker.c, portal.c --- */
extern PyType_Spec pf_latch_spec;
int pf_worker_init(PyObject *module);
int pf_portal_init(PyObject *module);
int pf_unbroken_init(PyObject *module); /* unbroken.c */
int pf_hooked_init(PyObject *module);   /* hooked.c */
/* Does a thread exist besides that of `s` that could wake somebody there? */
bool pf_other_threads(const SchedulerObject *s);
void pf_workers_after_fork(void);
bool pf_in_job(void); /* of to_thread() */

/* --- loop.c --- */
int pf_may_run(SchedulerObject *s); /* 0, or -1 with FiberError */
bool pf_may_nest(PfThread *t);      /* or nothing runs on this thread */
PyObject *pf_loop_run(SchedulerObject *s, FiberObject *main);
void pf_loop_once(SchedulerObject *s, PyObject *timeout, int64_t deadline);
void pf_scheduler_abandon(SchedulerObject *s);
PyObject *pf_scheduler_fibers(SchedulerObject *s); /* a list */
void pf_scheduler_cancel_because(SchedulerObject *s, const char *reason);

/* --- scheduler.c --- */
extern PyType_Spec pf_scheduler_spec;
PyObject *pf_run(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
void pf_scheduler_orphan(SchedulerObject *s); /* its thread ends */
void pf_tell_host(SchedulerObject *s);
void pf_wake_hub(SchedulerObject *s);
void pf_scheduler_fail(SchedulerObject *s, PyObject *exc); /* steals */
void pf_scheduler_cancel_all(SchedulerObject *s, PyObject *reason);

/* --- schedule.c --- */
int pf_preempt_slow(void);
/* The running fiber is about to do something that others may do as well, or
 * has done what they may react to: a run under test may let them.  0, or -1
 * with an exception (the fiber is being unwound). */
static inline int
pf_preempt(void)
{
    return PF_LIKELY(pf.exploring == 0) ? 0 : pf_preempt_slow();
}

/* --- signals.c --- */
typedef struct PfSignals {
    PyObject *old_handler; /* of SIGINT, or NULL: not ours */
    long old_wakeup;       /* -2: we did not set it */
} PfSignals;
int pf_signals_begin(SchedulerObject *s, PfSignals *saved);
void pf_signals_end(SchedulerObject *s, PfSignals *saved);
void pf_signals_drain(SchedulerObject *s);
int pf_signals_after_fork(void);
PyObject *pf_on_sigint(PyObject *module, PyObject *args);

/* --- overflow.c --- */
int pf_python_overflow_init(void);
/* The reserve was reached a moment ago, and the running fiber is about to be
 * left: the look that is due is taken now.  `sp`: in the running frame. */
void pf_end_watch(PfThread *t, const char *sp);

/* --- between fibers: each adds its types to the module --- */
int pf_lock_init(PyObject *module);
int pf_semaphore_init(PyObject *module);
int pf_event_init(PyObject *module);
int pf_condition_init(PyObject *module);
int pf_queue_init(PyObject *module);
int pf_channel_init(PyObject *module);
int pf_select_init(PyObject *module);
int pf_local_init(PyObject *module);
int pf_generator_init(PyObject *module);
void pf_slots_clear(FiberObject *fiber); /* local.c: the fiber has ended */

/* To read: all NULL if it has nothing of that. */
extern const PfRare pf_nothing_rare;
static inline const PfRare *
pf_rare(const FiberObject *fiber)
{
    return PF_LIKELY(fiber->rare == NULL) ? &pf_nothing_rare : fiber->rare;
}

/* To write; NULL with MemoryError. */
PfRare *pf_rare_of(FiberObject *fiber);

/* --- capsule.c --- */
int pf_capsule_init(PyObject *module);

#endif
