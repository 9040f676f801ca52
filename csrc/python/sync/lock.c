/* Lock and RLock: two types with the same struct, whose count stays below 2 in
 * a Lock.
 *
 * A release hands the lock over to the longest waiter.  So nobody can take a
 * lock in between that others wait for.
 */
#include "python/sync/lock.h"

#include "python/core/arguments.h"
#include "python/core/compiler.h"
#include "python/core/thread.h"
#include "python/sync/sync.h"
#include "python/task/deadline.h"
#include "python/task/explore.h"
#include "python/task/fiber.h"
#include "python/wait/in_line.h"
#include "python/waitq/owner.h"
#include "python/waitq/waitq.h"

#include <structmember.h>

PyTypeObject *pf_lock_type, *pf_lock_rlock_type; /* constant after import */

/* ------------------------------------------------- common to Lock and RLock */

static inline void
take(LockObject *self, FiberObject *fiber)
{
    self->owner = pf_owner(fiber);
    self->count = 1;
}

/* Gives the lock to the next waiter, or frees it.  The caller holds the
 * mutex. */
static inline void
release(LockObject *self)
{
    PfNode *next = pf_waitq_choose(&self->waiters);
    if (PF_LIKELY(next == NULL)) {
        self->owner = (PfOwner){NULL, 0};
        self->count = 0;
        return;
    }
    take(self, pf_waitq_fiber(next->waiter));
    pf_waitq_grant(next);
}

void
pf_lock_release(LockObject *self)
{
    PF_LOCK(self);
    release(self);
    PF_UNLOCK(self);
}

/* The caller holds the mutex. */
static inline bool
is_mine(const LockObject *self, PfThread *t)
{
    return self->count > 0 && pf_owner_is(&self->owner, CURRENT(t));
}

bool
pf_lock_is_mine(LockObject *self, PfThread *t)
{
    PF_LOCK(self);
    bool mine = is_mine(self, t);
    PF_UNLOCK(self);
    return mine;
}

bool
pf_lock_lost(LockObject *self, PfThread *t)
{
    return CURRENT(t)->dying && !pf_lock_is_mine(self, t);
}

Py_ssize_t
pf_lock_count(LockObject *self)
{
    PF_LOCK(self);
    Py_ssize_t count = self->count;
    PF_UNLOCK(self);
    return count;
}

void
pf_lock_recount(LockObject *self, PfThread *t, Py_ssize_t count)
{
    PF_LOCK(self);
    if (is_mine(self, t)) {
        self->count = count;
    }
    PF_UNLOCK(self);
}

/* Waits in the queue.  The caller holds the mutex; this function unlocks it.
 * The thread that releases the lock reads the waiter's owner number.  Without
 * a GIL the fiber must have that number before it waits, because only the
 * fiber's own thread may assign it. */
static inline int
wait_for_lock(LockObject *self, PfWait *wait, PfThread *t, int64_t deadline)
{
    if (PF_FREE_THREADED) {
        (void)pf_owner(CURRENT(t));
    }
    return pf_wait_for(wait, &self->waiters, PF_MUTEX_OF(self), t, deadline,
                       (PyObject *)self);
}

/* Takes the lock or waits for it, and returns as pf_lock_acquire() does.  The
 * caller holds the mutex; this function unlocks it. */
static int
acquire(LockObject *self, PfThread *t, int64_t deadline)
{
    if (self->count == 0 || deadline == PF_NOW) {
        int rc = self->count != 0;
        if (rc == 0) {
            take(self, CURRENT(t));
        }
        PF_UNLOCK(self);
        return rc;
    }
    PfWait *wait = pf_wait_new(t, PF_MUTEX_OF(self));
    if (wait == NULL) {
        return -1;
    }
    int rc = wait_for_lock(self, wait, t, deadline);
    bool taken = PF_SHARED_GET(&wait->waiter.taken) != NULL;
    pf_wait_free(t, wait);
    if (rc < 0 && taken) {
        /* The lock was given to this fiber, which cannot use it.  Since then
         * another fiber may have released the lock, and others taken it. */
        PF_LOCK(self);
        if (is_mine(self, t)) {
            release(self);
        }
        PF_UNLOCK(self);
    }
    return rc;
}

int
pf_lock_acquire(LockObject *self, PfThread *t, int64_t deadline)
{
    PF_LOCK(self);
    return acquire(self, t, deadline);
}

