/* What a fiber has in one local object: a slot, with its dict.  It stands in a
 * list of each of the two, so that it goes when either does.  See
 * sync/local.c. */
#ifndef PF_SLOTS_H
#define PF_SLOTS_H

#include "python/fiber/fiber.h"

struct PfSlot {
    PfSlot **local; /* where the local's list begins; says which local it is */
    FiberObject *fiber;
    PyObject *dict;        /* owned */
    PfSlot *older, *newer; /* of the local's */
    PfSlot *fiber_next;    /* of the fiber's */
};

/* It moves to the front of the fiber's list; NULL: there is none. */
PfSlot *pf_slot_find(PfSlot **local, FiberObject *fiber);
/* There is none yet.  `dict` is stolen, and may be NULL for want of memory; then
 * NULL with that exception. */
PfSlot *pf_slot_add(PfSlot **local, FiberObject *fiber, PyObject *dict);
void pf_slot_drop(PfSlot *slot);         /* out of both lists */
void pf_slots_clear(FiberObject *fiber); /* it has ended */
void pf_slots_clear_local(PfSlot **local);

#endif
