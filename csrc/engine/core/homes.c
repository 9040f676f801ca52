/* Decides which slot is a fiber's home, and how many slots are in use before
 * fibers share them (a store's limit): see pack.h.  pack.c moves the bytes. */
#include "engine/core/packer.h"

#include <errno.h>

#include "engine/base/memory.h"
#include "engine/core/scheduler.h"

/* A limit below this is fixed.  Tests ask for so few slots, to see every fiber
 * move. */
#define FIXED_BELOW 16
/* No slot is shared while there are at most this many fibers for each slot
 * that is asked for.  Sharing costs time: a fiber must be moved if another
 * fiber of its slot has had a turn since, which takes as long as several
 * turns. */
#define ROOMY 4
/* The search for a slot whose occupant is asleep checks TRIES occupants, and
 * passes at most STEPS slots to find each: most of a slab may be vacant. */
#define TRIES 8
#define STEPS 4096
/* Fibers that are all ready at once get up to this many slots for each one
 * that is asked for.  A slot takes 6 KB of memory, and a turn without a move
 * takes half of the time of one with a move. */
#define MOST_GROWTH 512
#define DECAY INT64_C(1000000000) /* nanoseconds between two steps */
/* A thread whose fibers had fewer turns than this since the last step is
 * quiet: a fiber that has a stack then is not about to use it. */
#define QUIET 64
/* An idle thread checks this many slots at once, some 100 microseconds' work,
 * and continues after PAUSE. */
#define LOOKS 256
#define PAUSE INT64_C(10000000) /* nanoseconds */
/* The most steps to skip after rounds that freed nothing. */
#define LONGEST_REST 63

static pf_pack_store *
store_of(pf_packer *packer, const pf_stack_pool *pool)
{
    for (unsigned i = 0; i < PF_MOST_STORES; i++) {
        if (packer->stores[i].pool == pool) {
            return &packer->stores[i];
        }
    }
    return NULL;
}

/* Does the fiber wait for something?  Then it may be packed to save memory. */
static bool
is_asleep(const pf_thread *thread, const pf_fiber *fiber)
{
    const pf_scheduler *s = fiber->task.scheduler;
    uint8_t state = fiber->task.state;
    return fiber != thread->current && (s == NULL || fiber != s->hub) &&
           (state == PF_PARKED || state == PF_SUSPENDED);
}

/* Packs the slot's occupant if that is asleep.  Leaves out fibers with foreign
 * code on their stacks (`called_back`), which might not expect the move.  True: the
 * slot is vacant now. */
static bool
clear_if_asleep(pf_thread *thread, pf_pack_store *store, const pf_stack *stack)
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
    return !packing.pinned && !packing.called_back &&
           pf_packer_pack(thread->packer, store, fiber, &packing);
}

/* --------------------------------------------------------------------- homes
 */

/* Returns the next slot whose occupant can be packed at all, asleep or not;
 * the slot is vacant then.  NULL: none. */
static pf_stack *
any_home(pf_thread *thread, pf_pack_store *store)
{
    size_t live = pf_stack_pool_live(store->pool);
    for (size_t i = 0; i < live; i++) {
        pf_stack *stack = pf_stack_pool_next(store->pool, SIZE_MAX, true);
        if (stack == NULL ||
            (stack->user != thread->current &&
             pf_packer_clear(thread, store, stack, false) == 0)) {
            return stack;
        }
    }
    return NULL;
}

/* Returns the next slot whose occupant is asleep, now vacant; NULL: none of
 * the next few.  A slot that is vacant already needs memory when it is used,
 * so it counts only while fewer slots are occupied than the limit. */
static pf_stack *
quiet_home(pf_thread *thread, pf_pack_store *store)
{
    bool vacant = pf_stack_pool_occupied(store->pool) < store->slots;
    for (int i = 0; i < TRIES; i++) {
        pf_stack *stack = pf_stack_pool_next(store->pool, STEPS, vacant);
        if (stack == NULL || clear_if_asleep(thread, store, stack)) {
            return stack;
        }
    }
    return NULL;
}

static bool
is_fixed(const pf_packer *packer)
{
    return packer->slots < FIXED_BELOW;
}

/* Returns the least limit for a store that `coming` more fibers will use: the
 * number of slots asked for, or ROOMY times that if it is enough for all
 * fibers.  Once fibers are packed, it is enough only if they would use no more
 * than half of the slots, so that the limit is not lowered again soon. */
static size_t
least_slots(const pf_packer *packer, const pf_pack_store *store, size_t coming)
{
    size_t fibers =
        pf_stack_pool_occupied(store->pool) + store->packed + coming;
    size_t roomy = ROOMY * packer->slots;
    bool enough = fibers <= (store->packed == 0 ? roomy : roomy / 2);
    return enough && !is_fixed(packer) ? roomy : packer->slots;
}

static void apply_limit(pf_pack_store *store);

/* Packs sleeping fibers until no more slots are occupied than asked for: there
 * are more fibers now than may have a stack each.  The slots are taken in
 * order, to empty whole slabs, as only those give back their page tables, too.
 */
static void
save_stacks(pf_thread *thread, pf_pack_store *store)
{
    size_t slots = thread->packer->slots;
    size_t packed = store->packed;
    for (size_t i = pf_stack_pool_live(store->pool);
         i > 0 && pf_stack_pool_occupied(store->pool) > slots; i--) {
        pf_stack *stack = pf_stack_pool_next(store->pool, SIZE_MAX, false);
        if (stack != NULL) {
            (void)clear_if_asleep(thread, store, stack);
        }
    }
    if (store->packed != packed) {
        pf_stack_pool_discard(store->pool);
    }
    size_t rest = pf_stack_pool_occupied(store->pool);
    store->slots = rest > slots ? rest : slots;
    apply_limit(store);
}

