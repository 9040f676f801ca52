/* See pack.h.
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
 * and flags there, no numbers of the user's.
 */
#include "engine/core/pack.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#if defined(__linux__)
#include <sys/auxv.h>
#endif
#if !defined(_WIN32)
#include <time.h>
#endif

#include "engine/base/memory.h"
#include "engine/core/scheduler.h"
#include "engine/core/shapes.h"

#if PF_VALGRIND
#include <valgrind/valgrind.h>
#endif

pf_stack pf_packed_stack; /* its address is all that counts */

#if PF_CONTEXT_MOVES

#define MOST_STORES 8    /* sizes of stacks; others are not lent */
#define MOST_WORDS 4096  /* of a stack that is packed: 32 KiB */
/* Few slots are a test's: it wants to see every fiber move. */
#define FIXED_BELOW 16
/* Fibers looked at for a slot; if none can be packed, there is one more slot.
 */
#define TRIES 8
/* A fiber that has been away for less than this many switches, for each slot
 * asked for, should not have been packed: there will be one more slot.  So
 * fibers that take turns get a stack each if they are fewer than that. */
#define SOON 64
#define DECAY INT64_C(1000000000) /* nanoseconds between two steps */
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
    pf_form *next; /* of the same shape */
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

/* Followed by its values, then `kept` bytes of the host's, then its entries.
 * What fibers have in common is in the form; that a value stands at several
 * places is common, too (an object that several frames know). */
struct pf_image {
    pf_form *form;
    uint32_t packed_at; /* the scheduler's count of switches */
    int32_t moves;      /* from the header: where `kept` belongs */
    uint16_t entries;
    uint16_t values;
    uint16_t kept;
    uint16_t store;
};
typedef struct pf_image pf_image;

typedef struct Entry {
    uint16_t place : 14;
    uint16_t kind : 2;
    uint16_t value;
} Entry;
_Static_assert(MOST_WORDS <= 1 << 14, "places have 14 bits");

typedef struct Store {
    pf_stack_pool *pool; /* NULL: it is gone */
    size_t slots;        /* lent at present */
    size_t packed;
    size_t packed_bytes;
} Store;

struct pf_packer {
    const pf_pack_host *host;
    size_t slots; /* as asked for; 0: off */
    Store stores[MOST_STORES];
    pf_shapes shapes;
    bool looking;    /* at each switch: shapes.h */
    bool grown;      /* since the last decay */
    size_t starved;  /* turns in a row for which there was no memory */
    int64_t decayed; /* when */
    uint64_t packings, unpackings, refusals;
    /* The image that is being made. */
    uint16_t entry_count, value_count;
    Entry entries[MOST_WORDS];
    uint64_t values[MOST_WORDS];
};

bool
pf_can_pack(void)
{
#if PF_VALGRIND
    if (RUNNING_ON_VALGRIND) {
        return false; /* it must know where stacks are */
    }
#endif
#if defined(__aarch64__) && defined(__linux__)
    /* A return address is signed with the place where it is kept. */
    const unsigned long signs = 1UL << 30; /* HWCAP_PACA */
    return (getauxval(AT_HWCAP) & signs) == 0;
#else
    return true;
#endif
}

/* ------------------------------------------------------------- the words */

/* Where the words of a stack are, and what makes them relative. */
typedef struct Span {
    const uint64_t *stack; /* from the innermost end */
    const uint64_t *room;
    uint32_t stack_words, room_words;
    uintptr_t header, low, high; /* of the slot */
    uintptr_t fiber;
    uint32_t hole, hole_end; /* words that move: not looked at */
} Span;

static inline uint64_t
word_at(const Span *span, uint32_t i)
{
    if (i - span->hole < span->hole_end - span->hole) {
        return 0;
    }
    return i < span->stack_words ? span->stack[i]
                                 : span->room[i - span->stack_words];
}

static inline Kind
kind_of(const Span *span, uint64_t *word)
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
    return kind == PLAIN ? value
                         : value + (kind == OF_STACK ? header : fiber);
}

