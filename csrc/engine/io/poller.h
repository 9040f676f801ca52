/* How an idle scheduler waits and how it is woken.
 *
 * The slot for descriptor pollers: epoll and its kindred implement this table
 * and are given to pf_scheduler_set_poller; nothing else changes.  The default
 * one waits for its wake descriptor (eventfd on Linux, a pipe elsewhere, an
 * event on Windows) and for one extra descriptor of the host's.
 */
#ifndef PF_POLLER_H
#define PF_POLLER_H

#include <stdbool.h>
#include <stdint.h>

typedef struct pf_poller pf_poller;

typedef struct pf_poller_ops {
    /* Wait at most timeout_ns (PF_NEVER: for ever; 0: look only) for wake()
     * or for whatever else the poller watches.  0: woken or time is over or
     * interrupted by a signal (the caller looks again anyway); -errno. */
    int (*wait)(pf_poller *poller, int64_t timeout_ns);
    /* Make a present or the next wait() return.  From any thread and from a
     * signal handler. */
    void (*wake)(pf_poller *poller);
    /* Readable when wake() was called since the last wait(); -1 if this
     * poller has no descriptor. */
    int (*fileno)(pf_poller *poller);
    /* In the child after fork: new descriptors.  0 or -errno. */
    int (*after_fork)(pf_poller *poller);
    /* Does something beyond wake() wait here (registered descriptors)? */
    bool (*busy)(pf_poller *poller);
    void (*close)(pf_poller *poller);
} pf_poller_ops;

struct pf_poller {
    const pf_poller_ops *ops;
};

/* NULL and -errno in *error if descriptors ran out. */
pf_poller *pf_default_poller_new(int *error);

/* Watch one more descriptor for readability in the default poller (the
 * host's signal descriptor on POSIX; on Windows a HANDLE); -1: none. */
void pf_default_poller_watch(pf_poller *poller, intptr_t descriptor);

#endif
