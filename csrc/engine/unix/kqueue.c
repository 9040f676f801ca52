/* kqueue: macOS and the BSDs.
 *
 * There is a filter for each direction, which names the descriptor (`ident`)
 * and the generation (`udata`, see watch.h).  Closing a number removes its
 * filters, whether the open file has duplicates or not, and a kqueue is not
 * inherited by the child of a fork.
 *
 * Where it was tried: only on Linux so far, with libkqueue (PF_LIBKQUEUE, see
 * tests/c/Makefile), which emulates it, and not all of it: not that closing
 * removes filters, not EVFILT_EXCEPT, not a kqueue that is itself watched.
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

#include "engine/unix/pollers.h"

#include <errno.h>

#if defined(__APPLE__) || defined(__FreeBSD__) || defined(__NetBSD__) ||      \
    defined(__OpenBSD__) || defined(__DragonFly__) || defined(PF_LIBKQUEUE)

#include <sys/types.h>

#include <fcntl.h>
#include <sys/event.h>
#include <time.h>
#include <unistd.h>

#include "engine/base/memory.h"
#include "engine/unix/waker.h"
#include "engine/unix/watch.h"

#define MOST_EVENTS 128 /* of one wait; the next one finds the others */
#define LONGEST 86400   /* seconds; macOS refuses years */

/* Between wait and deliver the first `found` of `events` are the buffer. */
typedef struct kqueue_poller {
    pf_poller base;
    int kqueue;
    int found;
    pf_waker waker; /* where there is no EVFILT_USER */
    pf_watch watch;
    struct kevent events[MOST_EVENTS];
} kqueue_poller;

/* A pointer, or an integer on older NetBSDs. */
#define UDATA(generation)                                                     \
    ((__typeof__(((struct kevent *)0)->udata))(uintptr_t)(generation))

static pf_watched *
watched_by(const kqueue_poller *p, const struct kevent *e)
{
    return pf_watch_find(&p->watch, (uint32_t)e->ident,
                         (uint32_t)(uintptr_t)e->udata);
}

static int
change(const kqueue_poller *p, const struct kevent *changes, int count)
{
    return kevent(p->kqueue, changes, count, NULL, 0, NULL) < 0 ? -errno : 0;
}

/* ------------------------------------------------------- the waker --- */

#if defined(EVFILT_USER)

static int
open_waker(kqueue_poller *p)
{
    struct kevent e;
    EV_SET(&e, 0, EVFILT_USER, EV_ADD | EV_CLEAR, 0, 0, UDATA(PF_NOBODY));
    return change(p, &e, 1);
}

static void
kq_wake(pf_poller *poller)
{
    int saved = errno;
    struct kevent e;
    EV_SET(&e, 0, EVFILT_USER, 0, NOTE_TRIGGER, 0, UDATA(PF_NOBODY));
    change((kqueue_poller *)poller, &e, 1);
    errno = saved;
}

static bool
is_waker(const kqueue_poller *p, const struct kevent *e)
{
    (void)p;
    return (int)e->filter == EVFILT_USER;
}

#else

static int
open_waker(kqueue_poller *p)
{
    int error = pf_waker_open(&p->waker);
    if (error == 0) {
        struct kevent e;
        EV_SET(&e, p->waker.read_end, EVFILT_READ, EV_ADD | EV_CLEAR, 0, 0,
               UDATA(PF_NOBODY));
        error = change(p, &e, 1);
    }
    return error;
}

static void
kq_wake(pf_poller *poller)
{
    pf_waker_wake(&((kqueue_poller *)poller)->waker);
}

/* A pipe that is full would make no more events. */
static bool
is_waker(const kqueue_poller *p, const struct kevent *e)
{
    bool is = (int)e->ident == p->waker.read_end;
    if (is) {
        pf_waker_empty(&p->waker);
    }
    return is;
}

#endif

static void
close_system(kqueue_poller *p)
{
    pf_waker_close(&p->waker);
    if (p->kqueue >= 0) {
        close(p->kqueue);
    }
    p->kqueue = -1;
}

