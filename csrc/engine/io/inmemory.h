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
 * With a delay (pf_end_set_line) what an end does arrives at the other end
 * later, as in a network: see transit.h.  Without one it arrives at once.
 *
 * Only the scheduler's own thread may call these functions, except pf_end_keep
 * and pf_end_drop: the host's lock protects the count of references.
 */
#ifndef PF_INMEMORY_H
#define PF_INMEMORY_H

#include "engine/io/descriptor.h"
#include "engine/io/transit.h"

typedef struct pf_end {
    pf_descriptor at;       /* first; where fibers wait for it */
    struct pf_scheduler *s; /* of the fibers that wait */
    struct pf_end *peer;    /* NULL: not connected, or the peer is closed */
    size_t references;
    /* The bytes that have arrived: a ring of `size`, which grows up to
     * `room`. */
    char *bytes;
    size_t size, start, used, room;
    pf_transit *transit; /* of the bytes, those that are on their way, and
                              what else is; NULL: nothing ever was */
    uint64_t alarm[2];   /* the host's, for pf_end_clock.call_at */
    int64_t delay;       /* nanoseconds until what it does arrives */
    uint64_t bandwidth;  /* bytes a second that it sends; 0: no limit */
    unsigned offers;     /* connections that wait to be accepted here */
    int error; /* what the next operation fails with, once; 0: none */
    bool tcp : 1;
    bool connected : 1; /* now or before */
    bool ended : 1;     /* the peer sends no more, and has let this end know */
    bool lost : 1;      /* reset (TCP), or the peer was freed unclosed */
    bool deaf : 1;      /* shut down for reading */
    bool mute : 1;      /* this end sends no more */
    bool closed : 1;
    bool vanished : 1; /* the peer is gone without a word: what is sent is
                          lost, and nothing comes back */
    bool asks : 1;     /* the host wants to be asked before each send */
} pf_end;

/* Returns an end with one reference, or NULL without memory.  `room`: how many
 * bytes may wait to be read. */
pf_end *pf_end_new(struct pf_scheduler *s, bool tcp, size_t room);
/* Adds a reference. */
void pf_end_keep(pf_end *end);
/* Removes a reference; the last one frees the end, at which no fiber waits. */
void pf_end_drop(pf_end *end);

/* Connects two ends that have never been connected.  `one` has asked for it,
 * and learns of it after both delays. */
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

/* For the end of a listener: `from`, which has been joined to another end, can
 * be accepted here after its delay. */
void pf_end_offer(pf_end *end, const pf_end *from);
/* Takes one such connection.  Returns false if none has arrived. */
bool pf_end_take_offer(pf_end *end);
/* Withdraws all such connections. */
void pf_end_withdraw(pf_end *end);
/* Makes a connection attempt fail with `error`, an errno value, in `after`
 * nanoseconds. */
void pf_end_fail(pf_end *end, int error, int64_t after);
/* Returns the pending error, an errno value or 0, and clears it. */
int pf_end_take_error(pf_end *end);
/* Wakes all waiters so that they look again, after one of several sockets of
 * this end was closed. */
void pf_end_disturb(pf_end *end);

/* --- a network that is slow or has faults --- */

/* The host's clock.  `call_at` has the host call pf_end_arrive() at `when`,
 * instead of when it was asked to before; PF_TRANSIT_NEVER: not at all.  Until
 * that call the host has a reference to the end.  Returns 0 or -ENOMEM, and 0
 * where it was to call already, or is calling. */
typedef struct pf_end_clock {
    int64_t (*now)(const pf_end *end);
    int (*call_at)(pf_end *end, int64_t when);
} pf_end_clock;
extern const pf_end_clock *pf_end_time; /* constant after import */

/* Has arrive what is due now. */
void pf_end_arrive(pf_end *end);

/* Sets how long what the end does is on its way, and how many bytes a second
 * it sends (0: no limit). */
void pf_end_set_line(pf_end *end, int64_t delay, uint64_t bandwidth);
/* Stops all that is on its way to the end, and what follows, or lets it go
 * on.  Returns 0 or -ENOMEM. */
int pf_end_hold(pf_end *end, bool held);
/* Has the end give up at `when`: from then on its operations fail with
 * `error`.  PF_TRANSIT_NEVER: it does not give up.  Returns 0 or -ENOMEM. */
int pf_end_doom(pf_end *end, int64_t when, int error);
/* Resets the connection from outside: both ends learn of it, after what is on
 * its way to them, and no sooner than other code has run.  What is sent
 * meanwhile is lost. */
void pf_end_cut(pf_end *end);
/* The machine of this end stops: what it has sent and has not arrived is lost.
 * The peer is reset, or with `silent` learns nothing. */
void pf_end_crash(pf_end *end, bool silent);
/* Forgets what is on its way to the end, and calls no clock any more. */
void pf_end_forget(pf_end *end);

/* Returns how many bytes can be read. */
static inline size_t
pf_end_arrived(const pf_end *end)
{
    return end->transit == NULL ? end->used : end->used - end->transit->bytes;
}

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
