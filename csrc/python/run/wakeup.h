/* How an idle loop learns of a signal: on POSIX through a pipe to which the
 * interpreter writes, on Windows through the event that it sets for Ctrl-C.
 * Each system has a file of its own, in unix/ and windows/. */
#ifndef PF_WAKEUP_H
#define PF_WAKEUP_H

#include "python/core/pyinclude.h"

#include <stdint.h>

#include "python/core/parts.h"

#define PF_NO_DESCRIPTOR ((intptr_t)-1)
#define PF_WAKEUP_UNTOUCHED (-2) /* `old`: set_wakeup_fd() is as it was */

/* `signals` is the module. *descriptor becomes what the loop watches, or
 * PF_NO_DESCRIPTOR if the program uses the wakeup descriptor itself. *old is
 * for pf_wakeup_end. 0, or -1 with an exception. */
int pf_wakeup_begin(PyObject *signals, long *old, intptr_t *descriptor);
/* Leaves no exception. */
void pf_wakeup_end(PyObject *signals, long old);
/* The descriptor has done its work: reset it. */
void pf_wakeup_drain(void);

extern const PfPart pf_wakeup_part;

#endif
