/* What happens when a fiber's stack is used up.
 *
 * First the fiber runs into its stack's reserve: the fault handler opens the
 * upper half and asks the host to make the recursion fail soon (on_reserve);
 * the code continues.  If the code runs into the lower half, the host is asked
 * once more; if it runs into the guard, the process ends with one clear line.
 *
 * A handler for SIGSEGV and SIGBUS on an alternate stack checks whether the
 * faulting address lies in the guard of the running fiber's stack.  If so, the
 * handler writes the line, lets the host print its traceback, restores the
 * handler that was installed before and returns, so that the fault happens
 * again under that one.  Every other fault goes to the earlier handler at
 * once.  POSIX only; on Windows these functions do nothing.
 */
#ifndef PF_OVERFLOW_H
#define PF_OVERFLOW_H

#include "engine/stack/stack.h"

/* The host's functions.  All of them concern the calling thread's running
 * fiber and are called inside a signal handler: they may only read memory and
 * call write(2). */
typedef struct pf_overflow_host {
    /* Returns the fiber's stack; NULL: the fiber runs on the thread's own
     * stack. */
    pf_stack *(*current)(void);
    /* The fiber has begun to use its reserve; `last`: the lower half.  Returns
     * false if the host cannot make the recursion fail, so that the fault
     * counts as an overflow.  NULL: always false. */
    bool (*on_reserve)(bool last);
    /* Writes the fiber's name into `buffer`; returns the number of bytes,
     * without a NUL. */
    size_t (*name)(char *buffer, size_t size);
    /* Prints the host's traceback of the fiber to `fd`. */
    void (*traceback)(int fd);
} pf_overflow_host;

/* Install the handlers, once per process.  0 or -errno. */
int pf_overflow_install(const pf_overflow_host *host);

/* Put our handlers in front again, and call the ones now installed after ours.
 * A handler that was installed after ours (by faulthandler.enable(), say)
 * would otherwise get the faults, and the reserve would never open.  Two
 * system calls. */
void pf_overflow_renew(void);

/* The same, but at most once in some milliseconds for each thread: cheap
 * enough to be called for every stack. */
void pf_overflow_keep(void);

/* Give the calling thread an alternate signal stack, unless it has one
 * already; once per thread that runs fibers.  0 or -errno. */
int pf_overflow_thread_init(void);
void pf_overflow_thread_finish(void);

/* Windows guards the stack of each of its fibers, and reports an overflow:
 * there is nothing to install. */
#if defined(_WIN32)
#define pf_overflow_install(host) ((void)(host), 0)
#define pf_overflow_renew() ((void)0)
#define pf_overflow_keep() ((void)0)
#define pf_overflow_thread_init() 0
#define pf_overflow_thread_finish() ((void)0)
#endif

#endif