int
pf_lock_retake(LockObject *self, PfThread *t, PfWait *wait, bool interrupted)
{
    PF_LOCK(self);
    if (self->count == 0) {
        take(self, CURRENT(t));
        PF_UNLOCK(self);
        return 0;
    }
    pf_waitq_init_wait(wait, t);
    wait->waiter.shielded = true;
    wait->waiter.interrupted = interrupted;
    return wait_for_lock(self, wait, t, PF_NEVER);
}

static inline bool
is_rlock(LockObject *self)
{
    return Py_TYPE(self) == pf_lock_rlock_type;
}

/* Counts one more acquire() of an RLock by its owner.  The caller holds the
 * mutex; this function unlocks it. */
static PyObject *
take_once_more(LockObject *self)
{
    bool too_often = self->count == PY_SSIZE_T_MAX;
    self->count += !too_often;
    PF_UNLOCK(self);
    if (too_often) {
        PyErr_SetString(PyExc_OverflowError,
                        "the lock was taken too many times");
        return NULL;
    }
    Py_RETURN_TRUE;
}

/* Does acquire() and `with`. */
static PyObject *
take_until(PyObject *op, int64_t deadline)
{
    LockObject *self = (LockObject *)op;
    PfThread *t = pf_thread_this();
    if (t == NULL || pf_explore_preempt() < 0) {
        return NULL;
    }
    PF_LOCK(self);
    if (PF_LIKELY(self->count == 0)) {
        take(self, CURRENT(t));
        PF_UNLOCK(self);
        Py_RETURN_TRUE;
    }
    if (is_rlock(self) && is_mine(self, t)) {
        return take_once_more(self);
    }
    int rc = acquire(self, t, deadline);
    return rc < 0 ? NULL : PyBool_FromLong(rc == 0);
}

static PyObject *
lock_acquire(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
             PyObject *kwnames)
{
    int64_t deadline;
    return pf_deadline_acquire(args, nargs, kwnames, &deadline) < 0
               ? NULL
               : take_until(op, deadline);
}

static PyObject *
lock_enter(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    return take_until(op, PF_NEVER);
}

static PyObject *
refuse_release(Py_ssize_t count)
{
    PyErr_SetString(PyExc_RuntimeError,
                    count == 0
                        ? "cannot release un-acquired lock"
                        : "cannot release un-acquired lock: another fiber "
                          "or thread holds it");
    return NULL;
}

static PyObject *
release_rlock(LockObject *self)
{
    PfThread *t = pf_thread_this();
    if (t == NULL) {
        return NULL;
    }
    PF_LOCK(self);
    Py_ssize_t count = self->count;
    bool mine = is_mine(self, t);
    if (mine && count > 1) {
        self->count--;
    } else if (mine) {
        release(self);
    }
    PF_UNLOCK(self);
    return mine ? Py_NewRef(Py_None) : refuse_release(count);
}

static PyObject *
lock_release(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    LockObject *self = (LockObject *)op;
    if (is_rlock(self)) {
        return release_rlock(self);
    }
    PF_LOCK(self);
    bool taken = self->count > 0;
    if (taken) {
        release(self);
    }
    PF_UNLOCK(self);
    if (!taken) {
        PyErr_SetString(PyExc_RuntimeError, "release unlocked lock");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
lock_exit(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    (void)args;
    (void)nargs;
    PfThread *t = pf_thread_this();
    if (t == NULL) {
        return NULL;
    }
    if (PF_UNLIKELY(pf_lock_lost((LockObject *)op, t))) {
        Py_RETURN_NONE;
    }
    return lock_release(op, NULL);
}

static PyObject *
lock_locked(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    return PyBool_FromLong(pf_lock_count((LockObject *)op) > 0);
}

/* In the child of fork: releases the lock, as the thread of its owner may not
 * exist there. */
static PyObject *
lock_at_fork(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    pf_lock_release((LockObject *)op);
    Py_RETURN_NONE;
}

static PfOwner
owner_of(LockObject *self)
{
    PF_LOCK(self);
    PfOwner owner = self->owner;
    PF_UNLOCK(self);
    return owner;
}

static PyObject *
lock_holders(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    PfOwner owner = owner_of((LockObject *)op);
    return pf_owner_list(&owner, 1);
}

static PyObject *
lock_lost_holder(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    PfOwner owner = owner_of((LockObject *)op);
    return pf_owner_gone(&owner);
}

static PyObject *
lock_waiters(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    LockObject *self = (LockObject *)op;
    return pf_waitq_list(&self->waiters, PF_MUTEX_OF(self));
}

static PyObject *
lock_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "", names)) {
        return NULL;
    }
    return type->tp_alloc(type, 0);
}

