/* poll(2): for systems that have nothing better. */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* ppoll */
#endif

#include "engine/unix/pollers.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <time.h>

#include "engine/base/memory.h"
#include "engine/unix/waker.h"

/* The first of `fds` is the waker's.  The others are those that were added,
 * `registered` in the same places.  Between wait and deliver their revents are
 * the buffer of events. */
typedef struct poll_poller {
    pf_poller base;
    pf_waker waker;
    nfds_t count;
    nfds_t capacity;
    struct pollfd *fds;
    pf_registration **registered;
} poll_poller;

#define WAKE_SLOT 0
#define FIRST_CAPACITY 4

#if defined(__linux__) || defined(__FreeBSD__)

static int
poll_for(struct pollfd *fds, nfds_t count, int64_t timeout_ns)
{
    struct timespec timeout = {(time_t)(timeout_ns / 1000000000),
                               (long)(timeout_ns % 1000000000)};
    return ppoll(fds, count, timeout_ns == PF_NEVER ? NULL : &timeout, NULL);
}

#else

static int
poll_for(struct pollfd *fds, nfds_t count, int64_t timeout_ns)
{
    return poll(fds, count, pf_milliseconds(timeout_ns));
}

#endif

static int
poll_wait(pf_poller *poller, int64_t timeout_ns)
{
    poll_poller *p = (poll_poller *)poller;
    int found = poll_for(p->fds, p->count, timeout_ns < 0 ? 0 : timeout_ns);
    if (found < 0) {
        return errno == EINTR ? 0 : -errno;
    }
    if (p->fds[WAKE_SLOT].revents != 0) {
        pf_waker_empty(&p->waker);
        found--;
    }
    return found;
}

/* --------------------------------------------------- descriptors --- */

/* Both arrays are in one block: a failure changes nothing. */
static int
grow(poll_poller *p)
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
is_registered(const poll_poller *p, int fd)
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
ask(poll_poller *p, const pf_registration *r, unsigned interest)
{
    bool mute = (interest & ~(unsigned)PF_IO_EDGE) == 0;
    int fd = (int)r->descriptor;
    p->fds[r->slot] =
        (struct pollfd){mute ? ~fd : fd, asked_of_system(interest), 0};
}

static int
poll_add(pf_poller *poller, intptr_t descriptor, unsigned interest,
         pf_registration *r)
{
    poll_poller *p = (poll_poller *)poller;
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
    r->slot = (uint32_t)p->count++;
    r->interest = (uint16_t)interest;
    r->added = true;
    p->registered[r->slot] = r;
    ask(p, r, interest);
    return 0;
}

static int
poll_modify(pf_poller *poller, pf_registration *r, unsigned interest)
{
    if (interest & ~(unsigned)PF_IO_ASKED) {
        return -EINVAL;
    }
    if (!r->added) {
        return -ENOENT;
    }
    r->interest = (uint16_t)interest;
    ask((poll_poller *)poller, r, interest);
    return 0;
}

/* The last one takes its place. */
static int
poll_remove(pf_poller *poller, pf_registration *r)
{
    poll_poller *p = (poll_poller *)poller;
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
disarm(poll_poller *p, pf_registration *r, unsigned told, short revents)
{
    bool unasked = (revents & (POLLHUP | POLLERR | POLLNVAL)) != 0;
    r->interest =
        (uint16_t)(unasked ? PF_IO_EDGE : (r->interest & ~told) | PF_IO_EDGE);
    ask(p, r, r->interest);
}

static void
tell(poll_poller *p, pf_registration *r, struct pf_scheduler *s)
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
poll_deliver(pf_poller *poller, struct pf_scheduler *s)
{
    poll_poller *p = (poll_poller *)poller;
    for (nfds_t i = p->count - 1; i > WAKE_SLOT; i--) {
        if (i < p->count && p->fds[i].revents != 0) {
            tell(p, p->registered[i], s);
        }
    }
}

/* ------------------------------------------------------- the rest --- */

static void
poll_wake(pf_poller *poller)
{
    pf_waker_wake(&((poll_poller *)poller)->waker);
}

/* It tells of wake() only: poll(2) has no descriptor for all of them. */
static int
poll_fileno(pf_poller *poller)
{
    return ((poll_poller *)poller)->waker.read_end;
}

/* A wake-up must reach only its own process, parent or child. */
static int
poll_after_fork(pf_poller *poller)
{
    poll_poller *p = (poll_poller *)poller;
    pf_waker_close(&p->waker);
    int error = pf_waker_open(&p->waker);
    p->fds[WAKE_SLOT].fd = p->waker.read_end;
    return error;
}

static void
poll_close(pf_poller *poller)
{
    poll_poller *p = (poll_poller *)poller;
    pf_waker_close(&p->waker);
    free(p->registered);
    free(p);
}

static const pf_poller_ops poll_ops = {
    .add = poll_add,
    .modify = poll_modify,
    .remove = poll_remove,
    .wait = poll_wait,
    .deliver = poll_deliver,
    .wake = poll_wake,
    .fileno = poll_fileno,
    .after_fork = poll_after_fork,
    .close = poll_close,
    .rearms = true,
};

pf_poller *
pf_poll_poller_new(int *error)
{
    poll_poller *p = pf_calloc(1, sizeof *p);
    if (p == NULL || grow(p) != 0) {
        free(p);
        *error = -ENOMEM;
        return NULL;
    }
    p->base.ops = &poll_ops;
    *error = pf_waker_open(&p->waker);
    if (*error != 0) {
        free(p->registered);
        free(p);
        return NULL;
    }
    p->fds[WAKE_SLOT] = (struct pollfd){p->waker.read_end, POLLIN, 0};
    p->count = WAKE_SLOT + 1;
    return &p->base;
}
