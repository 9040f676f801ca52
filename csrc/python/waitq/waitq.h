/* waitq/: queues of waiters, the basis of every primitive.  Who waits in one
 * does so by wait/in_line.h.
 *
 *   PfWaiter   one wait of one fiber, or of a plain thread
 *   PfNode     that waiter's place in one queue (select() has several)
 *   PfWaitq    the queue of an object: first come, first served
 *
 * Ownership is handed over: the code that releases, puts or sends chooses a
 * node (pf_waitq_choose), gives it what it waits for and calls pf_waitq_grant.  From
 * that moment the waiter has it, whatever happens before it runs again:
 *
 * - its timer fires or it is cancelled: it still has it.  The timeout is
 *   ignored, the cancellation is raised at the next park point.
 * - it is unwound (FiberExit), or a signal handler raises in a plain thread:
 *   pf_wait_in_line returns -1 with `taken` set, and the caller must pass on
 *   what it got.
 *
 * Invariants:
 * - a node is linked exactly while its waiter waits and has got nothing;
 *   granting one unlinks all nodes of the waiter.
 * - `item` of a node is owned by the node.
 * - waiters and nodes are not on a C stack: others read and write them while
 *   the fiber waits, and its stack may be moved out (memory.h).  A fiber
 *   that never continues leaves its own behind.
 * - between the check of an object's state and the linking of a node nothing
 *   runs that could change that state (no Python code, no release of the GIL).
 * - whose is what: queues, nodes and `taken` are the object's; the state, timer
 *   and place in a ready queue of who waits are its thread's alone, to which a
 *   grant from elsewhere is posted (post.h).
 *
 * The GIL is the lock of all objects here.  Without one each object has a mutex
 * (core/objlock.h), and
 *
 * - who checks, changes and grants holds it throughout; pf_wait_for, which is
 *   entered with it, frees it when the node is linked and takes it again to
 *   unlink that.  So whoever grants under the mutex finds the waiter's memory
 *   in its place, and what it writes there is complete when the waiter reads.
 * - a waiter in several lines is claimed, for one of them, by a compare-and-swap
 *   of `taken`; its other places stay linked until it comes itself, or until
 *   somebody who chooses meets them, and count for nothing.
 * - a time-out or a cancellation counts only after the node is unlinked: until
 *   then the wait may be granted.
 * - a fiber's own line, of who waits for its end, is its thread's alone, and
 *   has no mutex.
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
    PF_NODE_MUTEX   /* the object's; NULL: only its own thread uses it */
};

struct PfWaiter {
    PfTaskObject *task; /* a plain thread's root, for one; or a grain */
    SchedulerObject *scheduler; /* it waits in; NULL: none, or not yet */
    PF_SHARED(PfNode *) taken;  /* the node that was granted */
    PfNode *nodes;              /* all of them */
    int count;
    bool shielded;           /* cancellation waits until the wait is over */
    bool interrupted;        /* by a signal: the next ends a shielded one */
    PyThread_type_lock lock; /* a plain thread blocks on it, else NULL */
    PfWaiter *outer;         /* the wait that a signal handler interrupted */
};

/* Of a waiter that is no grain: those do not wait for locks and the like. */
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

/* Does nothing to a node that is in no queue. */
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

/* The waiter to serve next, NULL if there is none: it must be granted then.
 * Every choice among waiters is made here: first come, first served, unless a
 * test asks for another order. */
PfNode *pf_waitq_choose_slow(const PfWaitq *queue);
PfNode *pf_waitq_claim(PfWaitq *queue); /* without a GIL */
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
/* Does anybody wait but `except` (or NULL)?  An answer for now: without a GIL a
 * choice may then find nobody. */
bool pf_waitq_has(const PfWaitq *queue, const PfWaiter *except);

/* The waiter of `node` has been given what it waits for: wake it. */
void pf_waitq_grant(PfNode *node);
void
pf_waitq_grant_first(PfWaitq *queue); /* it runs before others, if it may */
void pf_waitq_grant_all(PfWaitq *queue);
void pf_waitq_refuse_all(PfWaitq *queue);

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

/* It is in line no longer: from now on `taken` does not change. */
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

/* Who is in several lines does something itself: 1, nobody may grant it now;
 * 0, it has been granted.  If it could not do it, the claim is undone; then it
 * looks at its lines again, for others have passed it over. */
int pf_waitq_claim_self(PfWaiter *waiter);
void pf_waitq_unclaim(PfWaiter *waiter);

/* The fibers that wait in the queue, first in line first: a list. */
PyObject *pf_waitq_list(const PfWaitq *queue, PfMutex *mutex);
/* _holders() of objects that any fiber may release: an empty list. */
PyObject *pf_waitq_no_holders(PyObject *op, PyObject *ignored);

/* A wake-up from another thread has arrived. */
void pf_waitq_posted(FiberObject *fiber);

/* This fiber's waits, or those of that thread's fibers, are over: they will
 * never go on. */
void pf_waitq_forget_fiber(FiberObject *fiber);
void pf_waitq_forget_thread(PfThread *t);

#endif
