/* Reads the clocks, and has the default poller: a completion port, at which
 * everything that ends a wait arrives as a packet.
 *
 *   wake()    posts a packet, unless one is there that no wait has taken
 *   sockets   a packet answers a request to their driver: see afd.h
 *   handles   a packet asks the poller to look at all handles: see handles.h
 *
 * The registration of a socket has a watch in a table by the socket's number,
 * which is a handle: a multiple of four.  A process has at most 2^24 handles.
 */
#define WIN32_LEAN_AND_MEAN
#include "engine/io/poller.h"

#include "engine/windows/afd.h"
#include "engine/windows/handles.h"

#include <errno.h>
#include <stdint.h>

#include "engine/base/memory.h"
#include "engine/core/scheduler.h"

#define MOST_PACKETS 256 /* of one wait; the next one takes the others */
#define FIRST_CAPACITY 64
#define NUMBER_STEP 4

enum { WAKE_KEY, LOOK_KEY, AFD_KEY };

/* Between wait and deliver, the first `found_count` entries of `found` are the
 * watches to deliver. */
typedef struct port_poller {
    pf_poller base;
    HANDLE port;
    PF_ATOMIC(uint8_t) woken; /* no wait has taken wake()'s packet yet */
    pf_handles handles;
    pf_afd afd;
    pf_afd_watch **watches; /* by number */
    size_t capacity;
    bool asked_again; /* a new request may have been answered at once */
    int found_count;
    pf_afd_watch *found[MOST_PACKETS];
    OVERLAPPED_ENTRY packets[MOST_PACKETS]; /* not on a fiber's stack */
} port_poller;

int64_t
pf_clock_monotonic(void)
{
    LARGE_INTEGER count, frequency; /* the frequency never changes */
    QueryPerformanceCounter(&count);
    QueryPerformanceFrequency(&frequency);
    int64_t seconds = count.QuadPart / frequency.QuadPart;
    int64_t rest = count.QuadPart % frequency.QuadPart;
    return seconds * 1000000000 + rest * 1000000000 / frequency.QuadPart;
}

/* Windows counts this time in ticks of 15.6 ms. */
int64_t
pf_clock_thread_time(void)
{
    FILETIME begun, ended, kernel, user;
    if (!GetThreadTimes(GetCurrentThread(), &begun, &ended, &kernel, &user)) {
        return 0;
    }
    uint64_t high = (uint64_t)kernel.dwHighDateTime + user.dwHighDateTime;
    uint64_t low = (uint64_t)kernel.dwLowDateTime + user.dwLowDateTime;
    return (int64_t)(((high << 32) + low) * 100);
}

/* --------------------------------------------------- the watches --- */

static bool
is_mute(unsigned interest)
{
    return (interest & ~(unsigned)PF_IO_EDGE) == 0;
}

static pf_afd_watch *
watch_of(const port_poller *p, const pf_registration *r)
{
    size_t place = (size_t)r->descriptor / NUMBER_STEP;
    pf_afd_watch *watch = place < p->capacity ? p->watches[place] : NULL;
    return watch != NULL && watch->registration == r ? watch : NULL;
}

/* Makes the table large enough for `place`, which is that of an open socket's
 * number, so it is not huge. */
static int
make_room(port_poller *p, size_t place)
{
    size_t capacity = p->capacity == 0 ? FIRST_CAPACITY : p->capacity;
    while (capacity <= place) {
        capacity *= 2;
    }
    pf_afd_watch **watches =
        pf_memory_realloc(p->watches, capacity * sizeof(pf_afd_watch *));
    if (watches == NULL) {
        return -ENOMEM;
    }
    memset(&watches[p->capacity], 0,
           (capacity - p->capacity) * sizeof(pf_afd_watch *));
    p->watches = watches;
    p->capacity = capacity;
    return 0;
}

static int
enter_watch(port_poller *p, pf_registration *r, pf_afd_watch *watch)
{
    size_t place = (size_t)r->descriptor / NUMBER_STEP;
    if (place >= p->capacity && make_room(p, place) != 0) {
        return -ENOMEM;
    }
    if (p->watches[place] != NULL) {
        return -EEXIST;
    }
    watch->registration = r;
    p->watches[place] = watch;
    return 0;
}

/* Frees a removed watch, unless the system may still write to it or it is in
 * `found`. */
static void
let_go(pf_afd_watch *watch)
{
    if (watch->registration == NULL && !watch->outstanding && !watch->held) {
        pf_afd_watch_free(watch);
    }
}

static bool
ask(port_poller *p, pf_afd_watch *watch)
{
    unsigned interest = watch->registration->interest;
    watch->stale = false;
    return is_mute(interest) || pf_afd_ask(&p->afd, watch, interest);
}

/* --------------------------------------------------- registrations --- */