static int
open_system(kqueue_poller *p)
{
    p->waker = (pf_waker){-1, -1};
    p->kqueue = kqueue();
    if (p->kqueue < 0) {
        return -errno;
    }
    int error = fcntl(p->kqueue, F_SETFD, FD_CLOEXEC) < 0 ? -errno : 0;
    if (error == 0) {
        error = open_waker(p);
    }
    if (error != 0) {
        close_system(p);
    }
    return error;
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

/* FreeBSD's and NetBSD's do not know of data out of band: whoever asks for
 * nothing else would wait in vain. */
static bool
is_known(unsigned interest)
{
    unsigned told = PF_IO_EDGE;
    for (size_t i = 0; i < FILTERS; i++) {
        told |= filters[i].interest;
    }
    return (interest & ~told) == 0 || (interest & told & ~PF_IO_EDGE) != 0;
}

/* One by one: where one is gone already, the others are to go, too. */
static void
disarm(const kqueue_poller *p, const pf_registration *r, unsigned interest)
{
    for (size_t i = 0; i < FILTERS; i++) {
        if (interest & filters[i].interest) {
            struct kevent e;
            EV_SET(&e, (uintptr_t)r->descriptor, filters[i].filter, EV_DELETE,
                   0, 0, UDATA(PF_NOBODY));
            change(p, &e, 1);
        }
    }
}

static int
arm(const kqueue_poller *p, const pf_watched *w)
{
    struct kevent changes[FILTERS];
    int count = 0;
    const pf_registration *r = w->registration;
    unsigned flags = r->interest & PF_IO_EDGE ? EV_ADD | EV_CLEAR : EV_ADD;
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
    int error = change(p, changes, count);
    if (error != 0) {
        disarm(p, r, r->interest);
    }
    return error;
}

/* What the system says of files that it cannot watch differs. */
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

/* EPIPE: a pipe that nobody reads any more cannot be watched, but it is ready
 * to tell its writer so. */
static int
kq_add(pf_poller *poller, intptr_t descriptor, unsigned interest,
       pf_registration *r)
{
    kqueue_poller *p = (kqueue_poller *)poller;
    if (descriptor >= 0 && descriptor == p->waker.read_end) {
        return -EEXIST;
    }
    if (!is_known(interest)) {
        return -EINVAL;
    }
    int error = pf_watch_enter(&p->watch, descriptor, interest, r);
    if (error != 0) {
        return error;
    }
    pf_watched *w = pf_watch_of(&p->watch, r);
    error = error_of_add(arm(p, w));
    if (error == -EPIPE) {
        pf_watch_lose(&p->watch, w);
        return 0;
    }
    if (error != 0) {
        pf_watch_leave(&p->watch, r);
    }
    return error;
}

/* Not changed in place: some systems keep an edge an edge. */
static int
kq_modify(pf_poller *poller, pf_registration *r, unsigned interest)
{
    kqueue_poller *p = (kqueue_poller *)poller;
    unsigned before = r->interest;
    if (!is_known(interest)) {
        return -EINVAL;
    }
    int error = pf_watch_change(&p->watch, r, interest);
    if (error != 0) {
        return error;
    }
    disarm(p, r, before);
    pf_watched *w = pf_watch_of(&p->watch, r);
    error = arm(p, w);
    if (error != 0) {
        pf_watch_lose(&p->watch, w);
    }
    return error == 0 || error == -EPIPE ? 0 : -EBADF;
}

static int
kq_remove(pf_poller *poller, pf_registration *r)
{
    kqueue_poller *p = (kqueue_poller *)poller;
    int error = pf_watch_leave(&p->watch, r);
    if (error == 0) {
        disarm(p, r, r->interest);
    }
    return error;
}

/* ------------------------------------------------------------ wait --- */

/* The write filter's end: nobody reads what is written. */
static unsigned
told_by_system(const struct kevent *e, unsigned interest)
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
    if (error) {
        events |= PF_IO_READ | PF_IO_WRITE | PF_IO_ERROR;
    }
    return events & (interest | PF_IO_END | PF_IO_ERROR);
}

/* As if the system had reported an error.  The other half of the buffer is for
 * what it does report. */
static int
list_lost(kqueue_poller *p)
{
    int n = 0;
    if (p->watch.lost == 0) {
        return 0;
    }
    for (size_t i = pf_watch_next_lost(&p->watch, 0);
         i < p->watch.capacity && n < MOST_EVENTS / 2;
         i = pf_watch_next_lost(&p->watch, i + 1)) {
        EV_SET(&p->events[n], i, 0, EV_ERROR, 0, 0,
               UDATA(p->watch.numbers[i].generation));
        n++;
    }
    return n;
}

