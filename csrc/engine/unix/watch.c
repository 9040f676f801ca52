/* The part of the POSIX poller that is the same for all systems: the table of
 * registrations, and delivering events to them.  See watch.h. */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* fcntl */
#endif

#include "engine/unix/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "engine/base/memory.h"
#include "engine/core/queue.h"

#define FIRST_CAPACITY 16

/* -------------------------------------------------------- the table --- */

/* Makes the table large enough for `number`.  A failure changes nothing.
 * Refuses a number that is not open: such a number may be huge, and the table
 * with it. */
static int
make_room(pf_watch *watch, int number)
{
    if (fcntl(number, F_GETFD) < 0) {
        return -EBADF;
    }
    size_t capacity = watch->capacity == 0 ? FIRST_CAPACITY : watch->capacity;
    while (capacity <= (size_t)number) {
        capacity *= 2;
    }
    pf_watched *numbers =
        pf_memory_realloc(watch->numbers, capacity * sizeof *numbers);
    if (numbers == NULL) {
        return -ENOMEM;
    }
    memset(&numbers[watch->capacity], 0,
           (capacity - watch->capacity) * sizeof *numbers);
    watch->numbers = numbers;
    watch->capacity = capacity;
    return 0;
}

/* Gives the number a new generation: events found before are ignored. */
static void
renew(pf_watched *w)
{
    if (++w->generation == PF_NOBODY) {
        w->generation++;
    }
}

static pf_watched *
watched_of(const pf_watch *watch, const pf_registration *r)
{
    return &watch->numbers[r->descriptor];
}

/* Marks a number that the system does not watch, so that the next wait reports
 * an ERROR for it.  Does nothing if its registration asks for no event. */
static void
lose(pf_watch *watch, pf_watched *w)
{
    if (!w->lost && !pf_watch_is_mute(w->registration)) {
        w->lost = true;
        watch->lost++;
    }
}

static void
find_again(pf_watch *watch, pf_watched *w)
{
    watch->lost -= w->lost;
    w->lost = false;
}

/* --------------------------------------------------- registrations --- */

/* Whether the system can watch for this interest.  A system may lack one event
 * (out-of-band data): it is then ignored beside others, but refused alone,
 * because a fiber would wait in vain. */
static bool
is_known(const pf_watch *watch, unsigned interest)
{
    unsigned unknown = interest & ~watch->system->known;
    return unknown == 0 || ((unknown & ~(unsigned)PF_IO_ASKED) == 0 &&
                            (interest & ~unknown & ~PF_IO_EDGE) != 0);
}

static int
enter(pf_watch *watch, intptr_t descriptor, unsigned interest,
      pf_registration *r)
{
    if (!is_known(watch, interest)) {
        return -EINVAL;
    }
    if (descriptor < 0 || descriptor > INT_MAX) {
        return -EBADF;
    }
    if (r->added || descriptor == watch->waker.read_end) {
        return -EEXIST;
    }
    if ((size_t)descriptor >= watch->capacity) {
        int error = make_room(watch, (int)descriptor);
        if (error != 0) {
            return error;
        }
    }
    pf_watched *w = &watch->numbers[descriptor];
    if (w->registration != NULL) {
        return -EEXIST;
    }
    w->registration = r;
    renew(w);
    r->descriptor = descriptor;
    r->interest = (uint16_t)interest;
    r->added = true;
    return 0;
}

static void
leave(pf_watch *watch, pf_registration *r)
{
    pf_watched *w = watched_of(watch, r);
    find_again(watch, w);
    w->registration = NULL;
    r->added = false;
}

static int
watch_add(pf_poller *poller, intptr_t descriptor, unsigned interest,
          pf_registration *r)
{
    pf_watch *watch = (pf_watch *)poller;
    int error = enter(watch, descriptor, interest, r);
    if (error != 0) {
        return error;
    }
    pf_watched *w = watched_of(watch, r);
    error = watch->system->arm(watch, w, PF_UNARMED);
    if (error == -EPIPE) {
        lose(watch, w);
        return 0;
    }
    if (error != 0) {
        leave(watch, r);
    }
    return error;
}

