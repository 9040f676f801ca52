/* Waiting in line; see waitq.h. */
#include "python/fiber/waitq.h"

#include "engine/base/mutex.h"
#include "python/core/arguments.h"
#include "python/core/compiler.h"
#include "python/core/state.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/fiber/explore.h"
#include "python/fiber/fiber.h"
#include "python/fiber/hub.h"
#include "python/fiber/still.h"
#include "python/fiber/wait.h"

/* ------------------------------------------------------------------- queues */

void
pf_waitq_push(PfWaitq *queue, PfNode *node)
{
    PfNode *head = queue->head;
    node->queue = queue;
    node->next = NULL;
    if (head == NULL) {
        queue->head = node;
        node->prev = node;
        return;
    }
    node->prev = head->prev;
    head->prev->next = node;
    head->prev = node;
}

void
pf_waitq_push_first(PfWaitq *queue, PfNode *node)
{
    PfNode *head = queue->head;
    if (head == NULL) {
        pf_waitq_push(queue, node);
        return;
    }
    node->queue = queue;
    node->next = head;
    node->prev = head->prev;
    head->prev = node;
    queue->head = node;
}

/* Does nothing to a node that is in no queue. */
void
pf_waitq_remove(PfNode *node)
{
    PfWaitq *queue = node->queue;
    if (queue == NULL) {
        return;
    }
    node->queue = NULL;
    PfNode *next = node->next;
    if (node == queue->head) {
        queue->head = next;
        if (next != NULL) {
            next->prev = node->prev;
        }
        return;
    }
    node->prev->next = next;
    if (next != NULL) {
        next->prev = node->prev;
    } else {
        queue->head->prev = node->prev;
    }
}

static inline void
lock_if_any(PfMutex *mutex)
{
    if (PF_FREE_THREADED && mutex != NULL) {
        PF_LOCK_MUTEX(mutex);
    }
}

static inline void
unlock_if_any(PfMutex *mutex)
{
    if (PF_FREE_THREADED && mutex != NULL) {
        PF_UNLOCK_MUTEX(mutex);
    }
}

static inline void
unlink_all(PfWaiter *waiter)
{
    for (int i = 0; i < waiter->count; i++) {
        PfNode *node = &waiter->nodes[i];
        lock_if_any(PF_MUTEX_OF_NODE(node));
        pf_waitq_remove(node);
        unlock_if_any(PF_MUTEX_OF_NODE(node));
    }
}

static Py_ssize_t
length(const PfWaitq *queue)
{
    Py_ssize_t count = 0;
    for (PfNode *n = queue->head; n != NULL; n = n->next) {
        count++;
    }
    return count;
}

void
pf_wait_leave(PfWaiter *waiter)
{
    unlink_all(waiter);
}

/* Without a GIL some of those in line may have been granted elsewhere. */
static inline bool
waits_still(const PfNode *node)
{
    return !PF_FREE_THREADED || PF_SHARED_GET(&node->waiter->taken) == NULL;
}

/* A list is not made, nor does it grow, under the mutex: the memory is had
 * before, and who comes meanwhile is not in it. */
PyObject *
pf_waitq_list(const PfWaitq *queue, PfMutex *mutex)
{
    lock_if_any(mutex);
    Py_ssize_t most = length(queue);
    unlock_if_any(mutex);
    PyObject **tasks = PyMem_New(PyObject *, most + 1);
    if (tasks == NULL) {
        return PyErr_NoMemory();
    }
    Py_ssize_t count = 0;
    lock_if_any(mutex);
    for (PfNode *n = queue->head; count < most && n != NULL; n = n->next) {
        if (waits_still(n)) {
            tasks[count++] = Py_NewRef((PyObject *)n->waiter->task);
        }
    }
    unlock_if_any(mutex);
    PyObject *list = PyList_New(count);
    for (Py_ssize_t i = 0; i < count; i++) {
        if (list != NULL) {
            PyList_SET_ITEM(list, i, tasks[i]);
        } else {
            Py_DECREF(tasks[i]);
        }
    }
    PyMem_Free(tasks);
    return list;
}