static Span
span_of(const pf_fiber *fiber, const pf_packing *packing)
{
    const pf_stack *stack = fiber->stack;
    const char *low = fiber->context.handle;
    Span span = {
        .stack = (const uint64_t *)(const void *)low,
        .room = (const uint64_t *)(const void *)stack->room,
        .stack_words = (uint32_t)((const char *)stack - low) / 8,
        .room_words = (uint32_t)(packing->room_end - stack->room) / 8,
        .header = (uintptr_t)stack,
        .low = (uintptr_t)stack->area.low,
        .high = (uintptr_t)stack->room + stack->room_size,
        .fiber = (uintptr_t)fiber,
    };
    if (packing->bytes != 0) {
        span.hole = (uint32_t)(packing->moves - low) / 8;
        span.hole_end = span.hole + packing->bytes / 8u;
    }
    return span;
}

/* --------------------------------------------------------------- the forms */

static pf_form *
find_form(const pf_shape *shape, const Span *span)
{
    pf_form *form = shape->forms;
    while (form != NULL && form->room_words != span->room_words) {
        form = form->next;
    }
    return form;
}

static pf_form *
new_form(pf_shape *shape, const Span *span)
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
        .next = shape->forms,
        .stack_words = (uint16_t)span->stack_words,
        .room_words = (uint16_t)span->room_words,
        .words = words,
    };
    for (uint32_t i = 0; i < count; i++) {
        words[i] = word_at(span, i);
        form->kinds[i] = (uint8_t)kind_of(span, &words[i]);
    }
    shape->forms = form;
    return form;
}

static void
free_form(pf_form *form)
{
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

static void
replace_form(pf_shape *shape, pf_form *form, const Span *span)
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
    *link = form->next;
    form->replaced = true;
    if (form->users == 0) {
        free_form(form);
    }
}

