/* Implements two parts of stack.h: slots that are the home of several users,
 * and the return of their memory to the system while the slots stay mapped.
 * stack.c hands out slots, which have one user at first, and takes them back;
 * its pf_stack_release ends the occupant of a shared slot, too.
 *
 * The words (the flags are in slab.h):
 *
 *   user      a fiber, for this file only a pointer that is not NULL
 *   home      a slot as the place to which a user's bytes belong; `homes`
 *             counts the users of each slot
 *   occupant  the user whose bytes are in the slot now (stack->user)
 *   vacant    the slot is a home but has no occupant (flag VACANT)
 *   gone      the slot is vacant, and its memory has been returned with the
 *             stack's header (flag GONE); pf_stack_bring_back undoes that
 *   own       the slot has one user for good and is never shared (flag OWN)
 *   at hand   released, but still set up, to be reused first (see stack.h)
 *   bare      a slab that was mapped anew: no slot has memory or a guard
 */
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

/* A stack is deep if it uses more than PF_KEEP_TOP bytes. */
void
pf_stack_trim_below(pf_stack *stack, const char *low)
{
    if ((size_t)((char *)stack - low) > PF_KEEP_TOP) {
        (void)pf_slab_discard_deep(stack);
    }
}

/* The slot must be vacant, and pf_stack_bring_back must have been called since
 * it became vacant.  The number of its users stays the same. */
void
pf_stack_enter(pf_stack *stack, void *user)
{
    stack->user = user;
    stack->slab->homes[stack->slot] &= ~VACANT;
    stack->slab->pool->vacant--;
}

/* Adds a user, who becomes the occupant; otherwise as pf_stack_enter. */
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

/* Subtracts a user who is not the occupant.  The last user's slot becomes
 * free: that user enters the vacant slot and releases it. */
void
pf_stack_release_home(pf_stack_pool *pool, pf_stack *stack)
{
    if (!pf_stack_bring_back(pool, stack)) {
        return; /* The system refuses a guard, so the slot cannot be reused:
                   the user stays counted and the slot is lost. */
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

/* Returns true if the slot, which is not vacant, has an occupant.  A stack at
 * hand has none, although its slot has the count of one user; it is recognized
 * by the low bit of `next`, a field that shares its memory with `user`. */
static bool
is_occupied(const pf_stack *stack)
{
    return stack->user != NULL && (stack->next & 1) == 0;
}

/* Clears GONE and writes the slot's header, which may be lost; guards the slab
 * again first if it is bare.  Returns false, with nothing changed for this
 * slot, if the system refuses a guard. */
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

/* Returns the slab that the stack's slot is part of.  A header whose memory
 * was returned may read as zeros; then this searches all slabs. */
static pf_slab *
slab_of(const pf_stack_pool *pool, const pf_stack *stack)
{
    const char *place = (const char *)stack;
    pf_slab *slab = stack->slab;
    if (slab == NULL) {
        slab = pool->newest;
        while (place < slab->base ||
               place >= slab->base + slab->count * pool->stride) {
            slab = slab->older;
        }
    }
    return slab;
}

/* The flag GONE decides, not the header.  After MADV_FREE (macOS) the header
 * survives until the system needs the memory.  A slot that keeps GONE when it
 * gets an occupant would count as shared when it is released, and as vacant in
 * pf_stack_pool_discard, which would map its slab anew. */
bool
pf_stack_bring_back(pf_stack_pool *pool, pf_stack *stack)
{
    pf_slab *slab = slab_of(pool, stack);
    size_t distance = (size_t)((const char *)stack - slab->base);
    uint32_t slot = (uint32_t)(distance / pool->stride);
    return (slab->homes[slot] & GONE) == 0 || bring_back(slab, slot);
}

/* Searches from the hand, the place where the last search has ended, for a
 * slot with an occupant or, if `vacant` is true, without one.  Slots that are
 * free, own or at hand are passed over.  One step looks at a slot or moves on
 * to the next slab, so a lap takes slots + slabs steps.  Returns NULL if
 * `steps` steps or a lap find none. */
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

/* Gives the memory of free slots back to the system, but only of those that
 * were used since the last call.  Returns the number of bytes that the system
 * has taken back.  Ends with the first slot whose memory the system refuses
 * (as for locked memory): the next call begins there. */
static size_t
discard_free_slots(pf_slab *slab)
{
    size_t guards = pf_slab_guard_size(slab->pool);
    size_t bytes = slab->pool->stride - guards, given = 0;
    for (; slab->discarded < slab->free_count; slab->discarded++) {
        char *low = pf_slab_slot(slab, slab->free[slab->discarded]) + guards;
        if (madvise(low, bytes, PF_DISCARD) != 0) {
            break;
        }
        given += bytes;
    }
    return given;
}

/* Notes that no slot of the slab has memory any more: marks the vacant slots
 * as gone, and counts the free ones as discarded. */
static void
mark_gone(pf_slab *slab)
{
    for (uint32_t i = 0; i < slab->fresh; i++) {
        slab->homes[i] |= slab->homes[i] != 0 ? GONE : 0;
    }
    slab->discarded = slab->free_count;
}

/* Maps a slab anew, which must have no occupants: the slab becomes bare.  This
 * frees its page tables as well.  madvise leaves those, because the guards of
 * MADV_GUARD_INSTALL are entries of the page tables.  Returns false if the
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

/* Gives the memory of all vacant slots back to the system.  Returns the number
 * of bytes that the system has taken back.  Adds to *occupied the number of
 * slots that are a home and not vacant. */
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

/* Frees the spare slabs and discards what is left.  The present load counts as
 * the peak from now on, so no slab is kept for an earlier one. */
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