/* Finds a slot for one more fiber when as many are in use as the limit allows:
 * one whose occupant is asleep.  If there is none, raises the limit and
 * returns NULL, so that the pool takes a free slot.  If the limit cannot be
 * raised, or `must` is true, any slot will do. */
static pf_stack *
find_home(pf_thread *thread, pf_pack_store *store, bool must)
{
    pf_packer *packer = thread->packer;
    size_t least = least_slots(packer, store, 1);
    if (store->slots < least && !must) {
        store->slots = least;
        apply_limit(store);
        return NULL;
    }
    if (store->slots == ROOMY * packer->slots && store->slots > least) {
        save_stacks(thread, store);
    }
    pf_stack *stack = quiet_home(thread, store);
    if (stack != NULL || must || is_fixed(packer) ||
        store->slots >= MOST_GROWTH * packer->slots) {
        return stack != NULL ? stack : any_home(thread, store);
    }
    size_t more = 1 + store->slots / 8;
    store->slots += more;
    packer->grown += more;
    apply_limit(store);
    return NULL;
}

/* The pool's pf_stack_share_fn. */
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
apply_limit(pf_pack_store *store)
{
    pf_stack_pool_share_from(store->pool, store->slots, share);
}

/* ------------------------------------------------------------ an idle thread
 *
 * In each second in which the thread is idle for a while there is a step,
 * which lowers the limits, unless many fibers needed a new slot since the last
 * step.  If more slots are occupied than the limit allows, a round begins.  A
 * round checks each slot about once, a few at a time, and packs the occupants
 * that are asleep.  The others keep their stacks until a later round, which
 * does not begin before fibers have had turns. */

static void
lower_limit(pf_packer *packer, pf_pack_store *store)
{
    size_t least = least_slots(packer, store, 0);
    size_t more = store->slots > least ? store->slots - least : 0;
    if (packer->quiet || store->slots < least) {
        store->slots = least;
    } else if (packer->grown <= more / 4) {
        store->slots -= (more + 3) / 4;
    }
    apply_limit(store);
}

static void
begin_round(pf_packer *packer, pf_pack_store *store)
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
end_round(pf_pack_store *store)
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
continue_round(pf_thread *thread, pf_pack_store *store)
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

/* The thread was quiet at the last step, and no fiber has run since. */
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
    for (unsigned i = 0; i < PF_MOST_STORES; i++) {
        pf_pack_store *store = &packer->stores[i];
        if (store->pool != NULL) {
            lower_limit(packer, store);
            begin_round(packer, store);
        }
    }
    packer->grown = 0;
}

static int64_t
next_step(const pf_packer *packer, const pf_pack_store *store, uint64_t turns)
{
    if (store->looks > 0) {
        return packer->paused_to;
    }
    bool more = store->slots > least_slots(packer, store, 0) ||
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
    for (unsigned i = 0; i < PF_MOST_STORES; i++) {
        pf_pack_store *store = &packer->stores[i];
        if (store->pool != NULL) {
            if (store->looks > 0 && !paused) {
                continue_round(thread, store);
            }
            int64_t next = next_step(packer, store, turns);
            again = next < again ? next : again;
        }
    }
    return again;
}

/* ------------------------------------------------------------- on and off */

static pf_pack_store *
unused_store(pf_packer *packer)
{
    for (unsigned i = 0; i < PF_MOST_STORES; i++) {
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
    pf_pack_store *store = store_of(packer, pool);
    if (store == NULL) {
        store = unused_store(packer);
    }
    if (store != NULL) {
        store->pool = pool;
        store->slots = least_slots(packer, store, 0);
        store->looks = store->freed = 0;
        store->rest = store->again = 0;
        apply_limit(store);
    }
}

void
pf_pack_remove_pool(pf_thread *thread, pf_stack_pool *pool)
{
    pf_pack_store *store =
        thread->packer == NULL ? NULL : store_of(thread->packer, pool);
    if (store != NULL) {
        pf_stack_pool_share_from(pool, 0, NULL);
        store->pool = NULL;
    }
}

int
pf_pack_set(pf_thread *thread, const pf_pack_host *host, size_t slots)
{
    if (!pf_pack_is_possible()) {
        slots = 0;
    }
    if (thread->packer == NULL && slots != 0) {
        thread->packer = pf_memory_calloc(1, sizeof *thread->packer);
        if (thread->packer == NULL) {
            return -ENOMEM;
        }
        thread->packer->host = host;
    }
    if (thread->packer == NULL || thread->packer->slots == slots) {
        return 0; /* nothing new, as at each turn of a hosted run: the limits
                     that have been raised stay */
    }
    thread->packer->slots = slots;
    for (unsigned i = 0; i < thread->pool_count; i++) {
        pf_stack_pool_share_from(thread->pools[i], 0, NULL);
        pf_pack_add_pool(thread, thread->pools[i]);
    }
    return 0;
}

void
pf_pack_stats_get(const pf_thread *thread, const pf_stack_pool *pool,
                  pf_pack_stats *stats)
{
    pf_packer *packer = thread->packer;
    const pf_pack_store *store =
        packer == NULL ? NULL : store_of(packer, pool);
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
