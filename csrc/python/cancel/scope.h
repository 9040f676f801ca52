/* Cancellation: a tree of scopes and fibers.
 *
 *        run                 A fiber is born in a scope, its base (the group
 *       /   \                that spawned it), or in the run itself.  Then it
 *     fiber  fiber           enters and leaves scopes, which lie on the
 *       |                    fiber's stack of scopes, one inside the other.
 *     scope  (timeout)
 *       |                    Cancelling the fiber, a scope or the run reaches
 *     scope  (TaskGroup)     everything below it, except what is below a
 *     /   \                  shield.
 *  fiber  fiber
 *
 * No check walks up the tree.  Each scope has a `source`, which is the
 * outermost cancelled scope or fiber whose cancellation reaches it, and each
 * fiber has `under_cancel`.  Both are updated when something above changes
 * (refresh_all in cancel.c), which is rare.  Scopes are entered and left often,
 * which sets only a few pointers.
 *
 * The functions run on the thread of the scope's run.  Exceptions are
 * pf_scope_cancel and pf_scope_remove_there, which post to that thread,
 * pf_scope_is_remote, and the functions of group_remote.c.
 */
#ifndef PF_SCOPE_H
#define PF_SCOPE_H

#include "python/core/objlock.h"
#include "python/core/state.h"
#include "python/core/thread.h"
#include "python/task/fiber.h"
#include "python/task/scheduler.h"

/* Invariants:
 * - `fiber` and `scheduler` are set, and the fiber has a reference to the
 *   scope, exactly while the scope is entered; `outer` and `inner` link the
 *   scopes of one fiber.
 * - `source` is this scope, or a scope or a fiber around it: borrowed.
 * - The timer is armed only while the scope is entered.
 * - `children` are the tasks whose base is this scope; each owns a reference to
 *   it.
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
    ScopeObject *work; /* next in a list of scopes to refresh */
    PyObject *reason;  /* of the cancellation; NULL: None */
    PyObject *why;     /* (reason, by) or NULL; NULL once left */
    const char *what;  /* name of the function that made it, or NULL */
    size_t cancelled_at, delivered; /* see pf_delivery_note */
    int64_t length; /* ns from entering to the deadline, or -1 */
    bool times_out; /* raises TimeoutError in place of the Cancelled */
    bool shield;    /* cancellation from outside stays outside */
    bool cancelled; /* cancel() was called, or the deadline passed */
    bool expired;   /* the deadline passed, before any cancel() */
    bool caught;    /* __exit__ absorbed the Cancelled */
    bool left;      /* was entered and left; cannot be entered again */
    bool refused;   /* an attempt to enter it was refused */
    bool finalized; /* tp_finalize ran, which happens once */
    PF_OBJECT_MUTEX /* for `scheduler`, which other threads read */
};

typedef struct CancelledObject {
    PyBaseExceptionObject base;
    PyObject *reason, *by;
    PyObject *scope; /* absorbs it; NULL: the fiber ends with it */
} CancelledObject;

/* Returns true if `exc` is a Cancelled. */
static inline bool
pf_scope_is_cancelled(PyObject *exc)
{
    return PyObject_TypeCheck(exc, (PyTypeObject *)pf.cancelled);
}

/* Returns true if `exc` is a Cancelled that this scope absorbs. */
static inline bool
pf_scope_owns(ScopeObject *scope, PyObject *exc)
{
    return pf_scope_is_cancelled(exc) &&
           ((CancelledObject *)exc)->scope == (PyObject *)scope;
}

/* --- cancel.c --- */
/* Returns the outermost cancelled scope or fiber whose cancellation reaches
 * the code that the fiber runs: borrowed, or NULL. */
PyObject *pf_scope_source_of(const FiberObject *fiber);
/* Finds the source of a scope that has just been entered.  Needed only if the
 * scope is cancelled or a shield, or the fiber is under a cancellation. */
void pf_scope_entered(ScopeObject *scope);
/* Updates everything below the scope, whose flags have changed, or the scopes
 * around it. */
void pf_scope_refresh(ScopeObject *scope);
/* As pf_scope_refresh for a fiber, whose base or flags have changed. */
void pf_scope_refresh_fiber(FiberObject *fiber);
/* Makes the scope the base of a task that has none. */
void pf_scope_adopt(ScopeObject *scope, PfTaskObject *child);
/* Removes a task from its base. */
void pf_scope_disown(PfTaskObject *child);
/* As pf_fiber_enlist, for a fiber that is born in `base`; NULL: in the run. */
int pf_scope_enlist(SchedulerObject *s, ScopeObject *base, FiberObject *fiber);
/* Returns the scheduler that the scope is entered in, if that belongs to
 * another thread: a new reference.  Else NULL, without an exception. */
