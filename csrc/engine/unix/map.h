/* Address space for stacks. */
#ifndef PF_MAP_H
#define PF_MAP_H

#include <stdbool.h>
#include <stddef.h>

/* So many bytes, a multiple of the page size; back by munmap.  NULL: errno is
 * set. */
char *pf_map_stacks(size_t bytes);
/* The same at a place where stacks are mapped, which are lost. */
bool pf_map_again(char *base, size_t bytes);

#endif
