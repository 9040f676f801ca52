/* What has to be done before the running fiber is left. */
#ifndef PF_SWITCH_PENDING_H
#define PF_SWITCH_PENDING_H

#include "python/core/thread.h"

/* Deal with t->pending.  0, or -1 with FiberError. */
int pf_pending_run(PfThread *t);
/* Parts of that. */
void pf_pending_close_reserve(PfThread *t);
bool pf_pending_collector_runs(PfThread *t);
void pf_pending_take_posts(PfThread *t);
/* On another thread than that of the fiber or greenlet `op`, which is to be
 * unwound: steals a reference.  Runs no code. */
void pf_pending_leave(PfThread *owner, PyObject *op);
/* As pf_pending_take_posts() for this thread, between two pieces of its work:
 * usually a switch calls that, but this thread may never switch. */
void pf_pending_take_posts_here(void);

#endif
