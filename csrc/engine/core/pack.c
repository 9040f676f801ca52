/* See pack.h. */
#include "engine/core/pack.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/core/images.h"
#include "engine/core/scheduler.h"

#if PF_VALGRIND
#include <valgrind/valgrind.h>
#endif

#define MOST_STORES 8 /* sizes of stacks; others are not lent */
/* Few slots are a test's: it wants to see every fiber move. */
#define FIXED_BELOW 16
/* Slots looked at for one whose fibers are asleep. */
#define TRIES 8
/* Fibers that are all ready at once get up to so many slots for each one asked
 * for: 6 KB of memory each, and half of the time of a turn with a move. */
#define MOST_GROWTH 512
#define DECAY INT64_C(1000000000) /* nanoseconds between two steps */
/* A thread whose fibers had fewer turns than this since the last step is quiet:
 * who has a stack then is not about to use it. */
#define QUIET 64
/* An idle thread looks at so many slots at once, some 100 microseconds' work,
 * and goes on after a pause. */
#define LOOKS 256
#define PAUSE INT64_C(10000000) /* nanoseconds */
/* After rounds in vain so many steps are left out at most. */
#define LONGEST_REST 63
/* The stack of the mover: the kernel needs up to 11 KB for a signal. */
#define MOVER_STACK ((size_t)64 << 10)
/* More than the functions use between pf_bring_home and the switch. */
#define UNTIL_SWITCH 4096

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
    pf_forms forms;
    pf_fiber *mover; /* NULL: it has not been needed yet */
    char *mover_stack;
    pf_fiber *comes;   /* whom the mover unpacks */
    pf_whole *reserve; /* for it, so that it does not fail; or NULL */
    pf_whole *view;  /* for pf_pack_peek; there since the first small image */
    bool quiet;      /* so it was at the last step */
    size_t grown;    /* slots, since the last step */
    size_t starved;  /* turns in a row for which there was no memory */
    int64_t stepped; /* when the last step was */
    int64_t paused_to; /* when a round goes on */
    uint64_t turns;    /* at the last step */
    uint64_t packings, unpackings;
};

const char *
pf_packing_refused(void)
{
#if PF_WITH_ASAN || PF_WITH_TSAN
    return "the sanitizer must know where stacks are";
#else
#if PF_VALGRIND
    if (RUNNING_ON_VALGRIND) {
        return "valgrind must know where stacks are";
    }
#endif
    return PF_CONTEXT_TELLS_LOW
               ? NULL
               : "the system does not tell how much of a stack is in use";
#endif
}

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

/* ------------------------------------------------------------------- packing */

/* The bytes in use.  A fiber that has been left on another stack than its own,
 * in a context of the C API, does not tell how far its own is in use. */
static pf_span
span_of(const pf_fiber *fiber, const pf_packing *packing)
{
    const pf_stack *stack = fiber->stack;
    char *low = pf_context_low(&fiber->context);
    if (low < stack->area.low || low >= (char *)stack) {
        low = stack->area.low + stack->guarded;
    }
    return (pf_span){low, packing->room_end};
}

static pf_image *
make_whole(pf_packer *packer, pf_fiber *fiber, const pf_span *span)
{
    size_t bytes = pf_span_bytes(span);
    pf_whole *whole = pf_whole_new(bytes);
    if (whole == NULL) {
        whole = packer->reserve;
        if (whole == NULL || whole->capacity < bytes) {
            return NULL;
        }
        packer->reserve = NULL;
    }
    pf_whole_fill(whole, fiber, span);
    whole->opened = pf_stack_opened(fiber->stack);
    return &whole->image;
}

static pf_image *
make_image(pf_packer *packer, pf_fiber *fiber, const pf_packing *packing,
           const pf_span *span)
{
    const pf_stack *stack = fiber->stack;
    bool inside = span->low == pf_context_low(&fiber->context);
    bool small =
        !packing->exposed && inside && !pf_stack_reserve_is_open(stack);
    if (small && packer->view == NULL) {
        packer->view = pf_whole_new(PF_MOST_SMALL_BYTES);
    }
    pf_image *image = small && packer->view != NULL
                          ? pf_image_small(&packer->forms, fiber, span)
                          : NULL;
    return image != NULL ? image : make_whole(packer, fiber, span);
}

