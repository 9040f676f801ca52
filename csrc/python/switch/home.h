/* Brings a packed fiber's stack back to its home before the fiber is entered:
 * see engine/core/pack.h. */
#ifndef PF_SWITCH_HOME_H
#define PF_SWITCH_HOME_H

#include "python/core/pyinclude.h"

#include "engine/core/pack.h"
#include "python/core/compiler.h"
#include "python/task/fiber.h"

/* Is the running fiber's stack, with the collector's lists on it, also the
 * home of other fibers? Then the lists would move if a fiber ended now. */
static inline bool
pf_home_must_stay(const PfThread *t)
{
    return PF_UNLIKELY(t->collecting == t->engine.current) &&
           t->collecting->stack != NULL &&
           pf_stack_is_shared(t->collecting->stack);
}

/* The fiber to switch to in order to get to `fiber`: see pf_pack_bring_home.
 * NULL with an exception. */
pf_fiber *pf_home_come(PfThread *t, FiberObject *fiber);
static inline pf_fiber *
pf_home_way_to(PfThread *t, FiberObject *fiber)
{
    return PF_LIKELY(fiber->core.has_stack) ? &fiber->fiber
                                            : pf_home_come(t, fiber);
}
/* The same for a caller that cannot raise an exception. */
static inline pf_fiber *
pf_home_sure_way_to(PfThread *t, FiberObject *fiber)
{
    return PF_LIKELY(fiber->core.has_stack)
               ? &fiber->fiber
               : pf_pack_bring_home_anyhow(&t->engine, &fiber->fiber);
}

#endif
