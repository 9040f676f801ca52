/* Hooks for the engine's own tests; hosts do not use them. */
#ifndef PF_TESTING_H
#define PF_TESTING_H

#include "engine/stack/stack.h"

/* Guard every slot in this way from now on; PF_GUARD_NONE: probe again which
 * way the system offers. */
void pf_stack_force_guard(pf_guard_kind kind);

/* Returns how many slabs the pool holds now. */
size_t pf_stack_pool_slabs(const pf_stack_pool *pool);

/* POSIX only: pretend that all the pool's events happened `ns` nanoseconds
 * earlier. */
void pf_stack_pool_age(pf_stack_pool *pool, int64_t ns);

#endif
