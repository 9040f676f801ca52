/* The poller of a POSIX system: who watches which descriptor, and how that is
 * told.  Of it epoll.c, kqueue.c and poll.c have the system's own calls.
 *
 * A table by number has the registrations.  An event that the system reports
 * names a number and a generation of it.  The generation is another one after
 * each change, so an event is ignored
 *   - when it was found before the change, and is told after it;
 *   - when its registration is gone from here but not from the system: epoll
 *     watches the open file, which outlives its number in every duplicate.
 *
 * `lost` is a number that the system turned out not to watch (it was closed
 * without removing it, or the child of a fork could not add it again).  That
 * is reported as an ERROR, so nobody waits in vain.
 */
#ifndef PF_WATCH_H
#define PF_WATCH_H

#include <limits.h>

#include "engine/core/timers.h"
#include "engine/io/poller.h"
#include "engine/unix/waker.h"

#define PF_MOST_EVENTS 256 /* of one wait; the next one finds the others */
#define PF_NOBODY 0        /* a generation that no registration has */
#define PF_UNARMED (-1)    /* what is armed for a number: nothing is yet */

typedef struct pf_watched {
    pf_registration *registration; /* NULL: nobody watches this number */
    uint32_t generation;
    bool lost; /* ... and that is not told yet, or level triggered */
} pf_watched;

typedef struct pf_found {
    uint32_t number;
    uint32_t generation;
    unsigned events;
} pf_found;

typedef struct pf_watch pf_watch;

/* What differs between systems. */
typedef struct pf_watch_system {
    size_t event_size; /* of one in `buffer` */
    unsigned known;    /* the events that may be asked for, and PF_IO_EDGE */
    bool inherited;    /* the child of a fork has its descriptor */
    bool once;         /* level triggered means: told once, then armed again */
    bool rearms;       /* see PF_IO_EDGE */
    /* The waker is open: watch it, and set `fd` if there is one.  0 or -errno;
     * what it has opened is closed then. */
    int (*open)(pf_watch *watch);
    /* Ask for the events of interest, by its generation.  `before` is the
     * interest that was armed, or PF_UNARMED.  0 or -errno; -EPIPE: it cannot
     * be watched because it has an error. */
    int (*arm)(pf_watch *watch, const pf_watched *w, int before);
    /* The registration's number may be closed already.  NULL: the system
     * needs no call. */
    void (*disarm)(pf_watch *watch, const pf_registration *r);
    /* Wait, and call pf_watch_found for each event, at most `most`.  0 or
     * -errno. */
    int (*wait)(pf_watch *watch, int most, int64_t timeout_ns);
} pf_watch_system;

/* Between wait and deliver the first `count` of `found` are what is to be
 * told. */
struct pf_watch {
    pf_poller base;
    const pf_watch_system *system;
    int fd;      /* the system's; -1: it has none */
    bool coarse; /* the system does not wait for less than a millisecond */
    pf_waker waker;
    pf_watched *numbers;
    size_t capacity;
    size_t lost;  /* how many */
    void *buffer; /* the system's events */
    size_t room;  /* in that; PF_MOST_EVENTS at least */
    size_t turn;  /* of poll(2): the number that is looked at first */
    int count;
    pf_found found[PF_MOST_EVENTS];
};

static inline bool
pf_watch_is_mute(const pf_registration *r)
{
    return (r->interest & ~(unsigned)PF_IO_EDGE) == 0;
}

/* NULL: the event is to be ignored. */
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

/* For `wait`: the system has told of that. */
static inline void
pf_watch_found(pf_watch *watch, uint32_t number, uint32_t generation,
               unsigned events)
{
    if (pf_watch_find(watch, number, generation) != NULL) {
        watch->found[watch->count++] = (pf_found){number, generation, events};
    }
}

/* NULL where there is no such system. */
extern const pf_watch_system *const pf_epoll_system, *const pf_kqueue_system,
                                                         *const pf_poll_system;

/* NULL and -errno in *error. */
pf_poller *pf_watch_new(const pf_watch_system *system, int *error);

/* For system calls that know no finer time.  Rounded up: after an early
 * wake-up we would only wait again. */
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
