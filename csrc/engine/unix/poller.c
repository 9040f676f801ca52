/* Reads the clocks, and chooses the poller of a POSIX system: epoll.c,
 * kqueue.c or poll.c. */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* clock_gettime */
#endif

#include "engine/unix/watch.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/base/clock.h"

int64_t
pf_clock_monotonic(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t
pf_clock_thread_time(void)
{
    struct timespec spent;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
    return (int64_t)spent.tv_sec * 1000000000 + spent.tv_nsec;
}

/* Tries the pollers from the best to the worst, and takes the first that the
 * system has.  PYFIBER_POLLER in the environment allows only the one that it
 * names: for tests, and to find out whether a problem lies in the usual
 * one. */
pf_poller *
pf_poller_new_default(int *error)
{
    const struct {
        const char *name;
        const pf_watch_system *system;
    } pollers[] = {{"epoll", pf_epoll_system},
                   {"kqueue", pf_kqueue_system},
                   {"poll", pf_poll_system}};
    const char *wanted = getenv("PYFIBER_POLLER");
    bool any = wanted == NULL || *wanted == '\0';
    pf_poller *poller = NULL;
    *error = -ENOSYS;
    for (size_t i = 0; i < sizeof pollers / sizeof *pollers; i++) {
        if (*error == -ENOSYS && pollers[i].system != NULL &&
            (any || strcmp(wanted, pollers[i].name) == 0)) {
            poller = pf_watch_new(pollers[i].system, error);
        }
    }
    return poller;
}
