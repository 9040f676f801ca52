/* Where the life of a fiber touches that of a greenlet: see greenlet.h. */
#ifndef PF_GREENLET_HOOKS_H
#define PF_GREENLET_HOOKS_H

#include "python/core/thread.h"
#include "python/fiber/fiber.h"

/* The body of a greenlet's fiber; returns who runs next. */
FiberObject *pf_greenlet_run(PfThread *t, FiberObject *self);
/* A greenlet's fiber has been left: it is over, or held the last reference to
 * its greenlet. */
void pf_greenlet_reap(PfThread *t, FiberObject *fiber);
/* As pf_fiber_unwind, by GreenletExit: the run in which it waits is over. */
void pf_greenlet_unwind(PfThread *t, FiberObject *fiber);
/* The fiber, which has a view or a greenlet, is over: the view shows that. */
void pf_greenlet_view_done(FiberObject *fiber);

#endif
