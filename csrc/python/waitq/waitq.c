/* Queues of waiters: see waitq.h.  The wait itself is in wait/in_line.c. */
#include "python/waitq/waitq.h"

#include "python/core/compiler.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/task/explore.h"
#include "python/task/fiber.h"
#include "python/task/post.h"
#include "python/task/scheduler.h"

/* ------------------------------------------------------------------- queues */

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

static Py_ssize_t
length(const PfWaitq *queue)
{
    Py_ssize_t count = 0;
    for (PfNode *n = queue->head; n != NULL; n = n->next) {
        count++;
    }
    return count;
}

/* Without a GIL another thread may have granted a waiter whose node is linked
 * here. */
static inline bool
is_not_granted(const PfNode *node)
{
    return !PF_FREE_THREADED || PF_SHARED_GET(&node->waiter->taken) == NULL;
}

/* No list may be created or extended while the mutex is held.  So this counts
 * the waiters, allocates memory for them and then collects them; a waiter that
 * comes in between is left out. */
PyObject *
pf_waitq_list(const PfWaitq *queue, PfMutex *mutex)
{
    pf_objlock_lock(mutex);
    Py_ssize_t most = length(queue);
    pf_objlock_unlock(mutex);
    PyObject **tasks = PyMem_New(PyObject *, most + 1);
    if (tasks == NULL) {
        return PyErr_NoMemory();
    }
    Py_ssize_t count = 0;
    pf_objlock_lock(mutex);
    for (PfNode *n = queue->head; count < most && n != NULL; n = n->next) {
        if (is_not_granted(n)) {
            tasks[count++] = Py_NewRef((PyObject *)n->waiter->task);
        }
    }
    pf_objlock_unlock(mutex);
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
pf_waitq_no_holders(PyObject *op, PyObject *ignored)
{
    (void)op;
    (void)ignored;
    return PyList_New(0);
}

/* ------------------------------------------------------------------- waking */

/* A fiber that is not parked is on its way into the wait or out of it, and
 * checks `taken` itself.  Only the fiber's own thread may check whether it is
 * parked.  `passes`: the fiber runs before others that are ready. */
static void
wake(PfWaiter *waiter, bool passes)
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
    if (PF_UNLIKELY(s->thread != pf_thread_current)) {
        pf_task_post(&s->core, core, PF_POST_WAKE);
    } else if ((passes ? pf_scheduler_wake_next
                       : pf_scheduler_wake)(&s->core, core, PF_WAKE_NORMAL)) {
        pf_scheduler_notify_host(s);
    }
}

/* The message may come late, when the fiber has noticed the grant by itself
 * and waits for something else: then it is ignored.  (A waiter has a lock
 * while a condition releases a foreign lock.  The code of that lock may wait
 * for something else, from which the notification must not wake the fiber.) */
void
pf_waitq_posted(FiberObject *fiber)
{
    if (fiber->wait != NULL && PF_SHARED_GET(&fiber->wait->taken) != NULL &&
        fiber->wait->lock == NULL &&
        pf_scheduler_wake(fiber->core.scheduler, &fiber->core,
                          PF_WAKE_NORMAL)) {
        pf_scheduler_notify_host(SCHEDULER_OF(fiber->core.scheduler));
    }
}

/* Without a GIL the waiter was claimed when it was chosen, so `taken` is set
 * already. */
static inline void
grant(PfNode *node, bool passes)
{
    PfWaiter *waiter = node->waiter;
    if (PF_FREE_THREADED) {
        pf_waitq_remove(node);
    } else {
        assert(PF_SHARED_GET(&waiter->taken) == NULL && node->queue != NULL);
        PF_SHARED_SET(&waiter->taken, node);
        pf_waitq_leave(waiter);
    }
    wake(waiter, passes);
}

void
pf_waitq_grant(PfNode *node)
{
    grant(node, false);
}

/* Returns the node at the head of the queue, even if a test asks for another
 * order; or NULL. */
static PfNode *
first(PfWaitq *queue)
{
    return PF_FREE_THREADED ? pf_waitq_claim(queue) : queue->head;
}

void
pf_waitq_grant_first(PfWaitq *queue)
{
    PfNode *node = first(queue);
    if (node != NULL) {
        grant(node, true);
    }
}

PfNode *
pf_waitq_choose_slow(const PfWaitq *queue)
{
    PfThread *t = pf_thread_current;
    PfNode *node = queue->head;
    if (t == NULL || t->scheduler == NULL) {
        return node;
    }
    uint32_t count = 0;
    for (PfNode *n = node; n != NULL; n = n->next) {
        count++;
    }
    uint32_t place = pf_explore_choose(t->scheduler, count, PF_CHOOSE_WAITER);
    for (; place > 0; place--) {
        node = node->next;
    }
    return node;
}

/* Value of `taken` while a waiter serves itself: see pf_waitq_claim_self. */
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

/* Unlinks the nodes that it meets of waiters that have been granted in other
 * queues. */
PfNode *
pf_waitq_claim(PfWaitq *queue)
{
    if (PF_UNLIKELY(pf_load_relaxed(&pf_explore_runs) != 0) &&
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
pf_waitq_claim_self(PfWaiter *waiter)
{
    return claim(waiter, &busy);
}

void
pf_waitq_unclaim(PfWaiter *waiter)
{
    PF_SHARED_SET(&waiter->taken, NULL);
}

void
pf_waitq_grant_all(PfWaitq *queue)
{
    PfNode *node;
    while ((node = first(queue)) != NULL) {
        pf_waitq_grant(node);
    }
}

void
pf_waitq_refuse_all(PfWaitq *queue)
{
    PfNode *node;
    while ((node = first(queue)) != NULL) {
        node->refused = true;
        pf_waitq_grant(node);
    }
}

/* ------------------------------------------------------------------ waiting */

void
pf_waitq_init_waiter(PfWaiter *waiter, PfThread *t, PfNode *nodes, int count)
{
    *waiter = (PfWaiter){
        .task = PF_TASK(CURRENT(t)), .nodes = nodes, .count = count};
    for (int i = 0; i < count; i++) {
        nodes[i] = (PfNode){.waiter = waiter};
    }
}

void
pf_waitq_forget_fiber(FiberObject *fiber)
{
    for (PfWaiter *w = fiber->wait; w != NULL; w = w->outer) {
        pf_waitq_leave(w);
    }
    fiber->wait = NULL;
}

void
pf_waitq_forget_thread(PfThread *t)
{
    pf_waitq_forget_fiber(t->root);
    for (FiberObject *f = t->live; f != NULL; f = f->next) {
        pf_waitq_forget_fiber(f);
    }
}
