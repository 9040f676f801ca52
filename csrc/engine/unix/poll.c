/* The calls of watch.h by poll(2), for systems that have nothing better.  Each
 * wait builds its list anew, because the system looks at every entry of the
 * list anyway. */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* ppoll */
#endif

#include "engine/unix/watch.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <time.h>

#include "engine/base/memory.h"

static int
poll_open(pf_watch *watch)
{
    (void)watch; /* the list begins with the waker */
    return 0;
}

/* Makes room in the list for every number of the table and the waker's end, so
 * that no wait fails for lack of memory. */
static int
poll_arm(pf_watch *watch, const pf_watched *w, int before)
{
    if (before != PF_UNARMED) {
        return 0;
    }
    if (fcntl((int)w->registration->descriptor, F_GETFD) < 0) {
        return -errno;
    }
    if (watch->room > watch->capacity) {
        return 0;
    }
    void *more = pf_memory_realloc(watch->buffer, (2 * watch->capacity) *
                                                      sizeof(struct pollfd));
    if (more == NULL) {
        return -ENOMEM;
    }
    watch->buffer = more;
    watch->room = 2 * watch->capacity;
    return 0;
}

static short
wanted_from_system(unsigned interest)
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
found_by_system(short revents)
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
    return events;
}

/* Begins after the number that was found last, so that each number gets its
 * turn.  A registration that asks for no event is left out, because poll()
 * reports hang-ups and errors even if nothing is asked for. */
static nfds_t
make_list(const pf_watch *watch, struct pollfd *list)
{
    nfds_t count = 0;
    list[count++] = (struct pollfd){watch->waker.read_end, POLLIN, 0};
    for (size_t i = 0; i < watch->capacity; i++) {
        size_t number = (watch->turn + i) % watch->capacity;
        const pf_watched *w = &watch->numbers[number];
        const pf_registration *r = w->registration;
        if (r != NULL && !w->lost && !pf_watch_is_mute(r)) {
            list[count++] = (struct pollfd){
                (int)number, wanted_from_system(r->interest), 0};
        }
    }
    return count;
}

static int
ask_system(struct pollfd *list, nfds_t count, int64_t timeout_ns)
{
#if defined(__linux__) || defined(__FreeBSD__)
    struct timespec timeout = {(time_t)(timeout_ns / 1000000000),
                               (long)(timeout_ns % 1000000000)};
    return ppoll(list, count, timeout_ns == PF_NEVER ? NULL : &timeout, NULL);
#else
    return poll(list, count, pf_watch_milliseconds(timeout_ns));
#endif
}

static int
poll_wait(pf_watch *watch, int most, int64_t timeout_ns)
{
    struct pollfd *list = watch->buffer;
    nfds_t count = make_list(watch, list);
    if (ask_system(list, count, timeout_ns) < 0) {
        return -errno;
    }
    if (list[0].revents != 0) {
        pf_waker_empty(&watch->waker);
    }
    for (nfds_t i = 1; i < count; i++) {
        if (list[i].revents != 0 && most-- > 0) {
            uint32_t number = (uint32_t)list[i].fd;
            watch->turn = (size_t)number + 1;
            pf_watch_found(watch, number, watch->numbers[number].generation,
                           found_by_system(list[i].revents));
        }
    }
    return 0;
}

static const pf_watch_system ops = {
    .event_size = sizeof(struct pollfd),
    .known = PF_IO_ASKED,
    .rearms = true,
    .open = poll_open,
    .arm = poll_arm,
    .wait = poll_wait,
};

const pf_watch_system *const pf_poll_system = &ops;
