/* See images.h. */
#include "engine/core/images.h"

#include "context/context.h"

#if PF_CONTEXT_MOVES

#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"

/* How far an address may lie from a fiber to belong to its object. */
#define FIBER_NEAR 512
/* A form is replaced once if the first images that use it differ too much: it
 * was made of a fiber that had just begun, say. */
#define WORN_AFTER 32
#define WORN_DIFFERENCES 8

typedef enum Kind { PLAIN, OF_STACK, OF_FIBER } Kind;

/* The words of one fiber, by which those of others are told.  Freed with its
 * shape, or with the last image of it if it was replaced. */
struct pf_form {
    pf_form *next;        /* of the same shape */
    pf_pattern *patterns; /* the ones used last, the last one first */
    uint32_t users;
    uint32_t differences; /* in the first images */
    uint16_t stack_words;
    uint16_t room_words;
    uint16_t tried;
    bool replaced; /* the shape has another one for these sizes */
    bool settled;
    uint64_t *words;
    uint8_t kinds[];
};

#define MOST_UNUSED_FORMS 64 /* of a shape, about */
#define MOST_PATTERNS 8      /* of a form, to choose from */

/* Of those that are no longer in their form's list each goes with its last
 * image, all others go with the form. */
struct pf_pattern {
    pf_form *form;
    pf_pattern *next;
    uint32_t users;
    uint16_t count;
    bool listed;
    pf_difference differences[];
};

/* ------------------------------------------------------------- the words */

static inline uint64_t
word_at(const pf_span *span, uint32_t i)
{
    if (i - span->hole < span->hole_end - span->hole) {
        return 0;
    }
    return i < span->stack_words ? span->stack[i]
                                 : span->room[i - span->stack_words];
}

static inline Kind
kind_of(const pf_span *span, uint64_t *word)
{
    uint64_t w = *word;
    if (w - span->low <= span->high - span->low) {
        *word = w - span->header;
        return OF_STACK;
    }
    if (w - (span->fiber - FIBER_NEAR) <= 2 * FIBER_NEAR) {
        *word = w - span->fiber;
        return OF_FIBER;
    }
    return PLAIN;
}

static inline uint64_t
word_of(Kind kind, uint64_t value, uintptr_t header, uintptr_t fiber)
{
    return kind == PLAIN ? value : value + (kind == OF_STACK ? header : fiber);
}

pf_span
pf_span_of(const pf_fiber *fiber, const char *room_end, const char *moves,
           uint16_t bytes)
{
    const pf_stack *stack = fiber->stack;
    const char *low = fiber->context.handle;
    pf_span span = {
        .stack = (const uint64_t *)(const void *)low,
        .room = (const uint64_t *)(const void *)stack->room,
        .stack_words = (uint32_t)((const char *)stack - low) / 8,
        .room_words = (uint32_t)(room_end - stack->room) / 8,
        .header = (uintptr_t)stack,
        .low = (uintptr_t)stack->area.low,
        .high = (uintptr_t)stack->room + stack->room_size,
        .fiber = (uintptr_t)fiber,
    };
    if (bytes != 0) {
        span.hole = (uint32_t)(moves - low) / 8;
        span.hole_end = span.hole + bytes / 8u;
    }
    return span;
}

/* --------------------------------------------------------------- the forms */

/* To the front of its shape's list. */
static void
list_form(pf_shape *shape, pf_form *form)
{
    form->next = shape->forms;
    shape->forms = form;
}

static pf_form *
find_form(pf_shape *shape, const pf_span *span)
{
    pf_form **link = &shape->forms;
    while (*link != NULL && (*link)->room_words != span->room_words) {
        link = &(*link)->next;
    }
    pf_form *form = *link;
    if (form != NULL && form != shape->forms) {
        *link = form->next;
        list_form(shape, form);
    }
    return form;
}

static pf_form *
new_form(pf_shape *shape, const pf_span *span)
{
    uint32_t count = span->stack_words + span->room_words;
    pf_form *form = pf_malloc(sizeof *form + count);
    uint64_t *words = pf_malloc(count * sizeof *words);
    if (form == NULL || words == NULL) {
        free(form);
        free(words);
        return NULL;
    }
    *form = (pf_form){
        .stack_words = (uint16_t)span->stack_words,
        .room_words = (uint16_t)span->room_words,
        .words = words,
    };
    for (uint32_t i = 0; i < count; i++) {
        words[i] = word_at(span, i);
        form->kinds[i] = (uint8_t)kind_of(span, &words[i]);
    }
    list_form(shape, form);
    shape->form_count++;
    return form;
}

