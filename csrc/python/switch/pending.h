/* Work that must be done before the running fiber is left. */
#ifndef PF_SWITCH_PENDING_H
#define PF_SWITCH_PENDING_H

#include "python/core/thread.h"

/* Do what t->pending asks for. 0, or -1 with FiberError: the fiber must not be
 * left now. */
int pf_pending_run(PfThread *t);
/* The same before a wait that a fiber may be unwound in. A thread of the
 * program that is being cut off does not wait: this abandons it. */
int pf_pending_before_wait(PfThread *t);
/* Steps of pf_pending_run. */
void pf_pending_close_reserve(PfThread *t);
bool pf_pending_collector_runs(PfThread *t);
void pf_pending_take_posts(PfThread *t);
/* Leave a fiber or greenlet that is to be unwound to its thread `owner`, which
 * is not this one. Steals a reference to `op`. Runs no code. */
void pf_pending_leave(PfThread *owner, PyObject *op);
/* As pf_pending_take_posts() for this thread, called between two pieces of its
 * work. Usually a switch does that, but this thread may never switch. */
void pf_pending_take_posts_here(void);

#endif
