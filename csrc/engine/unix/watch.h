/* The poller of a POSIX system.  watch.c keeps the registrations and delivers
 * events to them; epoll.c, kqueue.c and poll.c make the system's calls.
 *
 * The registrations are in a table by descriptor number.  An event that the
 * system reports names a number and a generation of it.  Each change of a
 * registration gives its number a new generation, so an event is ignored
 *   - if it was found before a change and would be delivered after it;
 *   - if its registration is gone from the table but not from the system:
 *     epoll watches the open file, which outlives its number in every
 *     duplicate.
 *
 * A number is `lost` if the system turned out not to watch it (it was closed
 * without removing it, or the child of a fork could not add it again).  The
 * poller reports an ERROR for it, so that no fiber waits in vain.
 */
#ifndef PF_WATCH_H
#define PF_WATCH_H

#include <limits.h>

#include "engine/core/timers.h"
#include "engine/io/poller.h"
#include "engine/unix/waker.h"

#define PF_MOST_EVENTS 256 /* of one wait; the next one finds the others */
#define PF_NOBODY 0        /* a generation that no registration has */
#define PF_UNARMED (-1)    /* `before` of `arm`: nothing is armed yet */

typedef struct pf_watched {
    pf_registration *registration; /* NULL: nobody watches this number */
    uint32_t generation;
    bool lost; /* report an ERROR: once for an edge, else at each wait */
} pf_watched;

typedef struct pf_found {
    uint32_t number;
    uint32_t generation;
    unsigned events;
} pf_found;

typedef struct pf_watch pf_watch;

/* What differs between systems. */
typedef struct pf_watch_system {
    size_t event_size; /* bytes of one event in pf_watch.buffer */
    unsigned known;    /* the events that may be asked for, and PF_IO_EDGE */
    bool inherited;    /* the child of a fork inherits `fd` */
    bool once;         /* level triggered: armed for one event, then again */
    bool rearms;       /* see PF_IO_EDGE */
    /* Watches the waker, which is open, and sets `fd` if the system has a
     * descriptor.  Returns 0, or -errno: the caller then closes both. */
    int (*open)(pf_watch *watch);
    /* Asks the system for the events of w's interest, under w's generation.
     * `before` is the interest that was armed until now, or PF_UNARMED.
     * Returns 0 or -errno; -EPIPE: the descriptor cannot be watched because it
     * has an error. */
    int (*arm)(pf_watch *watch, const pf_watched *w, int before);
    /* Asks the system for nothing any more.  The registration's number may be
     * closed already.  NULL: the system needs no call. */
    void (*disarm)(pf_watch *watch, const pf_registration *r);
    /* Waits, and calls pf_watch_found for each event, at most `most`.  Returns
     * 0 or -errno. */
    int (*wait)(pf_watch *watch, int most, int64_t timeout_ns);
} pf_watch_system;

/* Between wait and deliver, the first `count` entries of `found` are the
 * events to deliver. */
struct pf_watch {
    pf_poller base;
    const pf_watch_system *system;
    int fd;      /* of the epoll or kqueue; -1: the system has none */
    bool coarse; /* the system does not wait for less than a millisecond */
    pf_waker waker;
    pf_watched *numbers; /* by descriptor number */
    size_t capacity;
    size_t lost;  /* how many numbers are lost */
    void *buffer; /* the system's events */
    size_t room;  /* events in `buffer`; PF_MOST_EVENTS at least */
    size_t turn;  /* of poll(2): the number that the next list begins with */
    int count;
    pf_found found[PF_MOST_EVENTS];
};

/* Whether the registration asks for no event at present. */
static inline bool
pf_watch_is_mute(const pf_registration *r)
{
    return (r->interest & ~(unsigned)PF_IO_EDGE) == 0;
}

/* Returns the entry that an event belongs to.  NULL: ignore the event. */
static inline pf_watched *
pf_watch_find(const pf_watch *watch, uint32_t number, uint32_t generation)
{
    if (number >= watch->capacity) {
        return NULL;
    }
    pf_watched *w = &watch->numbers[number];
    bool same = w->registration != NULL && w->generation == generation;
    return same ? w : NULL;
}

/* `wait` calls this for each event that the system reports. */
static inline void
pf_watch_found(pf_watch *watch, uint32_t number, uint32_t generation,
               unsigned events)
{
    if (pf_watch_find(watch, number, generation) != NULL) {
        watch->found[watch->count++] = (pf_found){number, generation, events};
    }
}

/* NULL where the system has no such call. */
extern const pf_watch_system *const pf_epoll_system, *const pf_kqueue_system,
                                                         *const pf_poll_system;

/* Returns NULL and sets *error to -errno on failure. */
pf_poller *pf_watch_new(const pf_watch_system *system, int *error);

/* Converts a timeout for system calls that take milliseconds.  Rounds up:
 * after an early wake-up the scheduler would only wait again. */
static inline int
pf_watch_milliseconds(int64_t timeout_ns)
{
    if (timeout_ns == PF_NEVER) {
        return -1;
    }
    int64_t ms = timeout_ns / 1000000 + (timeout_ns % 1000000 > 0);
    return ms < 0 ? 0 : ms > INT_MAX ? INT_MAX : (int)ms;
}

#endif
