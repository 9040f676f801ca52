/* Hooks for the engine's own tests; hosts leave them alone. */
#ifndef PF_TESTING_H
#define PF_TESTING_H

#include "engine/stack/stack.h"

/* From now on guard every slot in this way; PF_GUARD_NONE: probe again for
 * what the system offers. */
void pf_stack_force_guard(pf_guard_kind kind);

/* How many slabs the pool holds now. */
size_t pf_stack_pool_slabs(const pf_stack_pool *pool);

/* POSIX: pretend that all the pool's events happened `ns` earlier. */
void pf_stack_pool_age(pf_stack_pool *pool, int64_t ns);

#endif
