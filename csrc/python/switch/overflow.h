/* What the fault handler needs from the binding. */
#ifndef PF_SWITCH_OVERFLOW_H
#define PF_SWITCH_OVERFLOW_H

#include "python/core/thread.h"

int pf_overflow_python_init(void);
/* In a signal handler on a thread with a record: the running fiber's name and
 * stack, to stderr. */
void pf_overflow_tell_fiber(void);
/* The reserve was reached a moment ago, and the running fiber is about to be
 * left: do the pending check now.  `sp`: in the running frame. */
void pf_overflow_end_watch(PfThread *t, const char *sp);

#endif
