/* See pack.h. */
#include "engine/core/pack.h"

#include <assert.h>
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
#include "engine/core/images.h"
#include "engine/core/scheduler.h"
#include "engine/core/shapes.h"

#if PF_VALGRIND
#include <valgrind/valgrind.h>
#endif

pf_stack pf_packed_stack; /* its address is all that counts */

#if PF_CONTEXT_MOVES

#define MOST_STORES 8 /* sizes of stacks; others are not lent */
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
/* A thread whose fibers had fewer turns than this since the last step is quiet:
 * who has a stack then is not about to use it. */
#define QUIET 64
/* An idle thread looks at so many fibers at once, some 100 microseconds' work,
 * and goes on after a pause. */
#define LOOKS 256
#define PAUSE INT64_C(10000000) /* nanoseconds */
/* A look passes at most so many slots that are free. */
#define LOOK_STEPS 64
/* After rounds in vain so many steps are left out at most. */
#define LONGEST_REST 63

typedef struct Store {
    pf_stack_pool *pool; /* NULL: it is gone */
    size_t slots;        /* lent at present */
    size_t packed;
    size_t packed_bytes;
    size_t looks;   /* left in this round of an idle thread; 0: none goes on */
    size_t freed;   /* stacks, in this round */
    uint32_t rest;  /* steps until the next round */
    uint32_t again; /* ... and after that, if it is in vain, too */
} Store;

struct pf_packer {
    const pf_pack_host *host;
    size_t slots; /* as asked for; 0: off */
    Store stores[MOST_STORES];
    pf_shapes shapes;
    bool looking;      /* at each switch: shapes.h */
    bool quiet;        /* so it was at the last step */
    size_t grown;      /* slots, since the last step */
    size_t starved;    /* turns in a row for which there was no memory */
    int64_t stepped;   /* when the last step was */
    int64_t paused_to; /* when a round goes on */
    uint64_t turns;    /* at the last step */
    uint64_t packings, unpackings, refusals;
    pf_draft draft;
};

