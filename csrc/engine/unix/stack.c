/* Hands out stacks, which are slots of mmap'ed slabs, and takes them back.
 *
 * A slab keeps its free slots in a LIFO array of indices.  Slots that were
 * never used have no guard yet; they are taken in order once that array is
 * empty.  A slab is in the pool's list of open slabs exactly while it has a
 * free slot; the most recently used slab is first.
 *
 * slab.h has the structures, sharing.c the slots of several users, reserve.c
 * and guard.c the memory that must not be touched.
 */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* MAP_ANONYMOUS, madvise */
#endif
#if defined(__APPLE__) && !defined(_DARWIN_C_SOURCE)
#define _DARWIN_C_SOURCE
#endif

#include "engine/unix/slab.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/atomics.h"
#include "engine/base/clock.h"
#include "engine/stack/guard.h"
#include "engine/base/memory.h"
#include "engine/stack/testing.h"
#include "engine/unix/layout.h"
#include "engine/unix/map.h"

#if PF_VALGRIND
#include <valgrind/valgrind.h>
#endif

/* The first slab has few slots, as most programs need few.  Each later slab
 * has as many slots as all before it together, up to MOST_SLOTS, so a million
 * stacks take a few thousand mmap calls.  SLAB_BYTES keeps a slab of huge
 * stacks from taking a large part of the address space (or of RLIMIT_AS). */
#if defined(PYFIBER_HARDTEST)
#define FIRST_SLOTS 1
#define MOST_SLOTS 1
#define MOST_AT_HAND 0
#else
#define FIRST_SLOTS 16
#define MOST_SLOTS 256
#define MOST_AT_HAND 8 /* each one may keep a slab from being spare */
#endif
#define SLAB_BYTES ((size_t)256 << 20)

/* About one release in 256 returns the deep part of its stack, all but
 * PF_KEEP_TOP bytes, to the system.  So the memory of a deep recursion is not
 * held for ever, and the other releases pay only a decrement. */
#define TRIM_EVERY 256

/* The pool keeps entirely free slabs while the load of the last PERIOD, or of
 * the one before, would need them: to map a stack, guard it and touch it for
 * the first time costs some 5 us, to take a free one 0.05.  So a fluctuating
 * load pays once, and the slabs that a peak left behind are returned a second
 * or two later.  This work is spread: one release returns at most AT_ONCE
 * slabs. */
#define PERIOD INT64_C(1000000000) /* ns */
#define AT_ONCE 2

/* If the load would need fewer, the pool still keeps one spare slab and a
 * quarter of the load's slabs, but at most this many. */
#define ALWAYS_SPARE 16

PF_ATOMIC(size_t) pf_slab_split_guards; /* shared, one word */

/* ----------------------------------------------------------- slabs --- */

static void
open_slab(pf_stack_pool *pool, pf_slab *slab)
{
    slab->previous = NULL;
    slab->next = pool->open;
    if (pool->open != NULL) {
        pool->open->previous = slab;
    }
    pool->open = slab;
}

static void
close_slab(pf_stack_pool *pool, pf_slab *slab)
{
    if (slab->previous == NULL) {
        pool->open = slab->next;
    } else {
        slab->previous->next = slab->next;
    }
    if (slab->next != NULL) {
        slab->next->previous = slab->previous;
    }
}

static uint32_t
most_slots(const pf_stack_pool *pool)
{
    size_t most = SLAB_BYTES / pool->stride;
    return most < 1 ? 1 : most < MOST_SLOTS ? (uint32_t)most : MOST_SLOTS;
}

/* Maps *count slots, or fewer: near a limit a smaller slab may still fit. */
static char *
map_slots(pf_stack_pool *pool, uint32_t *count)
{
    for (; *count > 0; *count /= 2) {
        char *base = pf_map_stacks(*count * pool->stride);
        if (base != NULL) {
            return base;
        }
    }
    return NULL;
}