static int
add_socket(port_poller *p, intptr_t descriptor, unsigned interest,
           pf_registration *r)
{
    int error;
    if (r->added) {
        return -EEXIST;
    }
    pf_afd_watch *watch = pf_afd_watch_new(&p->afd, descriptor, &error);
    if (watch == NULL) {
        return error;
    }
    pf_registration before = *r;
    r->descriptor = descriptor;
    r->interest = (uint16_t)interest;
    error = enter_watch(p, r, watch);
    if (error != 0) {
        *r = before;
        pf_afd_watch_free(watch);
        return error;
    }
    r->added = true;
    (void)ask(p, watch);
    return 0;
}

static int
port_add(pf_poller *poller, intptr_t descriptor, unsigned interest,
         pf_registration *r)
{
    port_poller *p = (port_poller *)poller;
    if (interest & ~(unsigned)PF_IO_ASKED) {
        return -EINVAL;
    }
    if (descriptor <= 0) {
        return -EBADF;
    }
    int rc = add_socket(p, descriptor, interest, r);
    return rc == -ENOTSOCK
               ? pf_handles_add(&p->handles, descriptor, interest, r)
               : rc;
}

/* Asks again for what was found, or answered without a wait having taken the
 * packet.  An outstanding request stays if it asks for all these events. */
static int
modify_socket(port_poller *p, pf_afd_watch *watch, unsigned interest)
{
    watch->registration->interest = (uint16_t)interest;
    watch->found = false;
    if (!watch->outstanding) {
        return ask(p, watch) ? 0 : -EBADF;
    }
    if (pf_afd_has_answered(watch)) {
        watch->stale = true;
    } else if (interest & ~watch->asked & ~(unsigned)PF_IO_EDGE) {
        watch->stale = true;
        pf_afd_cancel(watch);
    }
    return 0;
}

static int
port_modify(pf_poller *poller, pf_registration *r, unsigned interest)
{
    port_poller *p = (port_poller *)poller;
    if (interest & ~(unsigned)PF_IO_ASKED) {
        return -EINVAL;
    }
    if (!r->added) {
        return -ENOENT;
    }
    pf_afd_watch *watch = watch_of(p, r);
    return watch != NULL ? modify_socket(p, watch, interest)
                         : pf_handles_modify(&p->handles, r, interest);
}

static int
port_remove(pf_poller *poller, pf_registration *r)
{
    port_poller *p = (port_poller *)poller;
    if (!r->added) {
        return -ENOENT;
    }
    pf_afd_watch *watch = watch_of(p, r);
    if (watch == NULL) {
        return pf_handles_remove(&p->handles, r);
    }
    p->watches[(size_t)r->descriptor / NUMBER_STEP] = NULL;
    watch->registration = NULL;
    r->added = false;
    if (watch->outstanding) {
        pf_afd_cancel(watch);
    }
    let_go(watch);
    return 0;
}

/* ------------------------------------------------------------ wait --- */

/* Rounds up: after an early wake-up the scheduler would only wait again. */
static DWORD
milliseconds(int64_t timeout_ns)
{
    if (timeout_ns == PF_NEVER) {
        return INFINITE;
    }
    int64_t ms = timeout_ns / 1000000 + (timeout_ns % 1000000 > 0);
    return ms < 0 ? 0 : ms < INFINITE ? (DWORD)ms : INFINITE - 1;
}

/* Returns the events that the registration gets; 0: none, so ask again. */
static unsigned
events_for(const pf_registration *r, unsigned events)
{
    return is_mute(r->interest)
               ? 0
               : events & (r->interest | PF_IO_END | PF_IO_ERROR);
}

/* The packet of the watch has come. */
static void
take_answer(port_poller *p, pf_afd_watch *watch)
{
    unsigned events = pf_afd_answer(&p->afd, watch);
    const pf_registration *r = watch->registration;
    if (r == NULL) {
        let_go(watch);
        return;
    }
    watch->events = watch->stale ? 0 : events_for(r, events);
    if (watch->events == 0) {
        (void)ask(p, watch);
        p->asked_again = true;
    } else {
        watch->found = watch->held = true;
        p->found[p->found_count++] = watch;
    }
}

static void
take_packet(port_poller *p, const OVERLAPPED_ENTRY *packet)
{
    if (packet->lpCompletionKey == AFD_KEY) {
        take_answer(p, (pf_afd_watch *)packet->lpOverlapped);
    } else if (packet->lpCompletionKey == WAKE_KEY) {
        /* This wait ends anyway, so no wake() before here is lost.  A later
         * one posts a new packet. */
        pf_store(&p->woken, 0);
    }
}