/* The form for such a stack; one that does not serve is replaced. */
static pf_form *
form_for(pf_shape *shape, const Span *span)
{
    pf_form *form = find_form(shape, span);
    if (form == NULL) {
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

/* -------------------------------------------------------------- the images */

static void
add_entry(pf_packer *packer, uint32_t place, Kind kind, uint64_t value)
{
    uint16_t v = packer->value_count;
    uint16_t oldest = v > 24 ? v - 24 : 0;
    while (v > oldest && packer->values[v - 1] != value) {
        v--;
    }
    if (v == oldest) {
        v = ++packer->value_count;
        packer->values[v - 1] = value;
    }
    packer->entries[packer->entry_count++] = (Entry){
        .place = (uint16_t)(place & 0x3FFF),
        .kind = kind & 3,
        .value = v - 1,
    };
}

static void
compare(pf_packer *packer, const Span *span, const pf_form *form)
{
    uint32_t count = span->stack_words + span->room_words;
    packer->entry_count = packer->value_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t word = word_at(span, i);
        Kind kind = kind_of(span, &word);
        if (word != form->words[i] || kind != (Kind)form->kinds[i]) {
            add_entry(packer, i, kind, word);
        }
    }
}

static inline uint64_t *
values_of(pf_image *image)
{
    return (uint64_t *)(void *)(image + 1);
}

static inline char *
kept_of(pf_image *image)
{
    return (char *)(values_of(image) + image->values);
}

static inline Entry *
entries_of(pf_image *image)
{
    return (Entry *)(void *)(kept_of(image) + image->kept);
}

static size_t
size_of(const pf_image *image)
{
    return sizeof *image + image->values * sizeof(uint64_t) + image->kept +
           image->entries * sizeof(Entry);
}

static pf_image *
new_image(const pf_packer *packer, pf_form *form, uint16_t kept)
{
    pf_image head = {
        .form = form,
        .entries = packer->entry_count,
        .values = packer->value_count,
        .kept = kept,
    };
    pf_image *image = pf_malloc(size_of(&head));
    if (image != NULL) {
        *image = head;
        memcpy(values_of(image), packer->values,
               head.values * sizeof(uint64_t));
        memcpy(entries_of(image), packer->entries,
               head.entries * sizeof(Entry));
    }
    return image;
}

/* Only the C stack and the room's bytes in use: the header is the slot's. */
static void
expand(pf_image *image, pf_stack *stack, const pf_fiber *fiber)
{
    const pf_form *form = image->form;
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
    const Entry *entries = entries_of(image);
    for (uint32_t i = 0; i < image->entries; i++) {
        Entry e = entries[i];
        uint64_t word = word_of((Kind)e.kind, values[e.value], header,
                                (uintptr_t)fiber);
        if (e.place < form->stack_words) {
            words[e.place] = word;
        } else {
            room[e.place - form->stack_words] = word;
        }
    }
}

/* ------------------------------------------------------------------- packing */

static Store *
store_of(pf_packer *packer, const pf_stack_pool *pool)
{
    for (unsigned i = 0; i < MOST_STORES; i++) {
        if (packer->stores[i].pool == pool) {
            return &packer->stores[i];
        }
    }
    return NULL;
}

static bool
waits(const pf_thread *thread, const pf_fiber *fiber)
{
    const pf_task *task = &fiber->task;
    return fiber != thread->current && task->scheduler != NULL &&
           fiber != task->scheduler->hub &&
           (task->state == PF_PARKED || task->state == PF_READY);
}

static void
learn_soon(pf_packer *packer, const pf_fiber *fiber)
{
    if (pf_shapes_miss(&packer->shapes)) {
        packer->looking = true;
        fiber->task.scheduler->until_poll = 1;
    }
}

/* What still reads a stack that was taken away shall notice. */
static void
poison(const Span *span)
{
#if defined(PYFIBER_HARDTEST)
    memset((void *)span->stack, 0xDB, span->stack_words * sizeof(uint64_t));
    memset((void *)span->room, 0xDB, span->room_words * sizeof(uint64_t));
#else
    (void)span;
#endif
}

static void
put_away(pf_packer *packer, Store *store, pf_fiber *fiber, pf_image *image,
         const pf_packing *packing)
{
    pf_stack *stack = fiber->stack;
    image->packed_at = (uint32_t)fiber->task.scheduler->switches;
    image->store = (uint16_t)(store - packer->stores);
    image->form->users++;
    if (image->form->tried < WORN_AFTER) {
        image->form->tried++;
        image->form->differences += image->entries;
    }
    if (packing->bytes != 0) {
        image->moves = (int32_t)(packing->moves - (char *)stack);
        packer->host->keep(fiber, packing->moves, kept_of(image));
    }
    fiber->stack = PF_PACKED;
    fiber->task.has_stack = false;
    fiber->context.handle = image;
    store->packed++;
    store->packed_bytes += size_of(image);
    packer->packings++;
}

/* Its stack is free afterwards, or nothing has changed. */
static bool
pack(pf_thread *thread, Store *store, pf_fiber *fiber)
{
    pf_packer *packer = thread->packer;
    pf_stack *stack = fiber->stack;
    if (!waits(thread, fiber)) {
        return false;
    }
    packer->refusals++;
    if (pf_stack_reserve_is_open(stack) ||
        (const char *)stack - (const char *)fiber->context.handle >
            MOST_WORDS * 4) {
        return false;
    }
    pf_shape *shape = pf_shapes_find(&packer->shapes, fiber);
    if (shape == NULL) {
        learn_soon(packer, fiber);
        return false;
    }
    pf_packing packing = {0};
    if (!packer->host->may_pack(thread, fiber, &packing)) {
        return false;
    }
    pf_image *image = NULL;
    Span span = span_of(fiber, &packing);
    if (span.stack_words + span.room_words <= MOST_WORDS) {
        pf_form *form = form_for(shape, &span);
        if (form != NULL) {
            compare(packer, &span, form);
            image = new_image(packer, form, packing.bytes);
        }
    }
    if (image == NULL) {
        packer->host->unpacked(thread, fiber, NULL, NULL);
        return false;
    }
    packer->refusals--;
    put_away(packer, store, fiber, image, &packing);
    poison(&span);
    pf_stack_release(stack);
    return true;
}

/* Somebody needs a stack, and all that are lent are in use.  If none of the
 * first few can be packed, there will be one more. */
static void
make_room(pf_stack_pool *pool, void *owner)
{
    pf_thread *thread = owner;
    Store *store = store_of(thread->packer, pool);
    /* Two, if there are more than should be. */
    int needed = pf_stack_pool_live(pool) > store->slots ? 2 : 1;
    for (int i = 0; i < TRIES && needed > 0; i++) {
        pf_fiber *fiber = pf_stack_pool_next_user(pool, 4 * TRIES);
        if (fiber == NULL) {
            return;
        }
        needed -= pack(thread, store, fiber);
    }
}

/* The same, whatever it takes. */
static bool
make_room_anyhow(pf_thread *thread, Store *store)
{
    size_t live = pf_stack_pool_live(store->pool);
    for (size_t i = 0; i < live; i++) {
        pf_fiber *fiber = pf_stack_pool_next_user(store->pool, UINT32_MAX);
        if (fiber == NULL || pack(thread, store, fiber)) {
            return fiber != NULL;
        }
    }
    return false;
}

/* ----------------------------------------------------------------- unpacking */

static void
lend(Store *store)
{
    pf_stack_pool_lend(store->pool, store->slots, make_room);
}

static void
note_return(pf_packer *packer, Store *store, uint32_t away)
{
    if (packer->slots >= FIXED_BELOW && away < SOON * packer->slots) {
        store->slots++;
        packer->grown = true;
        lend(store);
    }
}

static pf_stack *
acquire(pf_thread *thread, Store *store)
{
    pf_stack *stack;
    if (pf_stack_acquire(store->pool, &stack) == 0) {
        return stack;
    }
    if (make_room_anyhow(thread, store) &&
        pf_stack_acquire(store->pool, &stack) == 0) {
        return stack;
    }
    return NULL;
}

static void
free_image(Store *store, pf_image *image)
{
    store->packed--;
    store->packed_bytes -= size_of(image);
    unuse_form(image->form);
    free(image);
}

int
pf_unpack(pf_thread *thread, pf_fiber *fiber, bool runs)
{
    pf_packer *packer = thread->packer;
    pf_image *image = fiber->context.handle;
    Store *store = &packer->stores[image->store];
    if (runs) {
        note_return(packer, store,
                    (uint32_t)fiber->task.scheduler->switches -
                        image->packed_at);
    }
    pf_stack *stack = acquire(thread, store);
    if (stack == NULL) {
        return -ENOMEM;
    }
    expand(image, stack, fiber);
    stack->user = fiber;
    fiber->stack = stack;
    fiber->task.has_stack = true;
    fiber->context.handle =
        (char *)stack - image->form->stack_words * sizeof(uint64_t);
    char *moves = image->kept == 0 ? NULL : (char *)stack + image->moves;
    packer->host->unpacked(thread, fiber, moves, kept_of(image));
    packer->unpackings++;
    free_image(store, image);
    return 0;
}

/* All that are ready may be without memory: then it has to come from another
 * thread, or process. */
static void
wait_for_memory(pf_scheduler *s, pf_packer *packer)
{
    if (++packer->starved > s->ready.count) {
        packer->starved = 0;
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

pf_fiber *
pf_next_packed(pf_scheduler *s, pf_fiber *fiber)
{
    pf_packer *packer = s->thread->packer;
    if (pf_unpack(s->thread, fiber, true) == 0) {
        packer->starved = 0;
        return fiber;
    }
    pf_queue_push(&s->ready, &fiber->task);
    wait_for_memory(s, packer);
    return s->hub;
}

void
pf_drop_image(pf_thread *thread, pf_fiber *fiber)
{
    pf_packer *packer = thread->packer;
    pf_image *image = fiber->context.handle;
    free_image(&packer->stores[image->store], image);
    fiber->context.handle = NULL;
    fiber->stack = NULL;
}

/* ------------------------------------------------------------------- switching on */

void
pf_pack_look(pf_scheduler *s)
{
    pf_thread *thread = s->thread;
    pf_packer *packer = thread->packer;
    if (packer != NULL && packer->looking) {
        packer->looking =
            pf_shapes_look(&packer->shapes, thread->current, s->switches);
        thread->learning = packer->shapes.read;
        if (packer->looking) {
            s->until_poll = 1;
        }
    }
}

void
pf_pack_forget(pf_thread *thread, const pf_fiber *fiber)
{
    if (thread->learning == fiber) {
        thread->learning = NULL;
        thread->packer->shapes.read = NULL;
    }
}

void
pf_pack_decay(pf_thread *thread, int64_t now)
{
    pf_packer *packer = thread->packer;
    if (packer == NULL || now - packer->decayed < DECAY) {
        return;
    }
    packer->decayed = now;
    for (unsigned i = 0; i < MOST_STORES && !packer->grown; i++) {
        Store *store = &packer->stores[i];
        if (store->pool != NULL && store->slots > packer->slots) {
            store->slots -= (store->slots - packer->slots + 3) / 4;
            lend(store);
        }
    }
    packer->grown = false;
}

static Store *
unused_store(pf_packer *packer)
{
    for (unsigned i = 0; i < MOST_STORES; i++) {
        if (packer->stores[i].pool == NULL && packer->stores[i].packed == 0) {
            return &packer->stores[i];
        }
    }
    return NULL;
}

void
pf_pack_add_pool(pf_thread *thread, pf_stack_pool *pool)
{
    pf_packer *packer = thread->packer;
    if (packer == NULL || packer->slots == 0) {
        return;
    }
    Store *store = store_of(packer, pool);
    if (store == NULL) {
        store = unused_store(packer);
    }
    if (store != NULL) {
        store->pool = pool;
        store->slots = packer->slots;
        lend(store);
    }
}

void
pf_pack_remove_pool(pf_thread *thread, pf_stack_pool *pool)
{
    Store *store =
        thread->packer == NULL ? NULL : store_of(thread->packer, pool);
    if (store != NULL) {
        pf_stack_pool_lend(pool, 0, NULL);
        store->pool = NULL;
    }
}

int
pf_pack_set(pf_thread *thread, const pf_pack_host *host, size_t slots)
{
    if (!pf_can_pack()) {
        slots = 0;
    }
    if (thread->packer == NULL) {
        if (slots == 0) {
            return 0;
        }
        thread->packer = pf_calloc(1, sizeof *thread->packer);
        if (thread->packer == NULL) {
            return -ENOMEM;
        }
        pf_shapes_init(&thread->packer->shapes);
    }
    thread->packer->host = host;
    thread->packer->slots = slots;
    for (unsigned i = 0; i < thread->pool_count; i++) {
        pf_stack_pool_lend(thread->pools[i], 0, NULL);
        pf_pack_add_pool(thread, thread->pools[i]);
    }
    return 0;
}

static void
free_forms(pf_shapes *shapes)
{
    for (unsigned i = 0; i < PF_SHAPE_BUCKETS; i++) {
        for (pf_shape *s = shapes->buckets[i]; s != NULL; s = s->next) {
            while (s->forms != NULL) {
                pf_form *form = s->forms;
                s->forms = form->next;
                form->replaced = true;
                if (form->users == 0) {
                    free_form(form);
                }
            }
        }
    }
}

void
pf_pack_finish(pf_thread *thread)
{
    pf_packer *packer = thread->packer;
    if (packer != NULL) {
        free_forms(&packer->shapes);
        pf_shapes_finish(&packer->shapes);
        free(packer);
        thread->packer = NULL;
    }
}

void
pf_pack_stats_get(const pf_thread *thread, const pf_stack_pool *pool,
                  pf_pack_stats *stats)
{
    pf_packer *packer = thread->packer;
    const Store *store = packer == NULL ? NULL : store_of(packer, pool);
    *stats = (pf_pack_stats){0};
    if (store != NULL) {
        *stats = (pf_pack_stats){
            .slots = packer->slots == 0 ? 0 : store->slots,
            .packed = store->packed,
            .packed_bytes = store->packed_bytes,
            .packings = packer->packings,
            .unpackings = packer->unpackings,
            .refusals = packer->refusals,
        };
    }
}

#else /* the stacks of this backend stay where they are */

bool
pf_can_pack(void)
{
    return false;
}

int
pf_unpack(pf_thread *thread, pf_fiber *fiber, bool runs)
{
    (void)thread, (void)fiber, (void)runs;
    return 0;
}

pf_fiber *
pf_next_packed(pf_scheduler *s, pf_fiber *fiber)
{
    (void)s;
    return fiber;
}

void
pf_drop_image(pf_thread *thread, pf_fiber *fiber)
{
    (void)thread, (void)fiber;
}

void
pf_pack_look(pf_scheduler *s)
{
    (void)s;
}

void
pf_pack_forget(pf_thread *thread, const pf_fiber *fiber)
{
    (void)thread, (void)fiber;
}

void
pf_pack_decay(pf_thread *thread, int64_t now)
{
    (void)thread, (void)now;
}

void
pf_pack_add_pool(pf_thread *thread, pf_stack_pool *pool)
{
    (void)thread, (void)pool;
}

void
pf_pack_remove_pool(pf_thread *thread, pf_stack_pool *pool)
{
    (void)thread, (void)pool;
}

int
pf_pack_set(pf_thread *thread, const pf_pack_host *host, size_t slots)
{
    (void)thread, (void)host, (void)slots;
    return 0;
}

void
pf_pack_finish(pf_thread *thread)
{
    (void)thread;
}

void
pf_pack_stats_get(const pf_thread *thread, const pf_stack_pool *pool,
                  pf_pack_stats *stats)
{
    (void)thread, (void)pool;
    *stats = (pf_pack_stats){0};
}

#endif
