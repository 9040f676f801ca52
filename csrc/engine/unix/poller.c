/* The default poller and the clock where there is poll(2). */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* ppoll, pipe2 */
#endif

#include "engine/io/poller.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <time.h>
#include <unistd.h>

#if defined(__linux__)
#include <sys/eventfd.h>
#endif

#include "engine/base/memory.h"
#include "engine/core/scheduler.h"

/* wake_read and wake_write are the same eventfd on Linux, the two ends of a
 * pipe elsewhere; both non-blocking.  A full pipe is as good as a byte. */
typedef struct default_poller {
    pf_poller base;
    int wake_read;
    int wake_write;
    int watched; /* -1: none */
} default_poller;

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

/* Forget that wake() was called.  One read empties an eventfd; a pipe may
 * hold a byte for each producer that was quick enough. */
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

/* Rounded up: waking before the time is over would only wait again. */
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
    struct pollfd fds[2] = {{p->wake_read, POLLIN, 0},
                            {p->watched, POLLIN, 0}};
    nfds_t count = p->watched < 0 ? 1 : 2;
    int n = poll_for(fds, count, timeout_ns < 0 ? 0 : timeout_ns);
    if (n < 0) {
        return errno == EINTR ? 0 : -errno;
    }
    if (fds[0].revents != 0) {
        empty_wake(p);
    }
    return 0;
}

/* Also from signal handlers: errno is the interrupted code's. */
static void
default_wake(pf_poller *poller)
{
    default_poller *p = (default_poller *)poller;
    const uint64_t one = 1; /* what an eventfd wants; a pipe takes anything */
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

/* The parent must not be woken in our stead, nor we in the parent's. */
static int
default_after_fork(pf_poller *poller)
{
    default_poller *p = (default_poller *)poller;
    close_wake(p);
    return open_wake(p);
}

static bool
default_busy(pf_poller *poller)
{
    (void)poller;
    return false;
}

static void
default_close(pf_poller *poller)
{
    close_wake((default_poller *)poller);
    free(poller);
}

static const pf_poller_ops default_ops = {
    .wait = default_wait,
    .wake = default_wake,
    .fileno = default_fileno,
    .after_fork = default_after_fork,
    .busy = default_busy,
    .close = default_close,
};

pf_poller *
pf_default_poller_new(int *error)
{
    default_poller *p = pf_malloc(sizeof *p);
    if (p == NULL) {
        *error = -ENOMEM;
        return NULL;
    }
    p->base.ops = &default_ops;
    p->watched = -1;
    *error = open_wake(p);
    if (*error != 0) {
        free(p);
        return NULL;
    }
    return &p->base;
}

void
pf_default_poller_watch(pf_poller *poller, intptr_t descriptor)
{
    ((default_poller *)poller)->watched = (int)descriptor;
}
