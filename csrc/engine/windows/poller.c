/* The default poller and the clock on Windows. */
#include "engine/io/poller.h"

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include <errno.h>

#include "engine/base/memory.h"
#include "engine/core/scheduler.h"

/* `wake` resets itself when a wait was ended by it. */
typedef struct default_poller {
    pf_poller base;
    HANDLE wake;
    HANDLE watched; /* NULL: none */
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

/* Rounded up: waking before the time is over would only wait again. */
static DWORD
milliseconds(int64_t timeout_ns)
{
    if (timeout_ns == PF_NEVER) {
        return INFINITE;
    }
    int64_t ms = timeout_ns / 1000000 + (timeout_ns % 1000000 > 0);
    return ms < 0 ? 0 : ms < INFINITE ? (DWORD)ms : INFINITE - 1;
}

static int
default_wait(pf_poller *poller, int64_t timeout_ns)
{
    default_poller *p = (default_poller *)poller;
    HANDLE handles[2] = {p->wake, p->watched};
    DWORD count = p->watched == NULL ? 1 : 2;
    DWORD result = WaitForMultipleObjects(count, handles, FALSE,
                                          milliseconds(timeout_ns));
    return result == WAIT_FAILED ? -EINVAL : 0;
}

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

static bool
default_busy(pf_poller *poller)
{
    (void)poller;
    return false;
}

static void
default_close(pf_poller *poller)
{
    CloseHandle(((default_poller *)poller)->wake);
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
    *error = -ENOMEM;
    if (p == NULL) {
        return NULL;
    }
    p->base.ops = &default_ops;
    p->watched = NULL;
    p->wake = CreateEventW(NULL, FALSE, FALSE, NULL);
    if (p->wake == NULL) {
        free(p);
        return NULL;
    }
    *error = 0;
    return &p->base;
}

void
pf_default_poller_watch(pf_poller *poller, intptr_t descriptor)
{
    ((default_poller *)poller)->watched =
        descriptor == -1 ? NULL : (HANDLE)descriptor;
}
