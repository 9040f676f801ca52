/* Connections in memory, for sockets of the simulated network that a test may
 * put under a program.
 *
 * A connection has two ends.  An end holds the bytes that have arrived and
 * were not read yet, and records what its half of the connection may still do.
 * The host knows which sockets listen and which connect to which; the end of a
 * listening socket is only a place to wait at.
 *
 * An end behaves like a socket of Linux: a TCP socket if `tcp`, else a Unix
 * stream socket.  The two differ where one side is closed or shut down:
 *
 *   - sending to a closed end: TCP accepts the first bytes, since the answer
 *     that nobody is there comes later; a Unix socket refuses them at once;
 *   - shutdown for reading: a Unix socket makes the peer's next send fail; TCP
 *     does not, but resets the connection when bytes arrive after both
 *     directions were shut down;
 *   - a reset: a TCP reader whose peer had ended before reads the end instead
 *     of the error.
 *
 * Only the scheduler's own thread may call these functions, except pf_end_keep
 * and pf_end_drop: the host's lock protects the count of references.
 */
#ifndef PF_INMEMORY_H
#define PF_INMEMORY_H

#include "engine/io/descriptor.h"

typedef struct pf_end {
    pf_descriptor at;       /* first; where fibers wait for it */
    struct pf_scheduler *s; /* of the fibers that wait */
    struct pf_end *peer;    /* NULL: not connected, or the peer is closed */
    size_t references;
    /* The bytes that have arrived: a ring of `size`, which grows up to
     * `room`. */
    char *bytes;
    size_t size, start, used, room;
    int error; /* what the next operation fails with, once; 0: none */
    bool tcp : 1;
    bool connected : 1; /* now or before */
    bool ended : 1;     /* the peer sends no more, and has let this end know */
    bool lost : 1;      /* reset (TCP), or the peer was freed unclosed */
    bool deaf : 1;      /* shut down for reading */
    bool mute : 1;      /* this end sends no more */
    bool offers : 1;    /* a connection waits to be accepted here */
    bool closed : 1;
} pf_end;

/* Returns an end with one reference, or NULL without memory.  `room`: how many
 * bytes may wait to be read. */
pf_end *pf_end_new(struct pf_scheduler *s, bool tcp, size_t room);
/* Adds a reference. */
void pf_end_keep(pf_end *end);
/* Removes a reference; the last one frees the end, at which no fiber waits. */
void pf_end_drop(pf_end *end);

/* Connects two ends that have never been connected. */
void pf_end_join(pf_end *one, pf_end *other);

/* Both return a number of bytes or -errno; -EAGAIN: the call would block.
 * `peek`: the bytes are not removed. */
int64_t pf_end_recv(pf_end *end, void *buffer, size_t size, bool peek);
int64_t pf_end_send(pf_end *end, const void *data, size_t size);

/* Returns 0 or -errno. */
int pf_end_shutdown(pf_end *end, bool reading, bool writing);
/* Closes the end; waits there end with -EBADF.  `reset`: as if there were
 * bytes that were not read. */
void pf_end_close(pf_end *end, bool reset);

/* For the end of a listener: sets whether a connection can be accepted. */
void pf_end_offer(pf_end *end, bool any);
/* Makes a connection attempt fail with `error`, an errno value. */
void pf_end_fail(pf_end *end, int error);
/* Returns the pending error, an errno value or 0, and clears it. */
int pf_end_take_error(pf_end *end);
/* Wakes all waiters so that they look again, after one of several sockets of
 * this end was closed. */
void pf_end_disturb(pf_end *end);

/* Whether the connection is over: reset, or, with TCP, ended in both
 * directions. */
static inline bool
pf_end_is_over(const pf_end *end)
{
    return end->lost || (end->tcp && end->ended && end->mute);
}

/* Whether an operation in that direction would block. */
bool pf_end_blocks(const pf_end *end, pf_direction direction);

#endif