/* Whoever looks at the fiber, or at what its frames refer to, must find it in
 * its image from now on. */
static void
tell_packed(pf_packer *packer, pf_fiber *fiber, const pf_span *span)
{
    pf_whole *whole = pf_is_whole(fiber->context.handle);
    if (whole == NULL) {
        packer->host->packed(fiber);
    } else {
        packer->host->moved(fiber, span->low, span->room_end,
                            pf_whole_distance(whole, fiber->stack));
    }
}

/* The occupant of a slot, which does not run, is packed; false: no memory. */
static bool
pack(pf_packer *packer, Store *store, pf_fiber *fiber,
     const pf_packing *packing)
{
    pf_stack *stack = fiber->stack;
    pf_span span = span_of(fiber, packing);
    pf_image *image = make_image(packer, fiber, packing, &span);
    if (image == NULL) {
        return false;
    }
    const pf_scheduler *s = fiber->task.scheduler;
    image->packed_at = s == NULL ? 0 : (uint32_t)s->switches;
    image->store = (uint16_t)(store - packer->stores);
    fiber->context.handle = image;
    fiber->task.has_stack = false;
    tell_packed(packer, fiber, &span);
    store->packed++;
    store->packed_bytes += pf_image_size(image);
    packer->packings++;
    pf_image_poison(fiber, &span);
    pf_stack_leave(stack);
    pf_stack_trim_below(stack, span.low);
    return true;
}

/* 0: the slot has no occupant now; -ENOMEM; -EBUSY: it is pinned, and this is
 * not to be done anyhow. */
static int
clear_slot(pf_thread *thread, Store *store, const pf_stack *stack, bool anyhow)
{
    pf_fiber *fiber = stack->user;
    if (fiber == NULL) {
        return 0;
    }
    assert(fiber != thread->current && fiber->stack == stack);
    if (pf_fiber_is_over(fiber)) { /* and about to be reaped */
        pf_stack_leave(fiber->stack);
        return 0;
    }
    pf_packing packing = {0};
    thread->packer->host->look(thread, fiber, &packing);
    if (packing.pinned && !anyhow) {
        return -EBUSY;
    }
    return pack(thread->packer, store, fiber, &packing) ? 0 : -ENOMEM;
}

/* A fiber that waits for something may be packed only to save memory, unless
 * code that is not ours has called back on its stack: it could mind. */
static bool
is_asleep(const pf_thread *thread, const pf_fiber *fiber)
{
    const pf_scheduler *s = fiber->task.scheduler;
    uint8_t state = fiber->task.state;
    return fiber != thread->current && (s == NULL || fiber != s->hub) &&
           (state == PF_PARKED || state == PF_SUSPENDED);
}

static bool
clear_if_asleep(pf_thread *thread, Store *store, const pf_stack *stack)
{
    pf_fiber *fiber = stack->user;
    if (fiber == NULL) {
        return true;
    }
    if (!is_asleep(thread, fiber)) {
        return false;
    }
    pf_packing packing = {0};
    thread->packer->host->look(thread, fiber, &packing);
    return !packing.pinned && !packing.lends &&
           pack(thread->packer, store, fiber, &packing);
}

/* ----------------------------------------------------------------- unpacking */

/* A stack that had run into its reserve needs as much of it open; another one
 * needs it closed.  False, and nothing has changed: the system refuses. */
static bool
open_reserve(pf_stack *stack, const pf_whole *whole)
{
    uint32_t opened = whole == NULL ? 0 : whole->opened;
    return opened <= pf_stack_opened(stack) ||
           pf_stack_open_reserve(stack,
                                 stack->area.low + stack->reserve - opened);
}

static void
close_reserve(pf_stack *stack, const pf_whole *whole)
{
    if (whole == NULL || whole->opened == 0) {
        pf_stack_close_reserve(stack, stack);
    }
}

