/* What happens when a stack is used up.
 *
 * First the fiber runs into its stack's reserve: the handler opens the upper
 * half of it and asks the host to make the recursion fail soon (on_reserve);
 * the code goes on.  If it runs on into the lower half the host is asked once
 * more; if into the guard, the process ends with one clear line.
 *
 * A handler for SIGSEGV and SIGBUS on an alternate stack looks whether the
 * faulting address lies in the guard of the running fiber's stack; if so it
 * writes the line, lets the host print its own traceback, restores the
 * handler that was installed before and returns, so that the fault happens
 * again under it.  Every other fault goes to that handler at once.
 * POSIX only; elsewhere these do nothing.
 */
#ifndef PF_OVERFLOW_H
#define PF_OVERFLOW_H

#include "engine/stack/stack.h"

/* All run inside a signal handler: write(2) and reads only.  The running fiber
 * is meant, each time. */
typedef struct pf_overflow_host {
    /* The stack of the calling thread's running fiber; NULL: it runs on the
     * thread's own. */
    pf_stack *(*current)(void);
    /* It has begun to use its reserve; `last`: the lower half.  False: the
     * host can do nothing about it, treat it as an overflow.  NULL: as
     * false. */
    bool (*on_reserve)(bool last);
    /* Its name into `buffer`; bytes written (without a NUL). */
    size_t (*name)(char *buffer, size_t size);
    /* Print the host's traceback of it to `fd`. */
    void (*traceback)(int fd);
} pf_overflow_host;

/* Once per process.  0 or -errno. */
int pf_overflow_install(const pf_overflow_host *host);

/* Somebody who installed a handler after us (faulthandler.enable(), say) has
 * taken our place, and the reserve would never open: be the first again, with
 * theirs behind.  Two system calls. */
void pf_overflow_renew(void);

/* The same, but at most once in some milliseconds for a thread: cheap enough
 * to be called for every stack. */
void pf_overflow_keep(void);

/* Once per thread that runs fibers: an alternate signal stack, unless the
 * thread has one already.  0 or -errno. */
int pf_overflow_thread_init(void);
void pf_overflow_thread_finish(void);

/* The stack that Windows gives a fiber has a guard of its own, and the system
 * reports an overflow: there is nothing to install. */
#if defined(_WIN32)
#define pf_overflow_install(host) ((void)(host), 0)
#define pf_overflow_renew() ((void)0)
#define pf_overflow_keep() ((void)0)
#define pf_overflow_thread_init() 0
#define pf_overflow_thread_finish() ((void)0)
#endif

#endif