static pf_slab *
slab_new(pf_stack_pool *pool)
{
    uint32_t most = most_slots(pool);
    size_t wanted = pool->slots > FIRST_SLOTS ? pool->slots : FIRST_SLOTS;
    uint32_t count = wanted < most ? (uint32_t)wanted : most;
    size_t numbers = count * sizeof(uint32_t);
    pf_slab *slab = pf_memory_malloc(sizeof *slab + 2 * numbers);
    if (slab == NULL) {
        pool->limit = PF_LIMIT_MEMORY;
        return NULL;
    }
    char *base = map_slots(pool, &count);
    if (base == NULL) {
        pool->limit =
            pf_map_diagnose(pool->stride, pf_load(&pf_slab_split_guards));
        free(slab);
        return NULL;
    }
    *slab = (pf_slab){.pool = pool, .base = base, .count = count};
    slab->homes = slab->free + count;
    memset(slab->homes, 0, count * sizeof slab->homes[0]);
    open_slab(pool, slab);
    slab->older = pool->newest;
    if (pool->newest != NULL) {
        pool->newest->newer = slab;
    }
    pool->newest = slab;
    pool->slabs++;
    pool->spare++;
    pool->slots += count;
    return slab;
}

static void
forget_slab(pf_stack_pool *pool, pf_slab *slab)
{
    if (slab->newer != NULL) {
        slab->newer->older = slab->older;
    } else {
        pool->newest = slab->older;
    }
    if (slab->older != NULL) {
        slab->older->newer = slab->newer;
    }
    if (pool->hand == slab) {
        pool->hand = slab->older;
        pool->hand_slot = 0;
    }
}

/* The slab must be spare. */
static void
slab_free(pf_stack_pool *pool, pf_slab *slab)
{
    size_t bytes = slab->count * pool->stride;
    pf_area whole = {slab->base, bytes, NULL};
    pf_area_dispose(&whole);
    munmap(slab->base, bytes);
    pf_fetch_sub(&pf_slab_split_guards, slab->split);
    close_slab(pool, slab);
    forget_slab(pool, slab);
    pool->slabs--;
    pool->spare--;
    pool->slots -= slab->count;
    free(slab);
}

/* ------------------------------------------------------------ pool --- */

pf_stack_pool *
pf_stack_pool_new(size_t slot_size, size_t room_size)
{
    pf_stack_pool *pool = pf_memory_calloc(1, sizeof *pool);
    if (pool == NULL) {
        return NULL;
    }
    pool->slot_size = pf_stack_slot_size(slot_size, room_size);
    pool->stride = pf_layout_stride(pool->slot_size);
    pool->reserve = pf_layout_reserve_size(pool->slot_size);
    pool->tail = pf_layout_tail_size(room_size);
    pool->share_from = SIZE_MAX;
    pool->until_trim = TRIM_EVERY;
    return pool;
}

void
pf_slab_free_spare(pf_stack_pool *pool, size_t count)
{
    for (pf_slab *slab = pool->open, *next; slab != NULL && count > 0;
         slab = next) {
        next = slab->next;
        if (slab->live == 0) {
            slab_free(pool, slab);
            pool->trims++;
            count--;
        }
    }
}

/* ---------------------------------------------------------- stacks --- */

pf_stack *
pf_slab_set_up(pf_slab *slab, uint32_t slot)
{
    pf_stack_pool *pool = slab->pool;
    char *low = pf_slab_slot(slab, slot) + pf_slab_guard_size(pool);
    char *end = pf_slab_slot(slab, slot) + pool->stride;
    pf_stack *stack = pf_slab_header(slab, slot);
    stack->area = (pf_area){low, (size_t)((char *)stack - low), NULL};
    stack->slab = slab;
    stack->slot = slot;
    stack->reserve = (uint32_t)pool->reserve;
    stack->guarded = stack->reserve;
    stack->room = (char *)stack + PF_STACK_LEAD;
    stack->room_size = (uint32_t)(end - stack->room);
    stack->user = NULL;
#if PF_VALGRIND
    stack->valgrind_id = VALGRIND_STACK_REGISTER(low, (char *)stack);
#endif
    return stack;
}

/* False if the system refuses the guard; the pool's `limit` says why. */
static bool
guard_slot(pf_slab *slab, uint32_t slot)
{
    pf_stack_pool *pool = slab->pool;
    size_t size = pf_slab_guard_size(pool) + pool->reserve;
    pf_guard_kind kind = pf_guard(pf_slab_slot(slab, slot), size);
    if (kind == PF_GUARD_NONE) {
        pool->limit = PF_LIMIT_MAP_COUNT;
        return false;
    }
    slab->split += kind == PF_GUARD_MPROTECT;
    pf_fetch_add(&pf_slab_split_guards, kind == PF_GUARD_MPROTECT);
    return true;
}

