/* Descriptors, and who waits for them.
 *
 * A scheduler has one record for each descriptor number that has been waited
 * for.  There are two kinds of numbers:
 *
 *   owned    an object of the host opened the number and will close it.  It is
 *            registered with the poller at its first wait, edge triggered, and
 *            never again; the record remembers whether an operation may
 *            succeed, so that most need no wait.
 *   foreign  somebody else closes the number, and the system gives it to
 *            somebody else again, unseen.  It is registered while somebody
 *            waits and no longer; nothing is remembered.
 *
 * One number is only ever one record, whoever asks: an object takes a number
 * over from another (TLS does), or a library waits for a number that an object
 * owns.  Owners are told apart by a number that is never used twice, so that
 * what is remembered for one is not believed by the next.
 *
 * How an owner works: try the operation; EAGAIN: pf_descriptor_blocked, then
 * wait, then try again.
 *
 * All functions are for the scheduler's own thread.
 */
#ifndef PF_DESCRIPTOR_H
#define PF_DESCRIPTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/io/poller.h"

typedef struct pf_descriptor pf_descriptor;
typedef struct pf_io_wait pf_io_wait;
typedef struct pf_descriptors pf_descriptors;

typedef enum pf_direction {
    PF_READING,
    PF_WRITING,
    PF_DIRECTIONS,
} pf_direction;

/* What a direction is among the poller's events. */
static inline unsigned
pf_descriptor_event(pf_direction direction)
{
    return direction == PF_READING ? PF_IO_READ : PF_IO_WRITE;
}

/* One wait; in the memory of who waits, until it has ended. */
struct pf_io_wait {
    /* It is over.  True: the waiter will run because of that; false: it is on
     * its way already, for another reason, and another may be told instead. */
    bool (*wake)(pf_io_wait *wait, struct pf_scheduler *s);
    bool every; /* each event wakes it, not only the one whose turn it is */
    /* --- the record's --- */
    pf_io_wait *prev, *next;
    pf_descriptor *at; /* NULL: not in line (any more) */
    pf_direction direction;
    int error; /* 0, or -EBADF: it was closed meanwhile */
};

struct pf_descriptor {
    pf_registration registration; /* first */
    pf_descriptors *table;        /* NULL: no number, events come by hand */
    intptr_t number;
    uint64_t owner; /* 0: foreign */
    /* PF_IO_READ, PF_IO_WRITE: an operation may succeed. */
    uint8_t ready;
    /* PF_IO_END, _ERROR and _URGENT, once they have been seen. */
    uint8_t seen;
    pf_io_wait *waiting[PF_DIRECTIONS]; /* first come, first served; the
                                           head's prev is the tail */
};

struct pf_descriptors {
    pf_poller *poller;
    pf_descriptor **records; /* by number */
    size_t size;
    /* For the host: operations since that many switches. */
    uint64_t counted_at;
    uint32_t operations;
};

/* On Windows a number is a handle, a multiple of four. */
#if defined(_WIN32)
#define PF_NUMBER_STEP 4
#else
#define PF_NUMBER_STEP 1
#endif

/* A number for a new owner, never used before; any thread. */
uint64_t pf_descriptor_new_owner(void);

/* For the scheduler. */
void pf_descriptors_init(pf_descriptors *table, pf_poller *poller);
void pf_descriptors_finish(pf_descriptors *table);

/* The record of an owned number: 0; -EBADF: no such number; -ENOMEM.  If it had
 * another owner, everything that waits for that gets -EBADF. */
int pf_descriptor_claim(pf_descriptors *table, struct pf_scheduler *s,
                        intptr_t number, uint64_t owner, pf_descriptor **at);

static inline int
pf_descriptor_of(pf_descriptors *table, struct pf_scheduler *s,
                 intptr_t number, uint64_t owner, pf_descriptor **at)
{
    size_t place = (size_t)number / PF_NUMBER_STEP;
    if (place < table->size && table->records[place] != NULL &&
        table->records[place]->owner == owner) {
        *at = table->records[place];
        return 0;
    }
    return pf_descriptor_claim(table, s, number, owner, at);
}

/* The record of a number, if there is one. */
pf_descriptor *pf_descriptor_known(const pf_descriptors *table,
                                   intptr_t number);

/* Its owner is about to close the number, or has handed it on: whoever waits
 * gets -EBADF.  The poller is always told, although systems forget a number by
 * themselves when it is closed: its file may live on under another number, in
 * another process as well, and would be watched for ever. */
void pf_descriptor_release(pf_descriptors *table, struct pf_scheduler *s,
                           intptr_t number, uint64_t owner);

/* A record that is in no table: what owns it reports its events.  For
 * connections that are not the system's. */
void pf_descriptor_init(pf_descriptor *at);
void pf_descriptor_report(pf_descriptor *at, struct pf_scheduler *s,
                          unsigned events);
/* All that wait there run again; `error`: 0, they try anew, or -EBADF. */
void pf_descriptor_end_waits(pf_descriptor *at, struct pf_scheduler *s,
                             int error);

/* An operation in that direction would have blocked. */
static inline void
pf_descriptor_blocked(pf_descriptor *at, pf_direction direction)
{
    at->ready &= (uint8_t)~pf_descriptor_event(direction);
}

static inline bool
pf_descriptor_may(const pf_descriptor *at, pf_direction direction)
{
    return (at->ready & pf_descriptor_event(direction)) != 0;
}

/* Stand in line, or with `wait->every` beside it.  0: the wait's `wake` will be
 * called, and may have been by the time that an operation blocks again; 1: no
 * need, try now; -errno. */
int pf_descriptor_wait(pf_descriptor *at, pf_io_wait *wait,
                       pf_direction direction);

/* The same for a foreign number, whoever owns it, and a real readiness: never
 * what is remembered.  Numbers of a kind that cannot be watched are always
 * ready. */
int pf_descriptor_wait_foreign(pf_descriptors *table, struct pf_scheduler *s,
                               intptr_t number, pf_io_wait *wait,
                               pf_direction direction);

/* The waiter runs again, for whatever reason.  To be called always. */
void pf_io_wait_end(pf_io_wait *wait);

/* Who had its turn is done, perhaps without having used it up: the next in
 * line may try. */
void pf_descriptor_pass_on(pf_descriptor *at, struct pf_scheduler *s,
                           pf_direction direction);

#endif
