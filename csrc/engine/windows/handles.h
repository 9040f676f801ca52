/* Handles that a poller waits for: those that Windows' own waits take (events,
 * processes), not sockets.  Set counts as readable.
 *
 * The poller sleeps at a completion port, which such handles know nothing of.
 * So the thread looks at them itself, before and after it sleeps, and while it
 * does a thread of the system's pool waits for them and posts a packet.  Few
 * use any: a run on the main thread has one, for Ctrl-C.
 */
#ifndef PF_HANDLES_H
#define PF_HANDLES_H

#include <windows.h>

#include "engine/base/atomics.h"
#include "engine/io/poller.h"

#define PF_MOST_HANDLES (MAXIMUM_WAIT_OBJECTS - 1)

/* In place for as long as the pool's thread may use it. */
typedef struct pf_handle {
    pf_registration *registration;
    HANDLE port; /* the pool's thread posts there ... */
    ULONG_PTR key;
    HANDLE wait;              /* NULL: no thread waits for it */
    PF_ATOMIC(uint8_t) fired; /* ... after it has set this */
    bool found;
} pf_handle;

/* Of one poller.  Packets with the key mean: look. */
typedef struct pf_handles {
    HANDLE port;
    ULONG_PTR key;
    size_t count;
    pf_handle *list[PF_MOST_HANDLES];
} pf_handles;

/* As the poller's functions of those names. */
int pf_handles_add(pf_handles *handles, intptr_t descriptor, unsigned interest,
                   pf_registration *r);
int pf_handles_modify(pf_handles *handles, pf_registration *r,
                      unsigned interest);
int pf_handles_remove(pf_handles *handles, pf_registration *r);
void pf_handles_deliver(pf_handles *handles, struct pf_scheduler *s);

/* How many are set; deliver tells. */
int pf_handles_look(pf_handles *handles);
/* Have packets posted while the thread sleeps.  False: no thread is to be had
 * for one of them. */
bool pf_handles_watch(pf_handles *handles);
void pf_handles_finish(pf_handles *handles);

#endif