/* This image is about to go; whose it was. */
static Store *
uncount(pf_packer *packer, pf_image *image)
{
    Store *store = &packer->stores[image->store];
    store->packed--;
    store->packed_bytes -= pf_image_size(image);
    return store;
}

/* Its home is without an occupant. */
static int
unpack(pf_packer *packer, pf_fiber *fiber)
{
    pf_image *image = fiber->context.handle;
    pf_whole *whole = pf_is_whole(image);
    pf_stack *stack = fiber->stack;
    pf_stack_bring_back(packer->stores[image->store].pool, stack);
    if (!open_reserve(stack, whole)) {
        return -ENOMEM;
    }
    close_reserve(stack, whole);
    pf_image_restore(image, fiber);
    pf_stack_enter(stack, fiber);
    fiber->task.has_stack = true;
    if (whole == NULL) {
        packer->host->unpacked(fiber);
    } else {
        packer->host->moved(fiber, whole->base,
                            whole->base + whole->below + whole->above,
                            -pf_whole_distance(whole, stack));
    }
    packer->unpackings++;
    uncount(packer, image);
    pf_image_free(image);
    return 0;
}

int
pf_pack_show(pf_thread *thread, pf_fiber *fiber)
{
    pf_image *image = pf_is_packed(fiber) ? fiber->context.handle : NULL;
    if (image == NULL || pf_is_whole(image) != NULL) {
        return 0;
    }
    pf_packer *packer = thread->packer;
    pf_whole *whole = pf_whole_new(pf_small_bytes(image));
    if (whole == NULL) {
        return -ENOMEM;
    }
    pf_whole_expand(whole, fiber, image);
    packer->stores[image->store].packed_bytes +=
        pf_image_size(&whole->image) - pf_image_size(image);
    fiber->context.handle = whole;
    char *low = (char *)fiber->stack - whole->below;
    packer->host->moved(fiber, low, low + whole->below + whole->above,
                        pf_whole_distance(whole, fiber->stack));
    pf_image_free(image);
    return 0;
}

char *
pf_pack_peek(const pf_thread *thread, const pf_fiber *fiber, const char **low,
             const char **high)
{
    pf_image *image = fiber->context.handle;
    pf_whole *whole = thread->packer->view;
    pf_whole_expand(whole, fiber, image);
    *low = (const char *)fiber->stack - whole->below;
    *high = *low + whole->below + whole->above;
    return whole->base + whole->below;
}

pf_stack_pool *
pf_drop_image(pf_thread *thread, pf_fiber *fiber)
{
    pf_image *image = fiber->context.handle;
    pf_packer *packer = thread == NULL ? NULL : thread->packer;
    pf_stack_pool *pool = packer == NULL ? NULL : uncount(packer, image)->pool;
    pf_image_free(image);
    fiber->context.handle = NULL;
    return pool;
}

void
pf_pack_orphan(pf_thread *thread, pf_fiber *fiber)
{
    if (pf_is_packed(fiber)) {
        Store *store = uncount(thread->packer, fiber->context.handle);
        if (store->pool != NULL) {
            pf_stack_release_home(store->pool, fiber->stack);
        }
    }
}

/* ----------------------------------------------------------------- the mover
 *
 * It runs where the fiber that is left and the one that is entered have the
 * same home: neither stack can be used while the bytes change.  It has no code
 * of the user's, and nothing of it is on its stack between two uses. */

static pf_context *
move(void *arg)
{
    pf_thread *thread = arg;
    pf_packer *packer = thread->packer;
    pf_fiber *mover = packer->mover;
    for (;;) {
        pf_fiber *to = packer->comes;
        Store *store = store_of(packer, pf_stack_pool_of(to->stack));
        if (clear_slot(thread, store, to->stack, true) != 0 ||
            unpack(packer, to) != 0) {
            abort(); /* pf_bring_home has seen to it */
        }
        thread->current = to;
        if (packer->host->on_arrival != NULL) {
            packer->host->on_arrival(thread, mover, to);
        }
        pf_context_switch(&mover->context, &to->context);
    }
    return NULL;
}

