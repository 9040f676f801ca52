/* The parking lot: where fibers wait for objects of the interpreter, such as
 * locks, that have no room for a queue of waiters.  Used by lock.c, rlock.c
 * and simple_queue.c.
 *
 * A table finds an object's entry by the object's address.  An entry exists
 * only while a fiber waits for the object, or holds it and that has to be
 * noted (see rlock.c).  So while there is no entry at all, a release looks at
 * one counter and at nothing else.
 *
 * A wake-up does not hand the object over, but means "look again", as with the
 * interpreter's locks, which a plain thread may take at any time.  A fiber
 * that looks in vain waits again, as the first in the queue.  Until a woken
 * fiber has looked, other fibers of its thread queue up behind it and do
 * not look first: otherwise a fiber that releases and acquires in a loop
 * would always be first, and the two would never take turns.
 *
 * Invariants:
 * - Between a look that fails and the wait that follows it no Python code runs
 *   and the GIL is not released, so no wake-up is missed.
 * - No wake-up is lost.  A woken fiber that cannot look, because it is being
 *   unwound, wakes the next waiter.  A woken fiber that looks in vain needs
 *   not do so: another holder has the object, and its release wakes the next.
 * - A fiber that waits for an object has a reference to it.  One that holds an
 *   object need not: a lock may die while it is held.  Then its deallocator
 *   calls pf_lot_gone().
 *
 * The GIL guards all of this, as it guards pyfiber's own primitives.
 */
#ifndef PF_LOT_H
#define PF_LOT_H

#include "python/core/parts.h"
#include "python/core/thread.h"
#include "python/patch/table.h"
#include "python/task/fiber.h"
#include "python/waitq/owner.h"
#include "python/waitq/waitq.h"

typedef struct PfLotEntry PfLotEntry;
struct PfLotEntry {
    PfItem item;
    PfWaitq waiters;
    size_t coming;  /* woken fibers that have not looked yet */
    PfThread *heir; /* the thread of the fiber woken last, or NULL */
    /* Which fiber holds the object: */
    PfOwner owner;
    Py_ssize_t depth; /* 0: no fiber holds the object */
    PfLotEntry *held; /* next entry of the same fiber, or next spare entry */
    bool owned;       /* only the holder may release it */
    bool ended; /* the holder was a thread of the program, and has ended */
};

/* The number of entries and of fibers' lists of lost locks. */
extern size_t pf_lot_busy;
static inline bool
pf_lot_is_busy(void)
{
    return PF_UNLIKELY(pf_lot_busy != 0);
}

/* Returns false in a sub-interpreter, where a lookup finds nothing and no wait
 * parks.  A method definition belongs to the process, so the changed methods
 * run in sub-interpreters as well.  But the parking lot belongs to the main
 * interpreter, and a sub-interpreter may not hold the GIL that guards it. */
bool pf_lot_is_ours(void);

/* Returns the running thread if a wait here parks a fiber, else NULL. */
PfThread *pf_lot_parks_slow(PfThread *t);
static inline PfThread *
pf_lot_parks(void)
{
    PfThread *t = pf_thread_current;
    return PF_LIKELY(t == NULL || t->scheduler == NULL) ? NULL
                                                        : pf_lot_parks_slow(t);
}

/* Returns the object's entry, or NULL. */
PfLotEntry *pf_lot_find(PyObject *object);
/* Returns the entry if a fiber holds the object, or a thread that has ended
 * does; else NULL. */
static inline PfLotEntry *
pf_lot_held(PyObject *object)
{
    PfLotEntry *entry = !pf_lot_is_busy() ? NULL : pf_lot_find(object);
    return entry != NULL && entry->depth > 0 ? entry : NULL;
}
/* Finds or makes the object's entry.  Returns NULL with MemoryError. */
PfLotEntry *pf_lot_entry(PyObject *object);
/* Frees the object's entry if nobody needs it. */
void pf_lot_tidy(PyObject *object);

/* Tries to take the object without waiting.  Returns 1 if it has been taken, 0
 * if it cannot be had now, and -1 with an exception.  A look that returns 0
 * runs no Python code. */
typedef int (*PfLook)(PyObject *object, PfThread *t, void *data);
/* Looks and waits until the object has been taken.  Returns 0 then, 1 when the
 * deadline has passed, and -1 with an exception.  With `shielded` a
 * cancellation is deferred; there is no deadline then.  The caller holds a
 * reference to the object. */
int pf_lot_until(PyObject *object, PfThread *t, int64_t deadline,
                 bool shielded, PfLook look, void *data);

/* acquire() by the running fiber.  Returns 1 if the fiber has the lock, 0 if
 * it did not get it in time, and -1 with an exception. */
int pf_lot_acquire(PyObject *lock, PfThread *t, int64_t deadline, PfLook look,
                   void *data);
/* Takes back a lock that the running fiber has released for a while and needs
 * in order to go on.  This is no cancellation point.  Returns 1 if the fiber
 * has the lock, 0 if it is dying and the lock was not free (a dying fiber does
 * not wait), and -1 with an exception.  After 0 and -1 the fiber has lost the
 * lock: see pf_lot_lose(). */
int pf_lot_retake(PyObject *lock, PfThread *t, PfLook look, void *data);

/* The object may be available: wakes its first waiter, which looks again. */

void pf_lot_wake_slow(PyObject *object);
static inline void
pf_lot_wake(PyObject *object)
{
    if (pf_lot_is_busy()) {
        pf_lot_wake_slow(object);
    }
}
void pf_lot_wake_all(PyObject *object);

/* --- what a fiber holds --- */
/* Makes room to note what the fiber holds, before it takes anything.  Returns
 * 0, or -1 with MemoryError. */
int pf_lot_may_hold(FiberObject *fiber);
static inline bool
pf_lot_is_held_by(const PfLotEntry *entry, const FiberObject *fiber)
{
    return entry != NULL && entry->depth > 0 &&
           pf_owner_is(&entry->owner, fiber);
}
/* Notes that the fiber holds the object, `depth` times; `owned`: no other
 * fiber may release it.  pf_lot_may_hold() has made room.  The fiber remains
 * the holder until pf_lot_let_go(), pf_lot_gone() or its own end.  What an
 * ended thread owned stays held: as with native threads, nobody can have it
 * any more. */
void pf_lot_hold(PfLotEntry *entry, FiberObject *fiber, Py_ssize_t depth,
                 bool owned);
/* Ends the hold of whichever fiber holds the object, if any. */
void pf_lot_gone(PyObject *object);
/* Ends the hold, and may free the entry. */
void pf_lot_let_go(PfLotEntry *entry);
/* Returns the fiber that holds the object, or NULL. */
static inline FiberObject *
pf_lot_holder(const PfLotEntry *entry)
{
    return entry == NULL || entry->depth == 0 || entry->ended
               ? NULL
               : entry->owner.fiber;
}

/* Notes that the dying fiber needed this lock back and could not wait for it.
 * The release() at the end of the block that the fiber is in then does
 * nothing, instead of releasing a lock that somebody else holds. */
void pf_lot_lose(PyObject *lock, FiberObject *fiber);
/* Returns true if the running fiber has lost the lock; once for each loss. */
bool pf_lot_lost_slow(PyObject *lock);
static inline bool
pf_lot_lost(PyObject *lock)
{
    PfThread *t = pf_thread_current;
    return t != NULL && CURRENT(t)->dying && pf_lot_lost_slow(lock);
}

extern const PfPart pf_lot_part;
int pf_lot_init(PyObject *module);

#endif