PyObject *
pf_no_holders(PyObject *op, PyObject *ignored)
{
    (void)op;
    (void)ignored;
    return PyList_New(0);
}

/* ------------------------------------------------------------------- waking */

/* A fiber that is not parked is on its way into the wait or out of it: it
 * checks `taken` itself.  Whether it is parked only its own thread may ask. */
static void
wake(PfWaiter *waiter, bool next)
{
    if (waiter->lock != NULL) {
        PyThread_release_lock(waiter->lock);
        return;
    }
    SchedulerObject *s = waiter->scheduler;
    if (s == NULL) {
        return;
    }
    pf_task *core = &waiter->task->core;
    if (PF_UNLIKELY(s->thread != pf_tls_thread)) {
        pf_task_post(&s->core, core, PF_POST_WAKE);
    } else if ((next ? pf_wake_next : pf_wake_task)(&s->core, core,
                                                    PF_WAKE_NORMAL)) {
        pf_tell_host(s);
    }
}

/* The message may come late, when the fiber has noticed by itself and waits
 * for something else: then it is ignored.  (If the waiter has a lock, it does
 * not wait in line yet: a condition's foreign lock is being released.) */
void
pf_waiter_arrived(FiberObject *fiber)
{
    if (fiber->wait != NULL && PF_SHARED_GET(&fiber->wait->taken) != NULL &&
        fiber->wait->lock == NULL &&
        pf_wake_task(fiber->core.scheduler, &fiber->core, PF_WAKE_NORMAL)) {
        pf_tell_host(SCHEDULER_OF(fiber->core.scheduler));
    }
}

/* Without a GIL it was claimed when it was chosen. */
static inline void
grant(PfNode *node, bool next)
{
    PfWaiter *waiter = node->waiter;
    if (PF_FREE_THREADED) {
        pf_waitq_remove(node);
    } else {
        assert(PF_SHARED_GET(&waiter->taken) == NULL && node->queue != NULL);
        PF_SHARED_SET(&waiter->taken, node);
        unlink_all(waiter);
    }
    wake(waiter, next);
}

void
pf_grant(PfNode *node)
{
    grant(node, false);
}

/* In front of all that wait, whatever a test asks for. */
static PfNode *
first(PfWaitq *queue)
{
    return PF_FREE_THREADED ? pf_waitq_claim(queue) : queue->head;
}

void
pf_grant_first(PfWaitq *queue)
{
    PfNode *node = first(queue);
    if (node != NULL) {
        grant(node, true);
    }
}

PfNode *
pf_waitq_choose_slow(const PfWaitq *queue)
{
    PfThread *t = pf_tls_thread;
    PfNode *node = queue->head;
    if (t == NULL || t->scheduler == NULL) {
        return node;
    }
    uint32_t count = 0;
    for (PfNode *n = node; n != NULL; n = n->next) {
        count++;
    }
    uint32_t place = pf_choose(t->scheduler, count, PF_CHOOSE_WAITER);
    for (; place > 0; place--) {
        node = node->next;
    }
    return node;
}

/* The mark of a waiter that does something itself: see pf_wait_claim_self. */
static PfNode busy; /* constant after import */

static bool
claim(PfWaiter *waiter, PfNode *node)
{
    PfNode *seen = NULL;
    while (!PF_SHARED_CLAIM(&waiter->taken, &seen, node)) {
        if (seen != NULL) {
            return false;
        }
    }
    return true;
}

/* Those that have been granted elsewhere are taken out of the line. */
PfNode *
pf_waitq_claim(PfWaitq *queue)
{
    if (PF_UNLIKELY(pf_load_relaxed(&pf_exploring) != 0) &&
        queue->head != NULL) {
        PfNode *node = pf_waitq_choose_slow(queue);
        if (claim(node->waiter, node)) {
            return node;
        }
    }
    PfNode *next;
    for (PfNode *node = queue->head; node != NULL; node = next) {
        next = node->next;
        if (claim(node->waiter, node)) {
            return node;
        }
        if (PF_SHARED_GET(&node->waiter->taken) != &busy) {
            pf_waitq_remove(node);
        }
    }
    return NULL;
}

