/* Images of stacks: what is kept of a stack whose slot another fiber uses.
 *
 * An image is either whole, a copy of the bytes, or small: then it holds only
 * what differs from a form, the stack of an earlier fiber.  A word of a form
 * is kept as one of three kinds, so that one form serves all slots and fibers:
 *
 *   PLAIN     as it is
 *   OF_STACK  as a distance from the stack's header
 *   OF_FIBER  as a distance from the fiber
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

/* Of a small one its values follow.  Which words differ from the form, and
 * which of these have the same value (an object that several frames know), is
 * mostly common to many fibers, too: that is the pattern. */
struct pf_image {
    pf_pattern *pattern; /* NULL: it is whole */
    uint32_t packed_at;  /* the scheduler's count of switches */
    uint16_t values;
    uint16_t store; /* pack.c's */
};

/* The bytes of a stack from the lowest one in use up to the last one of its
 * room that is; in the middle there is place for the slot's header. */
typedef struct pf_whole {
    pf_image image;
    void *handle;    /* of the fiber's context */
    size_t below;    /* bytes below the header */
    size_t above;    /* bytes from the header on */
    size_t capacity; /* for bytes */
    char *base;      /* where the first byte is */
    uint32_t opened; /* so many bytes of the reserve were open */
} pf_whole;

#define PF_FORM_BUCKETS 64
#define PF_MOST_WORDS 4096 /* of a stack with a small image: 32 KiB */

typedef struct pf_difference {
    uint16_t place : 14;
    uint16_t kind : 2;
    uint16_t value;
} pf_difference;
_Static_assert(PF_MOST_WORDS <= 1 << 14, "places have 14 bits");

/* The small image that is being made. */
typedef struct pf_draft {
    uint32_t entry_count, value_count;
    pf_difference entries[PF_MOST_WORDS];
    uint64_t values[PF_MOST_WORDS];
} pf_draft;

/* A thread's forms. */
typedef struct pf_forms {
    pf_form *buckets[PF_FORM_BUCKETS];
    pf_draft *draft; /* NULL: none was made yet */
    uint32_t count;
    uint32_t used; /* twice as many as were in use not long ago */
} pf_forms;

/* What is in use of the stack of a suspended fiber. */
typedef struct pf_span {
    char *low;      /* the lowest byte, a multiple of 8 */
    char *room_end; /* after the last one, a multiple of 8 */
} pf_span;

/* NULL: it is too large, or there is no memory. */
pf_image *pf_image_small(pf_forms *forms, const pf_fiber *fiber,
                         const pf_span *span);
/* For so many bytes; NULL: no memory. */
pf_whole *pf_whole_new(size_t bytes);
void pf_whole_fill(pf_whole *whole, const pf_fiber *fiber,
                   const pf_span *span);
static inline size_t
pf_span_bytes(const pf_span *span)
{
    return (size_t)(span->room_end - span->low);
}
/* What a small one takes as a whole one, and to write it to one that has been
 * made for at least so many bytes. */
size_t pf_image_small_bytes(const pf_image *small);
#define PF_MOST_SMALL_BYTES (PF_MOST_WORDS * 8 + PF_STACK_LEAD)
void pf_whole_expand(pf_whole *whole, const pf_fiber *fiber,
                     const pf_image *small);

static inline pf_whole *
pf_image_whole(pf_image *image)
{
    return image->pattern == NULL ? (pf_whole *)(void *)image : NULL;
}

/* How far the bytes are from where they belong. */
static inline ptrdiff_t
pf_whole_distance(const pf_whole *whole, const pf_stack *home)
{
    return whole->base + whole->below - (const char *)home;
}

/* Write everything back to the fiber's stack, and set its context's handle. */
void pf_image_restore(pf_image *image, pf_fiber *fiber);
size_t pf_image_size(pf_image *image); /* without what it shares */
void pf_image_free(pf_image *image);
/* What still reads a stack of which there is an image shall notice. */
void pf_image_poison(const pf_fiber *fiber, const pf_span *span);
/* Forms that images still need go with the last of these. */
void pf_forms_free(pf_forms *forms);

#endif
