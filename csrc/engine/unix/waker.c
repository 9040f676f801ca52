/* The waker by an eventfd or a pipe: see waker.h. */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif

#include "engine/unix/waker.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <unistd.h>

#if defined(__linux__)
#include <sys/eventfd.h>
#endif

#if defined(__linux__)

int
pf_waker_open(pf_waker *waker)
{
    int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    waker->read_end = waker->write_end = fd;
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

int
pf_waker_open(pf_waker *waker)
{
    int ends[2];
    waker->read_end = waker->write_end = -1;
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
    waker->read_end = ends[0];
    waker->write_end = ends[1];
    return 0;
}

#endif

void
pf_waker_close(pf_waker *waker)
{
    if (waker->read_end >= 0) {
        close(waker->read_end);
    }
    if (waker->write_end >= 0 && waker->write_end != waker->read_end) {
        close(waker->write_end);
    }
    waker->read_end = waker->write_end = -1;
}

/* A full pipe refuses the write, which is no failure: it is readable. */
void
pf_waker_wake(const pf_waker *waker)
{
    const uint64_t one = 1; /* an eventfd takes 8 bytes, a pipe anything */
    int saved = errno;
    ssize_t n;
    do {
        n = write(waker->write_end, &one, sizeof one);
    } while (n < 0 && errno == EINTR);
    errno = saved;
}

/* One read empties an eventfd.  A pipe holds bytes of every wake since the
 * last call, so this reads until a read is short. */
void
pf_waker_empty(const pf_waker *waker)
{
    char bytes[64];
    ssize_t n;
    do {
        n = read(waker->read_end, bytes, sizeof bytes);
    } while (n == (ssize_t)sizeof bytes || (n < 0 && errno == EINTR));
}
