/* Condition.
 *
 * The lock is pyfiber's Lock or RLock, of which this file calls the C
 * functions, or a foreign lock: any object with acquire() and release(), one
 * of threading's for example.  However wait() ends, it first takes the lock
 * again; even a cancellation is raised only after that.
 *
 * The methods of a foreign lock may do anything: wait, switch, use the
 * condition.  So each call keeps a reference to the lock that it began with,
 * and __init__ is refused while a wait() is in progress.
 */
#include "python/cancel/scope.h"
#include "python/core/arguments.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/sync/lock.h"
#include "python/sync/sync.h"
#include "python/task/deadline.h"
#include "python/task/explore.h"
#include "python/task/fiber.h"
#include "python/task/outcome.h"
#include "python/wait/in_line.h"
#include "python/waitq/waitq.h"

#include <structmember.h>

typedef struct ConditionObject {
    PyObject_HEAD
    PyObject *weakrefs;
    PyObject *lock;
    PfWaitq waiters;
    Py_ssize_t inside; /* calls of wait() and wait_for() in progress */
    PF_OBJECT_MUTEX
} ConditionObject;

/* ----------------------------------------------------------------- the lock */

/* Returns the lock if it is pyfiber's Lock or RLock, NULL if it is foreign. */
static LockObject *
our_lock(PyObject *lock)
{
    bool ours =
        Py_IS_TYPE(lock, pf_lock_type) || Py_IS_TYPE(lock, pf_lock_rlock_type);
    return ours ? (LockObject *)lock : NULL;
}

/* Returns a new reference to the lock, or NULL with an exception.  `waits` is
 * 1 if a wait() begins, else 0. */
static PyObject *
get_lock(ConditionObject *self, int waits)
{
    PF_LOCK(self);
    PyObject *lock = Py_XNewRef(self->lock);
    self->inside += lock == NULL ? 0 : waits;
    PF_UNLOCK(self);
    if (lock == NULL) {
        PyErr_SetString(PyExc_RuntimeError,
                        "Condition.__init__() was not called");
    }
    return lock;
}

static void
end_wait(ConditionObject *self, PyObject *lock)
{
    PF_LOCK(self);
    self->inside--;
    PF_UNLOCK(self);
    Py_DECREF(lock);
}

/* Returns 1, with a new reference in *method; 0: the lock has no such method;
 * -1: exception. */
static int
find_method(PyObject *lock, const char *name, PyObject **method)
{
    *method = PyObject_GetAttrString(lock, name);
    if (*method != NULL) {
        return 1;
    }
    if (!PyErr_ExceptionMatches(PyExc_AttributeError)) {
        return -1;
    }
    PyErr_Clear();
    return 0;
}

/* Calls the foreign lock's method `name` with `arg`, or without an argument if
 * that is NULL.  A lock without that method gets a call of `other`, without an
 * argument. */
static PyObject *
call_foreign(PyObject *lock, const char *name, PyObject *arg,
             const char *other)
{
    PyObject *method;
    int found = find_method(lock, name, &method);
    if (found <= 0) {
        return found < 0 ? NULL : PyObject_CallMethod(lock, other, NULL);
    }
    PyObject *result = arg == NULL ? PyObject_CallNoArgs(method)
                                   : PyObject_CallOneArg(method, arg);
    Py_DECREF(method);
    return result;
}

/* Converts a method's result (stolen, NULL for an exception) to 1, 0 or -1. */
static int
truth_of(PyObject *answer)
{
    int truth = answer == NULL ? -1 : PyObject_IsTrue(answer);
    Py_XDECREF(answer);
    return truth;
}

/* Returns 1 if anybody holds a foreign lock that has no _is_owned(), else 0;
 * -1: exception. */
