/* Makes images of stacks and restores them; see images.h.  pack.c decides
 * when.
 */
#include "engine/core/images.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "context/context.h"
#include "engine/base/memory.h"

/* An address at most this many bytes from a fiber is OF_FIBER. */
#define FIBER_NEAR 512
/* A stack that differs from every form of its size in more words than this
 * becomes a new form, up to MOST_ALIKE forms of the same size.  After that the
 * best of them is used.  As many differences as it has then are few for it from
 * then on, up to a quarter of the words: fibers that wait in the same way
 * mostly come one after the other, and to compare one with all forms takes
 * microseconds. */
#define FEW_DIFFERENCES(words) (12 + (words) / 32)
#define MOST_ALIKE 8
#define MOST_UNUSED_FORMS 64 /* about */
#define MOST_PATTERNS 8      /* in the list of a form */

typedef enum Kind { PLAIN, OF_STACK, OF_FIBER, KINDS } Kind;

/* A form: the words of one fiber's stack, with which those of other fibers are
 * compared.  Freed when it is in no bucket and no image uses it. */
struct pf_form {
    pf_form *next;        /* in its bucket, the most recently used first */
    pf_pattern *patterns; /* the most recently used first */
    uint32_t users;       /* images */
    uint16_t stack_words;
    uint16_t room_words;
    uint16_t few; /* a stack with so many differences is taken at once */
    bool listed;
    uint16_t relative_count;
    uint16_t *relative; /* places of the words that are not PLAIN */
    uint64_t *words;
    uint8_t kinds[];
};

/* A pattern.  One that is in its form's list is freed with the form; one that
 * has been removed from the list is freed with its last image. */
struct pf_pattern {
    pf_form *form;
    pf_pattern *next;
    uint32_t users; /* images */
    uint16_t count;
    bool listed;
    pf_difference differences[];
};

/* --------------------------------------------------------------- the words */

/* The address to add to a value of each kind. */
typedef struct Bases {
    uint64_t of[KINDS];
} Bases;

static inline Bases
bases_of(const pf_fiber *fiber)
{
    return (Bases){{0, (uintptr_t)fiber->stack, (uintptr_t)fiber}};
}

/* The words of a stack in its slot. */
typedef struct Words {
    const uint64_t *stack; /* from the innermost end */
    const uint64_t *room;
    uint32_t stack_count, room_count;
    uint64_t low, size; /* of the slot */
    Bases bases;
} Words;

static Words
words_of(const pf_fiber *fiber, const pf_span *span)
{
    const pf_stack *stack = fiber->stack;
    char *end = stack->room + stack->room_size;
    return (Words){
        .stack = (const uint64_t *)(const void *)span->low,
        .room = (const uint64_t *)(const void *)stack->room,
        .stack_count = (uint32_t)((const char *)stack - span->low) / 8,
        .room_count = (uint32_t)(span->room_end - stack->room) / 8,
        .low = (uintptr_t)stack->area.low,
        .size = (size_t)(end - stack->area.low),
        .bases = bases_of(fiber),
    };
}

static inline Kind
kind_of(const Words *words, uint64_t word)
{
    if (word - words->low <= words->size) {
        return OF_STACK;
    }
    uint64_t near = words->bases.of[OF_FIBER] - FIBER_NEAR;
    return word - near <= 2 * FIBER_NEAR ? OF_FIBER : PLAIN;
}

/* --------------------------------------------------------------- the forms */

static pf_form **
bucket_of(pf_forms *forms, const Words *words)
{
    uint32_t key = words->stack_count * 7 + words->room_count;
    return &forms->buckets[key % PF_FORM_BUCKETS];
}

static void
fill(pf_form *form, const Words *words, const uint64_t *from, uint32_t count,
     uint32_t at)
{
    for (uint32_t i = 0; i < count; i++) {
        Kind kind = kind_of(words, from[i]);
        form->kinds[at + i] = (uint8_t)kind;
        form->words[at + i] = from[i] - words->bases.of[kind];
        if (kind != PLAIN) {
            form->relative[form->relative_count++] = (uint16_t)(at + i);
        }
    }
}

