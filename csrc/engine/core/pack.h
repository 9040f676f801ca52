/* Stacks that many fibers share: a fiber that waits needs few of its stack's
 * bytes, and others have most of those in common with it.
 *
 * Each fiber has a home, the slot of a pool where its stack begins and ends.
 * Once as many slots are in use as the thread lends (homes.c), a new fiber gets
 * one that is another fiber's home already.  The bytes in a slot are those of
 * one fiber at a time, its occupant (pf_stack.user).  Another one that is at home
 * there is packed: its bytes are in an image (images.h).  Before it runs, the
 * occupant is packed, and its own bytes are put back exactly where they were.
 * So nothing needs to be known of what is on a stack.
 *
 * Nothing outside of a slot may point to what is in it while the fiber waits,
 * except from where the host knows: pf_pack_host.moved.
 *
 * pf_task.has_stack of a packed fiber is false, so that its turn leads to
 * pf_task_ops.first, and its image is where its context's handle was.
 */
#ifndef PF_PACK_H
#define PF_PACK_H

#include "engine/core/fiber.h"

typedef struct pf_packer pf_packer;

static inline bool
pf_pack_is_packed(const pf_fiber *fiber)
{
    return fiber->stack != NULL && !fiber->task.has_stack;
}

/* A suspended fiber that may be packed, as the host sees it.  Of the running one
 * only `room_end` and `pinned` are asked for. */
typedef struct pf_packing {
    char *room_end; /* of the room's bytes in use; a multiple of 8 */
    bool exposed;   /* others may look at its frames: it needs a whole image */
    bool lends;     /* code that is not ours may have told others where its
                       variables are: only for who is at home there */
    bool pinned;    /* it must not be packed now */
} pf_packing;

/* What belongs to a host of several threads is constant. */
typedef struct pf_pack_host {
    void (*look)(pf_thread *thread, pf_fiber *fiber, pf_packing *packing);
    /* Bytes of the fiber that were from `low` to `high` are `distance` further
     * on: in a whole image, or at home again. */
    void (*moved)(pf_fiber *fiber, const char *low, const char *high,
                  ptrdiff_t distance);
    /* The fiber has a small image, so its bytes are nowhere, or it has them at
     * home again. */
    void (*packed)(pf_fiber *fiber);
    void (*unpacked)(pf_fiber *fiber);
    /* A fiber of this thread that only the packer uses, see pf_pack_bring_home; NULL:
     * no memory. */
    pf_fiber *(*new_mover)(pf_thread *thread);
    void (*free_mover)(pf_fiber *mover);
    /* As pf_host.on_switch, from the mover to the fiber that it has unpacked.
     */
    void (*on_arrival)(pf_thread *thread, pf_fiber *mover, pf_fiber *to);
    /* As pf_os_thread_pause; other threads may run meanwhile. */
    void (*pause)(void);
} pf_pack_host;

typedef struct pf_pack_stats {
    size_t slots;        /* lent at present; 0: packing is off */
    size_t packed;       /* fibers, now */
    size_t packed_bytes; /* of their images */
    uint64_t packings;
    uint64_t unpackings;
} pf_pack_stats;

/* Why stacks cannot be packed here; NULL: they can. */
const char *pf_pack_refused(void);
static inline bool
pf_pack_is_possible(void)
{
    return pf_pack_refused() == NULL;
}

/* From now on fibers share so many stacks of each size, once there are more than
 * four times as many fibers (or, if it is less than 16, more than so many); 0:
 * never.  Fibers that are packed stay so until their turn.  0 or -ENOMEM. */
int pf_pack_set(pf_thread *thread, const pf_pack_host *host, size_t slots);
void pf_pack_finish(pf_thread *thread);

/* A pool that the thread now has. */
void pf_pack_add_pool(pf_thread *thread, pf_stack_pool *pool);
/* ... and one that it has no longer, with no stack in use. */
void pf_pack_remove_pool(pf_thread *thread, pf_stack_pool *pool);

/* The running fiber will be left for `fiber`, which is packed: the result is
 * whom to switch to.  That is the fiber itself, unpacked; or, where the
 * running fiber is in its home, the thread's mover, which runs on a stack of
 * its own, packs the fiber that is left and goes on to the other one.
 * NULL: not now, *error says why: -ENOMEM, or -EBUSY if the occupant is
 * pinned. */
pf_fiber *pf_pack_bring_home(pf_thread *thread, pf_fiber *fiber, int *error);
/* The same for who cannot be told: it waits until there is memory, and packs who
 * is pinned. */
pf_fiber *pf_pack_bring_home_anyhow(pf_thread *thread, pf_fiber *fiber);
/* Is the running fiber in its home? */
static inline bool
pf_pack_is_crowded_out(const pf_thread *thread, const pf_fiber *fiber)
{
    return pf_pack_is_packed(fiber) && fiber->stack->user == thread->current;
}

/* For pf_task_ops.first: its turn has come.  Without memory it goes to the back
 * of the queue; so the result may be another fiber. */
pf_fiber *pf_pack_next(pf_scheduler *s, pf_fiber *fiber);

/* Somebody wants to look at a packed fiber: it gets a whole image.  0 or
 * -ENOMEM. */
int pf_pack_show(pf_thread *thread, pf_fiber *fiber);

/* Where the header of a fiber with a small image would be in a copy of its
 * bytes, those from `*low` to `*high`.  The copy is good until the next call;
 * this cannot fail, and changes nothing. */
char *pf_pack_peek(const pf_thread *thread, const pf_fiber *fiber,
                   const char **low, const char **high);

/* A packed fiber will not run any more: its image is dropped, its home stays.
 * The result is the pool of that; NULL: its thread is gone, as `thread` says.
 */
pf_stack_pool *pf_pack_drop_image(pf_thread *thread, pf_fiber *fiber);

/* The thread ends, and this fiber, which nobody ends, will never run again.  If
 * it is packed its image stays, and its home is its home no longer. */
void pf_pack_orphan(pf_thread *thread, pf_fiber *fiber);

/* The thread is idle at `now`, and its scheduler has counted so many turns:
 * who took turns a while ago may wait without a stack.  The result is when to
 * call again; PF_NEVER: not before fibers have run. */
int64_t pf_pack_decay(pf_thread *thread, int64_t now, uint64_t turns);

void pf_pack_stats_get(const pf_thread *thread, const pf_stack_pool *pool,
                       pf_pack_stats *stats);

#endif
