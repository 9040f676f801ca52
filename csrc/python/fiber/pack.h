/* Fibers that wait without a stack of their own: see engine/core/pack.h. */
#ifndef PF_FIBER_PACK_H
#define PF_FIBER_PACK_H

#include "python/core/pyinclude.h"

#include "engine/core/pack.h"
#include "python/core/compiler.h"
#include "python/fiber/fiber.h"

extern PF_ATOMIC(size_t) pf_default_slots; /* 0: packing is off */

/* How many slots somebody asks for, None: the default; learns, if any, so it
 * runs code. 0, or -1 with an exception. */
int pf_packing_slots(PyObject *wanted, size_t *slots);

/* Why there is no packing; NULL: there is. */
const char *pf_packing_refused_here(void);

/* To be called before the fibers of a run on this thread.  Without memory for
 * what packing needs, each has a stack of its own. */
void pf_packing_begin(PfThread *t, size_t slots);

/* Somebody wants to look at this fiber's frames, or to end it: it needs its
 * stack, on its own thread or with the GIL. 0, or -1 with MemoryError. */
static inline int
pf_fiber_have_stack(FiberObject *fiber)
{
    if (PF_LIKELY(!pf_is_packed(&fiber->fiber)) ||
        pf_unpack(&fiber->thread->engine, &fiber->fiber, false) == 0) {
        return 0;
    }
    PyErr_NoMemory();
    return -1;
}

int pf_packing_init(PyObject *module);

#endif
