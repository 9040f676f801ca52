/* The pollers of POSIX systems.  A system has some of them; the others' files
 * are empty there but for a constructor that gives NULL and -ENOSYS.  Each
 * keeps the contract of poller.h, and poller.c chooses. */
#ifndef PF_POLLERS_H
#define PF_POLLERS_H

#include "engine/io/poller.h"

#include <limits.h>

#include "engine/core/timers.h"

/* NULL and -errno in *error. */
pf_poller *pf_epoll_poller_new(int *error);
pf_poller *pf_kqueue_poller_new(int *error);
pf_poller *pf_poll_poller_new(int *error);

/* For system calls that know no finer time.  Rounded up: after an early
 * wake-up we would only wait again. */
static inline int
pf_milliseconds(int64_t timeout_ns)
{
    if (timeout_ns == PF_NEVER) {
        return -1;
    }
    int64_t ms = timeout_ns / 1000000 + (timeout_ns % 1000000 > 0);
    return ms < 0 ? 0 : ms > INT_MAX ? INT_MAX : (int)ms;
}

#endif
