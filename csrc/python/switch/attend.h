/* What has to be done before the running fiber is left. */
#ifndef PF_SWITCH_ATTEND_H
#define PF_SWITCH_ATTEND_H

#include "python/core/thread.h"

/* Deal with t->attention.  0, or -1 with FiberError. */
int pf_attend(PfThread *t);
/* Parts of that. */
void pf_close_reserve(PfThread *t);
bool pf_collector_runs_here(PfThread *t);
void pf_unwind_dropped(PfThread *t);
/* On another thread than that of the fiber or greenlet `op`, which is to be
 * unwound: steals a reference.  Runs no code. */
void pf_leave_to_owner(PfThread *owner, PyObject *op);
/* As pf_unwind_dropped() for this thread, between two pieces of its work:
 * usually a switch calls that, but this thread may never switch. */
void pf_unwind_left_here(void);

#endif
