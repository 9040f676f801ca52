/* Images of stacks: what is left of a stack that was taken from a fiber.
 *
 * The words of a stack are counted from its innermost end up to the header,
 * and on through the part of the room that is in use.  A word is kept as one
 * of three kinds, so that it means the same in another slot, and is mostly the
 * same for another fiber:
 *
 *   PLAIN     as it is
 *   OF_STACK  as a distance from the stack's header: it points into the slot
 *   OF_FIBER  as a distance from the fiber: it points into its object
 *
 * A word that only looks like an address in the slot is taken for one.  Which
 * code is on the stack is known (shapes.h): it has objects' addresses, counts
 * and flags there, no numbers of the user's.  A count or flag of less than a
 * word may stand beside the rest of an old address: then
 *
 *   32 bits   no slot has addresses with small lower halves: unix/map.c
 *   16 bits   are in the interpreter's frames, where the host clears the rest
 *             (may_pack); compiled code keeps others, too, but only across
 *             calls that cannot switch (CPython 3.11 to 3.14, by gcc)
 *   8 bits    slots' headers lie a multiple of 256 bytes apart: unix/layout.h
 *
 * The one exception are deadlines: on a machine that has been up for 39 hours,
 * a clock in nanoseconds shows what stacks have for addresses.  One that falls
 * into the millisecond that equals its own slot would be as far off as the
 * slots are apart: some milliseconds.
 */
#ifndef PF_IMAGES_H
#define PF_IMAGES_H

#include "engine/core/fiber.h"
#include "engine/core/shapes.h"

typedef struct pf_image pf_image;

typedef struct pf_pattern pf_pattern;

/* Followed by its values, then `kept` bytes of the host's.  What fibers have in
 * common is in the form.  Where they differ from it, and which of these places
 * have the same value (an object that several frames know), is nearly always
 * common, too: that is the pattern. */
struct pf_image {
    pf_pattern *pattern;
    uint32_t packed_at; /* the scheduler's count of switches */
    int32_t moves;      /* from the header: where `kept` belongs */
    uint16_t values;
    uint16_t kept;
    uint16_t store; /* pack.c's */
};

#define PF_MOST_WORDS 4096 /* of a stack that is packed: 32 KiB */

typedef struct pf_difference {
    uint16_t place : 14;
    uint16_t kind : 2;
    uint16_t value;
} pf_difference;
_Static_assert(PF_MOST_WORDS <= 1 << 14, "places have 14 bits");

/* The image that is being made. */
typedef struct pf_draft {
    uint16_t entry_count, value_count;
    pf_difference entries[PF_MOST_WORDS];
    uint64_t values[PF_MOST_WORDS];
} pf_draft;

/* Where the words of a stack are, and what makes them relative. */
typedef struct pf_span {
    const uint64_t *stack; /* from the innermost end */
    const uint64_t *room;
    uint32_t stack_words, room_words;
    uintptr_t header, low, high; /* of the slot */
    uintptr_t fiber;
    uint32_t hole, hole_end; /* words that move: not looked at */
} pf_span;

/* Of a suspended fiber; its room is in use up to `room_end`, and so many bytes
 * at `moves` are kept by the host. */
pf_span pf_span_of(const pf_fiber *fiber, const char *room_end,
                   const char *moves, uint16_t bytes);

/* NULL: it is too large, or there is no memory. */
pf_image *pf_image_new(pf_draft *draft, pf_shape *shape, const pf_span *span,
                       uint16_t kept);
/* Without what it shares. */
size_t pf_image_size(const pf_image *image);
char *pf_image_kept(pf_image *image);
/* Write it to the stack that the fiber goes on with: where its handle is. */
void *pf_image_expand(pf_image *image, pf_stack *stack, const pf_fiber *fiber);
void pf_image_free(pf_image *image);

/* All forms of a shape; those that images still need go with the last. */
void pf_forms_free(pf_shape *shape);

#endif
