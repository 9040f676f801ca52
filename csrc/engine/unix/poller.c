/* The default poller and the clock where there is poll(2). */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* ppoll, pipe2 */
#endif

#include "engine/io/poller.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#if defined(__linux__)
#include <sys/eventfd.h>
#endif

#include "engine/base/memory.h"
#include "engine/core/scheduler.h"

/* The first of `fds` is the read end of the wake descriptor: the same eventfd
 * as wake_write on Linux, the two ends of a pipe elsewhere, both non-blocking;
 * a full pipe is as good as one byte.  The others are those that were added,
 * `registered` in the same places.  Between wait and deliver their revents are
 * the buffer of events. */
typedef struct default_poller {
    pf_poller base;
    int wake_read;
    int wake_write;
    nfds_t count;
    nfds_t capacity;
    struct pollfd *fds;
    pf_registration **registered;
} default_poller;

#define WAKE_SLOT 0
#define FIRST_CAPACITY 4

int64_t
pf_monotonic(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

#if defined(__linux__)

static int
open_wake(default_poller *p)
{
    int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    p->wake_read = p->wake_write = fd;
    return fd < 0 ? -errno : 0;
}

#else

static int
prepare_end(int fd)
{
    if (fcntl(fd, F_SETFD, FD_CLOEXEC) != 0 ||
        fcntl(fd, F_SETFL, O_NONBLOCK) != 0) {
        return -errno;
    }
    return 0;
}

static int
open_wake(default_poller *p)
{
    int ends[2];
    p->wake_read = p->wake_write = -1;
    if (pipe(ends) != 0) {
        return -errno;
    }
    int error = prepare_end(ends[0]);
    if (error == 0) {
        error = prepare_end(ends[1]);
    }
    if (error != 0) {
        close(ends[0]);
        close(ends[1]);
        return error;
    }
    p->wake_read = ends[0];
    p->wake_write = ends[1];
    return 0;
}

#endif

static void
close_wake(default_poller *p)
{
    if (p->wake_read >= 0) {
        close(p->wake_read);
    }
    if (p->wake_write >= 0 && p->wake_write != p->wake_read) {
        close(p->wake_write);
    }
    p->wake_read = p->wake_write = -1;
}

/* Forget that wake() was called.  One read empties an eventfd; a pipe may hold
 * a byte of each producer that came in time. */
static void
empty_wake(default_poller *p)
{
    char bytes[64];
    ssize_t n;
    do {
        n = read(p->wake_read, bytes, sizeof bytes);
    } while (n == (ssize_t)sizeof bytes || (n < 0 && errno == EINTR));
}

#if defined(__linux__) || defined(__FreeBSD__)

static int
poll_for(struct pollfd *fds, nfds_t count, int64_t timeout_ns)
{
    struct timespec timeout = {(time_t)(timeout_ns / 1000000000),
                               (long)(timeout_ns % 1000000000)};
    return ppoll(fds, count, timeout_ns == PF_NEVER ? NULL : &timeout, NULL);
}

#else

/* Rounded up: after an early wake-up we would only wait again. */
static int
poll_for(struct pollfd *fds, nfds_t count, int64_t timeout_ns)
{
    int milliseconds = -1;
    if (timeout_ns != PF_NEVER) {
        int64_t ms = timeout_ns / 1000000 + (timeout_ns % 1000000 != 0);
        milliseconds = ms > INT_MAX ? INT_MAX : (int)ms;
    }
    return poll(fds, count, milliseconds);
}

#endif

static int
default_wait(pf_poller *poller, int64_t timeout_ns)
{
    default_poller *p = (default_poller *)poller;
    int found = poll_for(p->fds, p->count, timeout_ns < 0 ? 0 : timeout_ns);
    if (found < 0) {
        return errno == EINTR ? 0 : -errno;
    }
    if (p->fds[WAKE_SLOT].revents != 0) {
        empty_wake(p);
        found--;
    }
    return found;
}

/* --------------------------------------------------- descriptors --- */

/* Both arrays are in one block: a failure changes nothing. */
static int
grow(default_poller *p)
{
    nfds_t capacity = p->capacity == 0 ? FIRST_CAPACITY : 2 * p->capacity;
    size_t pointers = capacity * sizeof(pf_registration *);
    char *block = pf_malloc(pointers + capacity * sizeof(struct pollfd));
    if (block == NULL) {
        return -ENOMEM;
    }
    struct pollfd *fds = (struct pollfd *)(void *)(block + pointers);
    if (p->count > 0) {
        memcpy(block, p->registered, p->count * sizeof *p->registered);
        memcpy(fds, p->fds, p->count * sizeof *fds);
    }
    free(p->registered);
    p->registered = (pf_registration **)(void *)block;
    p->fds = fds;
    p->capacity = capacity;
    return 0;
}

static bool
is_registered(const default_poller *p, int fd)
{
    for (nfds_t i = WAKE_SLOT + 1; i < p->count; i++) {
        if (p->registered[i]->descriptor == fd) {
            return true;
        }
    }
    return false;
}

static short
asked_of_system(unsigned interest)
{
    int events = 0;
    if (interest & PF_IO_READ) {
        events |= POLLIN;
#if defined(POLLRDHUP)
        events |= POLLRDHUP;
#endif
    }
    if (interest & PF_IO_WRITE) {
        events |= POLLOUT;
    }
    if (interest & PF_IO_URGENT) {
        events |= POLLPRI;
    }
    return (short)events;
}

static unsigned
told_by_system(short revents, unsigned interest)
{
    unsigned events = 0;
    if (revents & POLLIN) {
        events |= PF_IO_READ;
    }
    if (revents & POLLOUT) {
        events |= PF_IO_WRITE;
    }
    if (revents & POLLPRI) {
        events |= PF_IO_URGENT;
    }
#if defined(POLLRDHUP)
    if (revents & POLLRDHUP) {
        events |= PF_IO_READ | PF_IO_END;
    }
#endif
    if (revents & POLLHUP) {
        events |= PF_IO_READ | PF_IO_WRITE | PF_IO_END;
    }
    if (revents & (POLLERR | POLLNVAL)) {
        events |= PF_IO_READ | PF_IO_WRITE | PF_IO_ERROR;
    }
    return events & (interest | PF_IO_END | PF_IO_ERROR);
}

/* poll reports hang-ups and errors even if nothing is asked for; for a number
 * below 0 it reports nothing at all. */
static void
ask(default_poller *p, const pf_registration *r, unsigned interest)
{
    bool mute = (interest & ~(unsigned)PF_IO_EDGE) == 0;
    int fd = (int)r->descriptor;
    p->fds[r->slot] =
        (struct pollfd){mute ? ~fd : fd, asked_of_system(interest), 0};
}

static int
default_add(pf_poller *poller, intptr_t descriptor, unsigned interest,
            pf_registration *r)
{
    default_poller *p = (default_poller *)poller;
    int fd = (int)descriptor;
    if (interest & ~(unsigned)PF_IO_ASKED) {
        return -EINVAL;
    }
    if (fd != descriptor || fd < 0 || fcntl(fd, F_GETFD) < 0) {
        return -EBADF;
    }
    if (r->added || is_registered(p, fd)) {
        return -EEXIST;
    }
    if (p->count == p->capacity && grow(p) != 0) {
        return -ENOMEM;
    }
    r->descriptor = descriptor;
    r->slot = p->count++;
    r->interest = interest;
    r->added = true;
    p->registered[r->slot] = r;
    ask(p, r, interest);
    return 0;
}

static int
default_modify(pf_poller *poller, pf_registration *r, unsigned interest)
{
    if (interest & ~(unsigned)PF_IO_ASKED) {
        return -EINVAL;
    }
    if (!r->added) {
        return -ENOENT;
    }
    r->interest = interest;
    ask((default_poller *)poller, r, interest);
    return 0;
}

/* The last one takes its place. */
static int
default_remove(pf_poller *poller, pf_registration *r)
{
    default_poller *p = (default_poller *)poller;
    if (!r->added) {
        return -ENOENT;
    }
    nfds_t last = --p->count;
    p->registered[last]->slot = r->slot;
    p->registered[r->slot] = p->registered[last];
    p->fds[r->slot] = p->fds[last];
    r->added = false;
    return 0;
}

/* An edge that was reported is not asked for again until modify(); after an
 * event that was not asked for, nothing is asked for any more. */
static void
disarm(default_poller *p, pf_registration *r, unsigned told, short revents)
{
    bool unasked = (revents & (POLLHUP | POLLERR | POLLNVAL)) != 0;
    r->interest = unasked ? PF_IO_EDGE : (r->interest & ~told) | PF_IO_EDGE;
    ask(p, r, r->interest);
}

static void
tell(default_poller *p, pf_registration *r, struct pf_scheduler *s)
{
    short revents = p->fds[r->slot].revents;
    unsigned events = told_by_system(revents, r->interest);
    p->fds[r->slot].revents = 0;
    if (r->interest & PF_IO_EDGE) {
        disarm(p, r, events, revents);
    }
    r->ready(r, s, events);
}

/* From the last to the first: a registration that meanwhile moves to a lower
 * place, or is added at the end, has had its report or has none. */
static void
default_deliver(pf_poller *poller, struct pf_scheduler *s)
{
    default_poller *p = (default_poller *)poller;
    for (nfds_t i = p->count - 1; i > WAKE_SLOT; i--) {
        if (i < p->count && p->fds[i].revents != 0) {
            tell(p, p->registered[i], s);
        }
    }
}

/* ------------------------------------------------------- the rest --- */

/* Also called in signal handlers, so it preserves errno. */
static void
default_wake(pf_poller *poller)
{
    default_poller *p = (default_poller *)poller;
    const uint64_t one = 1; /* an eventfd needs this; a pipe takes anything */
    int saved = errno;
    ssize_t n;
    do {
        n = write(p->wake_write, &one, sizeof one);
    } while (n < 0 && errno == EINTR);
    errno = saved;
}

static int
default_fileno(pf_poller *poller)
{
    return ((default_poller *)poller)->wake_read;
}

/* A wake-up must reach only its own process, parent or child. */
static int
default_after_fork(pf_poller *poller)
{
    default_poller *p = (default_poller *)poller;
    close_wake(p);
    int error = open_wake(p);
    p->fds[WAKE_SLOT].fd = p->wake_read;
    return error;
}

static void
default_close(pf_poller *poller)
{
    default_poller *p = (default_poller *)poller;
    close_wake(p);
    free(p->registered);
    free(p);
}

static const pf_poller_ops default_ops = {
    .add = default_add,
    .modify = default_modify,
    .remove = default_remove,
    .wait = default_wait,
    .deliver = default_deliver,
    .wake = default_wake,
    .fileno = default_fileno,
    .after_fork = default_after_fork,
    .close = default_close,
    .rearms = true,
};

pf_poller *
pf_default_poller_new(int *error)
{
    default_poller *p = pf_calloc(1, sizeof *p);
    if (p == NULL || grow(p) != 0) {
        free(p);
        *error = -ENOMEM;
        return NULL;
    }
    p->base.ops = &default_ops;
    *error = open_wake(p);
    if (*error != 0) {
        free(p->registered);
        free(p);
        return NULL;
    }
    p->fds[WAKE_SLOT] = (struct pollfd){p->wake_read, POLLIN, 0};
    p->count = WAKE_SLOT + 1;
    return &p->base;
}
