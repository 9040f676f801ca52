/* See shapes.h. */
#include "engine/core/shapes.h"

#include "context/context.h"

#if PF_CONTEXT_MOVES

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"

/* What is not learned at once is tried ever more rarely, until something new
 * is learned: a program may be full of stacks that cannot be moved. */
#define MOST_PATIENCE 1024
/* Known ones that are met on the way to one that is not. */
#define MOST_TRIES 16

#define MOST_ALLOWED 512
static void *allowed[MOST_ALLOWED]; /* constant after import */
static unsigned allowed_count;

int
pf_shapes_allow(void *function)
{
    if (pf_shapes_allowed(function)) {
        return 0;
    }
    if (allowed_count == MOST_ALLOWED) {
        return -ENOMEM;
    }
    allowed[allowed_count++] = function;
    return 0;
}

bool
pf_shapes_allowed(void *function)
{
    for (unsigned i = 0; i < allowed_count; i++) {
        if (allowed[i] == function) {
            return true;
        }
    }
    return false;
}

void
pf_shapes_init(pf_shapes *shapes)
{
    memset(shapes, 0, sizeof *shapes);
}

void
pf_shapes_finish(pf_shapes *shapes, void (*forget)(pf_shape *shape))
{
    for (unsigned i = 0; i < PF_SHAPE_BUCKETS; i++) {
        pf_shape *shape = shapes->buckets[i];
        while (shape != NULL) {
            pf_shape *next = shape->next;
            forget(shape);
            free(shape);
            shape = next;
        }
    }
}

static inline uint32_t
depth_of(const pf_fiber *fiber)
{
    ptrdiff_t bytes = (char *)fiber->stack - (char *)fiber->context.handle;
    return (uint32_t)((size_t)bytes / sizeof(uintptr_t));
}

static inline const uintptr_t *
words_of(const pf_fiber *fiber)
{
    return fiber->context.handle;
}

static inline unsigned
bucket_of(uint32_t depth, uintptr_t innermost)
{
    return (unsigned)((depth ^ innermost ^ innermost >> 8) % PF_SHAPE_BUCKETS);
}

static bool
matches(const pf_shape *shape, const uintptr_t *words)
{
    for (uint32_t i = 0; i < shape->count; i++) {
        if (words[shape->calls[i].place] != shape->calls[i].word) {
            return false;
        }
    }
    return true;
}

pf_shape *
pf_shapes_find(const pf_shapes *shapes, const pf_fiber *fiber)
{
    const uintptr_t *words = words_of(fiber);
    uint32_t depth = depth_of(fiber);
    uintptr_t innermost = words[PF_CONTEXT_RETURN / sizeof *words];
    pf_shape *shape = shapes->buckets[bucket_of(depth, innermost)];
    while (shape != NULL &&
           (shape->depth != depth || !matches(shape, words))) {
        shape = shape->next;
    }
    return shape;
}

bool
pf_shapes_miss(pf_shapes *shapes)
{
    if (shapes->tries > 0) {
        return true;
    }
    if (shapes->count == PF_MOST_SHAPES ||
        ++shapes->unknown <= shapes->patience) {
        return false;
    }
    shapes->unknown = 0;
    shapes->tries = MOST_TRIES;
    return true;
}

/* -------------------------------------------------------------- learning */

static bool
is_harmless(uintptr_t back)
{
    if (pf_calls_own(back)) {
        return true;
    }
    void *function = pf_calls_function(back);
    return function != NULL && pf_shapes_allowed(function);
}

/* Where a return address is kept.  On x86-64 right below the caller's frame;
 * elsewhere somewhere in the called function's own: then every word that
 * equals it belongs to the shape. */
