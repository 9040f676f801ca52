/* Lock and RLock, for conditions, which release and re-acquire them. */
#ifndef PF_LOCK_H
#define PF_LOCK_H

#include "python/core/thread.h"
#include "python/task/fiber.h"
#include "python/waitq/owner.h"
#include "python/waitq/waitq.h"

/* Held exactly if count > 0; never free while a fiber or thread waits. */
typedef struct LockObject {
    PyObject_HEAD
    PyObject *weakrefs;
    PfWaitq waiters;
    PfOwner owner;
    Py_ssize_t count; /* a Lock's is 0 or 1 */
    PF_OBJECT_MUTEX
} LockObject;

extern PyTypeObject *pf_lock_type, *pf_lock_rlock_type;

/* 0: acquired, once; 1: deadline; -1: exception, not acquired. */
int pf_lock_acquire(LockObject *self, PfThread *t, int64_t deadline);
/* The same for a fiber that had it and needs it to continue: a cancellation is
 * deferred, and so is a signal handler's exception, unless one has
 * `interrupted` before. `wait` is its memory, which it had before it freed the
 * lock, so that it need not do without.  -1: perhaps acquired all the same, see
 * pf_lock_is_mine. */
int pf_lock_retake(LockObject *self, PfThread *t, PfWait *wait,
                   bool interrupted);
/* How often it is taken. */
Py_ssize_t pf_lock_count(LockObject *self);
/* It is mine, and taken so often now; nothing if it is not mine. */
void pf_lock_recount(LockObject *self, PfThread *t, Py_ssize_t count);
/* Free it whatever the count; the first waiter gets it. */
void pf_lock_release(LockObject *self);
bool pf_lock_is_mine(LockObject *self, PfThread *t);
/* A fiber that was being unwound could not wait to get its lock back: then the
 * end of its `with` block must not release a lock that another fiber holds.
 */
bool pf_lock_lost(LockObject *self, PfThread *t);

#endif
