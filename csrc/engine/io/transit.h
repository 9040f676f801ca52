/* What is on its way to one end of a connection in memory.
 *
 * In a network that is slow, what one end does arrives at the other end later:
 * bytes, the end of the bytes, a reset.  A transit is the line of these
 * arrivals, in the order in which they were sent.  The bytes themselves are in
 * the receiving end's ring already (inmemory.h); the transit counts how many
 * of them have not arrived.
 *
 * The host has the clock, and calls pf_end_arrive() at the time of the first
 * arrival.
 */
#ifndef PF_TRANSIT_H
#define PF_TRANSIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum pf_arrival_kind {
    PF_ARRIVES_DATA,      /* `bytes` more can be read */
    PF_ARRIVES_END,       /* the peer sends no more */
    PF_ARRIVES_CLOSE,     /* the peer is closed */
    PF_ARRIVES_RESET,     /* the connection is reset */
    PF_ARRIVES_CONNECTED, /* the peer has accepted the connection */
    PF_ARRIVES_FAILURE,   /* the attempt to connect has failed with `error` */
    PF_ARRIVES_OFFER,     /* a connection waits to be accepted here */
} pf_arrival_kind;

typedef struct pf_arrival {
    pf_arrival_kind kind;
    int error;
    size_t bytes;
    int64_t due; /* nanoseconds of the host's clock */
} pf_arrival;

#define PF_TRANSIT_NEVER INT64_MAX

typedef struct pf_transit {
    pf_arrival *items; /* a ring of `capacity`, a power of two */
    size_t first, count, capacity;
    size_t bytes;       /* sum of the items' */
    int64_t busy_until; /* the line has sent all earlier bytes then */
    int64_t doom;       /* the end gives up then; PF_TRANSIT_NEVER */
    int doom_error;     /* with which error it gives up */
    bool held;          /* nothing arrives for now */
} pf_transit;

/* Returns an empty transit, or NULL without memory. */
pf_transit *pf_transit_new(void);
void pf_transit_free(pf_transit *transit);

/* Adds an arrival, due not before those that are on their way already.
 * Returns 0 or -ENOMEM. */
int pf_transit_add(pf_transit *transit, pf_arrival arrival);
/* Takes the first arrival if it is due at `now` and nothing is held.  Returns
 * whether there was one. */
bool pf_transit_take(pf_transit *transit, int64_t now, pf_arrival *arrival);
/* Has nothing arrive before `when`. */
void pf_transit_delay(pf_transit *transit, int64_t when);
/* Forgets all that is on its way.  Returns how many bytes that were. */
size_t pf_transit_forget(pf_transit *transit);
/* Returns when the host is to call next: at the first arrival, or when the end
 * gives up. */
int64_t pf_transit_next(const pf_transit *transit);

#endif
