/* What the engine's fault handler calls in the binding: see overflow.c. */
#ifndef PF_SWITCH_OVERFLOW_H
#define PF_SWITCH_OVERFLOW_H

#include "python/core/thread.h"

int pf_overflow_python_init(void);
/* Write the running fiber's name and stack to stderr, in a signal handler on a
 * thread that has a record. */
void pf_overflow_print_fiber(void);
/* Do the check now that the handler has requested, because the running fiber,
 * whose reserve was just reached, is about to be left. `sp` is an address in
 * the running C frame. */
void pf_overflow_end_watch(PfThread *t, const char *sp);

#endif
