/* Waiting in line: the basis of every primitive.
 *
 *   PfWaiter   one wait of one fiber, or of a plain thread; on its C stack
 *   PfNode     that waiter's place in one queue (select() has several)
 *   PfWaitq    the queue of an object: first come, first served
 *
 * Ownership is handed over: the code that releases, puts or sends chooses a
 * node (pf_waitq_choose), gives it what it waits for and calls pf_grant.  From
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
 * - between the check of an object's state and the linking of a node nothing
 *   runs that could change that state (no Python code, no release of the GIL).
 *   The GIL is the lock of all objects here; without one, each function that
 *   checks, changes and grants would hold the object's mutex up to
 *   pf_wait_in_line, the only place that waits.
 * - whose is what: queues, nodes and `taken` are the object's, so anybody's
 *   with the GIL; the state, timer and place in a ready queue of who waits are
 *   its thread's alone, to which a grant from elsewhere is posted (owner.h).
 */
#ifndef PF_WAITQ_H
#define PF_WAITQ_H

#include "python/core/compiler.h"
#include "python/fiber/explore.h"
#include "python/fiber/fiber.h"
#include "python/core/thread.h"
#include "python/core/arguments.h"

struct PfNode {
    PfNode *prev, *next; /* the head's prev is the tail */
    PfWaitq *queue;      /* NULL: not linked */
    PfWaiter *waiter;
    PyObject *item; /* what is sent, or what was received */
    bool refused;   /* granted because the object was closed */
};

struct PfWaiter {
    PfTaskObject *task; /* a plain thread's root, for one; or a grain */
    SchedulerObject *scheduler; /* it waits in; NULL: none, or not yet */
    PfNode *taken;              /* the node that was granted */
    PfNode *nodes;              /* all of them */
    int count;
    bool shielded;           /* cancellation waits until the wait is over */
    bool interrupted;        /* by a signal: the next ends a shielded one */
    PyThread_type_lock lock; /* a plain thread blocks on it, else NULL */
    PfWaiter *outer;         /* the wait that a signal handler interrupted */
};

/* Of a waiter that is no grain: those do not wait for locks and the like. */
static inline FiberObject *
pf_waiting_fiber(const PfWaiter *waiter)
{
    assert(pf_fiber_or_null(waiter->task) != NULL);
    return (FiberObject *)(void *)waiter->task;
}

/* The usual wait: one place in one queue. */
typedef struct PfWait {
    PfWaiter waiter;
    PfNode node;
} PfWait;

/* A deadline that is over: do not wait at all. */
#define PF_NOW INT64_MIN

static inline bool
pf_waitq_empty(const PfWaitq *queue)
{
    return queue->head == NULL;
}

void pf_waitq_push(PfWaitq *queue, PfNode *node);
void pf_waitq_push_first(PfWaitq *queue, PfNode *node);
void pf_waitq_remove(PfNode *node);
/* The nodes that were at `before` have been copied here. */
void pf_waitq_moved(PfNode *nodes, const PfNode *before, int count);

/* The waiter to serve next; the queue is not empty.  Every choice among
 * waiters is made here: first come, first served, unless a test asks for
 * another order. */
PfNode *pf_waitq_choose_slow(const PfWaitq *queue);
static inline PfNode *
pf_waitq_choose(const PfWaitq *queue)
{
    return PF_LIKELY(pf_load_relaxed(&pf_exploring) == 0)
               ? queue->head
               : pf_waitq_choose_slow(queue);
}

/* The waiter of `node` has been given what it waits for: wake it. */
void pf_grant(PfNode *node);
void pf_grant_next(PfNode *node); /* it runs before others, if it may */
void pf_grant_all(PfWaitq *queue);
void pf_refuse_all(PfWaitq *queue);

void pf_waiter_init(PfWaiter *waiter, PfThread *t, PfNode *nodes, int count);
void pf_wait_init(PfWait *wait, PfThread *t);

/* Wait until a node of `waiter` is granted. 0: it was; 1: the deadline passed;
 * -1: an exception is set, and if `taken` is set, too, the caller must pass on
 * what it got.  No node is linked afterwards. */
int pf_wait_in_line(PfWaiter *waiter, PfThread *t, int64_t deadline,
                    PyObject *what);
/* The same for the usual case: push and wait. */
int pf_wait_for(PfWait *wait, PfWaitq *queue, PfThread *t, int64_t deadline,
                PyObject *what);

/* The fibers that wait in the queue, first in line first: a list. */
PyObject *pf_waitq_list(const PfWaitq *queue);
/* _holders() of objects that any fiber may release: an empty list. */
PyObject *pf_no_holders(PyObject *op, PyObject *ignored);

/* A wake-up from another thread has arrived. */
void pf_waiter_arrived(FiberObject *fiber);

/* This fiber's waits, or those of that thread's fibers, are over: they will
 * never go on. */
void pf_fiber_forget_waits(FiberObject *fiber);
void pf_waits_forget(PfThread *t);

/* ------------------------------------------------------------------ owners */

/* Who holds a lock.  The pointer is not a reference: a suspended fiber must
 * not be kept alive by the lock it holds.  The fiber's number tells it from later ones at the same address: two of them with the same
 * number would be 2^32 owners of locks apart. */
typedef struct PfOwner {
    FiberObject *fiber;
    uint32_t number; /* 0: it has never owned a lock */
} PfOwner;

uint32_t pf_number_fiber(FiberObject *fiber);

static inline PfOwner
pf_owner(FiberObject *fiber)
{
    uint32_t number = fiber->number;
    return (PfOwner){fiber,
                     PF_LIKELY(number != 0) ? number : pf_number_fiber(fiber)};
}

static inline bool
pf_owns(const PfOwner *owner, const FiberObject *fiber)
{
    return owner->fiber == fiber && owner->number == fiber->number;
}

/* It ends, and has owned a lock: keep its name for reports. */
void pf_owner_ends(FiberObject *fiber);
/* The name of an owner that has ended; None if it has not, or there is none.
 * The name may be forgotten if it ended long ago: then "?". */
PyObject *pf_owner_gone(const PfOwner *owner);
/* The owners that have not ended: a list. */
PyObject *pf_owner_list(const PfOwner *owners, int count);

/* For __init__: -1 with FiberError if anything waits already.  To be called
 * last, after all conversions and allocations. */
int pf_check_unused(const PfWaitq *queue);

#endif
