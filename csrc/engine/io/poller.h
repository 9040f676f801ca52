/* How an idle scheduler waits, for descriptors and to be woken.
 *
 * A poller is a table of functions: the default one is poll(2)'s on POSIX and
 * WaitForMultipleObjects's on Windows; epoll and its kindred are given to
 * pf_scheduler_set_poller, nothing else changes.  A turn has two steps, with
 * the scheduler between them:
 *
 *   wait      asks the system, perhaps for long and while the host's lock is
 *             away: it fills the poller's own buffer and touches nothing else
 *   deliver   hands out what it found, on the owner thread, the lock held
 *
 * All but wake() is the owner thread's alone: who adds, modifies, removes or
 * counts is not in a wait.
 */
#ifndef PF_POLLER_H
#define PF_POLLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pf_scheduler;

typedef struct pf_poller pf_poller;
typedef struct pf_registration pf_registration;

/* What may be asked for, and what is told. */
enum {
    PF_IO_READ = 1 << 0,
    PF_IO_WRITE = 1 << 1,
    PF_IO_URGENT = 1 << 2, /* data out of band */
    /* Asked for only.  Each thing is told once: after that a poller may be
     * silent about it until modify() (`rearms`), or tell it anew whenever more
     * of it comes; so who was told goes on until EAGAIN, then calls modify()
     * if `rearms` says so.  Without this bit every wait tells what lasts. */
    PF_IO_EDGE = 1 << 3,
    /* Told only, also unasked, together with all of READ and WRITE that is of
     * interest, so that nobody waits in vain. */
    PF_IO_END = 1 << 4,   /* what can be read now is the last: the other end
                             has closed or shut down (not told by all) */
    PF_IO_ERROR = 1 << 5, /* an error is pending, or it is not open */
};

#define PF_IO_ASKED (PF_IO_READ | PF_IO_WRITE | PF_IO_URGENT | PF_IO_EDGE)

/* One for each descriptor, of whoever adds it, where it stays until removed.
 * `ready` runs on the owner thread; it must not switch.  It may add, modify
 * and remove any, itself too, and free itself after that. */
struct pf_registration {
    void (*ready)(pf_registration *r, struct pf_scheduler *s, unsigned events);
    /* The poller's; zero before the first add. */
    intptr_t descriptor;
    size_t slot;
    unsigned interest;
    bool added;
};

typedef struct pf_poller_ops {
    /* `descriptor` (a number on POSIX, a HANDLE on Windows) is watched for
     * `interest`, which may be nothing for now.  It is removed before it is
     * closed.  0, or -EBADF: it is not open; -EEXIST: it, or the registration,
     * is there already; -EINVAL: no such interest, here; -EPERM: of a kind
     * that cannot be watched here (regular files, for epoll); -ENOSPC: the
     * poller is full; -ENOMEM. */
    int (*add)(pf_poller *poller, intptr_t descriptor, unsigned interest,
               pf_registration *r);
    /* Another interest, armed anew: what a wait has found already, it finds
     * again if that is still so and of interest.  0, or -ENOENT: it was not
     * added; -EINVAL and -ENOMEM as above, then the old interest stays. */
    int (*modify)(pf_poller *poller, pf_registration *r, unsigned interest);
    /* From now on it is told nothing, not even what a wait has found already.
     * 0, or -ENOENT. */
    int (*remove)(pf_poller *poller, pf_registration *r);
    /* Wait at most timeout_ns (PF_NEVER: for ever; 0: look only) for wake()
     * or for what is registered; one system call.  How many have something to
     * be told, which deliver() does before the next wait; 0 also if woken,
     * time is over or a signal came (the caller looks again anyway); -errno. */
    int (*wait)(pf_poller *poller, int64_t timeout_ns);
    void (*deliver)(pf_poller *poller, struct pf_scheduler *s);
    /* Make a present or the next wait() return.  From any thread and from a
     * signal handler. */
    void (*wake)(pf_poller *poller);
    /* Readable when wake() was called since the last wait(); -1 if this
     * poller has no descriptor. */
    int (*fileno)(pf_poller *poller);
    /* In the child after fork: new descriptors of its own; what is registered
     * stays so.  0 or -errno. */
    int (*after_fork)(pf_poller *poller);
    void (*close)(pf_poller *poller);
    bool rearms; /* see PF_IO_EDGE */
} pf_poller_ops;

/* `awaited` counts who waits for something to be told.  What is registered
 * does not say that: a descriptor may be registered once and for all, or end
 * a wait without being anybody's hope, as that of signals.  While it is not 0
 * the poller is busy: the scheduler looks at it in passing, and an idle one
 * has something to wait for. */
struct pf_poller {
    const pf_poller_ops *ops;
    size_t awaited;
};

static inline bool
pf_poller_busy(const pf_poller *poller)
{
    return poller->awaited != 0;
}

/* NULL and -errno in *error if descriptors ran out. */
pf_poller *pf_default_poller_new(int *error);

#endif
