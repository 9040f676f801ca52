/* pack/: fibers that wait without a stack of their own, as far as Python is
 * concerned: see engine/core/pack.h. */
#ifndef PF_PYTHON_PACK_H
#define PF_PYTHON_PACK_H

#include "python/core/pyinclude.h"

#include "engine/core/pack.h"
#include "python/core/compiler.h"
#include "python/task/fiber.h"

extern PF_ATOMIC(size_t) pf_pack_default_slots; /* 0: packing is off */

/* How many slots somebody asks for, None: the default. 0, or -1 with an
 * exception. */
int pf_pack_slots(PyObject *wanted, size_t *slots);

/* Why there is no packing; NULL: there is. */
const char *pf_pack_refused_here(void);

/* From now on the fibers of this thread share so many slots; 0: none.  Without
 * memory for what packing needs, each has a stack of its own. */
void pf_pack_use(PfThread *t, size_t slots);
/* The same with the default number. */
void pf_pack_reset(PfThread *t);

/* Somebody wants to look at this fiber's frames: they have to be somewhere.  On
 * its own thread or with the GIL. 0, or -1 with MemoryError. */
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

/* The state of a suspended fiber, to look at its frames without a change: good
 * until the next call. */
PyState *pf_pack_state_packed(const FiberObject *fiber);
static inline PyState *
pf_pack_state_of(const FiberObject *fiber)
{
    return fiber->saved != NULL ? fiber->saved : pf_pack_state_packed(fiber);
}

int pf_pack_init(void);

#endif