static int
is_taken(PyObject *lock)
{
    int got = truth_of(PyObject_CallMethod(lock, "acquire", "O", Py_False));
    if (got <= 0) {
        return got < 0 ? -1 : 1;
    }
    PyObject *done = PyObject_CallMethod(lock, "release", NULL);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Returns 1 if the running fiber holds the lock, as far as the kind of lock
 * can tell, else 0; -1: exception. */
static int
is_owned(PyObject *lock, PfThread *t)
{
    LockObject *ours = our_lock(lock);
    if (ours != NULL) {
        return Py_IS_TYPE(lock, pf_lock_rlock_type) ? pf_lock_is_mine(ours, t)
                                                    : pf_lock_count(ours) > 0;
    }
    PyObject *method;
    int found = find_method(lock, "_is_owned", &method);
    if (found <= 0) {
        return found < 0 ? -1 : is_taken(lock);
    }
    int owned = truth_of(PyObject_CallNoArgs(method));
    Py_DECREF(method);
    return owned;
}

static int
check_owned(PyObject *lock, PfThread *t, const char *what)
{
    int owned = is_owned(lock, t);
    if (owned == 0) {
        PyErr_Format(PyExc_RuntimeError, "cannot %s on un-acquired lock",
                     what);
    }
    return owned > 0 ? 0 : -1;
}

/* What is needed to take the lock again as it was. */
typedef struct Saved {
    Py_ssize_t count; /* how often pyfiber's lock was taken */
    PyObject *state;  /* what _release_save() of a foreign lock returned */
    bool interrupted; /* an exception ended the wait: see pf_lock_retake */
    PfWait *wait;     /* the memory for pf_lock_retake */
} Saved;

/* Gives `waiter` a thread lock, which a notification releases.  Without a GIL
 * the waiter of a plain thread has one already: then this returns false.
 * After true, a NULL in waiter->lock means that there is no memory. */
static bool
make_thread_lock(PfWaiter *waiter)
{
    if (waiter->lock != NULL) {
        return false;
    }
    waiter->lock = PyThread_allocate_lock();
    if (waiter->lock != NULL) {
        PyThread_acquire_lock(waiter->lock, NOWAIT_LOCK);
    }
    return true;
}

static void
free_thread_lock(ConditionObject *self, PfWaiter *waiter)
{
    PF_LOCK(self);
    PyThread_type_lock lock = waiter->lock;
    waiter->lock = NULL;
    PF_UNLOCK(self);
    PyThread_free_lock(lock);
}

/* The code of a foreign lock may wait for something else, and a notification
 * that comes meanwhile must not end that wait.  While the waiter has a thread
 * lock, for which nobody waits yet, a notification releases that instead of
 * waking the fiber. */
static int
release_foreign(ConditionObject *self, PyObject *lock, PfWaiter *waiter,
                Saved *saved)
{
    FiberObject *fiber = pf_waitq_fiber(waiter);
    PF_LOCK(self);
    bool made = make_thread_lock(waiter);
    PF_UNLOCK(self);
    if (waiter->lock == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    waiter->outer = fiber->wait;
    fiber->wait = waiter;
    saved->state = call_foreign(lock, "_release_save", NULL, "release");
    fiber->wait = waiter->outer;
    if (made) {
        free_thread_lock(self, waiter);
    }
    return saved->state == NULL ? -1 : 0;
}

static int
release_save(ConditionObject *self, PyObject *lock, PfWait *wait, Saved *saved)
{
    LockObject *ours = our_lock(lock);
    *saved = (Saved){.wait = wait};
    if (ours == NULL) {
        return release_foreign(self, lock, &wait->waiter, saved);
    }
    saved->count = pf_lock_count(ours);
    pf_lock_release(ours);
    return 0;
}

static int
restore_ours(LockObject *lock, PfThread *t, const Saved *saved)
{
    int rc = pf_lock_retake(lock, t, saved->wait, saved->interrupted);
    pf_lock_recount(lock, t, saved->count);
    return rc;
}

/* The shield is there because a foreign lock's acquire() may be a cancellation
 * point. */
static int
restore_foreign(PyObject *lock, PfThread *t, Saved *saved)
{
    ScopeObject *shield =
        t->scheduler == NULL ? NULL : pf_scope_shield_enter();
    if (t->scheduler != NULL && shield == NULL) {
        PyErr_Clear(); /* no memory: take the lock without a shield */
    }
    PyObject *done =
        call_foreign(lock, "_acquire_restore", saved->state, "acquire");
    PyObject *raised = done == NULL ? pystate_take_exception() : NULL;
    if (shield != NULL) {
        pf_scope_shield_leave(shield);
    }
    Py_CLEAR(saved->state);
    Py_XDECREF(done);
    pystate_restore_exception(raised);
    return raised != NULL ? -1 : 0;
}

static int
restore(PyObject *lock, PfThread *t, Saved *saved)
{
    LockObject *ours = our_lock(lock);
    return ours != NULL ? restore_ours(ours, t, saved)
                        : restore_foreign(lock, t, saved);
}

/* --------------------------------------------------------------------- wait */

/* Takes the lock again after a wait.  `pending` (stolen) is the exception that
 * ended the wait, or NULL; it is raised once the lock is taken.  If the lock
 * cannot be taken, that error is raised instead, with `pending` as its
 * context.  Only a fiber that is being unwound drops that error: such a fiber
 * must not wait, so it goes on without the lock (see pf_lock_lost).  Returns
 * 0, or -1 with an exception. */
static int
restore_after(PyObject *lock, PfThread *t, Saved *saved, PyObject *pending)
{
    saved->interrupted = pending != NULL;
    int rc = restore(lock, t, saved);
    if (pending == NULL) {
        return rc;
    }
    if (rc == 0 || CURRENT(t)->dying) {
        PyErr_Clear(); /* an unwound fiber is refused a wait, as expected */
        pystate_restore_exception(pending);
        return -1;
    }
    PyObject *raised = pystate_take_exception();
    pf_outcome_add_context(raised, pending);
    Py_DECREF(pending);
    pystate_restore_exception(raised);
    return -1;
}

/* Passes a notification on, from a waiter that cannot use it to the next. */
static void
pass_on(ConditionObject *self)
{
    PF_LOCK(self);
    PfNode *next = pf_waitq_choose(&self->waiters);
    if (next != NULL) {
        pf_waitq_grant(next);
    }
    PF_UNLOCK(self);
}

static void
stand_in_line(ConditionObject *self, PfWait *wait, PfThread *t)
{
    pf_wait_begin(&wait->waiter, t);
    PF_SET_NODE_MUTEX(&wait->node, PF_MUTEX_OF(self));
    PF_LOCK(self);
    pf_waitq_push(&self->waiters, &wait->node);
    PF_UNLOCK(self);
}

/* Returns 1: notified; 0: timed out; -1: exception.  `wait` is used twice: for
 * the notification and then, when nobody points to it any more, for the lock.
 */
static int
wait_by(ConditionObject *self, PyObject *lock, PfThread *t, int64_t deadline,
        PfWait *wait)
{
    Saved saved;
    stand_in_line(self, wait, t);
    if (release_save(self, lock, wait, &saved) < 0) {
        pf_wait_give_up(&wait->waiter);
        if (PF_SHARED_GET(&wait->waiter.taken) != NULL) {
            pass_on(self);
        }
        return -1;
    }
    int rc = pf_wait_in_line(&wait->waiter, t, deadline, (PyObject *)self);
    PyObject *pending = rc < 0 ? pystate_take_exception() : NULL;
    if (rc < 0 && PF_SHARED_GET(&wait->waiter.taken) != NULL) {
        pass_on(self);
    }
    if (restore_after(lock, t, &saved, pending) < 0) {
        if (rc == 0) {
            pass_on(self);
        }
        return -1;
    }
    return rc == 0;
}

static int
wait_until(ConditionObject *self, PyObject *lock, PfThread *t,
           int64_t deadline)
{
    PfWait *wait = pf_wait_new(t, NULL);
    if (wait == NULL) {
        return -1;
    }
    int rc = wait_by(self, lock, t, deadline, wait);
    pf_wait_free(t, wait);
    return rc;
}

static PyObject *
wait_once(ConditionObject *self, PyObject *lock, PfThread *t, int64_t deadline)
{
    int rc = check_owned(lock, t, "wait") < 0
                 ? -1
                 : wait_until(self, lock, t, deadline);
    return rc < 0 ? NULL : PyBool_FromLong(rc);
}

static PyObject *
condition_wait(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
               PyObject *kwnames)
{
    static const char *const names[] = {"timeout", NULL};
    ConditionObject *self = (ConditionObject *)op;
    PyObject *timeout = NULL;
    int64_t deadline;
    PfThread *t = pf_thread_this();
    if (t == NULL ||
        pf_arguments("wait", names, 0, args, nargs, kwnames, &timeout) < 0 ||
        pf_deadline_timeout(timeout, &deadline) < 0) {
        return NULL;
    }
    PyObject *lock = get_lock(self, 1);
    if (lock == NULL) {
        return NULL;
    }
    PyObject *result = wait_once(self, lock, t, deadline);
    end_wait(self, lock);
    return result;
}

/* Returns the predicate's last result: a new reference, or NULL with an
 * exception. */
static PyObject *
wait_until_true(ConditionObject *self, PyObject *lock, PfThread *t,
                PyObject *predicate, int64_t deadline)
{
    for (int waited = 1;;) {
        PyObject *result = PyObject_CallNoArgs(predicate);
        int truth = result == NULL ? -1 : PyObject_IsTrue(result);
        if (truth != 0 || waited == 0) {
            return truth < 0 ? (Py_XDECREF(result), NULL) : result;
        }
        Py_DECREF(result);
        if (check_owned(lock, t, "wait") < 0) {
            return NULL;
        }
        waited = wait_until(self, lock, t, deadline);
        if (waited < 0) {
            return NULL;
        }
    }
}

static PyObject *
condition_wait_for(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                   PyObject *kwnames)
{
    static const char *const names[] = {"predicate", "timeout", NULL};
    ConditionObject *self = (ConditionObject *)op;
    PyObject *out[2] = {NULL, NULL};
    int64_t deadline;
    PfThread *t = pf_thread_this();
    if (t == NULL ||
        pf_arguments("wait_for", names, 1, args, nargs, kwnames, out) < 0 ||
        pf_deadline_timeout(out[1], &deadline) < 0) {
        return NULL;
    }
    PyObject *lock = get_lock(self, 1);
    if (lock == NULL) {
        return NULL;
    }
    PyObject *result = wait_until_true(self, lock, t, out[0], deadline);
    end_wait(self, lock);
    return result;
}

/* ------------------------------------------------------------------- notify */

static PyObject *
notify(ConditionObject *self, Py_ssize_t n)
{
    PfThread *t = pf_thread_this();
    PyObject *lock = t == NULL ? NULL : get_lock(self, 0);
    if (lock == NULL) {
        return NULL;
    }
    int rc = check_owned(lock, t, "notify");
    Py_DECREF(lock);
    if (rc < 0 || pf_explore_preempt() < 0) {
        return NULL;
    }
    PfNode *next;
    PF_LOCK(self);
    for (; n > 0 && (next = pf_waitq_choose(&self->waiters)) != NULL; n--) {
        pf_waitq_grant(next);
    }
    PF_UNLOCK(self);
    Py_RETURN_NONE;
}

static PyObject *
condition_notify(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                 PyObject *kwnames)
{
    static const char *const names[] = {"n", NULL};
    PyObject *n = NULL;
    Py_ssize_t count = 1;
    if (pf_arguments("notify", names, 0, args, nargs, kwnames, &n) < 0) {
        return NULL;
    }
    if (n != NULL) {
        count = PyNumber_AsSsize_t(n, PyExc_OverflowError);
        if (count == -1 && PyErr_Occurred()) {
            return NULL;
        }
    }
    return notify((ConditionObject *)op, count);
}

static PyObject *
condition_notify_all(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    return notify((ConditionObject *)op, PY_SSIZE_T_MAX);
}

/* ------------------------------------------------- acquire, release, the rest */

static PyObject *
lock_method(PyObject *op, const char *name, PyObject *const *args,
            Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *lock = get_lock((ConditionObject *)op, 0);
    PyObject *method =
        lock == NULL ? NULL : PyObject_GetAttrString(lock, name);
    PyObject *result =
        method == NULL
            ? NULL
            : PyObject_Vectorcall(method, args, (size_t)nargs, kwnames);
    Py_XDECREF(method);
    Py_XDECREF(lock);
    return result;
}

static PyObject *
condition_acquire(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                  PyObject *kwnames)
{
    return lock_method(op, "acquire", args, nargs, kwnames);
}

static PyObject *
condition_release(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    return lock_method(op, "release", NULL, 0, NULL);
}

static PyObject *
condition_locked(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    return lock_method(op, "locked", NULL, 0, NULL);
}

static PyObject *
condition_enter(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    return lock_method(op, "__enter__", NULL, 0, NULL);
}

static PyObject *
condition_exit(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    return lock_method(op, "__exit__", args, nargs, NULL);
}

static PyObject *
condition_is_owned(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    PfThread *t = pf_thread_this();
    PyObject *lock = t == NULL ? NULL : get_lock((ConditionObject *)op, 0);
    int owned = lock == NULL ? -1 : is_owned(lock, t);
    Py_XDECREF(lock);
    return owned < 0 ? NULL : PyBool_FromLong(owned);
}

static PyObject *
condition_waiters(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    ConditionObject *self = (ConditionObject *)op;
    return pf_waitq_list(&self->waiters, PF_MUTEX_OF(self));
}

static PyObject *
condition_at_fork(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    return lock_method(op, "_at_fork_reinit", NULL, 0, NULL);
}

static PyObject *
condition_repr(PyObject *op)
{
    ConditionObject *self = (ConditionObject *)op;
    Py_ssize_t waiting = 0;
    PF_LOCK(self);
    for (PfNode *n = self->waiters.head; n != NULL; n = n->next) {
        waiting++;
    }
    PyObject *lock = Py_NewRef(self->lock == NULL ? Py_None : self->lock);
    PF_UNLOCK(self);
    PyObject *repr = PyUnicode_FromFormat(
        "<%s(%R, %zd) at %p>", Py_TYPE(op)->tp_name, lock, waiting, op);
    Py_DECREF(lock);
    return repr;
}

/* Returns the lock for the argument of __init__: a new reference, or NULL with
 * an exception. */
static PyObject *
checked_lock(PyObject *lock)
{
    static const char *const needed[] = {"acquire", "release"};
    if (lock == Py_None) {
        return PyObject_CallNoArgs((PyObject *)pf_lock_rlock_type);
    }
    for (int i = 0; i < 2; i++) {
        PyObject *method;
        int found = find_method(lock, needed[i], &method);
        Py_XDECREF(method);
        if (found == 0) {
            PyErr_Format(PyExc_TypeError,
                         "a Condition needs a lock, with acquire() and "
                         "release(), not '%.200s'",
                         Py_TYPE(lock)->tp_name);
        }
        if (found <= 0) {
            return NULL;
        }
    }
    return Py_NewRef(lock);
}

/* Replaces the lock by `lock` (stolen).  Refuses that with FiberError if a
 * fiber is in a wait() or, as `held` says, holds the present lock: that fiber
 * relies on it. */
static int
set_lock(ConditionObject *self, PyObject *lock, bool held)
{
    PF_LOCK(self);
    bool waits = self->inside > 0;
    bool relied_on = held && self->lock != lock;
    PyObject *drop = lock;
    if (!waits && !relied_on) {
        drop = self->lock;
        self->lock = lock;
    }
    PF_UNLOCK(self);
    Py_XDECREF(drop);
    return waits       ? pf_arguments_too_late("somebody waits")
           : relied_on ? pf_arguments_too_late("somebody holds the lock")
                       : 0;
}

/* Returns true if the present lock is pyfiber's and somebody holds it. */
static bool
is_held(ConditionObject *self)
{
    PF_LOCK(self);
    PyObject *lock = Py_XNewRef(self->lock);
    PF_UNLOCK(self);
    LockObject *ours = lock == NULL ? NULL : our_lock(lock);
    bool held = ours != NULL && pf_lock_count(ours) > 0;
    Py_XDECREF(lock);
    return held;
}

static int
condition_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"lock", NULL};
    ConditionObject *self = (ConditionObject *)op;
    PyObject *lock = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:Condition", names,
                                     &lock)) {
        return -1;
    }
    lock = checked_lock(lock);
    return lock == NULL ? -1 : set_lock(self, lock, is_held(self));
}