static int
watch_modify(pf_poller *poller, pf_registration *r, unsigned interest)
{
    pf_watch *watch = (pf_watch *)poller;
    int before = r->interest;
    if (!is_known(watch, interest)) {
        return -EINVAL;
    }
    if (!r->added) {
        return -ENOENT;
    }
    pf_watched *w = watched_of(watch, r);
    find_again(watch, w);
    renew(w);
    r->interest = (uint16_t)interest;
    int error = watch->system->arm(watch, w, before);
    if (error != 0) {
        lose(watch, w);
    }
    return error == 0 || error == -EPIPE ? 0 : -EBADF;
}

static int
watch_remove(pf_poller *poller, pf_registration *r)
{
    pf_watch *watch = (pf_watch *)poller;
    if (!r->added) {
        return -ENOENT;
    }
    leave(watch, r);
    if (watch->system->disarm != NULL) {
        watch->system->disarm(watch, r);
    }
    return 0;
}

/* ------------------------------------------------------------ wait --- */

/* Reports an ERROR for each lost number, as if the system had.  These take at
 * most half of `found`; the other half is for the system's events. */
static void
find_lost(pf_watch *watch)
{
    size_t left = watch->lost;
    for (size_t i = 0; left > 0 && watch->count < PF_MOST_EVENTS / 2; i++) {
        const pf_watched *w = &watch->numbers[i];
        if (w->lost) {
            left--;
            pf_watch_found(watch, (uint32_t)i, w->generation,
                           PF_IO_READ | PF_IO_WRITE | PF_IO_ERROR);
        }
    }
}

static int
watch_wait(pf_poller *poller, int64_t timeout_ns)
{
    pf_watch *watch = (pf_watch *)poller;
    watch->count = 0;
    find_lost(watch);
    int64_t timeout = watch->count > 0 || timeout_ns < 0 ? 0 : timeout_ns;
    int error =
        watch->system->wait(watch, PF_MOST_EVENTS - watch->count, timeout);
    if (error != 0) {
        watch->count = 0;
        return error == -EINTR ? 0 : error;
    }
    return watch->count;
}

/* Arms a level-triggered registration again after its event was delivered, if
 * `ready` has not changed or removed it. */
static void
arm_again(pf_watch *watch, const pf_found *found)
{
    pf_watched *w = pf_watch_find(watch, found->number, found->generation);
    if (w != NULL && !w->lost &&
        watch->system->arm(watch, w, w->registration->interest) != 0) {
        lose(watch, w);
    }
}

/* Drops the reported events from an edge-triggered interest, until modify()
 * asks for them again.  An ERROR drops all events, an END all but WRITE. */
static void
disarm(pf_registration *r, unsigned reported)
{
    unsigned rest = reported & PF_IO_ERROR ? 0
                    : reported & PF_IO_END ? (unsigned)PF_IO_WRITE
                                           : (unsigned)PF_IO_ASKED;
    r->interest = (uint16_t)((r->interest & ~reported & rest) | PF_IO_EDGE);
}

static void
report(pf_watch *watch, const pf_found *found, struct pf_scheduler *s)
{
    pf_watched *w = pf_watch_find(watch, found->number, found->generation);
    if (w == NULL) {
        return;
    }
    pf_registration *r = w->registration;
    bool edge = (r->interest & PF_IO_EDGE) != 0;
    unsigned events = found->events & (r->interest | PF_IO_END | PF_IO_ERROR);
    if (edge) {
        find_again(watch, w);
        if (watch->system->rearms) {
            disarm(r, events);
        }
    }
    r->ready(r, s, events);
    if (!edge && watch->system->once) {
        arm_again(watch, found);
    }
}