const char *
pf_packing_refused(void)
{
#if PF_VALGRIND
    if (RUNNING_ON_VALGRIND) {
        return "valgrind must know where stacks are";
    }
#endif
#if defined(__aarch64__) && defined(__linux__)
    const unsigned long signs = 1UL << 30; /* HWCAP_PACA */
    if ((getauxval(AT_HWCAP) & signs) != 0) {
        return "return addresses are signed with the place where they lie";
    }
#endif
    return NULL;
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
poison(const pf_span *span)
{
#if defined(PYFIBER_HARDTEST)
    memset((void *)span->stack, 0xDB, span->stack_words * sizeof(uint64_t));
    memset((void *)span->room, 0xDB, span->room_words * sizeof(uint64_t));
#else
    (void)span;
#endif
}

static void
put_away(pf_thread *thread, Store *store, pf_fiber *fiber, pf_image *image,
         const pf_packing *packing)
{
    pf_packer *packer = thread->packer;
    pf_stack *stack = fiber->stack;
    pf_pack_forget(thread, fiber); /* its calls cannot be looked for now */
    image->packed_at = (uint32_t)fiber->task.scheduler->switches;
    image->store = (uint16_t)(store - packer->stores);
    if (packing->bytes != 0) {
        image->moves = (int32_t)(packing->moves - (char *)stack);
        packer->host->keep(fiber, packing->moves, pf_image_kept(image));
    }
    fiber->stack = PF_PACKED;
    fiber->task.has_stack = false;
    fiber->context.handle = image;
    store->packed++;
    store->packed_bytes += pf_image_size(image);
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
    assert(stack->user == fiber);
    packer->refusals++;
    if (pf_stack_reserve_is_open(stack) ||
        (const char *)stack - (const char *)fiber->context.handle >
            PF_MOST_WORDS * 4) {
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
    pf_span span =
        pf_span_of(fiber, packing.room_end, packing.moves, packing.bytes);
    pf_image *image =
        pf_image_new(&packer->draft, shape, &span, packing.bytes);
    if (image == NULL) {
        packer->host->unpacked(thread, fiber, NULL, NULL);
        return false;
    }
    packer->refusals--;
    put_away(thread, store, fiber, image, &packing);
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
        packer->grown++;
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
    store->packed_bytes -= pf_image_size(image);
    pf_image_free(image);
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
    stack->user = fiber;
    fiber->stack = stack;
    fiber->task.has_stack = true;
    fiber->context.handle = pf_image_expand(image, stack, fiber);
    char *moves = image->kept == 0 ? NULL : (char *)stack + image->moves;
    packer->host->unpacked(thread, fiber, moves, pf_image_kept(image));
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
        pf_shapes_forget(&thread->packer->shapes, fiber);
    }
}

/* ------------------------------------------------------------ an idle thread
 *
 * Each second of which some is idle there is a step: fewer stacks are lent,
 * unless many fibers needed one again since the last.  If more are in use than
 * are lent, a round begins, which looks at each fiber that has one, about once
 * and a few at a time.  What is refused then keeps its stack until a later
 * round; and without any turns in between there is none. */

static void
lend_fewer(pf_packer *packer, Store *store)
{
    size_t more = store->slots - packer->slots;
    if (packer->quiet) {
        store->slots = packer->slots;
    } else if (packer->grown <= more / 4) {
        store->slots -= (more + 3) / 4;
    }
    lend(store);
}

/* (In one lap all slots are passed.) */
static void
begin_round(pf_packer *packer, Store *store)
{
    size_t live = pf_stack_pool_live(store->pool);
    if (live <= store->slots) {
        return;
    }
    if (!packer->quiet && store->rest > 0) {
        store->rest--;
        return;
    }
    pf_stack_stats stats;
    pf_stack_pool_stats(store->pool, &stats);
    store->looks = live + stats.slots / LOOK_STEPS + 1;
    packer->paused_to = 0;
}

static void
end_round(Store *store)
{
    store->looks = 0;
    if (store->freed > 0) {
        store->again = 0;
        pf_stack_pool_discard(store->pool);
    } else if (store->again < LONGEST_REST) {
        store->again = 2 * store->again + 1;
    }
    store->rest = store->again;
    store->freed = 0;
}

static void
go_on(pf_thread *thread, Store *store)
{
    for (int i = 0; i < LOOKS && store->looks > 0; i++) {
        if (pf_stack_pool_live(store->pool) <= store->slots) {
            store->looks = 0;
            break;
        }
        store->looks--;
        pf_fiber *fiber = pf_stack_pool_next_user(store->pool, LOOK_STEPS);
        store->freed += fiber != NULL && pack(thread, store, fiber);
    }
    if (store->looks == 0) {
        end_round(store);
    }
}

/* It was quiet at the last step, and nothing has run since. */
static bool
is_settled(const pf_packer *packer, uint64_t turns)
{
    return packer->quiet && turns == packer->turns;
}

static void
step(pf_packer *packer, int64_t now, uint64_t turns)
{
    packer->quiet = turns - packer->turns < QUIET;
    packer->turns = turns;
    packer->stepped = now;
    for (unsigned i = 0; i < MOST_STORES; i++) {
        Store *store = &packer->stores[i];
        if (store->pool != NULL) {
            lend_fewer(packer, store);
            begin_round(packer, store);
        }
    }
    packer->grown = 0;
}

static int64_t
next_step(const pf_packer *packer, const Store *store, uint64_t turns)
{
    if (store->looks > 0) {
        return packer->paused_to;
    }
    bool more = store->slots > packer->slots ||
                pf_stack_pool_live(store->pool) > store->slots;
    return more && !is_settled(packer, turns) ? packer->stepped + DECAY
                                              : PF_NEVER;
}

int64_t
pf_pack_decay(pf_thread *thread, int64_t now, uint64_t turns)
{
    pf_packer *packer = thread->packer;
    if (packer == NULL || packer->slots == 0) {
        return PF_NEVER;
    }
    if (now - packer->stepped >= DECAY && !is_settled(packer, turns)) {
        step(packer, now, turns);
    }
    bool paused = now < packer->paused_to;
    if (!paused) {
        packer->paused_to = now + PAUSE;
    }
    int64_t again = PF_NEVER;
    for (unsigned i = 0; i < MOST_STORES; i++) {
        Store *store = &packer->stores[i];
        if (store->pool != NULL) {
            if (store->looks > 0 && !paused) {
                go_on(thread, store);
            }
            int64_t next = next_step(packer, store, turns);
            again = next < again ? next : again;
        }
    }
    return again;
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
        store->looks = store->freed = 0;
        store->rest = store->again = 0;
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
    if (thread->packer->slots == slots) {
        return 0; /* a turn of a hosted run, say: those that were added stay */
    }
    thread->packer->host = host;
    thread->packer->slots = slots;
    for (unsigned i = 0; i < thread->pool_count; i++) {
        pf_stack_pool_lend(thread->pools[i], 0, NULL);
        pf_pack_add_pool(thread, thread->pools[i]);
    }
    return 0;
}

void
pf_pack_finish(pf_thread *thread)
{
    pf_packer *packer = thread->packer;
    if (packer != NULL) {
        pf_shapes_finish(&packer->shapes, pf_forms_free);
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

const char *
pf_packing_refused(void)
{
#if PF_WITH_ASAN || PF_WITH_TSAN || defined(PYFIBER_SANITIZED)
    return "the sanitizer must know where stacks are";
#elif defined(PF_CONTEXT_ASSEMBLY)
    return "it was not tried with this C library";
#else
    return "this backend's stacks stay where they are";
#endif
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

int64_t
pf_pack_decay(pf_thread *thread, int64_t now, uint64_t turns)
{
    (void)thread, (void)now, (void)turns;
    return PF_NEVER;
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