SchedulerObject *pf_scope_is_remote(ScopeObject *scope);
/* CancelScope.cancel() by the running fiber.  Any thread.  Returns 1, or 0 if
 * the scope has been left; -1 with an exception. */
int pf_scope_cancel(ScopeObject *scope, PyObject *reason);
/* Cancels the scope, on its own thread.  The first reason is kept.  For a
 * scope that is cancelled already, pf_scope_cancel_now does nothing, and
 * pf_scope_cancel_again makes a new cancellation: see pf_cancel_again. */
void pf_scope_cancel_now(ScopeObject *scope, PyObject *why);
void pf_scope_cancel_again(ScopeObject *scope, PyObject *why);
/* Removes a scope that is left from its fiber's stack of scopes. */
void pf_scope_remove(ScopeObject *scope);
/* As pf_scope_remove for a fiber of another thread, to which this posts.
 * Returns 0, or -1 with MemoryError. */
int pf_scope_remove_there(ScopeObject *scope);
/* Returns the earliest deadline around the code that the fiber runs, up to a
 * shield; PF_NEVER: there is none. */
int64_t pf_scope_effective_deadline(const FiberObject *fiber);

/* --- cancelled.c --- */
/* Raises the Cancelled of `source`, which is a scope, a fiber or NULL.
 * Returns -1. */
int pf_cancelled_raise_by(PyObject *source);
/* See PfCancelling. */
int pf_cancelled_raise_in(FiberObject *fiber);
void pf_cancelled_retract(FiberObject *fiber);
static inline PyObject *
pf_scope_reason_in(PyObject *why)
{
    return PyTuple_GET_ITEM(why, 0);
}
extern PyType_Spec pf_cancelled_spec;

/* --- which cancellations have been raised --- */
/* Returns the number of a new cancellation. */
size_t pf_delivery_next_number(void);
/* Returns the number of the latest cancellation. */
size_t pf_delivery_latest(void);
/* Notes that all cancellations up to this number have been raised in the
 * fiber; 0: none. */
void pf_delivery_note(FiberObject *fiber, size_t number);
/* Returns the outermost scope or fiber whose cancellation reaches this fiber
 * and has not been raised in it yet: borrowed, or NULL. */
PyObject *pf_delivery_find_news(const FiberObject *fiber);
/* Returns true if all cancellations that reach the fiber have been raised in
 * it. */
bool pf_delivery_all(const FiberObject *fiber);

/* --- scope.c --- */
extern PyType_Spec pf_scope_spec;
PyObject *pf_scope_enter(PyObject *scope, PyObject *ignored); /* __enter__ */
/* For __exit__() that was called with `nargs` arguments.  Returns the thread
 * if the scope may be left here; otherwise removes the scope and returns NULL
 * with an error. */
PfThread *pf_scope_may_leave(ScopeObject *scope, Py_ssize_t nargs);
int pf_scope_traverse(PyObject *op, visitproc visit, void *arg);
int pf_scope_clear(PyObject *op);
void pf_scope_dealloc(PyObject *op);
void pf_scope_type_ready(PyTypeObject *type);
ScopeObject *pf_scope_new(PyTypeObject *type); /* not entered */
PyObject *pf_scope_seconds(int64_t ns);        /* a float */

/* --- scope_functions.c --- */
/* Put a shield() around what the running fiber calls in between.  The first
 * function returns a new scope, or NULL with an exception; the second drops
 * it. */
ScopeObject *pf_scope_shield_enter(void);
void pf_scope_shield_leave(ScopeObject *shield);
extern PyMethodDef pf_scope_functions[];

/* --- group.c --- */
typedef struct GroupObject {
    ScopeObject scope;
    Py_ssize_t alive;   /* children for whose end the group waits */
    FiberObject *owner; /* borrowed: parked until `alive` is 0; or NULL */
    PyObject *errors;   /* list of exceptions, or NULL */
    PyObject *fatal;    /* KeyboardInterrupt or SystemExit, raised as it is */
} GroupObject;
extern PyType_Spec pf_group_spec;
/* Takes a task that has ended out of its base.  A failure in a group cancels
 * the group, and the last task of a group wakes the owner. */
void pf_scope_child_done(PfTaskObject *child);
/* Wakes the owner of a group that was removed while tasks in it were alive. */
void pf_group_abandoned(ScopeObject *scope);

/* --- group_remote.c --- */
/* Returns the group's scheduler, if that belongs to another thread of the same
 * run: a new reference.  Else NULL, without an exception. */
SchedulerObject *pf_group_is_remote(PfThread *t, GroupObject *group);
/* spawn() in a group of that scheduler.  Steals `child`, and returns it, or
 * NULL with an exception. */
FiberObject *pf_group_remote_spawn(SchedulerObject *s, GroupObject *group,
                                   FiberObject *child);

#endif
