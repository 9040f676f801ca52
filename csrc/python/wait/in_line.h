/* To wait in a queue (waitq/waitq.h), as a fiber or as a plain thread. */
#ifndef PF_WAIT_IN_LINE_H
#define PF_WAIT_IN_LINE_H

#include "python/waitq/wait_memory.h"
#include "python/waitq/waitq.h"

/* A wait of the running fiber, to be given to pf_wait_for and to
 * pf_wait_free().  NULL with MemoryError; then `mutex` (or NULL), which the
 * caller holds, is free. */
PfWait *pf_wait_new(PfThread *t, PfMutex *mutex);
static inline void
pf_wait_free(PfThread *t, PfWait *wait)
{
    pf_wait_memory_keep(t, PF_SPARE_WAITS, wait);
}

/* Others may wake `waiter` from now on: before its first node is linked. */
void pf_wait_begin(PfWaiter *waiter, PfThread *t);
/* Wait until a node of `waiter` is granted. 0: it was; 1: the deadline passed;
 * -1: an exception is set, and if `taken` is set, too, the caller must pass on
 * what it got.  No node is linked afterwards.  No mutex is held. */
int pf_wait_in_line(PfWaiter *waiter, PfThread *t, int64_t deadline,
                    PyObject *what);
/* The usual case: push and wait.  Entered with `mutex`, which it frees. */
int pf_wait_for(PfWait *wait, PfWaitq *queue, PfMutex *mutex, PfThread *t,
                int64_t deadline, PyObject *what);
/* The same with a wait of its own, for who needs only the result. */
int pf_wait_once(PfWaitq *queue, PfMutex *mutex, PfThread *t, int64_t deadline,
                 PyObject *what);
/* Instead of that: it does not wait. */
void pf_wait_give_up(PfWaiter *waiter);

#endif
