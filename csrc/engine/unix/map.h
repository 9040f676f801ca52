/* Maps the address space for stacks, and finds out why the system has refused
 * it.  stack.c cuts the mappings into slots, guard.c guards them. */
#ifndef PF_MAP_H
#define PF_MAP_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/stack/stack.h"

/* Maps `bytes`, a multiple of the page size; munmap() returns them.  NULL if
 * the system refuses. */
char *pf_map_stacks(size_t bytes);
/* Maps the same bytes once more: their contents, guards and page tables are
 * gone afterwards.  False if the system refuses. */
bool pf_map_again(char *base, size_t bytes);

/* Which limit made mmap() fail for `wanted` bytes: ENOMEM has several reasons.
 * `split_guards` counts the guards of this process that split a mapping. */
pf_limit pf_map_diagnose(size_t wanted, size_t split_guards);

#endif
