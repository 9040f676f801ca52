/* Records which fibers wait for which file descriptor to become ready.
 * poller.h asks the system which descriptors are ready.
 *
 * The host is the program on top of the engine: here the Python binding, in
 * tests a C program.  The number of a descriptor is what the system calls it
 * by: an int on POSIX, a handle on Windows.
 *
 * A scheduler has one record for each number that has been waited for.  In the
 * record there is a line of waits for each direction, reading and writing.
 * While the number is registered, the poller watches it (its registration is
 * the poller's memory for that).  There are two kinds of numbers:
 *
 *   owned    an object of the host (a socket) opened the number and will close
 *            it.  The number is registered once, at its first wait, edge
 *            triggered.  The record remembers whether an operation may
 *            succeed, so that most operations need no wait.
 *   foreign  other code, which does not call pf_descriptor_release, closes the
 *            number, and the system may then give it to another file.  The
 *            number is registered only while a fiber waits; nothing is
 *            remembered.
 *
 * A number has only one record, whichever code asks: one object may take the
 * number over from another (TLS does), and a library may wait for a number
 * that an object owns.  Each owner has an identifier that is never used twice.
 * If a number gets another owner, its record starts anew.
 *
 * An owner tries its operation (recv, send).  After EAGAIN it calls
 * pf_descriptor_blocked, then pf_descriptor_wait, parks, and tries again.
 *
 * Only the scheduler's own thread may call these functions, except
 * pf_descriptor_new_owner.
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

/* One wait of one fiber in one line.  The waiting code owns this memory, and
 * neither moves nor frees it before pf_io_wait_end. */
struct pf_io_wait {
    /* Wakes the waiting fiber.  Returns true if the fiber will run because of
     * this event; false if something else has woken it already, so that the
     * next wait in line is woken instead. */
    bool (*wake)(pf_io_wait *wait, struct pf_scheduler *s);
    bool every; /* woken by each event, not only if it is first in line */
    /* --- the record's fields --- */
    pf_io_wait *prev, *next;
    pf_descriptor *at; /* NULL: in no line, before or after the wait */
    pf_direction direction;
    int error; /* 0, or -EBADF: the number was closed during the wait */
};

struct pf_descriptor {
    pf_registration registration; /* first, so one can be cast to the other */
    pf_descriptors *table;        /* NULL: see pf_descriptor_init */
    intptr_t number;
    uint64_t owner; /* 0: foreign */
    /* PF_IO_READ, PF_IO_WRITE: an operation may succeed.  A new record has
     * both. */
    uint8_t ready;
    /* PF_IO_END, _ERROR and _URGENT, if reported since the last change of
     * owner. */
    uint8_t seen;
    pf_io_wait *waiting[PF_DIRECTIONS]; /* first come, first served; the
                                           head's prev is the tail */
};

struct pf_descriptors {
    pf_poller *poller;
    pf_descriptor **records; /* by number */
    size_t size;
    /* For the host, which counts the operations that succeed without a switch
     * and lets other fibers run after some of them: how many there were while
     * the scheduler's number of switches was `counted_at`. */
    uint64_t counted_at;
    uint32_t operations;
};

/* The distance of two numbers.  On Windows handles are multiples of four. */
#if defined(_WIN32)
#define PF_NUMBER_STEP 4
#else
#define PF_NUMBER_STEP 1
#endif

/* Returns an identifier for a new owner.  Any thread may call this. */
uint64_t pf_descriptor_new_owner(void);

/* The scheduler calls these two.  When it calls pf_descriptors_finish, no
 * fiber waits for a descriptor any more. */
void pf_descriptors_init(pf_descriptors *table, pf_poller *poller);
void pf_descriptors_finish(pf_descriptors *table);

/* Makes `owner` the owner of `number`, and sets *at to the number's record.
 * If the number had another owner, or none, the record starts anew and all
 * waits in it end with the error -EBADF.  Returns 0; -EBADF if the number is
 * negative or larger than any that the system gives out; -ENOMEM. */
int pf_descriptor_claim(pf_descriptors *table, struct pf_scheduler *s,
                        intptr_t number, uint64_t owner, pf_descriptor **at);

/* As pf_descriptor_claim, faster if `owner` owns the number already. */
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

/* The owner calls this before it closes the number, or after it has passed the
 * number to other code.  All waits end with the error -EBADF, and the number
 * becomes foreign.  Does nothing if `owner` is not the owner.
 *
 * Unregisters the number also if it is about to be closed.  The system would
 * not always do that: it goes on watching a file that is still open under
 * another number, perhaps in another process. */
void pf_descriptor_release(pf_descriptors *table, struct pf_scheduler *s,
                           intptr_t number, uint64_t owner);

/* Initializes a record that is in no table and has no poller, for a connection
 * that exists only in the process (inmemory.h).  The other end of the
 * connection calls pf_descriptor_report to report events. */
void pf_descriptor_init(pf_descriptor *at);
void pf_descriptor_report(pf_descriptor *at, struct pf_scheduler *s,
                          unsigned events);
/* Ends all waits of a record and wakes their fibers.  `error` is 0, so that
 * the fibers try again, or -EBADF. */
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

/* Begins a wait by the owner: puts it at the end of the line for `direction`.
 * The caller has set `wake` and `every`.  Returns
 *
 *   0       parking is necessary; `wake` will be called.  Even then the
 *           operation may block again.
 *   1       an operation may succeed, so the caller tries it now
 *   -errno  the poller has refused to watch the number
 */
int pf_descriptor_wait(pf_descriptor *at, pf_io_wait *wait,
                       pf_direction direction);

/* As pf_descriptor_wait, for code that does not own the number; an object may
 * own it.  Always waits for a new report of the poller, because what the
 * record remembers may be about another file.  Sets `wait->every`.  Returns 1
 * for a file that the system cannot watch because it is always ready, such as
 * a regular file. */
int pf_descriptor_wait_foreign(pf_descriptors *table, struct pf_scheduler *s,
                               intptr_t number, pf_io_wait *wait,
                               pf_direction direction);

/* Takes the wait out of its line, if it is in one.  The waiting code must call
 * this when its fiber runs again, also if a timeout or a cancellation woke the
 * fiber. */
void pf_io_wait_end(pf_io_wait *wait);

/* Wakes the fiber of the next wait in line if an operation may still succeed.
 * An event wakes only the first one.  So a fiber that was woken calls this
 * after its operation, which may have left data or room for others. */
void pf_descriptor_pass_on(pf_descriptor *at, struct pf_scheduler *s,
                           pf_direction direction);

#endif
