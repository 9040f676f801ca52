/* The calls of watch.h by kqueue, on macOS and the BSDs.
 *
 * Each direction has a filter, which names the descriptor (`ident`) and the
 * generation (`udata`, see watch.h).  Closing a number removes its filters,
 * whether the open file has duplicates or not, and the child of a fork does
 * not inherit a kqueue.
 *
 * So far this file was tested on Linux only, with libkqueue (PF_LIBKQUEUE, see
 * tests/c/Makefile).  libkqueue does not emulate that closing removes filters,
 * nor EVFILT_EXCEPT, nor a kqueue that is itself watched.
 */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif
#if defined(__APPLE__) && !defined(_DARWIN_C_SOURCE)
#define _DARWIN_C_SOURCE
#endif
#if !defined(_NETBSD_SOURCE)
#define _NETBSD_SOURCE
#endif

#include "engine/unix/watch.h"

#include <errno.h>

#if defined(__APPLE__) || defined(__FreeBSD__) || defined(__NetBSD__) ||      \
    defined(__OpenBSD__) || defined(__DragonFly__) || defined(PF_LIBKQUEUE)

#include <sys/types.h>

#include <fcntl.h>
#include <sys/event.h>
#include <time.h>
#include <unistd.h>

#define LONGEST 86400 /* seconds; macOS refuses years */

/* Converts to the type of `udata`: a pointer, or an integer on older
 * NetBSDs. */
#define UDATA(generation)                                                     \
    ((__typeof__(((struct kevent *)0)->udata))(uintptr_t)(generation))

static int
change(const pf_watch *watch, const struct kevent *changes, int count)
{
    return kevent(watch->fd, changes, count, NULL, 0, NULL) < 0 ? -errno : 0;
}

static int
kq_open(pf_watch *watch)
{
    struct kevent e;
    watch->fd = kqueue();
    if (watch->fd < 0 || fcntl(watch->fd, F_SETFD, FD_CLOEXEC) < 0) {
        return -errno;
    }
    EV_SET(&e, (uintptr_t)watch->waker.read_end, EVFILT_READ,
           EV_ADD | EV_CLEAR, 0, 0, UDATA(PF_NOBODY));
    return change(watch, &e, 1);
}

/* --------------------------------------------------- registrations --- */

static const struct {
    unsigned interest;
    int filter;
    unsigned flags;
} filters[] = {
    {PF_IO_READ, EVFILT_READ, 0},
    {PF_IO_WRITE, EVFILT_WRITE, 0},
#if defined(EVFILT_EXCEPT) && defined(NOTE_OOB)
    {PF_IO_URGENT, EVFILT_EXCEPT, NOTE_OOB},
#endif
};
#define FILTERS (sizeof filters / sizeof *filters)

/* The kqueues of FreeBSD and NetBSD have no filter for out-of-band data. */
#define KNOWN (FILTERS == 3 ? PF_IO_ASKED : PF_IO_ASKED & ~PF_IO_URGENT)

/* Removes the filters one by one, so that one that is gone already does not
 * keep the others from being removed. */
static void
remove_filters(pf_watch *watch, intptr_t number, unsigned interest)
{
    for (size_t i = 0; i < FILTERS; i++) {
        if (interest & filters[i].interest) {
            struct kevent e;
            EV_SET(&e, (uintptr_t)number, filters[i].filter, EV_DELETE, 0, 0,
                   UDATA(PF_NOBODY));
            change(watch, &e, 1);
        }
    }
}

static void
kq_disarm(pf_watch *watch, const pf_registration *r)
{
    remove_filters(watch, r->descriptor, r->interest);
}

/* Makes the errors alike with which systems refuse a file that they cannot
 * watch (-EPERM) or a number that is not open (-EBADF). */
static int
error_of_add(int error)
{
    switch (error) {
    case -EINVAL:
    case -ENODEV:
    case -ENXIO:
    case -EOPNOTSUPP:
        return -EPERM;
    case -ENOENT:
        return -EBADF;
    default:
        return error;
    }
}

/* Removes the old filters first: changed in place, an edge-triggered filter
 * stays edge triggered on some systems.  -EPIPE: a pipe that nobody reads any
 * more cannot be watched, but is ready, since a write to it fails at once. */
static int
kq_arm(pf_watch *watch, const pf_watched *w, int before)
{
    struct kevent changes[FILTERS];
    int count = 0;
    const pf_registration *r = w->registration;
    unsigned flags = r->interest & PF_IO_EDGE ? EV_ADD | EV_CLEAR : EV_ADD;
    if (before != PF_UNARMED) {
        remove_filters(watch, r->descriptor, (unsigned)before);
    }
    for (size_t i = 0; i < FILTERS; i++) {
        if (r->interest & filters[i].interest) {
            EV_SET(&changes[count], (uintptr_t)r->descriptor,
                   filters[i].filter, flags, filters[i].flags, 0,
                   UDATA(w->generation));
            count++;
        }
    }
    if (count == 0) {
        return fcntl((int)r->descriptor, F_GETFD) < 0 ? -errno : 0;
    }
    int error = change(watch, changes, count);
    if (error != 0) {
        kq_disarm(watch, r);
    }
    return error_of_add(error);
}

/* ------------------------------------------------------------ wait --- */

/* EV_EOF of the write filter is an error: nobody reads what is written. */
static unsigned
found_by_system(const struct kevent *e)
{
    unsigned events = 0;
    bool end = (e->flags & EV_EOF) != 0;
    bool error = (e->flags & EV_ERROR) != 0;
    int filter = (int)e->filter; /* unsigned on NetBSD */
    if (filter == EVFILT_READ) {
        events = end ? PF_IO_READ | PF_IO_END : PF_IO_READ;
        error = error || (end && e->fflags != 0);
    } else if (filter == EVFILT_WRITE) {
        events = PF_IO_WRITE;
        error = error || end;
    } else if (!error) {
        events = PF_IO_URGENT;
    }
    return error ? events | PF_IO_READ | PF_IO_WRITE | PF_IO_ERROR : events;
}

/* Empties the waker's pipe after each of its events: a full pipe would cause
 * no more events. */
static int
kq_wait(pf_watch *watch, int most, int64_t timeout_ns)
{
    struct timespec timeout = {LONGEST, 0};
    struct kevent *events = watch->buffer;
    if (timeout_ns < (int64_t)LONGEST * 1000000000) {
        timeout.tv_sec = (time_t)(timeout_ns / 1000000000);
        timeout.tv_nsec = (long)(timeout_ns % 1000000000);
    }
    int n = kevent(watch->fd, NULL, 0, events, most,
                   timeout_ns == PF_NEVER ? NULL : &timeout);
    for (int i = 0; i < n; i++) {
        const struct kevent *e = &events[i];
        uint32_t generation = (uint32_t)(uintptr_t)e->udata;
        if (generation == PF_NOBODY) {
            pf_waker_empty(&watch->waker);
        }
        pf_watch_found(watch, (uint32_t)e->ident, generation,
                       found_by_system(e));
    }
    return n < 0 ? -errno : 0;
}

static const pf_watch_system ops = {
    .event_size = sizeof(struct kevent),
    .known = KNOWN,
    .open = kq_open,
    .arm = kq_arm,
    .disarm = kq_disarm,
    .wait = kq_wait,
};

const pf_watch_system *const pf_kqueue_system = &ops;

#else

const pf_watch_system *const pf_kqueue_system = NULL;

#endif