static uint32_t
add_places(pf_shape *shape, const uintptr_t *words, const pf_one_call *call,
           const char *from, uint32_t most)
{
    const uintptr_t *end = (const uintptr_t *)(const void *)call->frame;
    const uintptr_t *w = (const uintptr_t *)(const void *)from;
#if defined(__x86_64__)
    w = end - 1;
#endif
    uint32_t found = 0;
    for (; w < end; w++) {
        if (*w == call->back) {
            found++;
            if (shape->count < most) {
                shape->calls[shape->count].word = *w;
                shape->calls[shape->count++].place = (uint32_t)(w - words);
            }
        }
    }
    return found;
}

/* The calls were read by `fiber` just before it was left; those that have
 * returned since lie below what is its innermost frame now.  NULL: it must not
 * be moved. */
static pf_shape *
shape_of(const pf_calls *calls, const pf_fiber *fiber)
{
    const uintptr_t *words = words_of(fiber);
    const char *handle = fiber->context.handle;
    const char *from = handle + PF_CONTEXT_FRAME;
    uint32_t most = 2 * PF_MOST_CALLS;
    pf_shape *shape = pf_malloc(sizeof *shape + most * sizeof shape->calls[0]);
    if (shape == NULL) {
        return NULL;
    }
    *shape = (pf_shape){.depth = depth_of(fiber), .count = 1};
    shape->calls[0].place = PF_CONTEXT_RETURN / sizeof *words;
    shape->calls[0].word = words[shape->calls[0].place];
    bool good = is_harmless(shape->calls[0].word);
    const char *top = pf_context_top(&fiber->stack->area);
    const char *last = NULL;
    for (unsigned i = 0; good && i < calls->count; i++) {
        const pf_one_call *call = &calls->calls[i];
        if (call->frame <= from) {
            continue;
        }
        last = call->frame;
        good = call->frame <= top && is_harmless(call->back) &&
               add_places(shape, words, call, from, most) > 0;
        from = call->frame;
    }
    if (!good || last != top || shape->count >= most) {
        free(shape);
        return NULL;
    }
    pf_shape *exact = pf_realloc(
        shape, sizeof *shape + shape->count * sizeof shape->calls[0]);
    return exact != NULL ? exact : shape;
}

static void
give_up(pf_shapes *shapes)
{
    uint32_t longer = 2 * shapes->patience + 1;
    shapes->patience = longer < MOST_PATIENCE ? longer : MOST_PATIENCE;
    shapes->tries = 0;
}

static void
learn(pf_shapes *shapes, const pf_fiber *fiber)
{
    if (pf_shapes_find(shapes, fiber) != NULL) {
        if (shapes->tries == 0) {
            give_up(shapes);
        }
        return;
    }
    pf_shape *shape = shape_of(&shapes->calls, fiber);
    if (shape == NULL) {
        give_up(shapes);
        return;
    }
    pf_shape **bucket =
        &shapes->buckets[bucket_of(shape->depth, shape->calls[0].word)];
    shape->next = *bucket;
    *bucket = shape;
    shapes->count++;
    shapes->tries = 0;
    shapes->patience = 0;
}

static bool
is_being_left(const pf_fiber *fiber)
{
    return fiber->stack != NULL &&
           (fiber->task.state == PF_PARKED || fiber->task.state == PF_READY);
}

bool
pf_shapes_look(pf_shapes *shapes, const pf_fiber *running, uint64_t switches)
{
    const pf_fiber *left = shapes->read;
    shapes->read = NULL;
    /* It is where it was left, if it was left at all.  (At most one fiber has
     * been chosen since: not this one, which would have looked itself.) */
    if (left != NULL && left != running && is_being_left(left) &&
        switches - shapes->read_at <= 1) {
        learn(shapes, left);
    }
    if (shapes->tries > 0 && is_being_left(running)) {
        shapes->tries--;
        pf_calls_read(&shapes->calls, NULL);
        if (shapes->calls.whole) {
            shapes->read = running;
            shapes->read_at = switches;
        } else {
            give_up(shapes);
        }
    }
    return shapes->tries > 0 || shapes->read != NULL;
}

#endif
