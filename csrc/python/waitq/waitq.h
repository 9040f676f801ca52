/* waitq/: queues of waiters, the basis of every primitive.  wait/in_line.h has
 * the functions that wait in a queue.
 *
 *   PfWaiter   one wait of one fiber, or of a plain thread
 *   PfNode     that waiter's place in one queue (select() has several)
 *   PfWaitq    the queue of an object: first come, first served
 *
 * Ownership is handed over: the code that releases a lock or delivers an item
 * chooses a node (pf_waitq_choose), gives it what its waiter waits for and
 * calls pf_waitq_grant.  From that moment the waiter owns it, whatever happens
 * before the waiter runs again:
 *
 * - If its timer fires or it is cancelled, the waiter owns what it was given
 *   all the same.  The timeout is ignored; the cancellation is raised at the
 *   next park point.
 * - If it is unwound (FiberExit), or a signal handler raises in a plain thread,
 *   pf_wait_in_line returns -1 with `taken` set, and the caller must pass on
 *   what it got.
 *
 * Invariants:
 * - A node is linked exactly while its waiter waits and nothing has been
 *   granted to it.  Granting one node unlinks all nodes of the waiter.
 * - `item` of a node is owned by the node.
 * - Waiters and nodes are not on a C stack: other code reads and writes them
 *   while the fiber waits, and its stack may be moved out (wait_memory.h).  The
 *   waiter and nodes of a fiber that never continues are not freed.
 * - Between the check of an object's state and the linking of a node nothing
 *   runs that could change that state: no Python code runs, and the GIL is not
 *   released.
 * - Queues, nodes and `taken` belong to the object.  The waiting task's state,
 *   timer and place in a ready queue belong to the task's thread alone, so a
 *   grant by another thread is posted there (task/post.h).
 *
 * The GIL is the lock of all objects here.  Without a GIL each object has a
 * mutex (core/objlock.h), and these rules apply as well:
 *
 * - Code that checks an object, changes it and grants holds the mutex from the
 *   first step to the last.  pf_wait_for is entered with the mutex held, frees
 *   it when the node is linked and takes it again to unlink the node.  So code
 *   that grants under the mutex finds the waiter's memory in place, and what it
 *   writes there is complete when the waiter reads.
 * - A waiter in several queues is claimed for one of them by a compare-and-swap
 *   of `taken`.  The waiter's other nodes then have no effect; they stay linked
 *   until the waiter unlinks them, or until pf_waitq_claim meets them.
 * - A timeout or a cancellation counts only after the node is unlinked: until
 *   then the wait may be granted.
 * - The queue of a fiber's joiners (PfTaskObject.waiters) belongs to the
 *   fiber's thread alone and has no mutex.
 */
#ifndef PF_PYTHON_WAITQ_H
#define PF_PYTHON_WAITQ_H

#include "python/core/compiler.h"
#include "python/core/objlock.h"
#include "python/core/thread.h"
#include "python/task/explore.h"
#include "python/task/fiber.h"

struct PfNode {
    PfNode *prev, *next; /* the head's prev is the tail */
    PfWaitq *queue;      /* NULL: not linked */
    PfWaiter *waiter;
    PyObject *item; /* what is sent, or what was received */
    bool refused;   /* granted because the object was closed */
    PF_NODE_MUTEX   /* the object's; NULL: only one thread uses the object */
};

struct PfWaiter {
    PfTaskObject *task; /* a fiber, a plain thread's root fiber, or a grain */
    SchedulerObject *scheduler; /* parks the task; NULL: none, or not yet */
    PF_SHARED(PfNode *) taken;  /* the node that was granted; NULL: none */
    PfNode *nodes;              /* array of `count` */
    int count;
    bool shielded;           /* cancellation waits until the wait is over */
    bool interrupted;        /* by a signal: the next ends a shielded wait */
    PyThread_type_lock lock; /* a plain thread blocks on it; else NULL */
    PfWaiter *outer;         /* the wait that a signal handler interrupted */
};

/* Returns the fiber that waits.  The waiter must not be a grain: no grain
 * waits for a lock, or for another object that needs to know its owner. */
static inline FiberObject *
pf_waitq_fiber(const PfWaiter *waiter)
{
    assert(pf_task_fiber(waiter->task) != NULL);
    return (FiberObject *)(void *)waiter->task;
}

