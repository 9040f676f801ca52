/* Ending a suspended fiber that nobody needs any more. */
#ifndef PF_UNWIND_H
#define PF_UNWIND_H

#include "python/core/thread.h"
#include "python/fiber/fiber.h"

/* Raise FiberExit in a suspended fiber of this thread and let it run to its
 * end: its code cannot leave it meanwhile.  The caller has a reference.
 * Nothing happens to one that has been entered since the caller looked. */
void pf_fiber_unwind(PfThread *t, FiberObject *fiber);
/* Is it suspended, and by nothing that must come back to it first? */
bool pf_fiber_can_unwind(FiberObject *fiber);
/* Before a fiber that is perhaps garbage is unwound. */
void pf_fiber_renew_context(FiberObject *fiber);

#endif
