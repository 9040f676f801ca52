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
/* Does the running fiber belong to a thread of the program that is being cut
 * off, and may the fiber be left for good where it is? Not inside of a further
 * no-switch region, nor where the collector runs on the fiber. */
bool pf_unwind_cuts_off(const PfThread *t);
/* Abandon such a thread, as the interpreter does with daemon threads when it
 * exits: the fiber is left for the one that unwinds it and never continues, so
 * nothing of it is unwound, and what it holds stays held. For others it has
 * ended. Returns only if there is no memory for that: -1 with MemoryError. */
int pf_unwind_abandon(PfThread *t);
/* Is the fiber suspended, with nothing that must return to it first? */
bool pf_unwind_may(FiberObject *fiber);
/* Give the fiber a new context if the collector has cleared its own; call this
 * before unwinding a fiber that may be garbage. */
void pf_unwind_renew_context(FiberObject *fiber);

#endif
