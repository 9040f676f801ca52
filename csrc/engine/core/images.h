/* Images: the bytes of a fiber's stack while another fiber uses the slot.
 *
 * An image is either whole, a copy of the bytes, or small: then it holds only
 * the words that differ from a form, a template made from the stack of an
 * earlier fiber.  Each word has one of three kinds, so that one form serves
 * all slots and fibers:
 *
 *   PLAIN     stored as it is
 *   OF_STACK  stored as a distance from the stack's header
 *   OF_FIBER  stored as a distance from the fiber
 *
 * The kinds say nothing about what a word means.  An image is only ever
 * expanded for the same header and the same fiber, and there each word comes
 * back as it was, whatever kind it was given: the kinds and the choice of the
 * form decide how many bytes an image takes, and nothing else.
 */
#ifndef PF_IMAGES_H
#define PF_IMAGES_H

#include "engine/core/fiber.h"

typedef struct pf_image pf_image;
typedef struct pf_form pf_form;
typedef struct pf_pattern pf_pattern;

/* An image.  A small one is followed by its values.  The pattern says which
 * words differ from the form, and which of these have the same value (a
 * pointer that several frames have to one object, for instance); many fibers
 * have a pattern in common. */
struct pf_image {
    pf_pattern *pattern; /* NULL: the image is whole */
    uint32_t packed_at;  /* the scheduler's count of switches then */
    uint16_t values;     /* how many follow */
    uint16_t store;      /* index into pf_packer.stores */
};

/* A whole image: the bytes of a stack from the lowest one in use up to the
 * last one of its room that is in use, with a gap for the slot's header. */
typedef struct pf_whole {
    pf_image image;
    void *handle;    /* of the fiber's context */
    size_t below;    /* bytes below the header */
    size_t above;    /* bytes from the header on */
    size_t capacity; /* for below + above */
    char *base;      /* address of the first byte */
    uint32_t opened; /* bytes of the reserve that were open */
} pf_whole;

#define PF_FORM_BUCKETS 64
#define PF_MOST_WORDS 4096 /* of a stack with a small image: 32 KiB */

/* One entry of a pattern: the word at `place` is the image's value number
 * `value`, which has this kind. */
typedef struct pf_difference {
    uint16_t place : 14;
    uint16_t kind : 2;
    uint16_t value;
} pf_difference;
_Static_assert(PF_MOST_WORDS <= 1 << 14, "places have 14 bits");

/* The differences of the small image that is being made. */
typedef struct pf_draft {
    uint32_t entry_count, value_count;
    pf_difference entries[PF_MOST_WORDS];
    uint64_t values[PF_MOST_WORDS];
} pf_draft;

/* A thread's forms. */
typedef struct pf_forms {
    pf_form *buckets[PF_FORM_BUCKETS];
    pf_draft *draft; /* NULL: not needed so far */
    uint32_t count;
    uint32_t used; /* twice the number in use when unused ones were dropped */
} pf_forms;

/* The part of a suspended fiber's stack that is in use. */
typedef struct pf_span {
    char *low;      /* the lowest byte, a multiple of 8 */
    char *room_end; /* after the last byte, a multiple of 8 */
} pf_span;

/* Make a small image of a fiber's stack.  NULL: the stack is too large, or
 * there is no memory. */
pf_image *pf_image_small(pf_forms *forms, const pf_fiber *fiber,
                         const pf_span *span);
/* Make an empty whole image for up to `bytes` bytes; NULL: no memory. */
pf_whole *pf_whole_new(size_t bytes);
/* Copy the bytes of a fiber's stack into a whole image. */
void pf_whole_fill(pf_whole *whole, const pf_fiber *fiber,
                   const pf_span *span);
static inline size_t
pf_span_bytes(const pf_span *span)
{
    return (size_t)(span->room_end - span->low);
}
/* Return the bytes that a small image's stack takes in a whole image. */
size_t pf_image_small_bytes(const pf_image *small);
#define PF_MOST_SMALL_BYTES (PF_MOST_WORDS * 8 + PF_STACK_LEAD)
/* Write the stack of a small image into a whole one, which must have room. */
void pf_whole_expand(pf_whole *whole, const pf_fiber *fiber,
                     const pf_image *small);

static inline pf_whole *
pf_image_whole(pf_image *image)
{
    return image->pattern == NULL ? (pf_whole *)(void *)image : NULL;
}

/* Return how far the bytes are from their place at home. */
static inline ptrdiff_t
pf_whole_distance(const pf_whole *whole, const pf_stack *home)
{
    return whole->base + whole->below - (const char *)home;
}

/* Write all bytes back to the fiber's stack, and set its context's handle. */
void pf_image_restore(pf_image *image, pf_fiber *fiber);
/* Return the bytes that the image takes, without its form and pattern. */
size_t pf_image_size(pf_image *image);
void pf_image_free(pf_image *image);
/* Overwrite a stack that has been packed, in PYFIBER_HARDTEST builds, so that
 * code which reads it nevertheless fails. */
void pf_image_poison(const pf_fiber *fiber, const pf_span *span);
/* Free all forms; one that images use is freed with the last of these. */
void pf_forms_free(pf_forms *forms);

#endif
