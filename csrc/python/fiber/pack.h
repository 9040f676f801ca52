/* Fibers that wait without a stack of their own: see engine/core/pack.h. */
#ifndef PF_FIBER_PACK_H
#define PF_FIBER_PACK_H

#include "python/core/pyinclude.h"

#include "engine/core/pack.h"
#include "python/core/compiler.h"
#include "python/fiber/fiber.h"

extern PF_ATOMIC(size_t) pf_default_slots; /* 0: packing is off */

/* How many slots somebody asks for, None: the default. 0, or -1 with an
 * exception. */
int pf_packing_slots(PyObject *wanted, size_t *slots);

/* Why there is no packing; NULL: there is. */
const char *pf_packing_refused_here(void);

/* From now on the fibers of this thread share so many slots; 0: none.  Without
 * memory for what packing needs, each has a stack of its own. */
void pf_packing_set(PfThread *t, size_t slots);
/* The same with the default number. */
void pf_packing_reset(PfThread *t);

/* Somebody wants to look at this fiber's frames: they have to be somewhere.  On
 * its own thread or with the GIL. 0, or -1 with MemoryError. */
static inline int
pf_fiber_show(FiberObject *fiber)
{
    if (PF_LIKELY(!pf_is_packed(&fiber->fiber)) ||
        pf_pack_show(&fiber->thread->engine, &fiber->fiber) == 0) {
        return 0;
    }
    PyErr_NoMemory();
    return -1;
}

/* The state of a suspended fiber, to look at its frames without a change: good
 * until the next call. */
PyState *pf_packed_state(const FiberObject *fiber);
static inline PyState *
pf_fiber_state(const FiberObject *fiber)
{
    return fiber->saved != NULL ? fiber->saved : pf_packed_state(fiber);
}

/* The collector has its lists on the running fiber's stack.  Is that the home
 * of others, too, so that a fiber that ends now could make it move? */
static inline bool
pf_must_stay(const PfThread *t)
{
    return PF_UNLIKELY(t->collecting == t->engine.current) &&
           t->collecting->stack != NULL &&
           pf_stack_is_shared(t->collecting->stack);
}

/* Whom to switch to, to get to this fiber: see pf_bring_home.  NULL with an
 * exception. */
pf_fiber *pf_fiber_come_home(PfThread *t, FiberObject *fiber);
static inline pf_fiber *
pf_fiber_way_to(PfThread *t, FiberObject *fiber)
{
    return PF_LIKELY(fiber->core.has_stack) ? &fiber->fiber
                                            : pf_fiber_come_home(t, fiber);
}
/* The same for who cannot tell of an exception. */
static inline pf_fiber *
pf_fiber_sure_way_to(PfThread *t, FiberObject *fiber)
{
    return PF_LIKELY(fiber->core.has_stack)
               ? &fiber->fiber
               : pf_bring_home_anyhow(&t->engine, &fiber->fiber);
}

int pf_packing_init(void);

#endif
