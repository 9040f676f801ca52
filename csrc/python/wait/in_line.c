/* Waiting in a queue: a fiber parks (wait.c), a plain thread blocks on a lock.
 * See in_line.h. */
#include "python/wait/in_line.h"

#include "python/core/state.h"
#include "python/core/tstate.h"
#include "python/task/deadline.h"
#include "python/wait/wait.h"
#include "python/waitq/wait_memory.h"

/* For pf_wait_new when the thread keeps no spare wait. */
static PF_NEVER_INLINE PfWait *
new_in_heap(PfThread *t, PfMutex *mutex)
{
    PfWait *wait = PyMem_RawMalloc(sizeof *wait);
    if (wait == NULL) {
        pf_objlock_unlock(mutex);
        PyErr_NoMemory();
        return NULL;
    }
    pf_waitq_init_wait(wait, t);
    return wait;
}

PfWait *
pf_wait_new(PfThread *t, PfMutex *mutex)
{
    PfWait *wait = pf_wait_memory_spare(t, PF_SPARE_WAITS);
    if (PF_UNLIKELY(wait == NULL)) {
        return new_in_heap(t, mutex);
    }
    pf_waitq_init_wait(wait, t);
    return wait;
}

/* Returns the microseconds until the deadline, 0 if it has passed, and -1 if
 * there is none. */
static PY_TIMEOUT_T
microseconds_left(int64_t deadline)
{
    if (deadline == PF_NEVER) {
        return -1;
    }
    int64_t now = pf_clock_monotonic();
    if (deadline <= now) {
        return 0;
    }
    int64_t left = (deadline - now + 999) / 1000;
    return left < PY_TIMEOUT_MAX ? left : PY_TIMEOUT_MAX;
}

/* Runs Python's signal handlers, which the main thread does while it waits.
 * Returns 0 if the wait goes on, else -1 with an exception.  A shielded wait
 * goes on after the first exception, which *pending keeps, because the caller
 * needs the lock to unwind properly.  A second exception ends it, as in
 * run(). */
static int
after_signal(PfWaiter *waiter, PyObject **pending)
{
    if (PyErr_CheckSignals() == 0) {
        return 0;
    }
    if (!waiter->shielded || waiter->interrupted) {
        return -1;
    }
    waiter->interrupted = true;
    *pending = pystate_take_exception();
    return 0;
}

static int
block(PfWaiter *waiter, int64_t deadline)
{
    PyObject *pending = NULL;
    int rc = 0;
    while (rc == 0 && PF_SHARED_GET(&waiter->taken) == NULL) {
        PY_TIMEOUT_T left = microseconds_left(deadline);
        if (left == 0) {
            rc = 1;
            break;
        }
        PyLockStatus status;
        Py_BEGIN_ALLOW_THREADS;
        status = PyThread_acquire_lock_timed(waiter->lock, left, 1);
        Py_END_ALLOW_THREADS;
        if (status == PY_LOCK_INTR) {
            rc = after_signal(waiter, &pending);
        }
    }
    if (rc >= 0 && PF_SHARED_GET(&waiter->taken) != NULL) {
        rc = 0;
    }
    if (pending != NULL && rc >= 0) {
        pystate_restore_exception(pending);
        return -1;
    }
    Py_XDECREF(pending);
    return rc;
}

/* Outside of a run only the thread's own stack may block.  A raw fiber may
 * not: nothing else could run on its thread to wake it. */
static int
refuse_plain(PfThread *t)
{
    if (CURRENT(t) != t->root) {
        PyErr_SetString(pf.fiber_error,
                        "a raw fiber outside of a run cannot wait: it would "
                        "block its thread and every fiber on it. Use "
                        "pyfiber.run(), or a timeout of 0; in a function that "
                        "run_in_fiber() calls wait with await_()");
        return -1;
    }
    if (pf_state_is_shut_down()) {
        PyErr_SetString(pf.fiber_error,
                        "the interpreter is shutting down: nothing may wait "
                        "any more");
        return -1;
    }
    return 0;
}

/* Returns a new lock that is held; NULL, without an exception, if there is no
 * memory. */
static PyThread_type_lock
closed_lock(void)
{
    PyThread_type_lock lock = PyThread_allocate_lock();
    if (lock != NULL) {
        PyThread_acquire_lock(lock, NOWAIT_LOCK);
    }
    return lock;
}

static void
free_lock(PfWaiter *waiter)
{
    if (waiter->lock != NULL) {
        PyThread_free_lock(waiter->lock);
        waiter->lock = NULL;
    }
}

static int
wait_plain(PfWaiter *waiter, PfThread *t, int64_t deadline)
{
    if (refuse_plain(t) < 0) {
        return -1;
    }
    if (!PF_FREE_THREADED) {
        waiter->lock = closed_lock();
    }
    if (waiter->lock == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    int rc = block(waiter, deadline);
    if (!PF_FREE_THREADED) {
        free_lock(waiter);
    }
    return rc;
}

/* Does nothing with a GIL: no other thread looks at the waiter before it
 * waits, and pf_wait_in_line sets both fields. */
void
pf_wait_begin(PfWaiter *waiter, PfThread *t)
{
    if (PF_FREE_THREADED) {
        waiter->scheduler = t->scheduler;
        waiter->lock = t->scheduler == NULL ? closed_lock() : NULL;
    }
}

/* Leaves the queues and returns the result of the wait.  A grant that came
 * before the nodes were unlinked was in time, also after the deadline. */
static inline int
settle(PfWaiter *waiter, int rc)
{
    pf_waitq_leave(waiter);
    if (PF_FREE_THREADED) {
        free_lock(waiter);
        return rc == 1 && PF_SHARED_GET(&waiter->taken) != NULL ? 0 : rc;
    }
    return rc;
}

void
pf_wait_give_up(PfWaiter *waiter)
{
    (void)settle(waiter, 0);
}

int
pf_wait_in_line(PfWaiter *waiter, PfThread *t, int64_t deadline,
                PyObject *what)
{
    FiberObject *self = pf_waitq_fiber(waiter);
    int rc;
    waiter->outer = self->wait;
    self->wait = waiter;
    if (!PF_FREE_THREADED) {
        waiter->scheduler = t->scheduler;
    }
    if (PF_SHARED_GET(&waiter->taken) != NULL) {
        rc = 0;
    } else if (deadline == PF_NOW) {
        rc = 1;
    } else if (t->scheduler == NULL) {
        rc = wait_plain(waiter, t, deadline);
    } else if (waiter->shielded) {
        rc = pf_wait_granted_shielded(t, waiter, what);
    } else {
        rc = pf_wait_granted(t, waiter, deadline, what);
    }
    self->wait = waiter->outer;
    return settle(waiter, rc);
}

int
pf_wait_for(PfWait *wait, PfWaitq *queue, PfMutex *mutex, PfThread *t,
            int64_t deadline, PyObject *what)
{
    PF_SET_NODE_MUTEX(&wait->node, mutex);
    pf_wait_begin(&wait->waiter, t);
    pf_waitq_push(queue, &wait->node);
    pf_objlock_unlock(mutex);
    return pf_wait_in_line(&wait->waiter, t, deadline, what);
}

int
pf_wait_once(PfWaitq *queue, PfMutex *mutex, PfThread *t, int64_t deadline,
             PyObject *what)
{
    PfWait *wait = pf_wait_new(t, mutex);
    if (PF_UNLIKELY(wait == NULL)) {
        return -1;
    }
    int rc = pf_wait_for(wait, queue, mutex, t, deadline, what);
    pf_wait_free(t, wait);
    return rc;
}