static void
free_form(pf_form *form)
{
    while (form->patterns != NULL) {
        pf_pattern *pattern = form->patterns;
        form->patterns = pattern->next;
        free(pattern);
    }
    free(form->words);
    free(form);
}

static void
unuse_form(pf_form *form)
{
    if (--form->users == 0 && form->replaced) {
        free_form(form);
    }
}

/* Out of its shape's list; images may still need it. */
static void
unlist_form(pf_shape *shape, pf_form **link)
{
    pf_form *form = *link;
    *link = form->next;
    shape->form_count--;
    form->replaced = true;
    if (form->users == 0) {
        free_form(form);
    }
}

static void
replace_form(pf_shape *shape, pf_form *form, const pf_span *span)
{
    pf_form *better = new_form(shape, span);
    if (better == NULL) {
        return;
    }
    better->settled = true;
    pf_form **link = &shape->forms;
    while (*link != form) {
        link = &(*link)->next;
    }
    unlist_form(shape, link);
}

/* A program may wait at the same place in any number of ways, in a recursion,
 * say: then there are not many more forms than packed fibers. */
static void
drop_unused_forms(pf_shape *shape)
{
    pf_form **link = &shape->forms;
    while (*link != NULL) {
        if ((*link)->users == 0) {
            unlist_form(shape, link);
        } else {
            link = &(*link)->next;
        }
    }
    shape->used_forms = 2 * shape->form_count;
}

/* The form for such a stack; one that does not serve is replaced. */
static pf_form *
form_for(pf_shape *shape, const pf_span *span)
{
    pf_form *form = find_form(shape, span);
    if (form == NULL) {
        if (shape->form_count > shape->used_forms + MOST_UNUSED_FORMS) {
            drop_unused_forms(shape);
        }
        return new_form(shape, span);
    }
    if (!form->settled && form->tried == WORN_AFTER) {
        form->settled = true;
        if (form->differences > WORN_AFTER * WORN_DIFFERENCES) {
            replace_form(shape, form, span);
            form = find_form(shape, span);
        }
    }
    return form;
}

/* --------------------------------------------------------- the differences */

static void
add_entry(pf_draft *draft, uint32_t place, Kind kind, uint64_t value)
{
    uint16_t v = draft->value_count;
    uint16_t oldest = v > 24 ? v - 24 : 0;
    while (v > oldest && draft->values[v - 1] != value) {
        v--;
    }
    if (v == oldest) {
        v = ++draft->value_count;
        draft->values[v - 1] = value;
    }
    draft->entries[draft->entry_count++] = (pf_difference){
        .place = (uint16_t)(place & 0x3FFF),
        .kind = kind & 3,
        .value = v - 1,
    };
}

static void
compare(pf_draft *draft, const pf_span *span, const pf_form *form)
{
    uint32_t count = span->stack_words + span->room_words;
    draft->entry_count = draft->value_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t word = word_at(span, i);
        Kind kind = kind_of(span, &word);
        if (word != form->words[i] || kind != (Kind)form->kinds[i]) {
            add_entry(draft, i, kind, word);
        }
    }
}

/* ------------------------------------------------------------ the patterns */

static inline bool
is_like(const pf_pattern *pattern, const pf_draft *draft)
{
    return pattern->count == draft->entry_count &&
           memcmp(pattern->differences, draft->entries,
                  draft->entry_count * sizeof(pf_difference)) == 0;
}

static void
list_pattern(pf_form *form, pf_pattern *pattern)
{
    pattern->next = form->patterns;
    pattern->listed = true;
    form->patterns = pattern;
}

/* Out of the list, of which it is the last; images may still need it. */
static void
unlist_pattern(pf_pattern **link)
{
    pf_pattern *pattern = *link;
    *link = NULL;
    pattern->listed = false;
    if (pattern->users == 0) {
        free(pattern);
    }
}

