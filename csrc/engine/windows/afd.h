/* Watches sockets by requests to their driver, AFD; the answers are packets at
 * a completion port.  poller.c waits at that port.
 *
 * Windows has no documented call that watches a socket and reports to a
 * completion port, but select() and WSAPoll() are made of a request to AFD
 * that does.  Such a request completes once, as soon as one of the events that
 * it asks for is true.  Other event loops use it, too (libuv, mio, trio).
 *
 * Rules of such requests:
 *   - A socket has one outstanding request at a time.  To ask for more events,
 *     the request is cancelled, and made anew when its packet has come.
 *   - The system writes to the memory of a request until its packet has come.
 *     So a watch that is closed meanwhile is freed only then.
 *   - Requests are level triggered: one for an event that is already true
 *     completes at once.
 *   - Requests go through a handle of the driver, and many at one handle are
 *     slow.  So a handle serves 32 sockets.
 *
 * A watch is idle until pf_afd_ask makes it outstanding.  When its packet has
 * come, pf_afd_answer makes it idle again.
 */
#ifndef PF_AFD_H
#define PF_AFD_H

#include <winsock2.h>

#include <stdbool.h>

#include "engine/io/poller.h"

typedef struct pf_afd_device pf_afd_device;

/* A request in the driver's layout. */
typedef struct pf_afd_request {
    LARGE_INTEGER timeout;
    ULONG count;
    ULONG exclusive;
    HANDLE socket;
    ULONG events;
    LONG status;
} pf_afd_request;

typedef struct pf_afd_watch {
    OVERLAPPED overlapped; /* first: a packet has the address of this field */
    pf_afd_request request;
    HANDLE socket; /* AFD's handle, below the layers of other programs */
    pf_afd_device *device;
    unsigned asked; /* the events that the outstanding request asks for */
    bool outstanding;
    pf_registration *registration; /* poller.c's; NULL: removed */
    bool stale;                    /* poller.c's: ignore the next answer */
    bool found; /* poller.c's: `events` are to be delivered */
    unsigned events;
    bool held; /* poller.c's: in its list of found watches, so not freed yet */
} pf_afd_watch;

/* The watches of one poller. */
typedef struct pf_afd {
    HANDLE port;
    ULONG_PTR key; /* of the packets that answer requests */
    pf_afd_device *devices;
    size_t outstanding;
} pf_afd;

/* Returns an idle watch.  NULL and -errno in *error: -ENOTSOCK if `number` is
 * no socket, -ENOMEM. */
pf_afd_watch *pf_afd_watch_new(pf_afd *afd, intptr_t number, int *error);
/* The watch must be idle. */
void pf_afd_watch_free(pf_afd_watch *watch);

/* Makes a request for these events, and for those that are always reported;
 * the watch must be idle.  False: the socket is closed; its watch is
 * outstanding nevertheless, and its answer will be an ERROR. */
bool pf_afd_ask(pf_afd *afd, pf_afd_watch *watch, unsigned interest);
/* Makes the request complete soon. */
void pf_afd_cancel(pf_afd_watch *watch);
/* Makes the watch idle, as its packet has come.  Returns the events that it
 * reports; 0 if the request was cancelled. */
unsigned pf_afd_answer(pf_afd *afd, pf_afd_watch *watch);
/* Whether the system has completed the request; the packet may still wait at
 * the port. */
bool pf_afd_has_answered(const pf_afd_watch *watch);

/* Cancels all requests, waits for their packets and frees their watches.  A
 * watch whose packet does not come in time is leaked, since the system may
 * still write to it. */
void pf_afd_finish(pf_afd *afd);

#endif
