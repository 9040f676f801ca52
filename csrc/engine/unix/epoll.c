/* epoll: Linux.
 *
 * The data of an event is generation << 32 | number; watch.h says what that is
 * good for.
 *
 * A registration without PF_IO_EDGE is armed for one event, and armed again
 * after that is told, if it is still there.  The kernel's level triggering
 * would do the same until somebody closes a number whose duplicate lives: a
 * registration that nobody can remove any more, and so events for ever.  This
 * way it is one event, which is ignored.
 *
 * The waker's eventfd is edge triggered and never read: each write is an
 * event.  Between a write and the next wait the epoll descriptor is readable,
 * as for every event that no wait has found yet, so a host's loop may watch it
 * in place of us.
 */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* syscall */
#endif

#include "engine/unix/pollers.h"

#include <errno.h>

#if defined(__linux__)

#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/base/memory.h"
#include "engine/core/queue.h"
#include "engine/unix/waker.h"
#include "engine/unix/watch.h"

#define MOST_EVENTS 256 /* of one wait; the next one finds the others */
#define PWAIT2 441      /* epoll_pwait2 on every processor, Linux 5.11 */

/* Between wait and deliver the first `found` of `events` are the buffer. */
typedef struct epoll_poller {
    pf_poller base;
    int epoll;
    int found;
    pf_waker waker;
    bool coarse; /* the system has no epoll_pwait2 */
    pf_watch watch;
    struct epoll_event events[MOST_EVENTS];
} epoll_poller;

/* ------------------------------------------------- the descriptors --- */

static uint64_t
data_of(size_t number, uint32_t generation)
{
    return (uint64_t)generation << 32 | number;
}

/* Not data_of anything: no number is as large. */
#define WAKER_DATA UINT64_MAX

static pf_watched *
watched_by(const epoll_poller *p, uint64_t data)
{
    return pf_watch_find(&p->watch, (uint32_t)data, (uint32_t)(data >> 32));
}

static void
close_system(epoll_poller *p)
{
    pf_waker_close(&p->waker);
    if (p->epoll >= 0) {
        close(p->epoll);
    }
    p->epoll = -1;
}

static int
open_system(epoll_poller *p)
{
    p->waker = (pf_waker){-1, -1};
    p->epoll = epoll_create1(EPOLL_CLOEXEC);
    int error = p->epoll < 0 ? -errno : pf_waker_open(&p->waker);
    if (error == 0) {
        struct epoll_event e = {EPOLLIN | EPOLLET, {.u64 = WAKER_DATA}};
        int rc = epoll_ctl(p->epoll, EPOLL_CTL_ADD, p->waker.read_end, &e);
        error = rc < 0 ? -errno : 0;
    }
    if (error != 0) {
        close_system(p);
    }
    return error;
}

/* --------------------------------------------------- registrations --- */

/* Hang-ups and errors are reported even if nothing is asked for: to nobody,
 * and once. */
static struct epoll_event
asked_of_system(const pf_watched *w)
{
    const pf_registration *r = w->registration;
    size_t number = (size_t)r->descriptor;
    if (pf_watch_is_mute(r)) {
        return (struct epoll_event){EPOLLONESHOT,
                                    {.u64 = data_of(number, PF_NOBODY)}};
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
    return (struct epoll_event){events,
                                {.u64 = data_of(number, w->generation)}};
}

static unsigned
told_by_system(uint32_t system, unsigned interest)
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
    return events & (interest | PF_IO_END | PF_IO_ERROR);
}

static int
arm(epoll_poller *p, const pf_watched *w, int operation)
{
    struct epoll_event e = asked_of_system(w);
    int fd = (int)w->registration->descriptor;
    return epoll_ctl(p->epoll, operation, fd, &e) == 0 ? 0 : -errno;
}

/* The kernel has it already (EEXIST): this number was closed and is back, and
 * the open file lived on in a duplicate.  To modify it is to arm it anew. */
static int
ep_add(pf_poller *poller, intptr_t descriptor, unsigned interest,
       pf_registration *r)
{
    epoll_poller *p = (epoll_poller *)poller;
    if (descriptor == p->waker.read_end) {
        return -EEXIST;
    }
    int error = pf_watch_enter(&p->watch, descriptor, interest, r);
    if (error != 0) {
        return error;
    }
    const pf_watched *w = pf_watch_of(&p->watch, r);
    error = arm(p, w, EPOLL_CTL_ADD);
    if (error == -EEXIST) {
        error = arm(p, w, EPOLL_CTL_MOD);
    }
    if (error != 0) {
        pf_watch_leave(&p->watch, r);
    }
    return error;
}

static int
ep_modify(pf_poller *poller, pf_registration *r, unsigned interest)
{
    epoll_poller *p = (epoll_poller *)poller;
    int error = pf_watch_change(&p->watch, r, interest);
    if (error != 0) {
        return error;
    }
    pf_watched *w = pf_watch_of(&p->watch, r);
    if (arm(p, w, EPOLL_CTL_MOD) != 0) {
        pf_watch_lose(&p->watch, w);
        return -EBADF;
    }
    return 0;
}

/* Not in the kernel any more if it was closed: fine, too. */
static int
ep_remove(pf_poller *poller, pf_registration *r)
{
    epoll_poller *p = (epoll_poller *)poller;
    int error = pf_watch_leave(&p->watch, r);
    if (error == 0) {
        epoll_ctl(p->epoll, EPOLL_CTL_DEL, (int)r->descriptor, NULL);
    }
    return error;
}

