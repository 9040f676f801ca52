/* Lock and RLock, for condition.c, which releases and retakes them. */
#ifndef PF_LOCK_H
#define PF_LOCK_H

#include "python/core/thread.h"
#include "python/task/fiber.h"
#include "python/waitq/owner.h"
#include "python/waitq/waitq.h"

/* Invariants: the lock is held exactly if count > 0, and is never free while a
 * fiber or plain thread waits for it. */
typedef struct LockObject {
    PyObject_HEAD
    PyObject *weakrefs;
    PfWaitq waiters;
    PfOwner owner;
    Py_ssize_t count; /* how often `owner` has taken it; of a Lock 0 or 1 */
    PF_OBJECT_MUTEX
} LockObject;

extern PyTypeObject *pf_lock_type, *pf_lock_rlock_type;

/* Take the lock, with a count of 1, or wait for it.  Returns 0: taken; 1: the
 * deadline passed; -1: exception, not taken. */
int pf_lock_acquire(LockObject *self, PfThread *t, int64_t deadline);
/* Take the lock again, with a count of 1, for a fiber that has held it and
 * cannot go on without it.  A cancellation is deferred until the lock is
 * taken.  So is the first exception of a signal handler, unless `interrupted`
 * says that one has ended an earlier wait of the same call.  The caller has
 * allocated `wait` before it released the lock, so that no memory is needed
 * here.  Returns 0: taken; -1: exception, and the lock may be taken
 * nevertheless (see pf_lock_is_mine). */
int pf_lock_retake(LockObject *self, PfThread *t, PfWait *wait,
                   bool interrupted);
/* Returns how often the lock is taken: 0 if it is free. */
Py_ssize_t pf_lock_count(LockObject *self);
/* Set how often the running fiber has taken the lock.  Does nothing if that
 * fiber does not hold the lock. */
void pf_lock_recount(LockObject *self, PfThread *t, Py_ssize_t count);
/* Give the lock to the first waiter, or free it, whatever its count. */
void pf_lock_release(LockObject *self);
/* Returns true if the running fiber holds the lock. */
bool pf_lock_is_mine(LockObject *self, PfThread *t);
/* Returns true if the running fiber is being unwound and does not hold the
 * lock.  Such a fiber cannot wait to retake the lock in Condition.wait().  So
 * the end of its `with` block must not release the lock, which another fiber
 * may hold by now. */
bool pf_lock_lost(LockObject *self, PfThread *t);

#endif
