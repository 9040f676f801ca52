/* Cancellation: a tree of scopes and fibers.
 *
 *        run                 a fiber is born in a scope, its base (the group
 *       /   \                that spawned it) or in the run itself; then it
 *     fiber  fiber           enters and leaves scopes of its own, which lie
 *       |                    on its stack of scopes, one inside the other.
 *     scope  (timeout)
 *       |                    Cancelling the fiber, a scope or the run reaches
 *     scope  (TaskGroup)     everything below it, but for what is below a
 *     /   \                  shield.
 *  fiber  fiber
 *
 * Whether something is cancelled is never asked up the tree: each scope knows
 * its source, the outermost cancelled thing that it sees, and each fiber has
 * `under_cancel`.  Both are brought up to date when something above changes (see
 * refresh in cancel.c), which is rare; entering and leaving a scope, which is
 * not, is a matter of a few pointers.
 *
 * Everything here happens on the thread of the scope's run, except
 * pf_scope_cancel, which posts, and pf_scope_is_remote.
 */
#ifndef PF_SCOPE_H
#define PF_SCOPE_H

#include "python/core/objlock.h"
#include "python/core/state.h"
#include "python/core/thread.h"
#include "python/task/fiber.h"
#include "python/task/scheduler.h"

/* Invariants:
 * - fiber, scheduler and a reference by the fiber are there exactly while the
 *   scope is entered; outer and inner link the scopes of one fiber.
 * - source is a scope or a fiber, this one or one around it: borrowed.
 * - the timer is armed only while it is entered.
 * - children are the tasks whose base this is; each owns a reference.
 */
struct ScopeObject {
    PyObject_HEAD
    pf_timer_call timer;
    int64_t deadline; /* the scheduler's clock; PF_NEVER: none */
    SchedulerObject *scheduler;
    FiberObject *fiber; /* borrowed */
    ScopeObject *outer, *inner;
    PyObject *source; /* NULL: not cancelled */
    PfTaskObject *children;
    ScopeObject *work;         /* in a list of scopes to refresh */
    PyObject *reason;          /* of its cancellation; NULL: None */
    PyObject *why;             /* (reason, by), until it is left; or NULL */
    const char *what;          /* the function that made it, or NULL */
    size_t cancelled_at, told; /* see told.c */
    int64_t length; /* ns from the entering to the deadline, or -1 */
    bool times_out; /* absorbs by raising TimeoutError */
    bool shield;    /* cancellation from outside stays outside */
    bool cancelled; /* cancel() was called, or the deadline passed */
    bool expired;   /* ... the latter */
    bool caught;    /* __exit__ absorbed it */
    bool left;      /* for good */
    bool refused;   /* an attempt to enter it was refused */
    bool finalized; /* happens only once in an object's life */
    PF_OBJECT_MUTEX /* where other threads look at `scheduler` */
};

typedef struct CancelledObject {
    PyBaseExceptionObject base;
    PyObject *reason, *by;
    PyObject *scope; /* which absorbs it; NULL: the end of the fiber */
} CancelledObject;

static inline bool
pf_scope_is_cancelled(PyObject *exc)
{
    return PyObject_TypeCheck(exc, (PyTypeObject *)pf.cancelled);
}

/* Is `exc` a Cancelled that ends at this scope? */
static inline bool
pf_scope_owns(ScopeObject *scope, PyObject *exc)
{
    return pf_scope_is_cancelled(exc) &&
           ((CancelledObject *)exc)->scope == (PyObject *)scope;
}

/* --- cancel.c --- */
PyObject *pf_scope_source_of(const FiberObject *fiber);
/* It has just been entered, and is not the plain case: find its source. */
void pf_scope_entered(ScopeObject *scope);
/* A scope's flags, or the scopes around it, have changed. */
void pf_scope_refresh(ScopeObject *scope);
/* ... the same for a fiber's base, or the fiber's own flags. */
void pf_scope_refresh_fiber(FiberObject *fiber);
void pf_scope_adopt(ScopeObject *scope, PfTaskObject *child);
void pf_scope_disown(PfTaskObject *child);
/* pf_fiber_enlist, as one born in `base`, which may be NULL: the run. */
int pf_scope_enlist(SchedulerObject *s, ScopeObject *base, FiberObject *fiber);
/* The scheduler that it is entered in, if that is another thread's: a new
 * reference.  Else NULL, without an exception. */
