/* An inner loop is one of asyncio's that runs in a fiber of ours, or a step of one
 * of its tasks.  What asyncio knows as "the running loop" and "the current
 * task", and the interpreter's hooks for asynchronous generators, belong to the
 * thread.  So when the inner loop's fiber waits, they are set aside: the other
 * fibers must see none of them.
 *
 * Only one inner loop is inside at a time; others wait, each with its things set
 * aside by the fiber that waits.  The functions that do it are
 * asyncio's own, given by pyfiber.aio.
 */
#ifndef PF_WAIT_ASYNCIO_H
#define PF_WAIT_ASYNCIO_H

#include "python/core/parts.h"
#include "python/core/thread.h"

typedef struct PfAsyncio PfAsyncio;

/* Of each thread: the one that is inside at present, or NULL. */
extern PfKeeps pf_asyncio_of_thread;
extern const PfPart pf_asyncio_part;
static inline PfAsyncio **
pf_asyncio_inside(PfThread *t)
{
    return pf_parts_at(t, &pf_asyncio_of_thread);
}

/* What an inner loop has set aside while it waits. */
typedef struct PfAway {
    PfAsyncio *asyncio;
    PyObject *loop, *task; /* None: there is none */
} PfAway;

/* 0, or -1 with an exception and nothing changed. */
int pf_asyncio_leave(PfThread *t, PfAway *away);
/* Keeps the raised exception. */
void pf_asyncio_return(PfThread *t, PfAway *away);

/* In a function that waits, after pf_pending_run: if an inner loop is inside, call the
 * function again (`call`) while that is away. */
#define PF_ASYNCIO_WAITS(t, type, error, call)                                \
    do {                                                                      \
        if (*pf_asyncio_inside(t) != NULL) {                                  \
            PfAway away_;                                                     \
            if (pf_asyncio_leave((t), &away_) < 0) {                          \
                return (error);                                               \
            }                                                                 \
            type result_ = (call);                                            \
            pf_asyncio_return((t), &away_);                                   \
            return result_;                                                   \
        }                                                                     \
    } while (0)

int pf_asyncio_init(PyObject *module);

#endif
