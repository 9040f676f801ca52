/* The default poller and the clock on Windows. */
#include "engine/io/poller.h"

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include <errno.h>

#include "engine/base/memory.h"
#include "engine/core/scheduler.h"

/* `wake` resets itself when it ends a wait; it takes one of the handles that
 * the system accepts at a time.  Between wait and deliver, `found` is the
 * buffer. */
#define MOST_REGISTERED (MAXIMUM_WAIT_OBJECTS - 1)

typedef struct default_poller {
    pf_poller base;
    HANDLE wake;
    size_t count;
    pf_registration *registered[MOST_REGISTERED];
    bool found[MOST_REGISTERED];
} default_poller;

int64_t
pf_monotonic(void)
{
    LARGE_INTEGER count, frequency; /* the frequency never changes */
    QueryPerformanceCounter(&count);
    QueryPerformanceFrequency(&frequency);
    int64_t seconds = count.QuadPart / frequency.QuadPart;
    int64_t rest = count.QuadPart % frequency.QuadPart;
    return seconds * 1000000000 + rest * 1000000000 / frequency.QuadPart;
}

/* Rounded up: after an early wake-up we would only wait again. */
static DWORD
milliseconds(int64_t timeout_ns)
{
    if (timeout_ns == PF_NEVER) {
        return INFINITE;
    }
    int64_t ms = timeout_ns / 1000000 + (timeout_ns % 1000000 > 0);
    return ms < 0 ? 0 : ms < INFINITE ? (DWORD)ms : INFINITE - 1;
}

/* The handles of one wait: our own, and those with an interest. */
typedef struct wait_list {
    DWORD count;
    HANDLE handles[MAXIMUM_WAIT_OBJECTS];
    size_t slots[MAXIMUM_WAIT_OBJECTS];
} wait_list;

static void
list_handles(const default_poller *p, wait_list *list)
{
    list->handles[0] = p->wake;
    list->count = 1;
    for (size_t i = 0; i < p->count; i++) {
        if (p->registered[i]->interest & PF_IO_READ) {
            list->handles[list->count] = (HANDLE)p->registered[i]->descriptor;
            list->slots[list->count++] = i;
        }
    }
}

/* The system reports the first one that is set: the others behind it are
 * checked one by one, or they would starve for as long as it is set. */
static int
note_found(default_poller *p, const wait_list *list, DWORD first)
{
    int found = 0;
    for (DWORD i = first; i < list->count; i++) {
        bool set = i == first ||
                   WaitForSingleObject(list->handles[i], 0) == WAIT_OBJECT_0;
        if (set && i > 0) {
            p->found[list->slots[i]] = true;
            found++;
        }
    }
    return found;
}

static int
default_wait(pf_poller *poller, int64_t timeout_ns)
{
    default_poller *p = (default_poller *)poller;
    wait_list list;
    list_handles(p, &list);
    DWORD result = WaitForMultipleObjects(list.count, list.handles, FALSE,
                                          milliseconds(timeout_ns));
    if (result == WAIT_FAILED) {
        return -EINVAL;
    }
    DWORD first = result - WAIT_OBJECT_0;
    return first < list.count ? note_found(p, &list, first) : 0;
}

/* --------------------------------------------------- descriptors --- */

static bool
is_registered(const default_poller *p, intptr_t handle)
{
    for (size_t i = 0; i < p->count; i++) {
        if (p->registered[i]->descriptor == handle) {
            return true;
        }
    }
    return false;
}

/* A handle is either set or not: set counts as readable. */
static bool
is_known(unsigned interest)
{
    return (interest & ~(unsigned)(PF_IO_READ | PF_IO_EDGE)) == 0;
}

static int
default_add(pf_poller *poller, intptr_t descriptor, unsigned interest,
            pf_registration *r)
{
    default_poller *p = (default_poller *)poller;
    DWORD flags;
    if (!is_known(interest)) {
        return -EINVAL;
    }
    if (!GetHandleInformation((HANDLE)descriptor, &flags)) {
        return -EBADF;
    }
    if (r->added || is_registered(p, descriptor)) {
        return -EEXIST;
    }
    if (p->count == MOST_REGISTERED) {
        return -ENOSPC;
    }
    r->descriptor = descriptor;
    r->slot = p->count++;
    r->interest = interest;
    r->added = true;
    p->registered[r->slot] = r;
    p->found[r->slot] = false;
    return 0;
}

static int
default_modify(pf_poller *poller, pf_registration *r, unsigned interest)
{
    if (!is_known(interest)) {
        return -EINVAL;
    }
    if (!r->added) {
        return -ENOENT;
    }
    r->interest = interest;
    ((default_poller *)poller)->found[r->slot] = false;
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
    size_t last = --p->count;
    p->registered[last]->slot = r->slot;
    p->registered[r->slot] = p->registered[last];
    p->found[r->slot] = p->found[last];
    r->added = false;
    return 0;
}

/* From the last to the first: a registration that meanwhile moves to a lower
 * place, or is added at the end, has had its report or has none. */
static void
default_deliver(pf_poller *poller, struct pf_scheduler *s)
{
    default_poller *p = (default_poller *)poller;
    for (size_t i = p->count; i-- > 0;) {
        if (i < p->count && p->found[i]) {
            pf_registration *r = p->registered[i];
            p->found[i] = false;
            if (r->interest & PF_IO_EDGE) {
                r->interest = PF_IO_EDGE;
            }
            r->ready(r, s, PF_IO_READ);
        }
    }
}

/* ------------------------------------------------------- the rest --- */

static void
default_wake(pf_poller *poller)
{
    SetEvent(((default_poller *)poller)->wake);
}

static int
default_fileno(pf_poller *poller)
{
    (void)poller;
    return -1;
}

static int
default_after_fork(pf_poller *poller)
{
    (void)poller;
    return 0;
}

static void
default_close(pf_poller *poller)
{
    CloseHandle(((default_poller *)poller)->wake);
    free(poller);
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
    *error = -ENOMEM;
    if (p == NULL) {
        return NULL;
    }
    p->base.ops = &default_ops;
    p->wake = CreateEventW(NULL, FALSE, FALSE, NULL);
    if (p->wake == NULL) {
        free(p);
        return NULL;
    }
    *error = 0;
    return &p->base;
}
