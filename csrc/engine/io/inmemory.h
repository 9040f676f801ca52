/* Connections in memory: what stands behind a socket of a network that a test
 * has put under the program.
 *
 * A connection has two ends.  An end holds what has come and was not read yet,
 * and says what its own half of the connection may still do.  Who listens, and
 * who connects to whom, is the host's to know; an end of a socket that listens
 * only has a place to wait at.
 *
 * An end does what sockets of Linux do, told apart by `tcp`: the other kind is
 * Unix stream sockets.  They differ where one side is closed or shut down:
 *
 *   - what is sent to a closed end: of TCP it goes once, since the answer that
 *     tells of the end comes later; a Unix socket refuses it at once;
 *   - shutdown for reading: a Unix socket tells the sender; TCP does not, but
 *     resets the connection when more comes and both directions were shut;
 *   - a reset: in TCP a reader does not hear of it who has been told of the end
 *     before.
 *
 * All functions are for the thread of the scheduler, but for those that count
 * references, whose lock is the host's.
 */
#ifndef PF_INMEMORY_H
#define PF_INMEMORY_H

#include "engine/io/descriptor.h"

typedef struct pf_end {
    pf_descriptor at;       /* first; where fibers wait for it */
    struct pf_scheduler *s; /* theirs */
    struct pf_end *peer;    /* NULL: not connected, or that is closed */
    size_t references;
    /* What has come: a ring that grows up to `room` bytes. */
    char *bytes;
    size_t size, start, used, room;
    int error; /* to be told once; 0: none */
    bool tcp : 1;
    bool connected : 1; /* it has been, at least */
    bool ended : 1;     /* the peer has said that it sends no more */
    bool lost : 1;      /* TCP: reset */
    bool deaf : 1;      /* shut down for reading */
    bool mute : 1;      /* it sends no more */
    bool offers : 1;    /* somebody is to be accepted here */
    bool closed : 1;
} pf_end;

/* One reference; NULL without memory. */
pf_end *pf_end_new(struct pf_scheduler *s, bool tcp, size_t room);
void pf_end_keep(pf_end *end);
void pf_end_drop(pf_end *end);

/* Neither has been connected. */
void pf_end_join(pf_end *one, pf_end *other);

/* A number of bytes or -errno.  `peek`: they stay. */
int64_t pf_end_recv(pf_end *end, void *buffer, size_t size, bool peek);
int64_t pf_end_send(pf_end *end, const void *data, size_t size);

/* 0 or -errno. */
int pf_end_shutdown(pf_end *end, bool reading, bool writing);
/* `reset`: as if there were data that nobody has read.  Whoever waits gets
 * -EBADF. */
void pf_end_close(pf_end *end, bool reset);

/* A listener: is anybody there to be accepted? */
void pf_end_offer(pf_end *end, bool any);
/* A connection that was under way has failed. */
void pf_end_fail(pf_end *end, int error);
int pf_end_take_error(pf_end *end);
/* One of several sockets of this end is closed: all that wait look again. */
void pf_end_disturb(pf_end *end);

/* Both directions are over: nobody is at the other end any more.  Of TCP. */
static inline bool
pf_end_is_over(const pf_end *end)
{
    return end->lost || (end->tcp && end->ended && end->mute);
}

/* Would an operation in that direction block? */
bool pf_end_blocks(const pf_end *end, pf_direction direction);

#endif
