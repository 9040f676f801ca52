/* pack/: many fibers share few stacks, as the engine packs the stacks of
 * parked fibers (engine/core/pack.h).  This room is the engine's host: it
 * adjusts Python's pointers into a stack that moves. */
#ifndef PF_PYTHON_PACK_H
#define PF_PYTHON_PACK_H

#include "python/core/pyinclude.h"

#include "engine/core/pack.h"
#include "python/core/compiler.h"
#include "python/task/fiber.h"

extern PF_ATOMIC(size_t) pf_pack_default_slots; /* 0: packing is off */

/* Converts an argument `slots`; None is the default.  Returns 0, or -1 with an
 * exception. */
int pf_pack_slots(PyObject *wanted, size_t *slots);

/* Returns why stacks cannot be packed here; NULL if they can. */
const char *pf_pack_refused_here(void);

/* Makes the fibers of this thread share `slots` stacks from now on; 0: each
 * has a separate stack.  Without memory for what packing needs, each has a
 * separate stack as well. */
void pf_pack_use(PfThread *t, size_t slots);
/* As pf_pack_use with the default number. */
void pf_pack_reset(PfThread *t);

/* Makes the frames of a packed fiber readable: gives it a whole image.  On the
 * fiber's thread, or with the GIL.  Returns 0, or -1 with MemoryError. */
static inline int
pf_pack_show_fiber(FiberObject *fiber)
{
    if (PF_LIKELY(!pf_pack_is_packed(&fiber->fiber)) ||
        pf_pack_show(&fiber->thread->engine, &fiber->fiber) == 0) {
        return 0;
    }
    PyErr_NoMemory();
    return -1;
}

/* Returns the saved state of a suspended fiber, to read its frames.  Unlike
 * pf_pack_show_fiber this does not change the fiber and cannot fail.  The
 * result is valid until the next call. */
PyState *pf_pack_state_packed(const FiberObject *fiber);
static inline PyState *
pf_pack_state_of(const FiberObject *fiber)
{
    return fiber->saved != NULL ? fiber->saved : pf_pack_state_packed(fiber);
}

int pf_pack_init(void);

#endif