/* Fetches the registration of the next event into the cache: probably no code
 * has used it for a long time. */
static void
prefetch(const pf_watch *watch, const pf_found *found)
{
    const pf_watched *w =
        pf_watch_find(watch, found->number, found->generation);
    if (w != NULL) {
        PF_PREFETCH(w->registration);
    }
}

static void
watch_deliver(pf_poller *poller, struct pf_scheduler *s)
{
    pf_watch *watch = (pf_watch *)poller;
    int count = watch->count;
    watch->count = 0;
    for (int i = 0; i < count; i++) {
        if (i + 1 < count) {
            prefetch(watch, &watch->found[i + 1]);
        }
        report(watch, &watch->found[i], s);
    }
}

/* ------------------------------------------------------- the rest --- */

static void
watch_wake(pf_poller *poller)
{
    pf_waker_wake(&((pf_watch *)poller)->waker);
}

/* poll(2) has no descriptor for the whole set.  The waker's end, which takes
 * its place, becomes readable by wake() only. */
static int
watch_fileno(pf_poller *poller)
{
    const pf_watch *watch = (const pf_watch *)poller;
    return watch->fd >= 0 ? watch->fd : watch->waker.read_end;
}

static void
close_system(pf_watch *watch, bool has_fd)
{
    pf_waker_close(&watch->waker);
    if (has_fd && watch->fd >= 0) {
        close(watch->fd);
    }
    watch->fd = -1;
}

static int
open_system(pf_watch *watch)
{
    watch->fd = -1;
    int error = pf_waker_open(&watch->waker);
    if (error == 0) {
        error = watch->system->open(watch);
    }
    if (error != 0) {
        close_system(watch, true);
    }
    return error;
}

/* Closes an inherited descriptor without removing anything from it: a change
 * through it would be one for the parent, too.  A descriptor that is not
 * inherited must not be closed: in the child its number is free, or another
 * file's. */
static int
watch_after_fork(pf_poller *poller)
{
    pf_watch *watch = (pf_watch *)poller;
    close_system(watch, watch->system->inherited);
    watch->count = 0;
    int error = open_system(watch);
    for (size_t i = 0; i < watch->capacity; i++) {
        pf_watched *w = &watch->numbers[i];
        if (w->registration != NULL) {
            find_again(watch, w);
            if (watch->system->arm(watch, w, PF_UNARMED) != 0) {
                lose(watch, w);
            }
        }
    }
    return error;
}

static void
watch_close(pf_poller *poller)
{
    pf_watch *watch = (pf_watch *)poller;
    close_system(watch, true);
    free(watch->numbers);
    free(watch->buffer);
    free(watch);
}

#define WATCH_OPS                                                             \
    .add = watch_add, .modify = watch_modify, .remove = watch_remove,         \
    .wait = watch_wait, .deliver = watch_deliver, .wake = watch_wake,         \
    .fileno = watch_fileno, .after_fork = watch_after_fork,                   \
    .close = watch_close

static const pf_poller_ops lasting_ops = {WATCH_OPS, .rearms = false};
static const pf_poller_ops rearming_ops = {WATCH_OPS, .rearms = true};

pf_poller *
pf_watch_new(const pf_watch_system *system, int *error)
{
    pf_watch *watch = pf_memory_calloc(1, sizeof *watch);
    void *buffer = pf_memory_calloc(PF_MOST_EVENTS, system->event_size);
    *error = -ENOMEM;
    if (watch != NULL && buffer != NULL) {
        watch->base.ops = system->rearms ? &rearming_ops : &lasting_ops;
        watch->system = system;
        watch->buffer = buffer;
        watch->room = PF_MOST_EVENTS;
        *error = open_system(watch);
    }
    if (*error != 0) {
        free(buffer);
        free(watch);
        return NULL;
    }
    return &watch->base;
}
