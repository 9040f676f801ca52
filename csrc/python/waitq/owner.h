/* Who holds a lock, for reports and for locks that only their owner frees. */
#ifndef PF_WAITQ_OWNER_H
#define PF_WAITQ_OWNER_H

#include "python/core/compiler.h"
#include "python/task/fiber.h"

/* Who holds a lock.  The pointer is not a reference: a suspended fiber must
 * not be kept alive by the lock it holds.  The fiber's number tells it from later ones at the same address: two of them with the same
 * number would be 2^32 owners of locks apart. */
typedef struct PfOwner {
    FiberObject *fiber;
    uint32_t number; /* 0: it has never owned a lock */
} PfOwner;

uint32_t pf_owner_number(FiberObject *fiber);

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

/* It ends, and has owned a lock: keep its name for reports. */
void pf_owner_ends(FiberObject *fiber);
/* The name of an owner that has ended; None if it has not, or there is none.
 * The name may be forgotten if it ended long ago: then "?". */
PyObject *pf_owner_gone(const PfOwner *owner);
/* The owners that have not ended: a list. */
PyObject *pf_owner_list(const PfOwner *owners, int count);

#endif
