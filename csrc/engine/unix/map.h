/* Address space for stacks, and why the system has refused it. */
#ifndef PF_MAP_H
#define PF_MAP_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/stack/stack.h"

/* So many bytes, a multiple of the page size; back by munmap.  NULL: errno is
 * set. */
char *pf_map_stacks(size_t bytes);
/* The same at a place where stacks are mapped, which are lost. */
bool pf_map_again(char *base, size_t bytes);

/* mmap reports ENOMEM for several reasons: which one was it, for `wanted`
 * bytes in a process with so many guards that split a mapping? */
pf_limit pf_map_diagnose(size_t wanted, size_t split_guards);

#endif
