/* Sockets that a completion port tells of.
 *
 * Windows has no call that watches a socket and reports to a completion port,
 * but select() and WSAPoll() are made of one that does: a request to the
 * driver of sockets, AFD, which completes once, as soon as one of the events
 * asked for is true.  Other event loops use it, too (libuv, mio, trio).
 *
 * What must be known of it:
 *   - A request is to be outstanding once for each socket.  To ask for more it
 *     is cancelled, and made anew when its packet has come.
 *   - The system writes to the memory of a request until its packet has come:
 *     so a watch that is closed meanwhile is freed then.
 *   - It says what is true, not what is new: a request for what is true
 *     already completes at once.
 *   - Requests go through a handle of the driver, and many at one handle are
 *     slow: a handle has 32 sockets.
 *
 * So a watch is idle, then outstanding (pf_afd_ask), then, with its packet,
 * idle again (pf_afd_answer).
 */
#ifndef PF_AFD_H
#define PF_AFD_H

#include <winsock2.h>

#include <stdbool.h>

#include "engine/io/poller.h"

typedef struct pf_afd_device pf_afd_device;

/* One request.  As the driver has it: see afd.c. */
typedef struct pf_afd_request {
    LARGE_INTEGER timeout;
    ULONG count;
    ULONG exclusive;
    HANDLE socket;
    ULONG events;
    LONG status;
} pf_afd_request;

typedef struct pf_afd_watch {
    OVERLAPPED overlapped; /* first: a packet is known by its address */
    pf_afd_request request;
    HANDLE socket; /* the system's own, below whatever stands before it */
    pf_afd_device *device;
    unsigned asked; /* for which events, by the request that is outstanding */
    bool outstanding;
    pf_registration *registration; /* for the poller */
    bool stale;                    /* what the packet says is not believed */
    bool found;                    /* it is to be told of ... */
    unsigned events;               /* ... these */
    bool held;                     /* the poller will look at it again */
} pf_afd_watch;

/* Of one poller. */
typedef struct pf_afd {
    HANDLE port;
    ULONG_PTR key; /* of its packets */
    pf_afd_device *devices;
    size_t outstanding;
} pf_afd;

/* NULL and -errno in *error: -ENOTSOCK if it is no socket. */
pf_afd_watch *pf_afd_watch_new(pf_afd *afd, intptr_t number, int *error);
/* It must be idle. */
void pf_afd_watch_free(pf_afd_watch *watch);

/* An idle one is asked for these events, and those that are told unasked.
 * False: the socket is not there any more; it is outstanding nevertheless, and
 * will answer with an ERROR. */
bool pf_afd_ask(pf_afd *afd, pf_afd_watch *watch, unsigned interest);
/* It answers soon. */
void pf_afd_cancel(pf_afd_watch *watch);
/* Its packet has come: it is idle.  What it says: 0 if it was cancelled. */
unsigned pf_afd_answer(pf_afd *afd, pf_afd_watch *watch);
/* Has the system completed it, be its packet on the way or taken? */
bool pf_afd_has_answered(const pf_afd_watch *watch);

/* Nobody is to be told any more.  Waits for those that are outstanding, and
 * frees them; one that does not come is left to the system. */
void pf_afd_finish(pf_afd *afd);

#endif