/* The usual wait: one place in one queue. */
typedef struct PfWait {
    PfWaiter waiter;
    PfNode node;
} PfWait;

static inline bool
pf_waitq_empty(const PfWaitq *queue)
{
    return queue->head == NULL;
}

static inline void
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

void pf_waitq_push_first(PfWaitq *queue, PfNode *node);

/* Unlinks the node, if it is in a queue. */
static inline void
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

/* Returns the node to serve next, which the caller must grant; or NULL if
 * nobody waits.  Every choice among waiters is made here: first come, first
 * served, unless a test asks for another order. */
PfNode *pf_waitq_choose_slow(const PfWaitq *queue); /* for tests */
PfNode *pf_waitq_claim(PfWaitq *queue);             /* without a GIL */
static inline PfNode *
pf_waitq_choose(PfWaitq *queue)
{
    if (PF_FREE_THREADED) {
        return pf_waitq_claim(queue);
    }
    return queue->head == NULL ||
                   PF_LIKELY(pf_load_relaxed(&pf_explore_runs) == 0)
               ? queue->head
               : pf_waitq_choose_slow(queue);
}
/* Returns true if a waiter other than `except` (or NULL) waits.  Without a GIL
 * the answer may be outdated at once: pf_waitq_choose may then find nobody. */
bool pf_waitq_has(const PfWaitq *queue, const PfWaiter *except);

/* Wakes the waiter of `node`, which has been given what it waits for. */
void pf_waitq_grant(PfNode *node);
/* Grants the head of the queue, if there is one.  The woken fiber passes
 * others that are ready, as by pf_scheduler_wake_next. */
void pf_waitq_grant_first(PfWaitq *queue);
void pf_waitq_grant_all(PfWaitq *queue);
/* Wakes all waiters with `refused` set, because the object was closed. */
void pf_waitq_refuse_all(PfWaitq *queue);

/* Initializes a waiter of the running fiber, with `count` nodes that are not
 * linked. */
void pf_waitq_init_waiter(PfWaiter *waiter, PfThread *t, PfNode *nodes,
                          int count);
static inline void
pf_waitq_init_wait(PfWait *wait, PfThread *t)
{
    wait->waiter = (PfWaiter){
        .task = PF_TASK(CURRENT(t)),
        .nodes = &wait->node,
        .count = 1,
    };
    wait->node = (PfNode){.waiter = &wait->waiter};
}

/* Removes all nodes of the waiter from their queues.  From then on `taken`
 * does not change. */
static inline void
pf_waitq_leave(PfWaiter *waiter)
{
    for (int i = 0; i < waiter->count; i++) {
        PfNode *node = &waiter->nodes[i];
        pf_objlock_lock(PF_MUTEX_OF_NODE(node));
        pf_waitq_remove(node);
        pf_objlock_unlock(PF_MUTEX_OF_NODE(node));
    }
}

/* Claims a waiter that stands in several queues (select()) for the waiter's
 * own fiber, which is about to serve itself.  Returns 1 if the caller now owns
 * the outcome, and nobody may grant it; 0 if another thread has already
 * granted it.  A caller that cannot serve itself after all undoes the claim,
 * and then must look at its queues again, because others have passed it over
 * meanwhile. */
int pf_waitq_claim_self(PfWaiter *waiter);
void pf_waitq_unclaim(PfWaiter *waiter);

/* Returns a list of the tasks that wait in the queue, in their order; or NULL
 * with an exception.  `mutex` is the object's and not held. */
PyObject *pf_waitq_list(const PfWaitq *queue, PfMutex *mutex);
/* The method _holders() of objects that any fiber may release: returns an
 * empty list. */
PyObject *pf_waitq_no_holders(PyObject *op, PyObject *ignored);

/* Handles PF_POST_WAKE, by which another thread wakes `fiber`.  On the fiber's
 * thread. */
void pf_waitq_posted(FiberObject *fiber);

/* Unlinks all waits of the fiber, or of all fibers of the thread, which will
 * never continue. */
void pf_waitq_forget_fiber(FiberObject *fiber);
void pf_waitq_forget_thread(PfThread *t);

#endif