bool
pf_slab_guard_again(pf_slab *slab)
{
    for (uint32_t i = 0; i < slab->fresh; i++) {
        if (!guard_slot(slab, i)) {
            return false;
        }
    }
    slab->bare = false;
    return true;
}

/* Takes a slot of this slab.  Returns slab->count if the system refuses a
 * guard. */
static uint32_t
take_slot(pf_slab *slab)
{
    if (slab->bare && !pf_slab_guard_again(slab)) {
        return slab->count;
    }
    if (slab->free_count > 0) {
        slab->free_count--;
        if (slab->discarded > slab->free_count) {
            slab->discarded = slab->free_count;
        }
        return slab->free[slab->free_count];
    }
    return guard_slot(slab, slab->fresh) ? slab->fresh++ : slab->count;
}

/* Returns a slab with a free slot that has a guard already, for when the
 * system refuses new guards; NULL if there is none. */
static pf_slab *
slab_with_guarded_slot(const pf_stack_pool *pool)
{
    pf_slab *slab = pool->open;
    while (slab != NULL && (slab->free_count == 0 || slab->bare)) {
        slab = slab->next;
    }
    return slab;
}

static void
note_taken(pf_stack_pool *pool, pf_slab *slab)
{
    if (slab->live++ == 0) {
        pool->spare--;
        size_t used = pool->slabs - pool->spare;
        if (used > pool->peak_now) {
            pool->peak_now = used;
        }
    }
    if (slab->live == slab->count) {
        close_slab(pool, slab);
    }
}

/* Takes a stack from a slab.  NULL if the system refuses memory or guards. */
static pf_stack *
take_stack(pf_stack_pool *pool)
{
    pf_slab *slab = pool->open;
    if (slab == NULL && (slab = slab_new(pool)) == NULL) {
        return NULL;
    }
    uint32_t slot = take_slot(slab);
    if (slot == slab->count) {
        slab = slab_with_guarded_slot(pool);
        if (slab == NULL) {
            return NULL;
        }
        slot = take_slot(slab);
    }
    note_taken(pool, slab);
    slab->homes[slot] = 1;
    return pf_slab_set_up(slab, slot);
}

/* `next` shares its memory with `user`.  The low bit marks it as a link, so
 * that pf_stack_pool_next does not take it for a user. */
static inline void
set_next_at_hand(pf_stack *stack, pf_stack *next)
{
    stack->next = (uintptr_t)next | 1;
}

static inline pf_stack *
next_at_hand(const pf_stack *stack)
{
    return (pf_stack *)(stack->next & ~(uintptr_t)1);
}

static void
note_acquired(pf_stack_pool *pool)
{
    pool->acquired++;
    if (++pool->live > pool->peak) {
        pool->peak = pool->live;
    }
}

/* Returns a stack that nobody uses.  NULL if the system refuses memory or
 * guards. */
static inline pf_stack *
acquire(pf_stack_pool *pool)
{
    pf_stack *stack = pool->at_hand;
    if (stack != NULL) {
        pool->at_hand = next_at_hand(stack);
        pool->hand_count--;
        stack->user = NULL;
    } else {
        stack = take_stack(pool);
    }
    if (stack != NULL) {
        note_acquired(pool);
    }
    return stack;
}

int
pf_stack_acquire(pf_stack_pool *pool, pf_stack **stack)
{
    if (pool->live >= pool->share_from &&
        (*stack = pool->share(pool, pool->owner, false)) != NULL) {
        return 0;
    }
    if ((*stack = acquire(pool)) != NULL) {
        return 0;
    }
    if (pool->share != NULL) {
        *stack = pool->share(pool, pool->owner, true);
    }
    return *stack != NULL ? 0 : -ENOMEM;
}

int
pf_stack_acquire_own(pf_stack_pool *pool, pf_stack **stack)
{
    *stack = acquire(pool);
    if (*stack == NULL) {
        return -ENOMEM;
    }
    (*stack)->slab->homes[(*stack)->slot] |= OWN;
    pool->shared++;
    return 0;
}

static void
next_period(pf_stack_pool *pool, int64_t now)
{
    size_t used = pool->slabs - pool->spare;
    if (now >= pool->period_ends) {
        bool just = now < pool->period_ends + PERIOD;
        pool->peak_last = just ? pool->peak_now : used;
        pool->peak_now = used;
        pool->period_ends = now + PERIOD;
    }
}

