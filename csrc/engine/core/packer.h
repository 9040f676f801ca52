/* The packer of a thread, shared by two files: pack.c moves the bytes of
 * stacks, homes.c decides which slot is a fiber's home and which fibers are
 * packed to save memory.
 */
#ifndef PF_PACKER_H
#define PF_PACKER_H

#include "engine/core/images.h"
#include "engine/core/pack.h"

#define PF_MOST_STORES 8 /* stack sizes; further ones are not shared */

/* The packed fibers of one stack size.  For steps and rounds see homes.c. */
typedef struct pf_pack_store {
    pf_stack_pool *pool; /* NULL: the pool is gone */
    size_t slots;        /* the limit; once so many are in use, fibers share */
    size_t packed;       /* fibers */
    size_t packed_bytes; /* of their images */
    size_t looks;        /* slots left to check in this round; 0: no round */
    size_t freed;        /* stacks, in this round */
    uint32_t rest;       /* steps to skip before the next round */
    uint32_t again; /* `rest` after the last round; 0 if it freed a stack */
} pf_pack_store;

struct pf_packer {
    const pf_pack_host *host;
    size_t slots; /* as asked for; 0: off */
    pf_pack_store stores[PF_MOST_STORES];
    pf_forms forms;
    pf_fiber *mover; /* NULL: not needed so far */
    char *mover_stack;
    pf_fiber *comes;   /* the fiber that the mover unpacks */
    pf_whole *reserve; /* for the mover, if there is no memory; or NULL */
    pf_whole *view;    /* of pf_pack_peek; exists if a small image does */
    bool quiet;        /* the thread was quiet at the last step */
    size_t grown;      /* slots added to limits since the last step */
    size_t starved;    /* turns in a row without memory to unpack the fiber */
    int64_t stepped;   /* time of the last step */
    int64_t paused_to; /* time when a round continues */
    uint64_t turns;    /* count of turns at the last step */
    uint64_t packings, unpackings;
};

/* Packs the occupant of a slot, which must not be running; false if there is
 * no memory. */
bool pf_packer_pack(pf_packer *packer, pf_pack_store *store, pf_fiber *fiber,
                    const pf_packing *packing);
/* Packs a slot's occupant, if there is one.  0: the slot is vacant now;
 * -ENOMEM; -EBUSY: the occupant is pinned (not if `anyhow` is true). */
int pf_packer_clear(pf_thread *thread, pf_pack_store *store,
                    const pf_stack *stack, bool anyhow);

#endif