static pf_pattern *
new_pattern(pf_form *form, const pf_draft *draft)
{
    size_t bytes = draft->entry_count * sizeof(pf_difference);
    pf_pattern *pattern = pf_malloc(sizeof *pattern + bytes);
    if (pattern != NULL) {
        *pattern = (pf_pattern){.form = form, .count = draft->entry_count};
        memcpy(pattern->differences, draft->entries, bytes);
        list_pattern(form, pattern);
    }
    return pattern;
}

/* The draft's, which comes to the front. */
static pf_pattern *
pattern_for(pf_form *form, const pf_draft *draft)
{
    pf_pattern **link = &form->patterns;
    for (int i = 0; *link != NULL; i++) {
        pf_pattern *pattern = *link;
        if (is_like(pattern, draft)) {
            *link = pattern->next;
            list_pattern(form, pattern);
            return pattern;
        }
        if (i == MOST_PATTERNS - 1) {
            unlist_pattern(link);
            break;
        }
        link = &pattern->next;
    }
    return new_pattern(form, draft);
}

static void
unuse_pattern(pf_pattern *pattern)
{
    if (--pattern->users == 0 && !pattern->listed) {
        free(pattern);
    }
}

/* -------------------------------------------------------------- the images */

static inline uint64_t *
values_of(pf_image *image)
{
    return (uint64_t *)(void *)(image + 1);
}

char *
pf_image_kept(pf_image *image)
{
    return (char *)(values_of(image) + image->values);
}

size_t
pf_image_size(const pf_image *image)
{
    return sizeof *image + image->values * sizeof(uint64_t) + image->kept;
}

static pf_image *
make_image(const pf_draft *draft, pf_form *form, uint16_t kept)
{
    pf_pattern *pattern = pattern_for(form, draft);
    if (pattern == NULL) {
        return NULL;
    }
    pf_image head = {
        .pattern = pattern,
        .values = draft->value_count,
        .kept = kept,
    };
    pf_image *image = pf_malloc(pf_image_size(&head));
    if (image != NULL) {
        *image = head;
        memcpy(values_of(image), draft->values,
               head.values * sizeof(uint64_t));
        pattern->users++;
        form->users++;
    }
    return image;
}

pf_image *
pf_image_new(pf_draft *draft, pf_shape *shape, const pf_span *span,
             uint16_t kept)
{
    if (span->stack_words + span->room_words > PF_MOST_WORDS) {
        return NULL;
    }
    pf_form *form = form_for(shape, span);
    if (form == NULL) {
        return NULL;
    }
    compare(draft, span, form);
    pf_image *image = make_image(draft, form, kept);
    if (image != NULL && form->tried < WORN_AFTER) {
        form->tried++;
        form->differences += draft->entry_count;
    }
    return image;
}

void
pf_image_free(pf_image *image)
{
    pf_form *form = image->pattern->form;
    unuse_pattern(image->pattern);
    unuse_form(form);
    free(image);
}

/* Only the C stack and the room's bytes in use: the header is the slot's. */
void *
pf_image_expand(pf_image *image, pf_stack *stack, const pf_fiber *fiber)
{
    const pf_pattern *pattern = image->pattern;
    const pf_form *form = pattern->form;
    uintptr_t header = (uintptr_t)stack;
    uint64_t *words = (uint64_t *)(void *)stack - form->stack_words;
    uint64_t *room = (uint64_t *)(void *)stack->room;
    for (uint32_t i = 0; i < form->stack_words; i++) {
        words[i] = word_of((Kind)form->kinds[i], form->words[i], header,
                           (uintptr_t)fiber);
    }
    for (uint32_t i = 0; i < form->room_words; i++) {
        uint32_t at = form->stack_words + i;
        room[i] = word_of((Kind)form->kinds[at], form->words[at], header,
                          (uintptr_t)fiber);
    }
    const uint64_t *values = values_of(image);
    for (uint32_t i = 0; i < pattern->count; i++) {
        pf_difference e = pattern->differences[i];
        uint64_t word =
            word_of((Kind)e.kind, values[e.value], header, (uintptr_t)fiber);
        if (e.place < form->stack_words) {
            words[e.place] = word;
        } else {
            room[e.place - form->stack_words] = word;
        }
    }
    return words;
}

void
pf_forms_free(pf_shape *shape)
{
    while (shape->forms != NULL) {
        unlist_form(shape, &shape->forms);
    }
}

#endif
