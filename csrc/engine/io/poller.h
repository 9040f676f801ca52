/* A poller waits for an idle scheduler: for descriptors, and for wake().
 *
 * A poller is a table of functions.  The default one uses epoll on Linux,
 * kqueue on macOS and the BSDs, poll(2) on other POSIX systems, and a
 * completion port on Windows.  pf_scheduler_set_poller replaces it; nothing
 * else changes.  A poll has two steps, between which the scheduler takes the
 * host's lock:
 *
 *   wait     asks the system, perhaps for long and with the host's lock
 *            released; it fills the poller's buffer and touches nothing else
 *   deliver  reports the events that wait has found; the lock is held
 *
 * Only the owner thread may call these functions, except wake(), which any
 * thread may call.  Nothing adds, modifies or removes a registration, or
 * changes `awaited`, during a wait.
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
    PF_IO_URGENT = 1 << 2, /* out-of-band data */
    /* Asked for, never reported.  Each event is reported once.  After that, a
     * poller with `rearms` does not report it until modify(); the others
     * report it again whenever more arrives.  So the receiver continues until
     * EAGAIN, then calls modify() if `rearms` is set.  Without this bit every
     * wait reports what is still true. */
    PF_IO_EDGE = 1 << 3,
    /* Reported without being asked for, together with READ and WRITE as far as
     * those were asked for, so that no fiber waits in vain. */
    PF_IO_END = 1 << 4,   /* the other end has closed or shut down: what can
                             be read now is the last (not in all pollers) */
    PF_IO_ERROR = 1 << 5, /* an error is pending, or the number is not open */
};

#define PF_IO_ASKED (PF_IO_READ | PF_IO_WRITE | PF_IO_URGENT | PF_IO_EDGE)

/* A descriptor has one registration.  The code that adds it owns its memory,
 * and does not move or free it until it is removed.  `ready` runs on the owner
 * thread and must not switch.  `ready` may add, modify and remove any
 * registration, also its own one, and free that after removing it. */
struct pf_registration {
    void (*ready)(pf_registration *r, struct pf_scheduler *s, unsigned events);
    /* The poller's fields; zero before the first add. */
    intptr_t descriptor;
    uint32_t slot;
    uint16_t interest;
    bool added;
};

typedef struct pf_poller_ops {
    /* Watches `descriptor` for `interest`, which may be 0 for now.  The
     * descriptor is a number on POSIX, a SOCKET or a HANDLE on Windows, where
     * handles can be watched for PF_IO_READ only.  The caller removes the
     * registration before closing the descriptor.  Removing it afterwards
     * works too, but in between events may be reported, and on POSIX no other
     * registration can have the number.  Returns 0 or
     *   -EBADF   the descriptor is not open
     *   -EEXIST  the descriptor or the registration was added already
     *   -EINVAL  this poller cannot watch for that interest
     *   -EPERM   descriptors of this kind cannot be watched (by epoll, regular
     *            files, say)
     *   -ENOSPC  the poller is full
     *   -ENOMEM  there is no memory */
    int (*add)(pf_poller *poller, intptr_t descriptor, unsigned interest,
               pf_registration *r);
    /* Changes the interest and arms it anew: the next wait finds again what
     * the last one has found, if that is still true and of interest.  Returns
     * 0; -ENOENT: the registration was not added; -EINVAL and -ENOMEM as
     * above, and the old interest stays; -EBADF: the system does not watch the
     * descriptor any more, because it was closed without removing it.  An
     * ERROR is reported in that case, too; a poller that does not notice at
     * once reports only the ERROR. */
    int (*modify)(pf_poller *poller, pf_registration *r, unsigned interest);
    /* Stops reporting to the registration, even what a wait has already found.
     * Returns 0; -ENOENT: it was not added. */
    int (*remove)(pf_poller *poller, pf_registration *r);
    /* Waits at most timeout_ns (PF_NEVER: for ever; 0: looks only) for wake()
     * or an event; one system call.  Returns how many events were found,
     * perhaps not all; deliver() reports these before the next wait.  Returns
     * 0 also after wake(), a signal or the timeout (the caller checks again
     * anyway), and -errno on failure. */
    int (*wait)(pf_poller *poller, int64_t timeout_ns);
    void (*deliver)(pf_poller *poller, struct pf_scheduler *s);
    /* Makes the present or the next wait() return.  Any thread and any signal
     * handler may call this. */
    void (*wake)(pf_poller *poller);
    /* Returns a descriptor that a host's loop may watch, or -1.  The
     * descriptor is readable when wake() was called since the last wait() and,
     * except with poll(2), when a wait would find an event. */
    int (*fileno)(pf_poller *poller);
    /* In the child after fork: opens new system descriptors.  Registrations
     * stay; those that cannot be watched any more get an ERROR.  Returns 0 or
     * -errno. */
    int (*after_fork)(pf_poller *poller);
    void (*close)(pf_poller *poller);
    bool rearms; /* see PF_IO_EDGE */
} pf_poller_ops;

/* `awaited` counts the waits for an event.  Registrations do not show this: a
 * descriptor may be registered for good, or may end a wait although no fiber
 * waits for it, like the one for signals.  While `awaited` is not 0 the poller
 * is busy: the scheduler polls between switches, and an idle scheduler has
 * something to wait for. */
struct pf_poller {
    const pf_poller_ops *ops;
    size_t awaited;
};

static inline bool
pf_poller_busy(const pf_poller *poller)
{
    return poller->awaited != 0;
}

/* Returns NULL and sets *error to -errno on failure: -ENOMEM, or that the
 * process has no descriptor left.  On POSIX also -ENOSYS, if PYFIBER_POLLER in
 * the environment (epoll, kqueue, poll) names none that the system has. */
pf_poller *pf_poller_new_default(int *error);

#endif
