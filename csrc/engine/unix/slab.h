/* Slabs and their slots, for the two files that know them: stack.c gives stacks
 * out and takes them back, sharing.c has the slots of which several are at home.
 */
#ifndef PF_SLAB_H
#define PF_SLAB_H

#include <string.h>
#include <sys/mman.h>

#include "engine/base/atomics.h"
#include "engine/stack/guard.h"
#include "engine/stack/stack.h"
#include "engine/unix/layout.h"

#if defined(__APPLE__)
#define PF_DISCARD MADV_FREE
#else
#define PF_DISCARD MADV_DONTNEED
#endif

struct pf_slab {
    pf_stack_pool *pool;
    pf_slab *next; /* among the open ones */
    pf_slab *previous;
    pf_slab *older; /* among all of the pool */
    pf_slab *newer;
    char *base;
    uint32_t count; /* slots */
    uint32_t fresh; /* slots from here on were never used, nor guarded */
    uint32_t live;
    uint32_t split;      /* slots whose guard is a mapping of its own */
    uint32_t free_count; /* == fresh - live */
    uint32_t discarded;  /* how many of these, the first, hold no memory */
    bool bare;           /* nothing of it is mapped, not even guards */
    uint32_t *homes;     /* for each slot, and flags; 0: it is free */
    uint32_t free[];     /* indices; the last one is reused first */
};
#define OWN ((uint32_t)1 << 31)    /* no other home must be added */
#define VACANT ((uint32_t)1 << 30) /* without an occupant ... */
#define GONE ((uint32_t)1 << 29)   /* ... and its memory is returned */
#define FLAGS (OWN | VACANT | GONE)

/* Invariants: `spare` counts the slabs with no live stack, all of them open;
 * slots and mapped are sums over all slabs; the slabs count as live both
 * `live` and the stacks at hand. */
struct pf_stack_pool {
    pf_slab *open;
    size_t live;
    size_t vacant; /* of these, without an occupant */
    size_t shared; /* homes beside the first of each slot; each OWN is one */
    size_t lend_from; /* with so many live ones, `share` is asked first */
    pf_stack_share_fn share;
    void *owner;
    pf_stack *at_hand; /* released, still set up */
    uint32_t hand_count;
    size_t slot_size;
    size_t stride; /* from slot to slot; see stride_of */
    size_t reserve;
    size_t tail; /* from the header of colour 0 to the slot's end */
    uint32_t until_trim;
    size_t slabs;
    size_t spare;
    size_t peak_now;     /* slabs in use at once, in this period */
    size_t peak_last;    /* ... in the one before */
    int64_t period_ends; /* on the monotonic clock; 0: none has begun */
    pf_limit limit;
    bool abandoned; /* freed while stacks were live */
    size_t slots;
    size_t peak;
    uint64_t acquired;
    uint64_t trims;
    pf_slab *newest; /* of all slabs */
    pf_slab *hand;   /* see pf_stack_pool_next */
    uint32_t hand_slot;
};

extern PF_ATOMIC(size_t)
    pf_slab_split_guards; /* mprotect'ed ones, whole process */

static inline size_t
pf_slab_guard_size(const pf_stack_pool *pool)
{
    return pool->stride - pool->slot_size + pf_stack_page_size();
}

static inline char *
pf_slab_slot(const pf_slab *slab, uint32_t slot)
{
    return slab->base + slot * slab->pool->stride;
}

static inline pf_stack *
pf_slab_header(const pf_slab *slab, uint32_t slot)
{
    const pf_stack_pool *pool = slab->pool;
    return (pf_stack *)(pf_slab_slot(slab, slot) + pool->stride - pool->tail +
                        slot % PF_COLOURS * PF_COLOUR_STEP);
}

/* The stack of a slot, with everything in its header. */
pf_stack *pf_slab_set_up(pf_slab *slab, uint32_t slot);
/* Guards for all slots that have been used.  False: they are refused. */
bool pf_slab_guard_again(pf_slab *slab);
/* Return all stacks at hand to their slabs. */
void pf_slab_put_back(pf_stack_pool *pool);
void pf_slab_free_spare(pf_stack_pool *pool, size_t count);
/* All but the first PF_KEEP_TOP bytes, which every user touches. */
#define PF_KEEP_TOP ((size_t)16 << 10)
bool pf_slab_discard_deep(const pf_stack *stack);

#endif
