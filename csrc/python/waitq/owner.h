/* The owner of a lock: which fiber holds it.  Reports name the owner, and some
 * locks may be released by their owner only. */
#ifndef PF_WAITQ_OWNER_H
#define PF_WAITQ_OWNER_H

#include "python/core/compiler.h"
#include "python/task/fiber.h"

/* The fiber that holds a lock.  The pointer is not a reference, because a lock
 * must not keep its suspended owner alive.  The fiber's number distinguishes
 * the fiber from later ones at the same address.  Numbers are handed out in
 * turn, one to each fiber that owns a lock for the first time, so two fibers
 * with the same number are 2^32 such fibers apart. */
typedef struct PfOwner {
    FiberObject *fiber; /* NULL: nobody holds the lock */
    uint32_t number; /* FiberObject.number, which is 0 before its first lock */
} PfOwner;

/* Gives the fiber its number and returns it. */
uint32_t pf_owner_number(FiberObject *fiber);

/* Returns `fiber` as the owner of a lock. */
static inline PfOwner
pf_owner(FiberObject *fiber)
{
    uint32_t number = fiber->number;
    return (PfOwner){fiber,
                     PF_LIKELY(number != 0) ? number : pf_owner_number(fiber)};
}

static inline bool
pf_owner_is(const PfOwner *owner, const FiberObject *fiber)
{
    return owner->fiber == fiber && owner->number == fiber->number;
}

/* Keeps the name of `fiber` for reports.  Called when a fiber that has owned a
 * lock ends. */
void pf_owner_ends(FiberObject *fiber);
/* Returns the name of an owner that has ended, or None if the owner is alive
 * or there is none.  The result is "?" if the owner ended so long ago that its
 * name is no longer kept. */
PyObject *pf_owner_gone(const PfOwner *owner);
/* Returns a list of those among `owners` that have not ended. */
PyObject *pf_owner_list(const PfOwner *owners, int count);

#endif