/* Waits at most `timeout` milliseconds for packets.  Returns 0 or -errno. */
static int
take_packets(port_poller *p, DWORD timeout)
{
    ULONG count, most = (ULONG)(MOST_PACKETS - p->found_count);
    p->asked_again = false;
    if (!GetQueuedCompletionStatusEx(p->port, p->packets, most, &count,
                                     timeout, FALSE)) {
        return GetLastError() == WAIT_TIMEOUT ? 0 : -EINVAL;
    }
    for (ULONG i = 0; i < count; i++) {
        take_packet(p, &p->packets[i]);
    }
    return 0;
}

/* Fills `found`.  If requests were made anew, looks once more: those for an
 * event that is true are answered at once. */
static int
find(port_poller *p, DWORD timeout)
{
    p->found_count = 0;
    int rc = take_packets(p, timeout);
    if (rc == 0 && p->asked_again && p->found_count < MOST_PACKETS) {
        rc = take_packets(p, 0);
    }
    return rc < 0 && p->found_count == 0 ? rc : p->found_count;
}

#define WITHOUT_THREAD 20 /* milliseconds between looks at handles */

static int
port_wait(pf_poller *poller, int64_t timeout_ns)
{
    port_poller *p = (port_poller *)poller;
    int set = pf_handles_look(&p->handles);
    DWORD timeout = set > 0 ? 0 : milliseconds(timeout_ns);
    if (timeout > WITHOUT_THREAD && !pf_handles_watch(&p->handles)) {
        timeout = WITHOUT_THREAD;
    }
    int found = find(p, timeout);
    if (timeout > 0) {
        set = pf_handles_look(&p->handles);
    }
    return found < 0 ? found : found + set;
}

/* --------------------------------------------------------- deliver --- */

/* Drops the reported events from an edge-triggered interest, until modify()
 * asks for them again.  An ERROR drops all events. */
static void
disarm(pf_registration *r, unsigned reported)
{
    r->interest = reported & PF_IO_ERROR
                      ? PF_IO_EDGE
                      : (r->interest & ~reported) | PF_IO_EDGE;
}

static void
report(pf_afd_watch *watch, struct pf_scheduler *s)
{
    pf_registration *r = watch->registration;
    watch->found = false;
    if (r->interest & PF_IO_EDGE) {
        disarm(r, watch->events);
    }
    r->ready(r, s, watch->events);
}

static void
port_deliver(pf_poller *poller, struct pf_scheduler *s)
{
    port_poller *p = (port_poller *)poller;
    int count = p->found_count;
    p->found_count = 0;
    for (int i = 0; i < count; i++) {
        pf_afd_watch *watch = p->found[i];
        if (watch->found && watch->registration != NULL) {
            report(watch, s);
        }
        watch->held = false;
        if (watch->registration == NULL) {
            let_go(watch);
        } else if (!watch->outstanding) {
            /* For the other events of an edge, or for the same ones again. */
            (void)ask(p, watch);
        }
    }
    pf_handles_deliver(&p->handles, s);
}

/* ------------------------------------------------------- the rest --- */

static void
port_wake(pf_poller *poller)
{
    port_poller *p = (port_poller *)poller;
    if (pf_fetch_or(&p->woken, 1) == 0) {
        PostQueuedCompletionStatus(p->port, 0, WAKE_KEY, NULL);
    }
}

static int
port_fileno(pf_poller *poller)
{
    (void)poller;
    return -1;
}

static int
port_after_fork(pf_poller *poller)
{
    (void)poller;
    return 0;
}

static void
port_close(pf_poller *poller)
{
    port_poller *p = (port_poller *)poller;
    pf_handles_finish(&p->handles);
    for (size_t i = 0; i < p->capacity; i++) {
        if (p->watches[i] != NULL) {
            p->watches[i]->registration = NULL;
            p->watches[i]->held = false;
            let_go(p->watches[i]);
        }
    }
    pf_afd_finish(&p->afd);
    CloseHandle(p->port);
    free(p->watches);
    free(p);
}

static const pf_poller_ops port_ops = {
    .add = port_add,
    .modify = port_modify,
    .remove = port_remove,
    .wait = port_wait,
    .deliver = port_deliver,
    .wake = port_wake,
    .fileno = port_fileno,
    .after_fork = port_after_fork,
    .close = port_close,
    .rearms = true,
};

pf_poller *
pf_poller_new_default(int *error)
{
    port_poller *p = pf_memory_calloc(1, sizeof *p);
    *error = -ENOMEM;
    if (p == NULL) {
        return NULL;
    }
    p->base.ops = &port_ops;
    p->port = CreateIoCompletionPort(INVALID_HANDLE_VALUE, NULL, 0, 1);
    if (p->port == NULL) {
        free(p);
        return NULL;
    }
    p->handles.port = p->afd.port = p->port;
    p->handles.key = LOOK_KEY;
    p->afd.key = AFD_KEY;
    *error = 0;
    return &p->base;
}