static bool
prepare_mover(pf_thread *thread)
{
    pf_packer *packer = thread->packer;
    if (packer->mover != NULL) {
        return true;
    }
    pf_fiber *mover = packer->host->new_mover(thread);
    pf_area area = {pf_malloc(MOVER_STACK), MOVER_STACK, NULL};
    if (mover == NULL || area.low == NULL ||
        pf_context_init(&mover->context, &area, move, thread) != 0) {
        packer->host->free_mover(mover);
        free(area.low);
        return false;
    }
    mover->task.has_stack = true;
    mover->task.state = PF_RUNNING;
    packer->mover = mover;
    packer->mover_stack = area.low;
    return true;
}

/* A whole image of the running fiber must fit in it when it is left. */
static bool
prepare_reserve(pf_thread *thread, pf_packing *packing)
{
    pf_packer *packer = thread->packer;
    const pf_stack *stack = thread->current->stack;
    char here = 0, *low = &here;
    if (low < stack->area.low || low >= (char *)stack) {
        low = stack->area.low + stack->guarded;
    }
    size_t bytes = (size_t)(packing->room_end - low) + UNTIL_SWITCH;
    if (packer->reserve == NULL || packer->reserve->capacity < bytes) {
        free(packer->reserve);
        packer->reserve = pf_whole_new(bytes);
    }
    return packer->reserve != NULL;
}

/* What could fail is done here.  (An open reserve stays so until the mover has
 * unpacked the one who comes.) */
static pf_fiber *
by_mover(pf_thread *thread, pf_fiber *to, bool anyhow, int *error)
{
    pf_packer *packer = thread->packer;
    pf_fiber *from = thread->current;
    const pf_whole *whole = pf_is_whole(to->context.handle);
    pf_packing packing = {0};
    *error = -ENOMEM;
    if (!prepare_mover(thread) || !open_reserve(to->stack, whole)) {
        return NULL;
    }
    packer->host->look(thread, from, &packing);
    if (packing.pinned && !anyhow) {
        *error = -EBUSY;
        return NULL;
    }
    if (!prepare_reserve(thread, &packing)) {
        return NULL;
    }
    packer->comes = to;
    *error = 0;
    return packer->mover;
}

static pf_fiber *
bring_home(pf_thread *thread, pf_fiber *fiber, bool anyhow, int *error)
{
    pf_packer *packer = thread->packer;
    const pf_image *image = fiber->context.handle;
    assert(pf_is_packed(fiber) && fiber != thread->current);
    if (fiber->stack->user == thread->current) {
        return by_mover(thread, fiber, anyhow, error);
    }
    Store *store = &packer->stores[image->store];
    *error = clear_slot(thread, store, fiber->stack, anyhow);
    *error = *error != 0 ? *error : unpack(packer, fiber);
    return *error == 0 ? fiber : NULL;
}

pf_fiber *
pf_bring_home(pf_thread *thread, pf_fiber *fiber, int *error)
{
    return bring_home(thread, fiber, false, error);
}

pf_fiber *
pf_bring_home_anyhow(pf_thread *thread, pf_fiber *fiber)
{
    int error;
    pf_fiber *to;
    while ((to = bring_home(thread, fiber, true, &error)) == NULL) {
        thread->packer->host->pause(); /* others may free some memory */
    }
    return to;
}

pf_fiber *
pf_next_packed(pf_scheduler *s, pf_fiber *fiber)
{
    pf_packer *packer = s->thread->packer;
    int error;
    pf_fiber *to = pf_bring_home(s->thread, fiber, &error);
    if (to != NULL) {
        packer->starved = 0;
        return to;
    }
    pf_queue_push(&s->ready, &fiber->task);
    if (++packer->starved >
        s->ready.count) { /* none of those that are ready */
        packer->starved = 0;
        packer->host->pause();
    }
    return pf_hub(s);
}

/* --------------------------------------------------------------------- homes */