/* Drop those of the waker and of registrations that are gone. */
static int
keep_watched(kqueue_poller *p, int from, int end)
{
    int kept = from;
    for (int i = from; i < end; i++) {
        const struct kevent *e = &p->events[i];
        if (!is_waker(p, e) && watched_by(p, e) != NULL) {
            p->events[kept++] = *e;
        }
    }
    return kept;
}

static int
ask_system(kqueue_poller *p, struct kevent *events, int most,
           int64_t timeout_ns)
{
    struct timespec timeout = {LONGEST, 0};
    if (timeout_ns < (int64_t)LONGEST * 1000000000) {
        timeout.tv_sec = (time_t)(timeout_ns / 1000000000);
        timeout.tv_nsec = (long)(timeout_ns % 1000000000);
    }
    return kevent(p->kqueue, NULL, 0, events, most,
                  timeout_ns == PF_NEVER ? NULL : &timeout);
}

static int
kq_wait(pf_poller *poller, int64_t timeout_ns)
{
    kqueue_poller *p = (kqueue_poller *)poller;
    int lost = list_lost(p);
    int64_t timeout = lost > 0 || timeout_ns < 0 ? 0 : timeout_ns;
    int n = ask_system(p, p->events + lost, MOST_EVENTS - lost, timeout);
    p->found = 0;
    if (n < 0) {
        return errno == EINTR ? 0 : -errno;
    }
    p->found = keep_watched(p, lost, lost + n);
    return p->found;
}

static void
tell(kqueue_poller *p, const struct kevent *e, struct pf_scheduler *s)
{
    pf_watched *w = watched_by(p, e);
    if (w == NULL) {
        return;
    }
    pf_registration *r = w->registration;
    if (r->interest & PF_IO_EDGE) {
        pf_watch_find_again(&p->watch, w);
    }
    r->ready(r, s, told_by_system(e, r->interest));
}

static void
kq_deliver(pf_poller *poller, struct pf_scheduler *s)
{
    kqueue_poller *p = (kqueue_poller *)poller;
    int found = p->found;
    p->found = 0;
    for (int i = 0; i < found; i++) {
        tell(p, &p->events[i], s);
    }
}

/* ------------------------------------------------------- the rest --- */

static int
kq_fileno(pf_poller *poller)
{
    return ((kqueue_poller *)poller)->kqueue;
}

/* The number of the parent's kqueue is free, or another file's, here. */
static int
kq_after_fork(pf_poller *poller)
{
    kqueue_poller *p = (kqueue_poller *)poller;
    pf_waker_close(&p->waker);
    p->found = 0;
    int error = open_system(p);
    for (size_t i = 0; i < p->watch.capacity; i++) {
        pf_watched *w = &p->watch.numbers[i];
        if (w->registration != NULL) {
            pf_watch_find_again(&p->watch, w);
            if (arm(p, w) != 0) {
                pf_watch_lose(&p->watch, w);
            }
        }
    }
    return error;
}

static void
kq_close(pf_poller *poller)
{
    kqueue_poller *p = (kqueue_poller *)poller;
    close_system(p);
    pf_watch_free(&p->watch);
    free(p);
}

static const pf_poller_ops kqueue_ops = {
    .add = kq_add,
    .modify = kq_modify,
    .remove = kq_remove,
    .wait = kq_wait,
    .deliver = kq_deliver,
    .wake = kq_wake,
    .fileno = kq_fileno,
    .after_fork = kq_after_fork,
    .close = kq_close,
    .rearms = false,
};

pf_poller *
pf_kqueue_poller_new(int *error)
{
    kqueue_poller *p = pf_calloc(1, sizeof *p);
    if (p == NULL) {
        *error = -ENOMEM;
        return NULL;
    }
    p->base.ops = &kqueue_ops;
    *error = open_system(p);
    if (*error != 0) {
        free(p);
        return NULL;
    }
    return &p->base;
}

#else

pf_poller *
pf_kqueue_poller_new(int *error)
{
    *error = -ENOSYS;
    return NULL;
}

#endif
