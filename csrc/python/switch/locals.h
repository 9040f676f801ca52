/* A slot has what one fiber has stored in one local object: a dict. Each slot
 * is in the fiber's list and in the local's list, so that it is freed when
 * either of the two dies. See sync/local.c.
 *
 * Without a GIL a local may die on one thread while the fibers that have used
 * it run on others. The list of a fiber belongs to the thread that runs the
 * fiber, which looks up slots without a lock. So a local that dies on another
 * thread leaves an empty slot in that list, which the fiber's thread frees
 * when it meets it. Each step of that, and the lists of locals, are guarded by
 * locals_lock.
 */
#ifndef PF_SWITCH_LOCALS_H
#define PF_SWITCH_LOCALS_H

#include "python/core/objlock.h"
#include "python/task/fiber.h"

struct PfSlot {
    /* Where the local's list begins, which identifies the local; NULL: the
     * local has died. */
    PF_SHARED(PfSlot **) local;
    FiberObject *fiber;    /* NULL: ended, or the slot is out of its list */
    PyObject *dict;        /* owned; NULL: dropped, as the local died */
    PfSlot *older, *newer; /* the local's list */
    PfSlot *fiber_next;    /* the fiber's list */
};

/* Find the fiber's slot for this local, and move it to the front of the
 * fiber's list; NULL: there is none. On the fiber's thread, as the next two
 * functions. */
PfSlot *pf_locals_find(PfSlot **local, FiberObject *fiber);
/* Add a slot, where there is none yet. `dict` is stolen; it may be NULL for
 * lack of memory. NULL with MemoryError. */
PfSlot *pf_locals_add(PfSlot **local, FiberObject *fiber, PyObject *dict);
void pf_locals_drop(PfSlot *slot);        /* remove from both lists and free */
void pf_locals_clear(FiberObject *fiber); /* the fiber has ended */
void pf_locals_clear_local(PfSlot **local);

#endif