static void
list_form(pf_form **bucket, pf_form *form)
{
    form->next = *bucket;
    *bucket = form;
}

static pf_form *
new_form(pf_forms *forms, const Words *words)
{
    uint32_t count = words->stack_count + words->room_count;
    pf_form *form = pf_memory_malloc(sizeof *form + count);
    size_t most = count * (sizeof(uint64_t) + sizeof(uint16_t));
    uint64_t *copy = pf_memory_malloc(most);
    if (form == NULL || copy == NULL) {
        free(form);
        free(copy);
        return NULL;
    }
    *form = (pf_form){
        .stack_words = (uint16_t)words->stack_count,
        .room_words = (uint16_t)words->room_count,
        .few = (uint16_t)FEW_DIFFERENCES(count),
        .listed = true,
        .words = copy,
        .relative = (uint16_t *)(void *)(copy + count),
    };
    fill(form, words, words->stack, words->stack_count, 0);
    fill(form, words, words->room, words->room_count, words->stack_count);
    list_form(bucket_of(forms, words), form);
    forms->count++;
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
unlist_form(pf_forms *forms, pf_form **link)
{
    pf_form *form = *link;
    *link = form->next;
    forms->count--;
    form->listed = false;
    if (form->users == 0) {
        free_form(form);
    }
}

static void
unuse_form(pf_form *form)
{
    if (--form->users == 0 && !form->listed) {
        free_form(form);
    }
}

/* Frees the forms that no image uses.  A program may wait in any number of
 * ways, in a recursion, say; so there are never many more forms than images.
 */
static void
drop_unused_forms(pf_forms *forms)
{
    for (int i = 0; i < PF_FORM_BUCKETS; i++) {
        pf_form **link = &forms->buckets[i];
        while (*link != NULL) {
            if ((*link)->users == 0) {
                unlist_form(forms, link);
            } else {
                link = &(*link)->next;
            }
        }
    }
    forms->used = 2 * forms->count;
}

/* --------------------------------------------------------- the differences */

static void
add_entry(pf_draft *draft, const Words *words, uint32_t place, uint64_t word)
{
    Kind kind = kind_of(words, word);
    uint64_t value = word - words->bases.of[kind];
    uint32_t v = draft->value_count;
    uint32_t oldest = v > 24 ? v - 24 : 0;
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
        .value = (uint16_t)(v - 1),
    };
}

/* Adds the differences between `count` words and the form's words from `at` on
 * to the draft.  False: there are more than `most` differences. */
static bool
compare_part(pf_draft *draft, const Words *words, const pf_form *form,
             const uint64_t *from, uint32_t count, uint32_t at, uint32_t most)
{
    const uint64_t *expected = form->words + at;
    const uint8_t *kinds = form->kinds + at;
    for (uint32_t i = 0; i < count; i++) {
        if (from[i] != expected[i] + words->bases.of[kinds[i]]) {
            if (draft->entry_count == most) {
                return false;
            }
            add_entry(draft, words, at + i, from[i]);
        }
    }
    return true;
}

static bool
compare(pf_draft *draft, const Words *words, const pf_form *form,
        uint32_t most)
{
    draft->entry_count = draft->value_count = 0;
    return compare_part(draft, words, form, words->stack, words->stack_count,
                        0, most) &&
           compare_part(draft, words, form, words->room, words->room_count,
                        words->stack_count, most);
}

static bool
has_size(const pf_form *form, const Words *words)
{
    return form->stack_words == words->stack_count &&
           form->room_words == words->room_count;
}

/* Returns the form of this size with the fewest differences, which are in the
 * draft then. */
