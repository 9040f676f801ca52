/* The calls of watch.h by epoll, on Linux.
 *
 * The data of an event is generation << 32 | number; watch.h says what the
 * generation is for.
 *
 * A registration without PF_IO_EDGE is armed for one event, and armed again
 * after that event is delivered, if the registration still exists.  The
 * kernel's level triggering would do the same, except for a number that is
 * closed while its open file lives on in a duplicate: the kernel's entry can
 * then not be removed, and would cause events for ever.  Armed this way it
 * causes one event, which is ignored.
 *
 * The waker's eventfd is edge triggered and never read: each write is an
 * event.  Between a write and the next wait the epoll descriptor is readable,
 * as for every event that no wait has found yet, so a host's loop may watch
 * this descriptor instead of calling wait.
 */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* syscall */
#endif

#include "engine/unix/watch.h"

#include <errno.h>

#if defined(__linux__)

#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PWAIT2 441 /* epoll_pwait2 on every processor, Linux 5.11 */

static struct epoll_event
event_of(uint32_t events, intptr_t number, uint32_t generation)
{
    return (struct epoll_event){
        events, {.u64 = (uint64_t)generation << 32 | (uint32_t)number}};
}

static int
ep_open(pf_watch *watch)
{
    struct epoll_event e =
        event_of(EPOLLIN | EPOLLET, watch->waker.read_end, PF_NOBODY);
    watch->fd = epoll_create1(EPOLL_CLOEXEC);
    return watch->fd < 0 || epoll_ctl(watch->fd, EPOLL_CTL_ADD,
                                      watch->waker.read_end, &e) < 0
               ? -errno
               : 0;
}

/* --------------------------------------------------- registrations --- */

/* The kernel reports hang-ups and errors even if nothing is asked for.
 * Without an interest, EPOLLONESHOT and PF_NOBODY make that one event, which
 * is ignored. */
static struct epoll_event
wanted_from_system(const pf_watched *w)
{
    const pf_registration *r = w->registration;
    if (pf_watch_is_mute(r)) {
        return event_of(EPOLLONESHOT, r->descriptor, PF_NOBODY);
    }
    uint32_t events = r->interest & PF_IO_EDGE ? EPOLLET : EPOLLONESHOT;
    if (r->interest & PF_IO_READ) {
        events |= EPOLLIN | EPOLLRDHUP;
    }
    if (r->interest & PF_IO_WRITE) {
        events |= EPOLLOUT;
    }
    if (r->interest & PF_IO_URGENT) {
        events |= EPOLLPRI;
    }
    return event_of(events, r->descriptor, w->generation);
}

static unsigned
found_by_system(uint32_t system)
{
    unsigned events = 0;
    if (system & EPOLLIN) {
        events |= PF_IO_READ;
    }
    if (system & EPOLLOUT) {
        events |= PF_IO_WRITE;
    }
    if (system & EPOLLPRI) {
        events |= PF_IO_URGENT;
    }
    if (system & EPOLLRDHUP) {
        events |= PF_IO_READ | PF_IO_END;
    }
    if (system & EPOLLHUP) {
        events |= PF_IO_READ | PF_IO_WRITE | PF_IO_END;
    }
    if (system & EPOLLERR) {
        events |= PF_IO_READ | PF_IO_WRITE | PF_IO_ERROR;
    }
    return events;
}

/* EEXIST: the number was closed without removing it, a duplicate kept the open
 * file, and the number now refers to that file again.  The kernel still has
 * the entry; modifying it arms it anew. */
static int
ep_arm(pf_watch *watch, const pf_watched *w, int before)
{
    struct epoll_event e = wanted_from_system(w);
    int fd = (int)w->registration->descriptor;
    bool fresh = before == PF_UNARMED;
    int rc =
        epoll_ctl(watch->fd, fresh ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &e);
    if (rc < 0 && fresh && errno == EEXIST) {
        rc = epoll_ctl(watch->fd, EPOLL_CTL_MOD, fd, &e);
    }
    return rc == 0 ? 0 : -errno;
}

/* Ignores errors: if the number was closed, the kernel has no entry for it. */
static void
ep_disarm(pf_watch *watch, const pf_registration *r)
{
    epoll_ctl(watch->fd, EPOLL_CTL_DEL, (int)r->descriptor, NULL);
}

/* ------------------------------------------------------------ wait --- */

/* The kernel's struct, the same on 32-bit and 64-bit processors. */
struct kernel_timespec {
    int64_t seconds;
    int64_t nanoseconds;
};

static int
wait_finely(int epoll, struct epoll_event *events, int most,
            int64_t timeout_ns)
{
    struct kernel_timespec timeout = {timeout_ns / 1000000000,
                                      timeout_ns % 1000000000};
    const void *when = timeout_ns == PF_NEVER ? NULL : &timeout;
    const void *no_mask = NULL;
    return (int)syscall(PWAIT2, (long)epoll, events, (long)most, when, no_mask,
                        (long)0);
}

/* Whether the system lacks epoll_pwait2.  Some sandboxes answer EPERM to every
 * system call that they do not know. */
static bool
is_unknown(int error)
{
    return error == ENOSYS || error == EPERM;
}

static int
ask_system(pf_watch *watch, int most, int64_t timeout_ns)
{
    if (!watch->coarse) {
        int n = wait_finely(watch->fd, watch->buffer, most, timeout_ns);
        if (n >= 0 || !is_unknown(errno)) {
            return n;
        }
        watch->coarse = true;
    }
    return epoll_wait(watch->fd, watch->buffer, most,
                      pf_watch_milliseconds(timeout_ns));
}

static int
ep_wait(pf_watch *watch, int most, int64_t timeout_ns)
{
    const struct epoll_event *events = watch->buffer;
    int n = ask_system(watch, most, timeout_ns);
    for (int i = 0; i < n; i++) {
        uint64_t data = events[i].data.u64;
        pf_watch_found(watch, (uint32_t)data, (uint32_t)(data >> 32),
                       found_by_system(events[i].events));
    }
    return n < 0 ? -errno : 0;
}

static const pf_watch_system ops = {
    .event_size = sizeof(struct epoll_event),
    .known = PF_IO_ASKED,
    .inherited = true,
    .once = true,
    .open = ep_open,
    .arm = ep_arm,
    .disarm = ep_disarm,
    .wait = ep_wait,
};

const pf_watch_system *const pf_epoll_system = &ops;

#else

const pf_watch_system *const pf_epoll_system = NULL;

#endif
