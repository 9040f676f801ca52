/* Waiting in a queue (waitq/waitq.h), as a fiber or as a plain thread. */
#ifndef PF_WAIT_IN_LINE_H
#define PF_WAIT_IN_LINE_H

#include "python/waitq/wait_memory.h"
#include "python/waitq/waitq.h"

/* Returns a new wait of the running fiber, for pf_wait_for and then
 * pf_wait_free.  On failure unlocks `mutex` (or NULL), which the caller holds,
 * and returns NULL with MemoryError. */
PfWait *pf_wait_new(PfThread *t, PfMutex *mutex);
static inline void
pf_wait_free(PfThread *t, PfWait *wait)
{
    pf_wait_memory_keep(t, PF_SPARE_WAITS, wait);
}

/* Prepares `waiter` to be woken.  Call it before the first node is linked, as
 * other threads may wake the waiter from then on. */
void pf_wait_begin(PfWaiter *waiter, PfThread *t);
/* Waits until a node of `waiter` is granted.  Returns 0 if one was, 1 if the
 * deadline passed, and -1 with an exception; if `taken` is set as well, the
 * caller must pass on what it got.  No node is linked afterwards.  The caller
 * holds no mutex.  `what` is for reports. */
int pf_wait_in_line(PfWaiter *waiter, PfThread *t, int64_t deadline,
                    PyObject *what);
/* The usual case: pushes the wait's node and waits.  The caller holds `mutex`
 * (or NULL), and this function unlocks it. */
int pf_wait_for(PfWait *wait, PfWaitq *queue, PfMutex *mutex, PfThread *t,
                int64_t deadline, PyObject *what);
/* As pf_wait_for with a new wait, for callers that need only the result. */
int pf_wait_once(PfWaitq *queue, PfMutex *mutex, PfThread *t, int64_t deadline,
                 PyObject *what);
/* Leaves the queues without waiting, instead of pf_wait_in_line: undoes
 * pf_wait_begin. */
void pf_wait_give_up(PfWaiter *waiter);

#endif
