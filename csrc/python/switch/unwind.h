/* Unwinds suspended fibers that are no longer needed. */
#ifndef PF_SWITCH_UNWIND_H
#define PF_SWITCH_UNWIND_H

#include "python/core/thread.h"
#include "python/task/fiber.h"

/* Raise FiberExit in a suspended fiber of this thread and let it run to its
 * end; its code cannot leave it meanwhile. The caller has a reference. Does
 * nothing if the fiber has been entered since the caller's check. */
void pf_unwind_fiber(PfThread *t, FiberObject *fiber);
/* The same; what the fiber raises besides is not reported. */
void pf_unwind_silently(PfThread *t, FiberObject *fiber);
/* Is the fiber suspended, with nothing that must return to it first? */
bool pf_unwind_may(FiberObject *fiber);
/* Give the fiber a new context if the collector has cleared its own; call this
 * before unwinding a fiber that may be garbage. */
void pf_unwind_renew_context(FiberObject *fiber);

#endif
