/* Computes where guard, reserve, C stack, header and room lie in a slot.  A
 * drawing is in stack.h. */
#ifndef PF_LAYOUT_H
#define PF_LAYOUT_H

#include <stddef.h>

/* Successive slots place their header at PF_COLOURS different offsets in its
 * page, PF_COLOUR_STEP bytes apart.  At equal offsets all headers would
 * compete for the same cache lines. */
#define PF_COLOURS 4
#define PF_COLOUR_STEP 256

/* `unit` is a power of two, so acquiring a stack needs no division. */
static inline size_t
pf_layout_round_up(size_t n, size_t unit)
{
    return (n + unit - 1) & ~(unit - 1);
}

/* All sizes are in bytes. */

/* The distance from the first place of a header (colour 0) to the slot's
 * end. */
size_t pf_layout_tail_size(size_t room_size);
size_t pf_layout_reserve_size(size_t slot_size);
/* The distance from the start of a slot to the start of the next one. */
size_t pf_layout_stride(size_t slot_size);

#endif
