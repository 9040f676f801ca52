/* How an idle scheduler waits, for descriptors and to be woken.
 *
 * A poller is a table of functions.  The default one is epoll on Linux, kqueue
 * on macOS and the BSDs, poll(2) on other POSIX systems, and a completion port
 * on Windows; another one is passed to pf_scheduler_set_poller, nothing else
 * changes.  A turn has two steps, with
 * the scheduler between them:
 *
 *   wait asks the system, perhaps for long and with the host's lock released:
 *   it fills the poller's own buffer and touches nothing else deliver hands
 *   out what it found, on the owner thread, the lock held
 *
 * Only the owner thread may call these, except wake(); and code that adds,
 * modifies, removes or counts is never inside a wait.
 */
#ifndef PF_POLLER_H
#define PF_POLLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pf_scheduler;

typedef struct pf_poller pf_poller;
typedef struct pf_registration pf_registration;

/* Events: what may be asked for, and what is reported. */
enum {
    PF_IO_READ = 1 << 0,
    PF_IO_WRITE = 1 << 1,
    PF_IO_URGENT = 1 << 2, /* data out of band */
    /* Asked for only.  Each event is reported once: after that a poller may be
     * silent about it until modify() (`rearms`), or report it again whenever
     * more arrives.  So the receiver continues until EAGAIN, then calls
     * modify() if `rearms` is set.  Without this bit every wait reports what
     * is still true. */
    PF_IO_EDGE = 1 << 3,
    /* Reported only, also unasked, together with those of READ and WRITE that
     * were asked for, so no fiber waits in vain. */
    PF_IO_END = 1 << 4,   /* what can be read now is the last: the other end
                             has closed or shut down (not told by all) */
    PF_IO_ERROR = 1 << 5, /* an error is pending, or it is not open */
};

#define PF_IO_ASKED (PF_IO_READ | PF_IO_WRITE | PF_IO_URGENT | PF_IO_EDGE)

/* One for each descriptor, in the memory of the code that adds it, which keeps
 * it in place until it is removed.  `ready` runs on the owner thread; it must
 * not switch.  It may add, modify and remove any registration, also its own,
 * and free that after removing it. */
struct pf_registration {
    void (*ready)(pf_registration *r, struct pf_scheduler *s, unsigned events);
    /* The poller's; zero before the first add. */
    intptr_t descriptor;
    uint32_t slot;
    uint16_t interest;
    bool added;
};

typedef struct pf_poller_ops {
    /* `descriptor` (a number on POSIX, a SOCKET or a HANDLE on Windows, where
     * handles can be read only) is watched for `interest`, which may be nothing
     * for now.  It is to be removed before it
     * is closed; to remove it afterwards is fine, too, but in between events
     * may be told, and on POSIX its number is not free for another
     * registration.  0, or -EBADF: it is not open; -EEXIST: it, or the
     * registration, is there already; -EINVAL: no such interest, here; -EPERM:
     * of a kind that cannot be watched here (regular files, for epoll);
     * -ENOSPC: the poller is full; -ENOMEM. */
    int (*add)(pf_poller *poller, intptr_t descriptor, unsigned interest,
               pf_registration *r);
    /* Another interest, armed anew: what a wait has found already, it finds
     * again if that is still so and of interest.  0, or -ENOENT: it was not
     * added; -EINVAL and -ENOMEM as above, then the old interest stays;
     * -EBADF: the system does not watch it any more, because it was closed
     * without removing it.  An ERROR is reported then, too (and only that, by
     * pollers that do not notice at once). */
    int (*modify)(pf_poller *poller, pf_registration *r, unsigned interest);
    /* From now on nothing is reported to it, not even what a wait has already
     * found. 0, or -ENOENT. */
    int (*remove)(pf_poller *poller, pf_registration *r);
    /* Wait at most timeout_ns (PF_NEVER: for ever; 0: look only) for wake()
     * or for what is registered; one system call.  Returns how many events it
     * has found, perhaps not all, which deliver() reports before the next
     * wait; 0 also if it was woken, timed out or a signal came (the caller
     * checks again anyway); -errno. */
    int (*wait)(pf_poller *poller, int64_t timeout_ns);
    void (*deliver)(pf_poller *poller, struct pf_scheduler *s);
    /* Make the present or the next wait() return.  From any thread and from a
     * signal handler. */
    void (*wake)(pf_poller *poller);
    /* For a host's loop to watch: readable when wake() was called since the
     * last wait() and, but for poll(2)'s, when a wait would find an event; -1
     * if this poller has no descriptor. */
    int (*fileno)(pf_poller *poller);
    /* In the child after fork: get new descriptors of its own; registrations
     * are kept, and those that cannot be watched any more get an ERROR. 0 or
     * -errno. */
    int (*after_fork)(pf_poller *poller);
    void (*close)(pf_poller *poller);
    bool rearms; /* see PF_IO_EDGE */
} pf_poller_ops;

/* `awaited` counts the waits for an event.  Registrations do not show this: a
 * descriptor may be registered for good, or may end a wait although nothing
 * waits for it, as that of signals.  While it is not 0 the poller is busy: the
 * scheduler checks it between switches, and an idle one has something to wait
 * for. */
struct pf_poller {
    const pf_poller_ops *ops;
    size_t awaited;
};

static inline bool
pf_poller_busy(const pf_poller *poller)
{
    return poller->awaited != 0;
}

/* NULL and -errno in *error if descriptors ran out; on POSIX also -ENOSYS, if
 * PYFIBER_POLLER in the environment (epoll, kqueue, poll) allows none that the
 * system has. */
pf_poller *pf_poller_new_default(int *error);

#endif
