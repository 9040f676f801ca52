/* Slabs, their slots and their pool, for the two files that implement stack.h
 * on POSIX: stack.c hands stacks out and takes them back; sharing.c has the
 * slots that are the home of several users, and returns memory. */
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
    pf_slab *next; /* in the list of open slabs: those with a free slot */
    pf_slab *previous;
    pf_slab *older; /* in the list of all slabs of the pool */
    pf_slab *newer;
    char *base;
    uint32_t count;      /* slots */
    uint32_t fresh;      /* slots from here on were never used, nor guarded */
    uint32_t live;       /* slots in use, stacks at hand included */
    uint32_t split;      /* slots whose guard is a separate mapping */
    uint32_t free_count; /* entries of `free`; == fresh - live */
    uint32_t discarded;  /* so many first entries of `free` hold no memory */
    bool bare;           /* mapped anew: has neither memory nor guards */
    uint32_t *homes;     /* per slot: how many users, and flags; 0: free */
    uint32_t free[];     /* indices; the last one is reused first */
};
#define OWN ((uint32_t)1 << 31)    /* the slot is never shared */
#define VACANT ((uint32_t)1 << 30) /* no user's bytes are in the slot */
#define GONE                                                                  \
    ((uint32_t)1 << 29) /* vacant, and its memory is returned: the
                                      header may be lost */
#define FLAGS (OWN | VACANT | GONE)

/* Invariants: `spare` counts the slabs without a live slot, all of which are
 * in the open list; `slots` is the sum of the slabs' `count`; the slabs'
 * `live` add up to the pool's `live` plus `hand_count`. */
struct pf_stack_pool {
    pf_slab *open; /* slabs with a free slot, the latest used first */
    size_t live;
    size_t vacant; /* live slots without an occupant */
    size_t shared; /* users of a slot after its first, plus the OWN slots */
    size_t share_from; /* `live` from which on `share` is asked first */
    pf_stack_share_fn share;
    void *owner;
    pf_stack *at_hand; /* released stacks that are still set up */
    uint32_t hand_count;
    size_t slot_size; /* bytes, as all sizes here */
    size_t stride;    /* see pf_layout_stride */
    size_t reserve;
    size_t tail;         /* see pf_layout_tail_size */
    uint32_t until_trim; /* releases until the next trim_one */
    size_t slabs;
    size_t spare;
    size_t peak_now;     /* most slabs in use at once in this period */
    size_t peak_last;    /* ... in the period before */
    int64_t period_ends; /* on the monotonic clock; 0: none has begun */
    pf_limit limit;
    bool abandoned; /* freed while stacks were live */
    size_t slots;
    size_t peak;
    uint64_t acquired;
    uint64_t trims;
    pf_slab *newest; /* the head of the list of all slabs */
    pf_slab *hand;   /* where pf_stack_pool_next goes on */
    uint32_t hand_slot;
};

/* Guards by mprotect in the whole process, each of which splits a mapping. */
extern PF_ATOMIC(size_t) pf_slab_split_guards;

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

/* Writes a slot's header and returns it; the stack has no user. */
pf_stack *pf_slab_set_up(pf_slab *slab, uint32_t slot);
/* Guards all slots of a bare slab that have been used.  False if the system
 * refuses a guard. */
bool pf_slab_guard_again(pf_slab *slab);
/* Returns all stacks at hand to their slabs, the latest released last: it is
 * the first to be reused. */
void pf_slab_put_back(pf_stack_pool *pool);
/* Frees at most `count` slabs that have no live slot. */
void pf_slab_free_spare(pf_stack_pool *pool, size_t count);
/* Returns the memory of a stack except for its first PF_KEEP_TOP bytes, which
 * every user touches.  False: there was none, or the system refuses. */
#define PF_KEEP_TOP ((size_t)16 << 10)
bool pf_slab_discard_deep(const pf_stack *stack);

#endif