static pf_form *
best_form(pf_forms *forms, const Words *words)
{
    pf_form *best = NULL;
    uint32_t whole = words->stack_count + words->room_count, most = whole;
    for (pf_form *f = *bucket_of(forms, words); f != NULL; f = f->next) {
        if (has_size(f, words) && compare(forms->draft, words, f, most)) {
            best = f;
            most = forms->draft->entry_count;
        }
    }
    if (best != NULL) {
        (void)compare(forms->draft, words, best, most);
        if (most > best->few && most <= whole / 4) {
            best->few = (uint16_t)most;
        }
    }
    return best;
}

/* Returns a form for this stack, and sets the draft to the differences.  NULL:
 * no memory. */
static pf_form *
choose_form(pf_forms *forms, const Words *words)
{
    uint32_t alike = 0;
    pf_form **bucket = bucket_of(forms, words);
    for (pf_form **link = bucket; *link != NULL; link = &(*link)->next) {
        pf_form *form = *link;
        if (!has_size(form, words)) {
            continue;
        }
        if (compare(forms->draft, words, form, form->few)) {
            *link = form->next;
            list_form(bucket, form);
            return form;
        }
        alike++;
    }
    if (alike >= MOST_ALIKE) {
        return best_form(forms, words);
    }
    if (forms->count > forms->used + MOST_UNUSED_FORMS) {
        drop_unused_forms(forms);
    }
    forms->draft->entry_count = forms->draft->value_count = 0;
    return new_form(forms, words);
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

/* Removes the last pattern of a list; images may still use it. */
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
    pf_pattern *pattern = pf_memory_malloc(sizeof *pattern + bytes);
    if (pattern != NULL) {
        *pattern =
            (pf_pattern){.form = form, .count = (uint16_t)draft->entry_count};
        memcpy(pattern->differences, draft->entries, bytes);
        list_pattern(form, pattern);
    }
    return pattern;
}

/* Returns the pattern for the draft, which moves to the front of the form's
 * list.  NULL: no memory. */
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

/* -------------------------------------------------------------- small images
 */

static inline uint64_t *
values_of(const pf_image *image)
{
    return (uint64_t *)(uintptr_t)(image + 1);
}

static pf_image *
make_small(const pf_draft *draft, pf_form *form)
{
    pf_pattern *pattern = pattern_for(form, draft);
    if (pattern == NULL) {
        return NULL;
    }
    size_t bytes = draft->value_count * sizeof(uint64_t);
    pf_image *image = pf_memory_malloc(sizeof *image + bytes);
    if (image != NULL) {
        *image = (pf_image){
            .pattern = pattern,
            .values = (uint16_t)draft->value_count,
        };
        memcpy(values_of(image), draft->values, bytes);
        pattern->users++;
        form->users++;
    }
    return image;
}

pf_image *
pf_image_small(pf_forms *forms, const pf_fiber *fiber, const pf_span *span)
{
    if (pf_span_bytes(span) > PF_MOST_WORDS * 8) {
        return NULL;
    }
    if (forms->draft == NULL &&
        (forms->draft = pf_memory_malloc(sizeof *forms->draft)) == NULL) {
        return NULL;
    }
    Words words = words_of(fiber, span);
    pf_form *form = choose_form(forms, &words);
    return form == NULL ? NULL : make_small(forms->draft, form);
}

/* Writes the words of a small image as if the stack's header were at `to`: the
 * words of the stack below the header, those of the room after it. */
static void
expand(const pf_image *image, const pf_fiber *fiber, char *to)
{
    const pf_pattern *pattern = image->pattern;
    const pf_form *form = pattern->form;
    const Bases bases = bases_of(fiber);
    uint64_t *words = (uint64_t *)(void *)to - form->stack_words;
    uint64_t *room = (uint64_t *)(void *)(to + PF_STACK_LEAD);
    uint32_t below = form->stack_words;
    memcpy(words, form->words, below * sizeof *words);
    memcpy(room, form->words + below, form->room_words * sizeof *room);
    for (uint32_t i = 0; i < form->relative_count; i++) {
        uint32_t at = form->relative[i];
        *(at < below ? &words[at] : &room[at - below]) +=
            bases.of[form->kinds[at]];
    }
    const uint64_t *values = values_of(image);
    for (uint32_t i = 0; i < pattern->count; i++) {
        pf_difference d = pattern->differences[i];
        *(d.place < below ? &words[d.place] : &room[d.place - below]) =
            values[d.value] + bases.of[d.kind];
    }
}