bool
pf_waitq_has(const PfWaitq *queue, const PfWaiter *except)
{
    PfNode *n = queue->head;
    while (n != NULL &&
           (n->waiter == except || PF_SHARED_GET(&n->waiter->taken) != NULL)) {
        n = n->next;
    }
    return n != NULL;
}

int
pf_wait_claim_self(PfWaiter *waiter)
{
    return claim(waiter, &busy);
}

void
pf_wait_unclaim(PfWaiter *waiter)
{
    PF_SHARED_SET(&waiter->taken, NULL);
}

void
pf_grant_all(PfWaitq *queue)
{
    PfNode *node;
    while ((node = first(queue)) != NULL) {
        pf_grant(node);
    }
}

void
pf_refuse_all(PfWaitq *queue)
{
    PfNode *node;
    while ((node = first(queue)) != NULL) {
        node->refused = true;
        pf_grant(node);
    }
}

/* ------------------------------------------------------------------ waiting */

void
pf_waiter_init(PfWaiter *waiter, PfThread *t, PfNode *nodes, int count)
{
    *waiter = (PfWaiter){
        .task = PF_TASK(CURRENT(t)), .nodes = nodes, .count = count};
    for (int i = 0; i < count; i++) {
        nodes[i] = (PfNode){.waiter = waiter};
    }
}

void
pf_wait_init(PfWait *wait, PfThread *t)
{
    wait->waiter = (PfWaiter){
        .task = PF_TASK(CURRENT(t)),
        .nodes = &wait->node,
        .count = 1,
    };
    wait->node = (PfNode){.waiter = &wait->waiter};
}

/* The thread has none to spare. */
static PF_NEVER_INLINE PfWait *
new_in_heap(PfThread *t, PfMutex *mutex)
{
    PfWait *wait = PyMem_RawMalloc(sizeof *wait);
    if (wait == NULL) {
        unlock_if_any(mutex);
        PyErr_NoMemory();
        return NULL;
    }
    pf_wait_init(wait, t);
    return wait;
}

PfWait *
pf_wait_new(PfThread *t, PfMutex *mutex)
{
    PfWait *wait = pf_wait_memory_spare(t, PF_SPARE_WAITS);
    if (PF_UNLIKELY(wait == NULL)) {
        return new_in_heap(t, mutex);
    }
    pf_wait_init(wait, t);
    return wait;
}

/* Microseconds until the deadline, 0 if it has passed; -1: no deadline. */
static PY_TIMEOUT_T
microseconds_left(int64_t deadline)
{
    if (deadline == PF_NEVER) {
        return -1;
    }
    int64_t now = pf_monotonic();
    if (deadline <= now) {
        return 0;
    }
    int64_t left = (deadline - now + 999) / 1000;
    return left < PY_TIMEOUT_MAX ? left : PY_TIMEOUT_MAX;
}

/* Python's signal handlers run on the main thread while it waits.  A shielded
 * wait continues after the first exception, which *pending keeps, because the
 * lock is needed to unwind properly.  A second exception ends it, as in run().
 */
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
    *pending = pf_take_exception();
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
        pf_restore_exception(pending);
        return -1;
    }
    Py_XDECREF(pending);
    return rc;
}

/* A fiber on its own stack may not block: on its thread nothing else could run
 * to wake it. */
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
    if (pf_is_shut_down()) {
        PyErr_SetString(pf.fiber_error,
                        "the interpreter is shutting down: nothing may wait "
                        "any more");
        return -1;
    }
    return 0;
}

/* NULL, without an exception, if there is no memory. */
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

/* With a GIL nobody looks before it waits. */
void
pf_wait_begin(PfWaiter *waiter, PfThread *t)
{
    if (PF_FREE_THREADED) {
        waiter->scheduler = t->scheduler;
        waiter->lock = t->scheduler == NULL ? closed_lock() : NULL;
    }
}

