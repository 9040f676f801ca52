/* asyncio's event loops that run in fibers: their per-thread state.
 *
 * An inner loop is an event loop of asyncio, or a step of one of its tasks,
 * that runs in a fiber.  asyncio's running loop and current task, and the
 * interpreter's hooks for asynchronous generators and its depth for the origins
 * of coroutines, belong to the thread.  So while the inner loop's fiber waits,
 * they are set aside: the other fibers must not see them.
 *
 * Only one inner loop of a thread is active at a time.  The others wait; the
 * state of each has been set aside by its waiting fiber.  pyfiber.aio passes
 * the functions of asyncio that read and set the state.
 */
#ifndef PF_WAIT_ASYNCIO_H
#define PF_WAIT_ASYNCIO_H

#include "python/core/parts.h"
#include "python/core/thread.h"

typedef struct PfAsyncio PfAsyncio;

/* Each thread's active inner loop, or NULL. */
extern PfKeeps pf_asyncio_of_thread;
extern const PfPart pf_asyncio_part;
static inline PfAsyncio **
pf_asyncio_inside(PfThread *t)
{
    return pf_parts_at(t, &pf_asyncio_of_thread);
}

/* The state that an inner loop has set aside while it waits. */
typedef struct PfAway {
    PfAsyncio *asyncio;
    PyObject *loop, *task; /* None: there is none */
} PfAway;

/* Sets the active inner loop's state aside in `away`.  Returns 0, or -1 with
 * an exception and nothing changed. */
int pf_asyncio_leave(PfThread *t, PfAway *away);
/* Makes the inner loop active again.  An exception that is set stays set. */
void pf_asyncio_return(PfThread *t, PfAway *away);

/* For a function that waits, after pf_pending_run: if an inner loop is active,
 * calls the function again (`call`) with the loop's state set aside, and
 * returns its result; `error` if that could not be set aside. */
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