static int
condition_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(((ConditionObject *)op)->lock);
    return 0;
}

static int
condition_clear(PyObject *op)
{
    Py_CLEAR(((ConditionObject *)op)->lock);
    return 0;
}

static void
condition_dealloc(PyObject *op)
{
    pf_arguments_dealloc_with(op, condition_clear);
}

PyDoc_STRVAR(condition_doc, "Condition(lock=None)\n--\n\n\
A threading.Condition for fibers, of any thread, and plain threads.\n\
\n\
`lock` is a Lock, an RLock or any object with acquire() and release(); None\n\
makes a new RLock. The longest waiter is notified first.");
PyDoc_STRVAR(wait_doc, "wait($self, /, timeout=None)\n--\n\n\
Release the lock, wait for notify(), and take the lock again.\n\
\n\
True if notified, False after `timeout` seconds (None: no limit). A\n\
cancellation point, but Cancelled is raised with the lock held, and not if a\n\
notification came first. RuntimeError if the lock is not held; ValueError for\n\
a negative timeout or NaN.");
PyDoc_STRVAR(wait_for_doc,
             "wait_for($self, /, predicate, timeout=None)\n--\n\n\
Call wait() until predicate() is true, for at most `timeout` seconds.\n\
\n\
Returns the last result of predicate(). Raises as wait().");
PyDoc_STRVAR(notify_doc, "notify($self, /, n=1)\n--\n\n\
Wake the n longest waiters. RuntimeError if the lock is not held.");
PyDoc_STRVAR(notify_all_doc, "notify_all($self, /)\n--\n\n\
Wake all waiters. RuntimeError if the lock is not held.");
PyDoc_STRVAR(acquire_doc, "acquire($self, /, *args, **kwargs)\n--\n\n\
Call acquire() of the lock.");
PyDoc_STRVAR(release_doc,
             "release($self, /)\n--\n\nCall release() of the lock.");