/* ------------------------------------------------------------ wait --- */

/* As the kernel has it on processors of every width. */
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

/* Some sandboxes say EPERM to every system call that they do not know. */
static bool
is_unknown(int error)
{
    return error == ENOSYS || error == EPERM;
}

static int
ask_system(epoll_poller *p, struct epoll_event *events, int most,
           int64_t timeout_ns)
{
    if (!p->coarse) {
        int n = wait_finely(p->epoll, events, most, timeout_ns);
        if (n >= 0 || !is_unknown(errno)) {
            return n;
        }
        p->coarse = true;
    }
    return epoll_wait(p->epoll, events, most, pf_milliseconds(timeout_ns));
}

/* As if the system had reported an error.  The other half of the buffer is for
 * what it does report. */
static int
list_lost(epoll_poller *p)
{
    int n = 0;
    if (p->watch.lost == 0) {
        return 0;
    }
    for (size_t i = pf_watch_next_lost(&p->watch, 0);
         i < p->watch.capacity && n < MOST_EVENTS / 2;
         i = pf_watch_next_lost(&p->watch, i + 1)) {
        uint32_t generation = p->watch.numbers[i].generation;
        p->events[n++] =
            (struct epoll_event){EPOLLERR, {.u64 = data_of(i, generation)}};
    }
    return n;
}

/* Drop those of the waker and of registrations that are gone. */
static int
keep_watched(epoll_poller *p, int from, int end)
{
    int kept = from;
    for (int i = from; i < end; i++) {
        if (watched_by(p, p->events[i].data.u64) != NULL) {
            p->events[kept++] = p->events[i];
        }
    }
    return kept;
}

static int
ep_wait(pf_poller *poller, int64_t timeout_ns)
{
    epoll_poller *p = (epoll_poller *)poller;
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

/* A level-triggered one that nobody has changed since it was told. */
static void
arm_again(epoll_poller *p, uint64_t data)
{
    pf_watched *w = watched_by(p, data);
    if (w != NULL && !w->lost && arm(p, w, EPOLL_CTL_MOD) != 0) {
        pf_watch_lose(&p->watch, w);
    }
}

static void
tell(epoll_poller *p, struct epoll_event event, struct pf_scheduler *s)
{
    uint64_t data = event.data.u64;
    pf_watched *w = watched_by(p, data);
    if (w == NULL) {
        return;
    }
    pf_registration *r = w->registration;
    bool edge = (r->interest & PF_IO_EDGE) != 0;
    if (edge) {
        pf_watch_find_again(&p->watch, w);
    }
    r->ready(r, s, told_by_system(event.events, r->interest));
    if (!edge) {
        arm_again(p, data);
    }
}

/* Whoever has it registered has not looked at it for long. */
static void
prefetch(const epoll_poller *p, uint64_t data)
{
    const pf_watched *w = watched_by(p, data);
    if (w != NULL) {
        PF_PREFETCH(w->registration);
    }
}

static void
ep_deliver(pf_poller *poller, struct pf_scheduler *s)
{
    epoll_poller *p = (epoll_poller *)poller;
    int found = p->found;
    p->found = 0;
    for (int i = 0; i < found; i++) {
        if (i + 1 < found) {
            prefetch(p, p->events[i + 1].data.u64);
        }
        tell(p, p->events[i], s);
    }
}

/* ------------------------------------------------------- the rest --- */

static void
ep_wake(pf_poller *poller)
{
    pf_waker_wake(&((epoll_poller *)poller)->waker);
}

static int
ep_fileno(pf_poller *poller)
{
    return ((epoll_poller *)poller)->epoll;
}

/* What is changed through the epoll descriptor is changed for the parent, too:
 * it is closed as it is. */
static int
ep_after_fork(pf_poller *poller)
{
    epoll_poller *p = (epoll_poller *)poller;
    close_system(p);
    p->found = 0;
    int error = open_system(p);
    for (size_t i = 0; i < p->watch.capacity; i++) {
        pf_watched *w = &p->watch.numbers[i];
        if (w->registration != NULL) {
            pf_watch_find_again(&p->watch, w);
            if (arm(p, w, EPOLL_CTL_ADD) != 0) {
                pf_watch_lose(&p->watch, w);
            }
        }
    }
    return error;
}

static void
ep_close(pf_poller *poller)
{
    epoll_poller *p = (epoll_poller *)poller;
    close_system(p);
    pf_watch_free(&p->watch);
    free(p);
}

static const pf_poller_ops epoll_ops = {
    .add = ep_add,
    .modify = ep_modify,
    .remove = ep_remove,
    .wait = ep_wait,
    .deliver = ep_deliver,
    .wake = ep_wake,
    .fileno = ep_fileno,
    .after_fork = ep_after_fork,
    .close = ep_close,
    .rearms = false,
};

pf_poller *
pf_epoll_poller_new(int *error)
{
    epoll_poller *p = pf_calloc(1, sizeof *p);
    if (p == NULL) {
        *error = -ENOMEM;
        return NULL;
    }
    p->base.ops = &epoll_ops;
    *error = open_system(p);
    if (*error != 0) {
        free(p);
        return NULL;
    }
    return &p->base;
}

#else

pf_poller *
pf_epoll_poller_new(int *error)
{
    *error = -ENOSYS;
    return NULL;
}

#endif