/* Returns how many spare slabs the load does not need. */
static size_t
superfluous(const pf_stack_pool *pool)
{
    size_t used = pool->slabs - pool->spare;
    size_t load =
        pool->peak_now > pool->peak_last ? pool->peak_now : pool->peak_last;
    size_t keep = load > used ? load - used : 0;
    size_t always = 1 + load / 4;
    if (always > ALWAYS_SPARE) {
        always = ALWAYS_SPARE;
    }
    if (keep < always) {
        keep = always;
    }
    return pool->spare > keep ? pool->spare - keep : 0;
}

static void
give_back(pf_stack_pool *pool, size_t most)
{
    size_t count = superfluous(pool);
    pf_slab_free_spare(pool, count < most ? count : most);
}

/* Called when the last live stack of a slab is back: frees the spare slabs
 * that the load does not need, and an abandoned pool with its last stack. */
static void
slab_spared(pf_stack_pool *pool, pf_slab *slab)
{
    pool->spare++;
    if (!pool->abandoned) {
        next_period(pool, pf_clock_monotonic());
        give_back(pool, AT_ONCE);
        return;
    }
    slab_free(pool, slab);
    if (pool->live == 0) {
        free(pool);
    }
}

/* Moves the slab to the front of the open slabs: its slots are most likely in
 * the cache. */
static void
prefer(pf_stack_pool *pool, pf_slab *slab, bool was_full)
{
    if (pool->open == slab) {
        return;
    }
    if (!was_full) {
        close_slab(pool, slab);
    }
    open_slab(pool, slab);
}

/* Returns the stack to its slab.  An abandoned pool may be gone afterwards. */
static void
put_stack_back(pf_stack *stack)
{
    pf_slab *slab = stack->slab;
    pf_stack_pool *pool = slab->pool;
#if PF_VALGRIND
    VALGRIND_STACK_DEREGISTER(stack->valgrind_id);
#endif
    stack->user = NULL;
    slab->homes[stack->slot] = 0;
    bool was_full = slab->live == slab->count;
    slab->free[slab->free_count++] = stack->slot;
    prefer(pool, slab, was_full);
    if (--slab->live == 0) {
        slab_spared(pool, slab);
    }
}

/* The list of stacks at hand begins with the latest released one, so this
 * reverses it first. */
void
pf_slab_put_back(pf_stack_pool *pool)
{
    pf_stack *stack = pool->at_hand;
    pf_stack *last_first = NULL;
    pool->at_hand = NULL;
    pool->hand_count = 0;
    while (stack != NULL) {
        pf_stack *next = next_at_hand(stack);
        set_next_at_hand(stack, last_first);
        last_first = stack;
        stack = next;
    }
    while (last_first != NULL) {
        stack = last_first;
        last_first = next_at_hand(stack);
        put_stack_back(stack);
    }
}

void
pf_stack_pool_free(pf_stack_pool *pool)
{
    pf_slab_put_back(pool);
    pf_slab_free_spare(pool, SIZE_MAX);
    if (pool->live == 0) {
        free(pool);
    } else {
        pool->owner = NULL;
        pool->abandoned = true; /* freed with its last stack, if ever */
    }
}

int64_t
pf_stack_pool_decay(pf_stack_pool *pool, int64_t now)
{
    pf_slab_put_back(pool);
    if (pool->spare <= 1) {
        return INT64_MAX;
    }
    next_period(pool, now);
    give_back(pool, SIZE_MAX);
    size_t used = pool->slabs - pool->spare;
    bool at_rest = pool->peak_now <= used && pool->peak_last <= used;
    return at_rest ? INT64_MAX : pool->period_ends;
}

void
pf_stack_pool_load_over(pf_stack_pool *pool)
{
    pf_slab_put_back(pool);
    pool->peak_now = pool->peak_last = pool->slabs - pool->spare;
    give_back(pool, SIZE_MAX);
}

bool
pf_slab_discard_deep(const pf_stack *stack)
{
    size_t page = pf_stack_page_size();
    uintptr_t top = pf_layout_round_up((uintptr_t)stack, page);
    char *keep = (char *)(top - (PF_KEEP_TOP > page ? PF_KEEP_TOP : page));
    char *low = stack->area.low + stack->guarded; /* below, no memory */
    return keep > low && madvise(low, (size_t)(keep - low), PF_DISCARD) == 0;
}

