/* Hooks for the engine's own tests; hosts leave them alone. */
#ifndef PF_TESTING_H
#define PF_TESTING_H

#include "engine/stack/stack.h"

/* Guard every slot from now on this way; PF_GUARD_NONE: probe again and take
 * what the system offers. */
void pf_stack_force_guard(pf_guard_kind kind);

/* How many slabs the pool holds now. */
size_t pf_stack_pool_slabs(const pf_stack_pool *pool);

/* POSIX: as if what the pool knows had happened so much earlier. */
void pf_stack_pool_age(pf_stack_pool *pool, int64_t ns);

#endif