PyDoc_STRVAR(locked_doc, "locked($self, /)\n--\n\nCall locked() of the lock.");
PyDoc_STRVAR(owned_doc, "_is_owned($self, /)\n--\n\n\
True if the running fiber holds the lock.");
PyDoc_STRVAR(holders_doc, "_holders($self, /)\n--\n\n\
An empty list: any fiber or thread may notify. For reports.");
PyDoc_STRVAR(waiters_doc, "_waiters($self, /)\n--\n\n\
The fibers that wait for notify(), in queue order; for reports.");
PyDoc_STRVAR(fork_doc, "_at_fork_reinit($self, /)\n--\n\n\
Make the lock free, in the child of fork.");

static PyMethodDef methods[] = {
    PF_METHOD("acquire", condition_acquire, acquire_doc),
    {"release", condition_release, METH_NOARGS, release_doc},
    {"locked", condition_locked, METH_NOARGS, locked_doc},
    {"__enter__", condition_enter, METH_NOARGS, acquire_doc},
    {"__exit__", PF_FAST(condition_exit), METH_FASTCALL, release_doc},
    PF_METHOD("wait", condition_wait, wait_doc),
    PF_METHOD("wait_for", condition_wait_for, wait_for_doc),
    PF_METHOD("notify", condition_notify, notify_doc),
    {"notify_all", condition_notify_all, METH_NOARGS, notify_all_doc},
    {"_is_owned", condition_is_owned, METH_NOARGS, owned_doc},
    {"_holders", pf_waitq_no_holders, METH_NOARGS, holders_doc},
    {"_waiters", condition_waiters, METH_NOARGS, waiters_doc},
    {"_at_fork_reinit", condition_at_fork, METH_NOARGS, fork_doc},
    PF_NO_PICKLE,
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    PF_WEAKREFS(ConditionObject),
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)condition_doc},
    {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, condition_init},
    {Py_tp_dealloc, condition_dealloc},
    {Py_tp_traverse, condition_traverse},
    {Py_tp_clear, condition_clear},
    {Py_tp_repr, condition_repr},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "pyfiber.Condition",
    .basicsize = sizeof(ConditionObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};

int
pf_condition_init(PyObject *module)
{
    PyTypeObject *type = pf_arguments_add_type(module, &spec, NULL);
    Py_XDECREF(type);
    return type == NULL ? -1 : 0;
}
