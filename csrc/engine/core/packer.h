/* The packer of a thread, for the two files that know it: pack.c moves the bytes
 * of stacks, homes.c decides which slot is whose home and who is moved out to
 * save memory.
 */
#ifndef PF_PACKER_H
#define PF_PACKER_H

#include "engine/core/images.h"
#include "engine/core/pack.h"

#define PF_MOST_STORES 8 /* sizes of stacks; others are not lent */

typedef struct pf_pack_store {
    pf_stack_pool *pool; /* NULL: it is gone */
    size_t slots;        /* lent at present */
    size_t packed;
    size_t packed_bytes;
    size_t looks;   /* left in this round of an idle thread; 0: none goes on */
    size_t freed;   /* stacks, in this round */
    uint32_t rest;  /* steps until the next round */
    uint32_t again; /* ... and after that, if it is in vain, too */
} pf_pack_store;

struct pf_packer {
    const pf_pack_host *host;
    size_t slots; /* as asked for; 0: off */
    pf_pack_store stores[PF_MOST_STORES];
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

/* The occupant of a slot, which does not run, is packed; false: no memory. */
bool pf_packer_pack(pf_packer *packer, pf_pack_store *store, pf_fiber *fiber,
                    const pf_packing *packing);
/* 0: the slot has no occupant now; -ENOMEM; -EBUSY: it is pinned, and this is
 * not to be done anyhow. */
int pf_packer_clear(pf_thread *thread, pf_pack_store *store,
                    const pf_stack *stack, bool anyhow);

#endif