/* Returns the deep part of this stack to the system, and slabs that an earlier
 * load left.  Runs for about one release in TRIM_EVERY. */
static void
trim_one(pf_stack_pool *pool, const pf_stack *stack)
{
    /* The interval varies: a host may start fibers in rounds of 256. */
    pool->until_trim = TRIM_EVERY + (uint32_t)(pool->trims % 7);
    if (pool->spare > 1) {
        next_period(pool, pf_clock_monotonic());
        give_back(pool, AT_ONCE);
        if (superfluous(pool) > 0) {
            pool->until_trim = 1; /* the next release continues this */
        }
    }
    if (pf_slab_discard_deep(stack)) {
        pool->trims++;
    }
}

void
pf_stack_leave(pf_stack *stack)
{
    stack->user = NULL;
    stack->slab->homes[stack->slot] |= VACANT;
    stack->slab->pool->vacant++;
}

/* Ends the occupant of a slot that is the home of other users as well.  The
 * slot stays live, without an occupant. */
static void
vacate(pf_stack *stack)
{
    pf_slab *slab = stack->slab;
    slab->homes[stack->slot]--;
    slab->pool->shared--;
    pf_stack_leave(stack);
#if defined(PYFIBER_HARDTEST)
    /* As if the memory were returned: no code may read this header now. */
    slab->homes[stack->slot] |= GONE;
    memset(stack, 0, sizeof *stack);
#endif
}

/* Whether the slot is the home of several users.  An OWN slot is not; this
 * clears the flag, because the only user releases the slot. */
static bool
is_shared(const pf_stack *stack)
{
    pf_slab *slab = stack->slab;
    uint32_t *homes = &slab->homes[stack->slot];
    if ((*homes & OWN) != 0) {
        *homes = 1;
        slab->pool->shared--;
    }
    return *homes > 1;
}

void
pf_stack_release(pf_stack *stack)
{
    pf_stack_pool *pool = stack->slab->pool;
    if (pf_stack_reserve_is_open(stack)) {
        pf_guard_reserve(stack);
    }
    if (pool->shared != 0 && is_shared(stack)) {
        vacate(stack);
        return;
    }
    pool->live--;
    if (--pool->until_trim == 0) {
        /* Stacks at hand would keep their slabs from being freed. */
        pf_slab_put_back(pool);
        trim_one(pool, stack);
    }
    /* With many spare slabs, after a peak, no stack stays at hand: each slab
     * that becomes empty is a chance to return some of them. */
    if (pool->hand_count != MOST_AT_HAND && pool->spare <= ALWAYS_SPARE &&
        !pool->abandoned) {
        set_next_at_hand(stack, pool->at_hand);
        pool->at_hand = stack;
        pool->hand_count++;
    } else {
        put_stack_back(stack);
    }
}

void
pf_stack_pool_stats(const pf_stack_pool *pool, pf_stack_stats *stats)
{
    *stats = (pf_stack_stats){
        .stack_size = pool->slot_size,
        .mapped = pool->slots * pool->stride,
        .slots = pool->slots,
        .live = pool->live,
        .peak = pool->peak,
        .acquired = pool->acquired,
        .trims = pool->trims,
    };
}

void
pf_stack_pool_own(pf_stack_pool *pool, void *owner)
{
    pool->owner = owner;
}

void *
pf_stack_owner(const pf_stack *stack)
{
    return stack->slab->pool->owner;
}

size_t
pf_stack_pool_slabs(const pf_stack_pool *pool)
{
    return pool->slabs;
}

void
pf_stack_pool_age(pf_stack_pool *pool, int64_t ns)
{
    pool->period_ends -= ns;
}

pf_stack_pool *
pf_stack_pool_of(const pf_stack *stack)
{
    return stack->slab->pool;
}

size_t
pf_stack_size(const pf_stack *stack)
{
    return stack->slab->pool->slot_size;
}

size_t
pf_stack_pool_slot_size(const pf_stack_pool *pool)
{
    return pool->slot_size;
}

pf_limit
pf_stack_pool_limit(const pf_stack_pool *pool)
{
    return pool->limit;
}

bool
pf_stack_guards(const pf_stack *stack, const void *address)
{
    uintptr_t low = (uintptr_t)stack->area.low;
    uintptr_t place = (uintptr_t)address;
    return place < low && place >= low - pf_slab_guard_size(stack->slab->pool);
}
