/* Where things lie in a slot of a slab; stack.h shows it. */
#ifndef PF_LAYOUT_H
#define PF_LAYOUT_H

#include <stddef.h>

/* Headers begin at different places in their pages, which would otherwise
 * compete for the same lines of the cache. */
#define PF_COLOURS 4
#define PF_COLOUR_STEP 256

/* `unit` is a power of two: no division on the way to a stack. */
static inline size_t
pf_layout_round_up(size_t n, size_t unit)
{
    return (n + unit - 1) & ~(unit - 1);
}

/* From the header of colour 0 to the slot's end. */
size_t pf_layout_tail_size(size_t room_size);
size_t pf_layout_reserve_size(size_t slot_size);
/* From slot to slot. */
size_t pf_layout_stride(size_t slot_size);

#endif
