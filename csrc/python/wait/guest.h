/* A guest is a loop of asyncio's that runs in a fiber of ours, or a step of one
 * of its tasks.  What asyncio knows as "the running loop" and "the current
 * task", and the interpreter's hooks for asynchronous generators, belong to the
 * thread.  So when the guest's fiber waits, they are set aside: the other
 * fibers must see none of them.
 *
 * Only one guest is inside at a time; others wait, each with its things set
 * aside by the fiber that waits.  The functions that do it are
 * asyncio's own, given by pyfiber.aio.
 */
#ifndef PF_WAIT_GUEST_H
#define PF_WAIT_GUEST_H

#include "python/core/thread.h"

/* What a guest has set aside while it waits. */
typedef struct PfAway {
    PfGuest *guest;
    PyObject *loop, *task; /* None: there is none */
} PfAway;

/* 0, or -1 with an exception and nothing changed. */
int pf_guest_leave(PfThread *t, PfAway *away);
/* Keeps the raised exception. */
void pf_guest_return(PfThread *t, PfAway *away);

/* In a function that waits, after pf_attend: if a guest is inside, call the
 * function again (`call`) while that is away. */
#define PF_GUEST_WAITS(t, type, error, call)                                  \
    do {                                                                      \
        if ((t)->guest != NULL) {                                             \
            PfAway away_;                                                     \
            if (pf_guest_leave((t), &away_) < 0) {                            \
                return (error);                                               \
            }                                                                 \
            type result_ = (call);                                            \
            pf_guest_return((t), &away_);                                     \
            return result_;                                                   \
        }                                                                     \
    } while (0)

int pf_guest_init(PyObject *module);

#endif
