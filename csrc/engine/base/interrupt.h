/* Interrupts another thread, wherever it is, and runs a function there inside
 * a signal handler.  The watchdog finds out in this way what a thread does
 * that no longer comes back to the scheduler.
 *
 * The signal is SIGURG, which nobody sends by accident and which is ignored by
 * default (Go's runtime interrupts its threads by SIGURG for the same
 * reasons).  A program that has a handler for SIGURG, or sets one later, keeps
 * that handler, and nothing is interrupted.  System calls are restarted; the
 * few that cannot be (poll, nanosleep) return EINTR, once, as for every
 * signal.
 */
#ifndef PF_INTERRUPT_H
#define PF_INTERRUPT_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns the calling thread's identity, for pf_interrupt. */
uintptr_t pf_interrupt_this_thread(void);

/* Blocks all signals on the calling thread, until the second function is
 * called. A thread that is started in between blocks all signals from its
 * beginning, so none that the program waits for is delivered there. */
void pf_interrupt_refuse_signals(void);
void pf_interrupt_accept_signals(void);

/* Installs the signal handler.  0; -EBUSY: the program already has a handler
 * for the signal; -ENOSYS: this system has no signals. */
int pf_interrupt_install(void);
/* Removes the handler; later calls of pf_interrupt return false. */
void pf_interrupt_uninstall(void);

/* Runs look(data) on `thread`, which must live until this call returns.
 * `look` may only do what a signal handler may.  Returns true after `look` has
 * returned, or false if the thread has not begun it within `patience`
 * nanoseconds; then `look` will not run.  At most one call at a time, from all
 * threads. */
bool pf_interrupt(uintptr_t thread, void (*look)(void *data), void *data,
                  int64_t patience);

/* For `look`: stores the code addresses of the interrupted thread's calls,
 * innermost first, at most `most`.  Returns their number; 0: the stack cannot
 * be unwound here. */
size_t pf_interrupt_native_stack(void **places, size_t most);

/* Writes "function (library)" for a code address, or "library+0x12ab" if the
 * function has no public name.  Must not be called in a signal handler.
 * Returns the bytes written, without the NUL. */
size_t pf_interrupt_native_name(void *place, char *text, size_t size);

/* Windows has no signals: every call fails. */
#if defined(_WIN32)
#define pf_interrupt_this_thread() ((uintptr_t)0)
#define pf_interrupt_refuse_signals() ((void)0)
#define pf_interrupt_accept_signals() ((void)0)
#define pf_interrupt_install() (-ENOSYS)
#define pf_interrupt_uninstall() ((void)0)
#define pf_interrupt(thread, look, data, patience)                            \
    ((void)(look), (void)(data), false)
#define pf_interrupt_native_stack(places, most) ((void)(places), (size_t)0)
#define pf_interrupt_native_name(place, text, size) ((void)(place), (size_t)0)
#endif

#endif
