/* Who watches which descriptor, for the pollers that keep a registration in
 * the system (epoll, kqueue): a table by number.
 *
 * An event that the system reports names a number and a generation of it.  The
 * generation is another one after each change, so an event is ignored
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

#include "engine/io/poller.h"

#define PF_NOBODY 0 /* a generation that no registration has */

typedef struct pf_watched {
    pf_registration *registration; /* NULL: nobody watches this number */
    uint32_t generation;
    bool lost; /* ... and that is not told yet, or level triggered */
} pf_watched;

typedef struct pf_watch {
    pf_watched *numbers;
    size_t capacity;
    size_t lost; /* how many */
} pf_watch;

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

static inline pf_watched *
pf_watch_of(const pf_watch *watch, const pf_registration *r)
{
    return &watch->numbers[r->descriptor];
}

/* The registration is entered and `added`.  0; -EINVAL, -EBADF,
 * -EEXIST, -ENOMEM as add of poller.h. */
int pf_watch_enter(pf_watch *watch, intptr_t descriptor, unsigned interest,
                   pf_registration *r);
/* 0; -EINVAL, -ENOENT as modify of poller.h. */
int pf_watch_change(pf_watch *watch, pf_registration *r, unsigned interest);
/* 0; -ENOENT as remove of poller.h. */
int pf_watch_leave(pf_watch *watch, pf_registration *r);

void pf_watch_lose(pf_watch *watch, pf_watched *w);
void pf_watch_find_again(pf_watch *watch, pf_watched *w);
/* The first lost number from `from` on; capacity: none. */
size_t pf_watch_next_lost(const pf_watch *watch, size_t from);

void pf_watch_free(pf_watch *watch);

#endif
