/* Implements two parts of stack.h: slots that are the home of several users,
 * and returning memory to the system while its slots stay mapped.  stack.c
 * hands slots out and takes them back. */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* madvise */
#endif
#if defined(__APPLE__) && !defined(_DARWIN_C_SOURCE)
#define _DARWIN_C_SOURCE
#endif

#include "engine/unix/slab.h"

#include "engine/unix/map.h"

void
pf_stack_pool_share_from(pf_stack_pool *pool, size_t from,
                         pf_stack_share_fn share)
{
    pool->share_from = share == NULL ? SIZE_MAX : from;
    pool->share = share;
}

size_t
pf_stack_pool_live(const pf_stack_pool *pool)
{
    return pool->live;
}

size_t
pf_stack_pool_occupied(const pf_stack_pool *pool)
{
    return pool->live - pool->vacant;
}

void
pf_stack_trim_below(pf_stack *stack, const char *low)
{
    if ((size_t)((char *)stack - low) > PF_KEEP_TOP) {
        (void)pf_slab_discard_deep(stack);
    }
}

void
pf_stack_enter(pf_stack *stack, void *user)
{
    stack->user = user;
    stack->slab->homes[stack->slot] &= ~VACANT;
    stack->slab->pool->vacant--;
}

void
pf_stack_share(pf_stack *stack, void *user)
{
    stack->slab->homes[stack->slot]++;
    stack->slab->pool->shared++;
    pf_stack_enter(stack, user);
}

bool
pf_stack_is_shared(const pf_stack *stack)
{
    return (stack->slab->homes[stack->slot] & ~FLAGS) > 1;
}

void
pf_stack_release_home(pf_stack_pool *pool, pf_stack *stack)
{
    if (!pf_stack_bring_back(pool, stack)) {
        return; /* no memory for a guard: the slot stays vacant for good */
    }
    pf_slab *slab = stack->slab;
    uint32_t *homes = &slab->homes[stack->slot];
    if ((*homes & ~FLAGS) > 1) {
        --*homes;
        slab->pool->shared--;
    } else {
        pf_stack_enter(stack, NULL);
        pf_stack_release(stack);
    }
}

/* A stack at hand has one home, as if it were in use; the low bit of `next`
 * shows that it is not. */
static bool
is_occupied(const pf_stack *stack)
{
    return stack->user != NULL && (stack->next & 1) == 0;
}

/* Guards a bare slab and writes the slot's header.  False if the system
 * refuses a guard. */
static bool
bring_back(pf_slab *slab, uint32_t slot)
{
    if (slab->bare && !pf_slab_guard_again(slab)) {
        return false;
    }
    slab->homes[slot] &= ~GONE;
    (void)pf_slab_set_up(slab, slot);
    return true;
}

bool
pf_stack_bring_back(pf_stack_pool *pool, pf_stack *stack)
{
    if (stack->slab != NULL) {
        return true; /* a header whose memory was returned reads as zeros */
    }
    const char *place = (const char *)stack;
    pf_slab *slab = pool->newest;
    while (place < slab->base ||
           place >= slab->base + slab->count * pool->stride) {
        slab = slab->older;
    }
    return bring_back(slab,
                      (uint32_t)((size_t)(place - slab->base) / pool->stride));
}

/* One step looks at a slot or moves on to the next slab, so a lap takes
 * slots + slabs steps. */
pf_stack *
pf_stack_pool_next(pf_stack_pool *pool, size_t steps, bool vacant)
{
    size_t lap = pool->slots + pool->slabs;
    for (steps = steps < lap ? steps : lap; steps > 0; steps--) {
        if (pool->hand == NULL || pool->hand_slot >= pool->hand->fresh ||
            (pool->hand->bare && !vacant)) {
            pool->hand = pool->hand == NULL || pool->hand->older == NULL
                             ? pool->newest
                             : pool->hand->older;
            pool->hand_slot = 0;
            continue;
        }
        pf_slab *slab = pool->hand;
        uint32_t slot = pool->hand_slot++;
        uint32_t homes = slab->homes[slot];
        pf_stack *stack = pf_slab_header(slab, slot);
        if ((homes & VACANT) != 0
                ? vacant && ((homes & GONE) == 0 || bring_back(slab, slot))
                : homes != 0 && (homes & OWN) == 0 && is_occupied(stack)) {
            return stack;
        }
    }
    return NULL;
}

