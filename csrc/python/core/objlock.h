/* The mutex of an object that programs share between threads.
 *
 * With a GIL the GIL is that mutex, and all of this is empty. Without one, a
 * function that looks at the object's state, changes it and serves its waiters
 * holds the object's mutex from the look to the last change. While a thread
 * holds such a mutex it runs no Python code, drops no reference, neither
 * switches nor waits, and takes no second mutex. So no thread ever holds one
 * while the interpreter is stopped, for the collector or a fork.
 *
 * No mutex is handed over while the interpreter is stopped either: a thread
 * that waits for a mutex stays attached, because it will be free in a moment,
 * and so the interpreter counts as stopped only when every mutex is free.
 * (PyMutex_Lock detaches. After a wait of a millisecond the unlocking thread
 * hands it the mutex; in the child of a fork at that moment the mutex would
 * stay locked.)
 *
 * tstate.h finds out how the interpreter was built, and the macros here follow
 * from that. Code asks `if (PF_FREE_THREADED)`, so that every build compiles
 * all of it.
 */
#ifndef PF_OBJLOCK_H
#define PF_OBJLOCK_H

#include "python/core/pyinclude.h"

#include "engine/base/atomics.h"
#include "python/core/tstate.h"

#include "engine/core/spin.h"

#if PF_FREE_THREADED

typedef PyMutex PfMutex;

/* A thread holds such a mutex for about 50 ns, so a short spin is worth its
 * while; the interpreter's own lock asks the kernel at once to run another
 * thread. */
static inline void
pf_objlock_take(PyMutex *mutex)
{
    for (int i = 0; i < 16 && PyMutex_IsLocked(mutex); i++) {
        pf_spin_rest();
    }
    pystate_lock_mutex(mutex);
}

#define PF_OBJECT_MUTEX PfMutex mutex; /* a member; all zero: unlocked */
#define PF_NODE_MUTEX PfMutex *mutex;  /* for a waiter: its queue's mutex */
#define PF_MUTEX_OF(op) (&(op)->mutex)
#define PF_LOCK_MUTEX(m) pf_objlock_take(m)
#define PF_UNLOCK_MUTEX(m) PyMutex_Unlock(m)
#define PF_SET_NODE_MUTEX(node, m) ((node)->mutex = (m))
#define PF_MUTEX_OF_NODE(node) ((node)->mutex)

/* A word that is also read without the mutex. */
#define PF_SHARED(T) PF_ATOMIC(T)
#define PF_SHARED_GET(p) pf_load_acquire(p)
#define PF_SHARED_SET(p, value) pf_store((p), (value))
/* Replace NULL by `value`. False: *seen is what is there instead, or is NULL
 * after a spurious failure. */
#define PF_SHARED_CLAIM(p, seen, value) pf_cas_weak((p), (seen), (value))

#else

typedef struct PfMutex PfMutex;
#define PF_OBJECT_MUTEX
#define PF_NODE_MUTEX
#define PF_MUTEX_OF(op) ((void)(op), (PfMutex *)NULL)
#define PF_LOCK_MUTEX(m) ((void)(m))
#define PF_UNLOCK_MUTEX(m) ((void)(m))
#define PF_SET_NODE_MUTEX(node, m) ((void)(m))
#define PF_MUTEX_OF_NODE(node) ((PfMutex *)NULL)
#define PF_SHARED(T) T
#define PF_SHARED_GET(p) (*(p))
#define PF_SHARED_SET(p, value) ((void)(*(p) = (value)))
#define PF_SHARED_CLAIM(p, seen, value) ((void)(seen), *(p) = (value), true)

#endif

static inline void
pf_objlock_lock(PfMutex *mutex)
{
    if (mutex != NULL) {
        PF_LOCK_MUTEX(mutex);
    }
}

static inline void
pf_objlock_unlock(PfMutex *mutex)
{
    if (mutex != NULL) {
        PF_UNLOCK_MUTEX(mutex);
    }
}

#define PF_LOCK(op) PF_LOCK_MUTEX(PF_MUTEX_OF(op))
#define PF_UNLOCK(op) PF_UNLOCK_MUTEX(PF_MUTEX_OF(op))

#endif
