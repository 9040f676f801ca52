/* Stacks that many fibers share: a fiber that waits needs few of its stack's
 * bytes, and others have most of those in common with it.
 *
 * Once as many stacks are in use as the thread lends (its slots), a fiber that
 * needs one takes it from another that waits, which is packed: what differs
 * between its stack and a form, the stack of a fiber that waited at the same
 * place, goes into an image of some hundred bytes.  When the packed fiber's
 * turn comes, it is unpacked into any free slot: words that pointed into its
 * stack point into the new one afterwards.
 *
 * What may be packed: shapes.h, and pf_packing of the host, which also moves
 * what others point to.  What may not keeps its stack, and blocks nobody.
 *
 * pf_fiber.stack of a packed fiber is PF_PACKED (it has begun; has_stack is
 * false, so that its turn leads to pf_task_ops.first), and its image is where
 * its context's handle was.
 */
#ifndef PF_PACK_H
#define PF_PACK_H

#include "engine/core/fiber.h"

typedef struct pf_packer pf_packer;

/* Stands for "no stack, but an image". */
extern pf_stack pf_packed_stack;
#define PF_PACKED (&pf_packed_stack)

static inline bool
pf_is_packed(const pf_fiber *fiber)
{
    return fiber->stack == PF_PACKED;
}

/* What is to be packed, as the host sees it. */
typedef struct pf_packing {
    const char *room_end; /* of the room's bytes in use; a multiple of 8 */
    char *moves;          /* on the stack, what moves to the image ... */
    uint16_t bytes;       /* ... so many, a multiple of 8; 0: none */
} pf_packing;

typedef struct pf_pack_host {
    /* May it be packed?  True: its room and frames are ready for it (see
     * images.h for values of less than a word); then `keep` or `unpacked`
     * follows.  Runs no code of the user's. */
    bool (*may_pack)(pf_thread *thread, pf_fiber *fiber, pf_packing *packing);
    /* What moves is to go from the stack to `kept`, bytes that stay where they
     * are while the fiber is packed. */
    void (*keep)(pf_fiber *fiber, char *moves, char *kept);
    /* It has a stack again: the one that it had if `kept` is NULL, because
     * there was no memory for an image; otherwise another, and what moved goes
     * from `kept` back to `moves` (NULL: nothing). */
    void (*unpacked)(pf_thread *thread, pf_fiber *fiber, char *moves,
                     char *kept);
} pf_pack_host;

typedef struct pf_pack_stats {
    size_t slots;        /* lent at present; 0: packing is off */
    size_t packed;       /* fibers, now */
    size_t packed_bytes; /* of their images */
    uint64_t packings;
    uint64_t unpackings;
    uint64_t refusals; /* fibers looked at that could not be packed */
} pf_pack_stats;

/* Why stacks cannot be packed here; NULL: they can. */
const char *pf_packing_refused(void);
static inline bool
pf_can_pack(void)
{
    return pf_packing_refused() == NULL;
}

/* From now on lend so many stacks of each size; 0: as many as there are fibers.  Fibers
 * that are packed stay so until their turn.  0 or -ENOMEM. */
int pf_pack_set(pf_thread *thread, const pf_pack_host *host, size_t slots);
void pf_pack_finish(pf_thread *thread);

/* A pool that the thread now has. */
void pf_pack_add_pool(pf_thread *thread, pf_stack_pool *pool);
/* ... and one that it has no longer, with no stack in use. */
void pf_pack_remove_pool(pf_thread *thread, pf_stack_pool *pool);

/* Give a packed fiber a stack again: 0 or -ENOMEM.  `runs`: because it will
 * run, not only to look at it. */
int pf_unpack(pf_thread *thread, pf_fiber *fiber, bool runs);

/* Its turn has come.  Without memory it goes to the back of the queue; so the
 * result may be another fiber. */
pf_fiber *pf_next_packed(pf_scheduler *s, pf_fiber *fiber);

/* A packed fiber will not run any more. */
void pf_drop_image(pf_thread *thread, pf_fiber *fiber);

void pf_pack_forget(pf_thread *thread, const pf_fiber *fiber);

/* See pf_shapes_look; from pf_poll. */
void pf_pack_look(pf_scheduler *s);

/* The thread is idle at `now`, and its scheduler has counted so many turns:
 * who took turns a while ago may wait without a stack.  The result is when to
 * call again; PF_NEVER: not before fibers have run. */
int64_t pf_pack_decay(pf_thread *thread, int64_t now, uint64_t turns);

void pf_pack_stats_get(const pf_thread *thread, const pf_stack_pool *pool,
                       pf_pack_stats *stats);

#endif
