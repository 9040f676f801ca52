/* A fiber's stack comes home before the fiber is entered: see
 * engine/core/pack.h. */
#ifndef PF_SWITCH_HOME_H
#define PF_SWITCH_HOME_H

#include "python/core/pyinclude.h"

#include "engine/core/pack.h"
#include "python/core/compiler.h"
#include "python/task/fiber.h"

/* The collector has its lists on the running fiber's stack.  Is that the home
 * of others, too, so that a fiber that ends now could make it move? */
static inline bool
pf_home_must_stay(const PfThread *t)
{
    return PF_UNLIKELY(t->collecting == t->engine.current) &&
           t->collecting->stack != NULL &&
           pf_stack_is_shared(t->collecting->stack);
}

/* Whom to switch to, to get to this fiber: see pf_pack_bring_home.  NULL with an
 * exception. */
pf_fiber *pf_home_come(PfThread *t, FiberObject *fiber);
static inline pf_fiber *
pf_home_way_to(PfThread *t, FiberObject *fiber)
{
    return PF_LIKELY(fiber->core.has_stack) ? &fiber->fiber
                                            : pf_home_come(t, fiber);
}
/* The same for who cannot tell of an exception. */
static inline pf_fiber *
pf_home_sure_way_to(PfThread *t, FiberObject *fiber)
{
    return PF_LIKELY(fiber->core.has_stack)
               ? &fiber->fiber
               : pf_pack_bring_home_anyhow(&t->engine, &fiber->fiber);
}

#endif
