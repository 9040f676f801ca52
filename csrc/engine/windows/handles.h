/* Watches handles for a poller: those that WaitForSingleObject takes (events,
 * processes), not sockets (afd.h).  A handle that is set counts as readable.
 *
 * The poller sleeps at a completion port, which such handles do not report to.
 * So the poller's thread looks at the handles before and after it sleeps.
 * While it sleeps, a thread of the system's thread pool waits for them and
 * posts a packet to the port.  Few programs use handles: a run on the main
 * thread has one, for Ctrl-C.
 */
#ifndef PF_HANDLES_H
#define PF_HANDLES_H

#include <windows.h>

#include "engine/base/atomics.h"
#include "engine/io/poller.h"

#define PF_MOST_HANDLES (MAXIMUM_WAIT_OBJECTS - 1)

/* Allocated separately, because it must not move while the pool's thread may
 * use it. */
typedef struct pf_handle {
    pf_registration *registration;
    HANDLE port; /* where the pool's thread posts, after it has set `fired` */
    ULONG_PTR key;
    HANDLE wait; /* NULL: the pool does not wait for the handle */
    PF_ATOMIC(uint8_t) fired;
    bool found; /* set, and not delivered yet */
} pf_handle;

/* The handles of one poller.  A packet with the key asks it to look at
 * them. */
typedef struct pf_handles {
    HANDLE port;
    ULONG_PTR key;
    size_t count;
    pf_handle *list[PF_MOST_HANDLES];
} pf_handles;

/* The next four functions do what the functions of pf_poller_ops with the same
 * names do. */
int pf_handles_add(pf_handles *handles, intptr_t descriptor, unsigned interest,
                   pf_registration *r);
int pf_handles_modify(pf_handles *handles, pf_registration *r,
                      unsigned interest);
int pf_handles_remove(pf_handles *handles, pf_registration *r);
void pf_handles_deliver(pf_handles *handles, struct pf_scheduler *s);

/* Returns how many handles are set; pf_handles_deliver reports them. */
int pf_handles_look(pf_handles *handles);
/* Makes the thread pool wait for each handle of interest and post a packet.
 * False if the system has no thread for one of them. */
bool pf_handles_watch(pf_handles *handles);
void pf_handles_finish(pf_handles *handles);

#endif