/* -------------------------------------------------------------- whole images
 */

pf_whole *
pf_whole_new(size_t bytes)
{
    pf_whole *whole = pf_memory_malloc(sizeof *whole + bytes + 32);
    if (whole != NULL) {
        *whole = (pf_whole){.capacity = bytes};
    }
    return whole;
}

/* Sets where the bytes of a whole image lie: as far from a multiple of 16 as
 * they do in the slot. */
static void
lay(pf_whole *whole, size_t below, size_t above, const pf_stack *home)
{
    uintptr_t first = ((uintptr_t)(whole + 1) + 15) & ~(uintptr_t)15;
    assert(below + above <= whole->capacity);
    whole->base = (char *)(first + (((uintptr_t)home - below) & 15));
    whole->below = below;
    whole->above = above;
}

void
pf_whole_fill(pf_whole *whole, const pf_fiber *fiber, const pf_span *span)
{
    const char *home = (const char *)fiber->stack;
    lay(whole, (size_t)(home - span->low), (size_t)(span->room_end - home),
        fiber->stack);
    whole->handle = fiber->context.handle;
    memcpy(whole->base, span->low, pf_span_bytes(span));
}

size_t
pf_image_small_bytes(const pf_image *small)
{
    const pf_form *form = small->pattern->form;
    return PF_STACK_LEAD +
           (form->stack_words + form->room_words) * sizeof(uint64_t);
}

void
pf_whole_expand(pf_whole *whole, const pf_fiber *fiber, const pf_image *small)
{
    char *home = (char *)fiber->stack;
    size_t below = small->pattern->form->stack_words * sizeof(uint64_t);
    lay(whole, below, pf_image_small_bytes(small) - below, fiber->stack);
    whole->image.packed_at = small->packed_at;
    whole->image.store = small->store;
    whole->handle = pf_context_handle(home, home - below);
    expand(small, fiber, whole->base + below);
}

void
pf_image_restore(pf_image *image, pf_fiber *fiber)
{
    char *home = (char *)fiber->stack;
    const pf_whole *whole = pf_image_whole(image);
    if (whole == NULL) {
        size_t below = image->pattern->form->stack_words * sizeof(uint64_t);
        fiber->context.handle = pf_context_handle(home, home - below);
        expand(image, fiber, home);
        return;
    }
    fiber->context.handle = whole->handle;
    memcpy(home - whole->below, whole->base, whole->below);
    memcpy(home + PF_STACK_LEAD, whole->base + whole->below + PF_STACK_LEAD,
           whole->above - PF_STACK_LEAD);
}

size_t
pf_image_size(pf_image *image)
{
    const pf_whole *whole = pf_image_whole(image);
    return whole != NULL ? sizeof *whole + whole->capacity
                         : sizeof *image + image->values * sizeof(uint64_t);
}

void
pf_image_free(pf_image *image)
{
    if (image->pattern != NULL) {
        pf_form *form = image->pattern->form;
        unuse_pattern(image->pattern);
        unuse_form(form);
    }
    free(image);
}

void
pf_image_poison(const pf_fiber *fiber, const pf_span *span)
{
#if defined(PYFIBER_HARDTEST)
    char *stack = (char *)fiber->stack, *room = stack + PF_STACK_LEAD;
    memset(span->low, 0xDB, (size_t)(stack - span->low));
    memset(room, 0xDB, (size_t)(span->room_end - room));
#else
    (void)fiber, (void)span;
#endif
}

void
pf_forms_free(pf_forms *forms)
{
    for (int i = 0; i < PF_FORM_BUCKETS; i++) {
        while (forms->buckets[i] != NULL) {
            unlist_form(forms, &forms->buckets[i]);
        }
    }
    free(forms->draft);
    forms->draft = NULL;
}