/* ------------------------------------------------- returning memory --- */

/* Returns the memory of the free slots that were used since the last call.
 * The result is their size in bytes. */
static size_t
discard_free_slots(pf_slab *slab)
{
    size_t guards = pf_slab_guard_size(slab->pool);
    size_t bytes = slab->pool->stride - guards;
    uint32_t count = slab->free_count - slab->discarded;
    for (uint32_t i = slab->discarded; i < slab->free_count; i++) {
        char *low = pf_slab_slot(slab, slab->free[i]) + guards;
        (void)madvise(low, bytes, PF_DISCARD);
    }
    slab->discarded = slab->free_count;
    return count * bytes;
}

static void
mark_gone(pf_slab *slab)
{
    for (uint32_t i = 0; i < slab->fresh; i++) {
        slab->homes[i] |= slab->homes[i] != 0 ? GONE : 0;
    }
    slab->discarded = slab->free_count;
}

/* Maps a slab without occupants anew.  This returns its page tables as well,
 * which madvise would leave because the guards are in them.  False if the
 * system refuses. */
static bool
strip(pf_slab *slab)
{
    size_t bytes = slab->count * slab->pool->stride;
    if (!pf_map_again(slab->base, bytes)) {
        return false;
    }
    pf_fetch_sub(&pf_slab_split_guards, slab->split);
    slab->split = 0;
    slab->bare = true;
    mark_gone(slab);
    return true;
}

/* Returns the memory of all vacant slots; the result is its size in bytes.
 * Adds to *occupied the number of slots that have an occupant. */
static size_t
discard_vacant_slots(pf_slab *slab, uint32_t *occupied)
{
    size_t guards = pf_slab_guard_size(slab->pool) + slab->pool->reserve;
    size_t bytes = slab->pool->stride - guards, given = 0;
    for (uint32_t i = 0; i < slab->fresh; i++) {
        uint32_t homes = slab->homes[i];
        if (homes == 0 || (homes & GONE) != 0) {
            continue;
        }
        if ((homes & VACANT) == 0) {
            ++*occupied;
            continue;
        }
        pf_stack *stack = pf_slab_header(slab, i);
        if (pf_stack_reserve_is_open(stack)) {
            pf_guard_reserve(stack);
        }
        if (madvise(pf_slab_slot(slab, i) + guards, bytes, PF_DISCARD) == 0) {
            slab->homes[i] |= GONE;
            given += bytes;
        }
    }
    return given;
}

size_t
pf_stack_pool_discard(pf_stack_pool *pool)
{
    pf_slab_put_back(pool);
    size_t given = 0;
    for (pf_slab *slab = pool->newest; slab != NULL; slab = slab->older) {
        uint32_t occupied = 0;
        given += slab->bare ? 0 : discard_free_slots(slab);
        given += slab->bare ? 0 : discard_vacant_slots(slab, &occupied);
        if (occupied == 0 && slab->live != 0 && !slab->bare) {
            (void)strip(slab);
        }
    }
    return given;
}

size_t
pf_stack_pool_trim(pf_stack_pool *pool)
{
    pf_slab_put_back(pool);
    size_t before = pool->slots * pool->stride;
    pf_slab_free_spare(pool, SIZE_MAX);
    size_t given = before - pool->slots * pool->stride;
    given += pf_stack_pool_discard(pool);
    pool->peak_now = pool->peak_last = pool->slabs;
    pool->trims += given != 0;
    return given;
}
