/* Wakes the idle loop when a signal arrives: on POSIX through a pipe to which
 * the interpreter writes, on Windows through the event that it sets for
 * Ctrl-C.  The implementations are unix/wakeup.c and windows/wakeup.c;
 * signals.c calls them, on the main thread. */
#ifndef PF_WAKEUP_H
#define PF_WAKEUP_H

#include "python/core/pyinclude.h"

#include <stdint.h>

#include "python/core/parts.h"

#define PF_NO_DESCRIPTOR ((intptr_t)-1)
#define PF_WAKEUP_UNTOUCHED (-2) /* `old`: set_wakeup_fd() was not changed */

/* Sets up the wake-up.  `signals` is the module signal.  Stores in *descriptor
 * what the loop has to watch, or PF_NO_DESCRIPTOR if the program uses the
 * wakeup descriptor itself, and in *old the argument of pf_wakeup_end.
 * Returns 0, or -1 with an exception. */
int pf_wakeup_begin(PyObject *signals, long *old, intptr_t *descriptor);
/* Undoes pf_wakeup_begin.  Leaves no exception set. */
void pf_wakeup_end(PyObject *signals, long old);
/* Resets the descriptor after it has woken the loop. */
void pf_wakeup_drain(void);

extern const PfPart pf_wakeup_part;

#endif