/* Whoever has granted it until now was in time. */
static inline int
settle(PfWaiter *waiter, int rc)
{
    unlink_all(waiter);
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
    FiberObject *self = pf_waiting_fiber(waiter);
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
    unlock_if_any(mutex);
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

void
pf_fiber_forget_waits(FiberObject *fiber)
{
    for (PfWaiter *w = fiber->wait; w != NULL; w = w->outer) {
        unlink_all(w);
    }
    fiber->wait = NULL;
}

void
pf_waits_forget(PfThread *t)
{
    pf_fiber_forget_waits(t->root);
    for (FiberObject *f = t->live; f != NULL; f = f->next) {
        pf_fiber_forget_waits(f);
    }
}

/* ------------------------------------------------------------------- owners */

/* Given to a fiber, see PfOwner: shared, one word. */
static PF_ATOMIC(size_t) last_number;

uint32_t
pf_number_fiber(FiberObject *fiber)
{
    uint32_t number;
    do {
        number = (uint32_t)(pf_fetch_add(&last_number, 1) + 1);
    } while (number == 0);
    fiber->number = number;
    return number;
}

static FiberObject *
find_on(PfThread *t, const PfOwner *owner)
{
    if (pf_owns(owner, t->root)) {
        return t->root;
    }
    FiberObject *f = t->live;
    while (f != NULL && !pf_owns(owner, f)) {
        f = f->next;
    }
    return f;
}

/* A new reference, or NULL.  The pointer is followed only if it is known to
 * point to a live fiber. */
static FiberObject *
find_owner(const PfOwner *owner)
{
    FiberObject *found = NULL;
    if (owner->fiber == NULL) {
        return NULL;
    }
    bool stopped = pf_still_begin(NULL);
    pf_mutex_lock(&pf_threads_lock);
    for (PfThread *t = pf_threads; t != NULL && found == NULL; t = t->next) {
        found = find_on(t, owner);
    }
    found = found != NULL && pf_is_counted(found)
                ? (FiberObject *)Py_NewRef((PyObject *)found)
                : NULL;
    pf_mutex_unlock(&pf_threads_lock);
    pf_still_end(stopped);
    return found;
}

#define GONE_PLACES 256
/* Names of owners that have ended, at the places of their numbers; each stays
 * until a later one needs the place.  Shared, behind gone_lock. */
static struct {
    uint32_t number;
    PyObject *name;
} gone[GONE_PLACES];
static pf_mutex gone_lock = PF_MUTEX_INIT;

void
pf_owner_ends(FiberObject *fiber)
{
    PyObject *name = Py_XNewRef(fiber->name);
    uint32_t number = fiber->number;
    pf_mutex_lock(&gone_lock);
    PyObject *before = gone[number % GONE_PLACES].name;
    gone[number % GONE_PLACES].number = number;
    gone[number % GONE_PLACES].name = name;
    pf_mutex_unlock(&gone_lock);
    Py_XDECREF(before);
}

PyObject *
pf_owner_gone(const PfOwner *owner)
{
    FiberObject *alive = find_owner(owner);
    if (owner->fiber == NULL || alive != NULL) {
        Py_XDECREF(alive);
        Py_RETURN_NONE;
    }
    uint32_t place = owner->number % GONE_PLACES;
    PyObject *name = NULL;
    pf_mutex_lock(&gone_lock);
    if (gone[place].number == owner->number) {
        name = Py_XNewRef(gone[place].name);
    }
    pf_mutex_unlock(&gone_lock);
    return name != NULL ? name : PyUnicode_FromString("?");
}

PyObject *
pf_owner_list(const PfOwner *owners, int count)
{
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < count; i++) {
        FiberObject *fiber = find_owner(&owners[i]);
        if (fiber != NULL && PyList_Append(list, (PyObject *)fiber) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(fiber);
    }
    return list;
}
