/* Address space for stacks. */
#ifndef PF_MAP_H
#define PF_MAP_H

#include <stddef.h>

/* So many bytes, a multiple of the page size, not near a multiple of 2^32 (see
 * map.c); back by munmap.  NULL: errno is set. */
char *pf_map_stacks(size_t bytes);
/* How much address space that may take while it looks for a place. */
size_t pf_map_needs(size_t bytes);

#endif
