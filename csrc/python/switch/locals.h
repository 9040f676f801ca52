/* What a fiber has in one local object: a slot, with its dict.  It stands in a
 * list of each of the two, so that it goes when either does.  See
 * sync/local.c.
 *
 * Without a GIL a local may die on one thread while the fibers that have used
 * it run on others.  The list of a fiber belongs to the thread that runs it,
 * which looks things up there without a lock; so what dies elsewhere leaves an
 * empty slot in it, which that thread frees when it meets it.  Each step of
 * that, and the lists of locals, are behind locals_lock.
 */
#ifndef PF_SWITCH_LOCALS_H
#define PF_SWITCH_LOCALS_H

#include "python/core/objlock.h"
#include "python/task/fiber.h"

struct PfSlot {
    /* Where the local's list begins, which says which local it is; NULL: it
     * has died. */
    PF_SHARED(PfSlot **) local;
    FiberObject *fiber;    /* NULL: it has ended, or has let go of the slot */
    PyObject *dict;        /* owned; NULL: it died with the local */
    PfSlot *older, *newer; /* of the local's */
    PfSlot *fiber_next;    /* of the fiber's */
};

/* It moves to the front of the fiber's list; NULL: there is none.  On the
 * fiber's thread, as the next two. */
PfSlot *pf_locals_find(PfSlot **local, FiberObject *fiber);
/* There is none yet.  `dict` is stolen, and may be NULL for want of memory; then
 * NULL with that exception. */
PfSlot *pf_locals_add(PfSlot **local, FiberObject *fiber, PyObject *dict);
void pf_locals_drop(PfSlot *slot);        /* out of both lists */
void pf_locals_clear(FiberObject *fiber); /* it has ended */
void pf_locals_clear_local(PfSlot **local);

#endif
