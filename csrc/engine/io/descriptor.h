/* Records which fibers wait for which descriptor.  poller.h watches the
 * descriptors.
 *
 * A scheduler has one record for each descriptor number that has been waited
 * for.  There are two kinds of numbers:
 *
 *   owned    an object of the host opened the number and will close it.  The
 *            number is registered with the poller once, at its first wait,
 *            edge triggered.  The record remembers whether an operation may
 *            succeed, so that most operations need no wait.
 *   foreign  other code closes the number, and the system may give it to
 *            another file without this record's notice.  The number is
 *            registered only while a fiber waits; nothing is remembered.
 *
 * A number has only one record, whichever code asks: one object may take the
 * number over from another (TLS does), and a library may wait for a number
 * that an object owns.  Each owner has an identifier that is never used twice,
 * so that what the record remembers for one owner does not count for the next.
 *
 * An owner tries the operation.  After EAGAIN it calls pf_descriptor_blocked,
 * waits, and tries again.
 *
 * Only the scheduler's own thread may call these functions.
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

/* Returns the poller's event for a direction. */
static inline unsigned
pf_descriptor_event(pf_direction direction)
{
    return direction == PF_READING ? PF_IO_READ : PF_IO_WRITE;
}

/* One wait.  The waiter owns its memory, which stays until the wait has
 * ended. */
struct pf_io_wait {
    /* Wakes the waiter.  Returns true if it will run because of this event;
     * false if something else has woken it already, so that another waiter may
     * be woken instead. */
    bool (*wake)(pf_io_wait *wait, struct pf_scheduler *s);
    bool every; /* woken by each event, not only if it is first in line */
    /* --- the record's fields --- */
    pf_io_wait *prev, *next;
    pf_descriptor *at; /* NULL: in no line, or in none any more */
    pf_direction direction;
    int error; /* 0, or -EBADF: the number was closed meanwhile */
};

struct pf_descriptor {
    pf_registration registration; /* first, so one can be cast to the other */
    pf_descriptors *table;        /* NULL: see pf_descriptor_init */
    intptr_t number;
    uint64_t owner; /* 0: foreign */
    /* PF_IO_READ, PF_IO_WRITE: an operation may succeed. */
    uint8_t ready;
    /* PF_IO_END, _ERROR and _URGENT, if they were reported so far. */
    uint8_t seen;
    pf_io_wait *waiting[PF_DIRECTIONS]; /* first come, first served; the
                                           head's prev is the tail */
};

struct pf_descriptors {
    pf_poller *poller;
    pf_descriptor **records; /* by number */
    size_t size;
    /* The host's: how many operations there were since switch `counted_at`. */
    uint64_t counted_at;
    uint32_t operations;
};

/* On Windows a number is a handle, a multiple of four. */
#if defined(_WIN32)
#define PF_NUMBER_STEP 4
#else
#define PF_NUMBER_STEP 1
#endif

/* Returns an identifier for a new owner.  Any thread may call this. */
uint64_t pf_descriptor_new_owner(void);

/* The scheduler calls these two.  At `finish` no fiber waits any more. */
void pf_descriptors_init(pf_descriptors *table, pf_poller *poller);
void pf_descriptors_finish(pf_descriptors *table);

/* Sets *at to the record of `number`, which becomes `owner`'s.  If it had
 * another owner, all waits for that one end with -EBADF.  Returns 0; -EBADF:
 * numbers cannot be so large, or below 0; -ENOMEM. */
int pf_descriptor_claim(pf_descriptors *table, struct pf_scheduler *s,
                        intptr_t number, uint64_t owner, pf_descriptor **at);

/* The same, faster if `owner` has the number already. */
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

/* Returns the record of a number, or NULL if there is none. */
pf_descriptor *pf_descriptor_known(const pf_descriptors *table,
                                   intptr_t number);

/* The owner calls this before it closes the number, or when it has handed the
 * number on: all waits end with -EBADF.  Always unregisters the number,
 * although systems forget a number that is closed: its file may live on under
 * another number, in another process as well, and would be watched for
 * ever. */
void pf_descriptor_release(pf_descriptors *table, struct pf_scheduler *s,
                           intptr_t number, uint64_t owner);

/* Initializes a record that is in no table.  The owner reports the events by
 * pf_descriptor_report.  For connections that are not the system's. */
void pf_descriptor_init(pf_descriptor *at);
void pf_descriptor_report(pf_descriptor *at, struct pf_scheduler *s,
                          unsigned events);
/* Ends all waits.  `error`: 0, so that the waiters try again, or -EBADF. */
void pf_descriptor_end_waits(pf_descriptor *at, struct pf_scheduler *s,
                             int error);

/* Records that an operation in that direction would have blocked. */
static inline void
pf_descriptor_blocked(pf_descriptor *at, pf_direction direction)
{
    at->ready &= (uint8_t)~pf_descriptor_event(direction);
}

/* Whether an operation in that direction may succeed. */
static inline bool
pf_descriptor_may(const pf_descriptor *at, pf_direction direction)
{
    return (at->ready & pf_descriptor_event(direction)) != 0;
}

/* Puts the wait in line, or beside the line with `wait->every`.  Returns 0:
 * `wake` will be called, after which an operation may block nevertheless; 1:
 * no need to wait, try now; or -errno. */
int pf_descriptor_wait(pf_descriptor *at, pf_io_wait *wait,
                       pf_direction direction);

/* The same for a number that the caller does not own, though an object may.
 * Waits for what the poller reports, never for what a record remembers.
 * Returns 1 for numbers of a kind that cannot be watched. */
int pf_descriptor_wait_foreign(pf_descriptors *table, struct pf_scheduler *s,
                               intptr_t number, pf_io_wait *wait,
                               pf_direction direction);

/* The waiter must call this when it runs again, for whatever reason. */
void pf_io_wait_end(pf_io_wait *wait);

/* Wakes the next in line if an operation may still succeed.  A waiter that was
 * woken calls this after its operation, which may have left something. */
void pf_descriptor_pass_on(pf_descriptor *at, struct pf_scheduler *s,
                           pf_direction direction);

#endif