static PyMemberDef lock_members[] = {
    PF_WEAKREFS(LockObject),
    {NULL, 0, 0, 0, NULL},
};

/* --------------------------------------------------------------------- Lock */

static PyObject *
lock_repr(PyObject *op)
{
    return PyUnicode_FromFormat(
        "<%s %s object at %p>",
        pf_lock_count((LockObject *)op) > 0 ? "locked" : "unlocked",
        Py_TYPE(op)->tp_name, op);
}

PyDoc_STRVAR(lock_doc, "Lock()\n--\n\n\
A threading.Lock for fibers, of any thread, and plain threads.\n\
\n\
release() hands the lock over to the longest waiter.");
PyDoc_STRVAR(acquire_doc,
             "acquire($self, /, blocking=True, timeout=-1)\n--\n\n\
Take the lock; wait for it at most `timeout` seconds (-1: no limit).\n\
\n\
True if the lock was taken. A cancellation point if it has to wait.\n\
ValueError for NaN, another negative timeout, or a timeout with\n\
blocking=False.");
PyDoc_STRVAR(release_doc, "release($self, /)\n--\n\n\
Free the lock, or give it to the first waiter.\n\
\n\
Any fiber or thread may do so. RuntimeError if the lock is not locked.");
PyDoc_STRVAR(locked_doc,
             "locked($self, /)\n--\n\nTrue if a fiber or thread holds it.");
PyDoc_STRVAR(fork_doc, "_at_fork_reinit($self, /)\n--\n\n\
Make the lock free, in the child of fork.");
PyDoc_STRVAR(holders_doc, "_holders($self, /)\n--\n\n\
A list of the fiber that holds the lock, or empty; for reports.");
PyDoc_STRVAR(lost_doc, "_lost_holder($self, /)\n--\n\n\
The name of the owner if that has ended without a release, or None; for\n\
reports.");
PyDoc_STRVAR(waiters_doc, "_waiters($self, /)\n--\n\n\
The fibers that wait for the lock, in queue order; for reports.");

#define SHARED_METHODS                                                        \
    PF_METHOD("acquire", lock_acquire, acquire_doc),                          \
        {"__enter__", lock_enter, METH_NOARGS, acquire_doc},                  \
        {"locked", lock_locked, METH_NOARGS, locked_doc},                     \
        {"_at_fork_reinit", lock_at_fork, METH_NOARGS, fork_doc},             \
        {"_holders", lock_holders, METH_NOARGS, holders_doc},                 \
        {"_lost_holder", lock_lost_holder, METH_NOARGS, lost_doc},            \
        {"_waiters", lock_waiters, METH_NOARGS, waiters_doc}, PF_NO_PICKLE

