/* A look at another thread, wherever that is: a function runs on it, inside of
 * a signal handler.  For finding out what a thread does that does nothing else
 * any more.
 *
 * The signal is SIGURG, which nobody sends by accident and which is ignored by
 * default (Go's runtime interrupts its threads by it for the same reasons).
 * A program that has a handler for it, or sets one later, keeps that, and
 * nothing is interrupted.
 * System calls are restarted; the few that are not (poll, nanosleep) return
 * EINTR, once, as for every signal.
 */
#ifndef PF_INTERRUPT_H
#define PF_INTERRUPT_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Of the calling thread. */
uintptr_t pf_interrupt_this_thread(void);

/* No handler of a signal runs on the calling thread from now on. */
void pf_interrupt_refuse_signals(void);

/* 0; -EBUSY: the program has a handler of its own; -ENOSYS: not on this
 * system. */
int pf_interrupt_install(void);
/* Later calls of pf_interrupt return false. */
void pf_interrupt_uninstall(void);

/* `look(data)` runs on `thread`, which must live until this returns, and may
 * only do what a signal handler may.  Returns when it is done; false: the
 * thread has not come to it within `patience` nanoseconds, and never will.
 * One call at a time. */
bool pf_interrupt(uintptr_t thread, void (*look)(void *data), void *data,
                  int64_t patience);

/* For `look`: where the interrupted thread is, innermost call first; how many
 * addresses it has stored, at most `most`.  0: cannot be found out here. */
size_t pf_interrupt_native_stack(void **places, size_t most);

/* "function (library)", or "library+0x12ab" for one without a public name.
 * Not for signal handlers.  Bytes written, without the NUL. */
size_t pf_interrupt_native_name(void *place, char *text, size_t size);

/* Windows has no signals. */
#if defined(_WIN32)
#define pf_interrupt_this_thread() ((uintptr_t)0)
#define pf_interrupt_refuse_signals() ((void)0)
#define pf_interrupt_install() (-ENOSYS)
#define pf_interrupt_uninstall() ((void)0)
#define pf_interrupt(thread, look, data, patience)                            \
    ((void)(look), (void)(data), false)
#define pf_interrupt_native_stack(places, most) ((void)(places), (size_t)0)
#define pf_interrupt_native_name(place, text, size) ((void)(place), (size_t)0)
#endif

#endif