/* Whoever is in it, if that can be packed at all. */
static pf_stack *
any_home(pf_thread *thread, Store *store)
{
    size_t live = pf_stack_pool_live(store->pool);
    for (size_t i = 0; i < live; i++) {
        pf_stack *stack = pf_stack_pool_next(store->pool, SIZE_MAX, true);
        if (stack == NULL || (stack->user != thread->current &&
                              clear_slot(thread, store, stack, false) == 0)) {
            return stack;
        }
    }
    return NULL;
}

/* The next one whose occupant is asleep, if it is among the next few. */
static pf_stack *
quiet_home(pf_thread *thread, Store *store)
{
    for (int i = 0; i < TRIES; i++) {
        pf_stack *stack = pf_stack_pool_next(store->pool, 4 * TRIES, true);
        if (stack == NULL || clear_if_asleep(thread, store, stack)) {
            return stack;
        }
    }
    return NULL;
}

static void lend(Store *store);

/* Somebody needs a stack, and as many are in use as should be.  A slot whose
 * occupant is asleep becomes one more fiber's home.  Where none is found, there
 * will be more slots, up to a limit; then any slot will do. */
static pf_stack *
find_home(pf_thread *thread, Store *store, bool must)
{
    const pf_packer *packer = thread->packer;
    pf_stack *stack = quiet_home(thread, store);
    bool fixed = packer->slots < FIXED_BELOW;
    size_t more = 1 + store->slots / 8;
    if (stack != NULL || must || fixed ||
        store->slots >= MOST_GROWTH * packer->slots) {
        return stack != NULL ? stack : any_home(thread, store);
    }
    store->slots += more;
    thread->packer->grown += more;
    lend(store);
    return NULL;
}

static pf_stack *
share(pf_stack_pool *pool, void *owner, bool must)
{
    pf_thread *thread = owner;
    pf_stack *stack = find_home(thread, store_of(thread->packer, pool), must);
    if (stack != NULL) {
        pf_stack_close_reserve(stack, stack);
        pf_stack_share(stack, NULL);
    }
    return stack;
}

static void
lend(Store *store)
{
    pf_stack_pool_lend(store->pool, store->slots, share);
}

/* ------------------------------------------------------------ an idle thread
 *
 * Each second of which some is idle there is a step: fewer stacks are lent,
 * unless many fibers needed one since the last.  If more have an occupant than
 * are lent, a round begins, which looks at each slot about once and a few at a
 * time, and packs who is asleep there.  Who is not then keeps its stack until a
 * later round; and without any turns in between there is none. */

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

static void
begin_round(pf_packer *packer, Store *store)
{
    if (pf_stack_pool_occupied(store->pool) <= store->slots) {
        return;
    }
    if (!packer->quiet && store->rest > 0) {
        store->rest--;
        return;
    }
    store->looks = pf_stack_pool_live(store->pool);
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
        if (pf_stack_pool_occupied(store->pool) <= store->slots) {
            store->looks = 0;
            break;
        }
        store->looks--;
        pf_stack *stack = pf_stack_pool_next(store->pool, LOOKS, false);
        if (stack != NULL && clear_if_asleep(thread, store, stack)) {
            store->freed++;
        }
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
                pf_stack_pool_occupied(store->pool) > store->slots;
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

/* ------------------------------------------------------------- on and off */

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
    if (thread->packer == NULL && slots != 0) {
        thread->packer = pf_calloc(1, sizeof *thread->packer);
        if (thread->packer == NULL) {
            return -ENOMEM;
        }
        thread->packer->host = host;
    }
    if (thread->packer == NULL || thread->packer->slots == slots) {
        return 0; /* a turn of a hosted run, say: those that were added stay */
    }
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
    if (packer == NULL) {
        return;
    }
    if (packer->mover != NULL) {
        pf_context_finish(&packer->mover->context);
        packer->host->free_mover(packer->mover);
        free(packer->mover_stack);
    }
    pf_forms_free(&packer->forms);
    free(packer->reserve);
    free(packer->view);
    free(packer);
    thread->packer = NULL;
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
        };
    }
}