static PyMethodDef lock_methods[] = {
    SHARED_METHODS,
    {"release", lock_release, METH_NOARGS, release_doc},
    {"__exit__", PF_FAST(lock_exit), METH_FASTCALL, release_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot lock_slots[] = {
    {Py_tp_doc, (void *)lock_doc},
    {Py_tp_new, lock_new},
    {Py_tp_dealloc, pf_arguments_dealloc},
    {Py_tp_repr, lock_repr},
    {Py_tp_methods, lock_methods},
    {Py_tp_members, lock_members},
    {0, NULL},
};

static PyType_Spec lock_spec = {
    .name = "pyfiber.Lock",
    .basicsize = sizeof(LockObject),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = lock_slots,
};

/* -------------------------------------------------------------------- RLock */

static PyObject *
rlock_is_owned(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    PfThread *t = pf_thread_this();
    return t == NULL ? NULL
                     : PyBool_FromLong(pf_lock_is_mine((LockObject *)op, t));
}

static PyObject *
rlock_recursion_count(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    LockObject *self = (LockObject *)op;
    PfThread *t = pf_thread_this();
    if (t == NULL) {
        return NULL;
    }
    PF_LOCK(self);
    Py_ssize_t count = is_mine(self, t) ? self->count : 0;
    PF_UNLOCK(self);
    return PyLong_FromSsize_t(count);
}

static PyObject *
rlock_release_save(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    LockObject *self = (LockObject *)op;
    PfThread *t = pf_thread_this();
    if (t == NULL) {
        return NULL;
    }
    Py_ssize_t taken = pf_lock_count(self);
    if (!pf_lock_is_mine(self, t)) { /* only its owner can end that */
        return refuse_release(taken);
    }
    PyObject *count = PyLong_FromSsize_t(taken);
    if (count != NULL) {
        pf_lock_release(self);
    }
    return count;
}

static PyObject *
rlock_acquire_restore(PyObject *op, PyObject *saved)
{
    LockObject *self = (LockObject *)op;
    Py_ssize_t count = PyLong_AsSsize_t(saved);
    PfThread *t = pf_thread_this();
    if (t == NULL || (count == -1 && PyErr_Occurred())) {
        return NULL;
    }
    if (count < 1) {
        PyErr_SetString(PyExc_ValueError,
                        "_acquire_restore() needs the value that "
                        "_release_save() returned");
        return NULL;
    }
    PfWait *wait = pf_wait_new(t, NULL);
    if (wait == NULL) {
        return NULL;
    }
    int rc = pf_lock_retake(self, t, wait, false);
    pf_wait_free(t, wait);
    pf_lock_recount(self, t, count);
    return rc < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *
rlock_repr(PyObject *op)
{
    Py_ssize_t count = pf_lock_count((LockObject *)op);
    return PyUnicode_FromFormat("<%s %s object count=%zd at %p>",
                                count > 0 ? "locked" : "unlocked",
                                Py_TYPE(op)->tp_name, count, op);
}

PyDoc_STRVAR(rlock_doc, "RLock()\n--\n\n\
A threading.RLock for fibers, of any thread, and plain threads.\n\
\n\
The fiber that holds the lock may take it again. The longest waiter gets it\n\
next.");
PyDoc_STRVAR(rlock_release_doc, "release($self, /)\n--\n\n\
Undo one acquire(). The last release() frees the lock or gives it to the\n\
first waiter.\n\
\n\
RuntimeError if the running fiber does not hold the lock.");
PyDoc_STRVAR(owned_doc, "_is_owned($self, /)\n--\n\n\
True if the running fiber holds the lock; for Condition.");
PyDoc_STRVAR(recursion_doc, "_recursion_count($self, /)\n--\n\n\
How often the running fiber has taken the lock.");
PyDoc_STRVAR(save_doc, "_release_save($self, /)\n--\n\n\
Free the lock, however often it was taken. Returns the argument for\n\
_acquire_restore().");
PyDoc_STRVAR(restore_doc, "_acquire_restore($self, saved, /)\n--\n\n\
Take the lock as often as before _release_save(). Not a cancellation point.");

static PyMethodDef rlock_methods[] = {
    SHARED_METHODS,
    {"release", lock_release, METH_NOARGS, rlock_release_doc},
    {"__exit__", PF_FAST(lock_exit), METH_FASTCALL, rlock_release_doc},
    {"_is_owned", rlock_is_owned, METH_NOARGS, owned_doc},
    {"_recursion_count", rlock_recursion_count, METH_NOARGS, recursion_doc},
    {"_release_save", rlock_release_save, METH_NOARGS, save_doc},
    {"_acquire_restore", rlock_acquire_restore, METH_O, restore_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot rlock_slots[] = {
    {Py_tp_doc, (void *)rlock_doc},
    {Py_tp_new, lock_new},
    {Py_tp_dealloc, pf_arguments_dealloc},
    {Py_tp_repr, rlock_repr},
    {Py_tp_methods, rlock_methods},
    {Py_tp_members, lock_members},
    {0, NULL},
};

static PyType_Spec rlock_spec = {
    .name = "pyfiber.RLock",
    .basicsize = sizeof(LockObject),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = rlock_slots,
};

int
pf_lock_init(PyObject *module)
{
    pf_lock_type = pf_arguments_add_type(module, &lock_spec, NULL);
    pf_lock_rlock_type = pf_arguments_add_type(module, &rlock_spec, NULL);
    return pf_lock_type != NULL && pf_lock_rlock_type != NULL ? 0 : -1;
}
