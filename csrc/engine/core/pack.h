/* Packing: many fibers share few stacks.  A fiber that waits needs few of its
 * stack's bytes, and most of those are the same for other fibers.
 *
 * Each fiber has a home, the slot of a pool where its stack begins and ends.
 * Once a thread uses as many slots as it may (homes.c), a new fiber gets a
 * slot that is other fibers' home already.  The bytes in a slot are those of
 * one fiber at a time, the occupant (pf_stack.user).  Every other fiber of
 * that home is packed: its bytes are in an image (images.h).  Before a packed
 * fiber runs, the occupant is packed, and the fiber's bytes are put back
 * exactly where they were.  So the packer need not know what the bytes of a
 * stack mean.
 *
 * While a fiber waits, no pointer from outside may lead into its slot, except
 * pointers that the host corrects: pf_pack_host.moved.
 *
 * pf_task.has_stack of a packed fiber is false, so that its turn leads to
 * pf_task_ops.first, and its context.handle points to the image.
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

/* What the host says about a fiber that may be packed.  For the running fiber
 * only `room_end` and `pinned` are used. */
typedef struct pf_packing {
    char *room_end; /* end of the room's bytes in use; a multiple of 8 */
    bool exposed;   /* pointers lead to its frames: it needs a whole image */
    bool
        called_back; /* foreign code may have passed addresses of its variables
                       on: pack the fiber only if its slot is needed */
    bool pinned;     /* the fiber must not be packed now */
} pf_packing;

/* The host's functions.  One constant table serves all threads. */
typedef struct pf_pack_host {
    /* Fills in `packing`, which is zero before. */
    void (*look)(pf_thread *thread, pf_fiber *fiber, pf_packing *packing);
    /* The fiber's bytes from `low` to `high` have moved by `distance`, into a
     * whole image or back home: the host corrects its pointers to them. */
    void (*moved)(pf_fiber *fiber, const char *low, const char *high,
                  ptrdiff_t distance);
    /* The fiber has got a small image, so its bytes are nowhere in memory; or
     * the bytes of such a fiber are at home again. */
    void (*packed)(pf_fiber *fiber);
    void (*unpacked)(pf_fiber *fiber);
    /* Returns a fiber of this thread that only the packer uses (see
     * pf_pack_bring_home); NULL: no memory. */
    pf_fiber *(*new_mover)(pf_thread *thread);
    void (*free_mover)(pf_fiber *mover);
    /* As pf_host.on_switch, from the mover to the fiber that it has unpacked.
     */
    void (*on_arrival)(pf_thread *thread, pf_fiber *mover, pf_fiber *to);
    /* As pf_os_thread_pause, with the host's lock released. */
    void (*pause)(void);
} pf_pack_host;

typedef struct pf_pack_stats {
    size_t slots;        /* the present limit; 0: packing is off */
    size_t packed;       /* fibers, now */
    size_t packed_bytes; /* of their images */
    uint64_t packings;
    uint64_t unpackings;
} pf_pack_stats;

/* Return why stacks cannot be packed here; NULL: they can. */
const char *pf_pack_refused(void);
static inline bool
pf_pack_is_possible(void)
{
    return pf_pack_refused() == NULL;
}

/* Let fibers share `slots` stacks of each size from now on.  Sharing begins
 * once there are more than 4 * slots fibers, or, if `slots` is less than 16,
 * more than `slots`.  0: no sharing; fibers that are packed stay so until
 * their turn.  0 or -ENOMEM. */
int pf_pack_set(pf_thread *thread, const pf_pack_host *host, size_t slots);
void pf_pack_finish(pf_thread *thread);

/* The thread has a new pool, or is about to lose one. */
void pf_pack_add_pool(pf_thread *thread, pf_stack_pool *pool);
void pf_pack_remove_pool(pf_thread *thread, pf_stack_pool *pool);

/* Prepare a switch from the running fiber to `fiber`, which is packed.
 * Returns the fiber to switch to: `fiber` itself, unpacked; or, where the
 * running fiber is the occupant of its home, the thread's mover.  The mover
 * runs on a separate stack, packs the fiber that is left, unpacks `fiber` and
 * switches to it.  NULL: not possible now; *error is -ENOMEM, or -EBUSY if the
 * occupant is pinned. */
pf_fiber *pf_pack_bring_home(pf_thread *thread, pf_fiber *fiber, int *error);
/* The same for callers that cannot handle an error: waits until there is
 * memory, and packs the occupant even if it is pinned. */
pf_fiber *pf_pack_bring_home_anyhow(pf_thread *thread, pf_fiber *fiber);
/* Is the fiber packed, with the running fiber as the occupant of its home? */
static inline bool
pf_pack_is_crowded_out(const pf_thread *thread, const pf_fiber *fiber)
{
    return pf_pack_is_packed(fiber) && fiber->stack->user == thread->current;
}

/* For pf_task_ops.first of a packed fiber, whose turn has come.  Returns the
 * fiber to switch to, as pf_pack_bring_home; if that is not possible now,
 * moves `fiber` to the end of the queue and returns the hub. */
pf_fiber *pf_pack_next(pf_scheduler *s, pf_fiber *fiber);

/* Give a packed fiber a whole image, so that its frames can be looked at.  0
 * or -ENOMEM. */
int pf_pack_show(pf_thread *thread, pf_fiber *fiber);

/* Copy the bytes of a fiber with a small image into a buffer of the thread's.
 * Returns where the header is in the copy; *low and *high are the bounds that
 * the bytes have at home.  The copy is valid until the next call.  This cannot
 * fail, and changes nothing else. */
char *pf_pack_peek(const pf_thread *thread, const pf_fiber *fiber,
                   const char **low, const char **high);

/* Free the image of a packed fiber that will not run any more.  The slot stays
 * the fiber's home.  Returns the home's pool; NULL: the pool or the fiber's
 * thread is gone.  `thread` is NULL if the thread has ended. */
pf_stack_pool *pf_pack_drop_image(pf_thread *thread, pf_fiber *fiber);

/* For a thread that ends: `fiber` will never run again, but lives on.  If the
 * fiber is packed, it keeps its image and gives up its home. */
void pf_pack_orphan(pf_thread *thread, pf_fiber *fiber);

/* For a thread that is idle at `now` and whose scheduler has counted `turns`
 * turns: pack fibers that are asleep, a few at a time.  Returns when to call
 * again; PF_NEVER: not before fibers have run. */
int64_t pf_pack_decay(pf_thread *thread, int64_t now, uint64_t turns);

void pf_pack_stats_get(const pf_thread *thread, const pf_stack_pool *pool,
                       pf_pack_stats *stats);

#endif