SchedulerObject *pf_scope_is_remote(ScopeObject *scope);
/* Any thread. 1, or 0 if the scope has been left; -1 with an exception. */
int pf_scope_cancel(ScopeObject *scope, PyObject *reason);
/* Owner thread.  The first reason is kept.  The second function is for what the
 * program asks for: if the scope is cancelled already, fibers below it that
 * have been told are told again; see told.c. */
void pf_scope_cancel_now(ScopeObject *scope, PyObject *why);
void pf_scope_cancel_again(ScopeObject *scope, PyObject *why);
/* It has been left: remove it from its fiber's stack. */
void pf_scope_remove(ScopeObject *scope);
int pf_scope_remove_there(ScopeObject *scope); /* ... of another thread */
int64_t pf_scope_effective_deadline(const FiberObject *fiber);

/* --- cancelled.c --- */
/* `source`: a scope or a fiber. */
int pf_cancelled_raise_by(PyObject *source); /* -1 */
/* See PfCancelling. */
int pf_cancelled_raise_in(FiberObject *fiber);
void pf_cancelled_retract(FiberObject *fiber);
static inline PyObject *
pf_scope_reason_in(PyObject *why)
{
    return PyTuple_GET_ITEM(why, 0);
}
extern PyType_Spec pf_cancelled_spec;

/* --- told.c --- */
size_t pf_told_next_number(void); /* of a cancellation */
size_t pf_told_latest(void);
/* All cancellations up to this number have been raised in the fiber; 0: none. */
void pf_told_note(FiberObject *fiber, size_t number);
/* The outermost scope or fiber whose cancellation reaches this fiber and has not
 * been raised in it yet: borrowed, or NULL. */
PyObject *pf_told_find_news(const FiberObject *fiber);
bool pf_told_all(const FiberObject *fiber);

/* --- scope.c --- */
extern PyType_Spec pf_scope_spec;
PyObject *pf_scope_enter(PyObject *scope, PyObject *ignored);
/* __exit__() was called with `nargs` arguments.  Returns the thread if the
 * scope may be left here; otherwise removes the scope and returns NULL with an
 * error. */
PfThread *pf_scope_may_leave(ScopeObject *scope, Py_ssize_t nargs);
int pf_scope_traverse(PyObject *op, visitproc visit, void *arg);
int pf_scope_clear(PyObject *op);
void pf_scope_dealloc(PyObject *op);
void pf_scope_type_ready(PyTypeObject *type);
ScopeObject *pf_scope_new(PyTypeObject *type); /* not entered */
PyObject *pf_scope_seconds(int64_t ns);        /* a float */

/* --- scope_functions.c --- */
/* shield() around the calls of the running fiber between these two.  A new
 * scope, or NULL with an exception; the second call always drops it. */
ScopeObject *pf_scope_shield_enter(void);
void pf_scope_shield_leave(ScopeObject *shield);
extern PyMethodDef pf_scope_functions[];

/* --- group.c --- */
typedef struct GroupObject {
    ScopeObject scope;
    Py_ssize_t alive;   /* children that it waits for */
    FiberObject *owner; /* borrowed: parked until there are none, or NULL */
    PyObject *errors;   /* list of exceptions, or NULL */
    PyObject *fatal;    /* KeyboardInterrupt, SystemExit: raised as it is */
} GroupObject;
extern PyType_Spec pf_group_spec;
/* --- group_abroad.c --- */
/* The group's scheduler, if that is another one of the run on several threads
 * that this one takes part in: a new reference.  Else NULL, without an exception. */
SchedulerObject *pf_group_is_remote(PfThread *t, GroupObject *group);
/* spawn() there: the child, which is stolen, or NULL with an exception. */
FiberObject *pf_group_remote_spawn(SchedulerObject *s, GroupObject *group,
                                   FiberObject *child);

/* --- group.c --- */
/* A task with a base has ended. */
void pf_scope_child_done(PfTaskObject *child);
/* A group was removed with fibers alive. */
void pf_group_abandoned(ScopeObject *scope);

#endif
