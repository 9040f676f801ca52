/* The parking lot: fibers that wait for objects of the interpreter's own, such
 * as locks, in which there is no room for a line of them.
 *
 * An object is told by its address.  It has an entry in a table while a fiber
 * waits for it, or holds it where that is a fiber's affair (see rlock.c), and
 * only then; so those who release look at one counter while there is none.
 *
 * A wake-up does not hand the object over: it means "look again", as with the
 * interpreter's locks, which a plain thread may take at any time.  Who looked
 * in vain waits again as the first.  Until the woken fiber has looked, other
 * fibers of its thread stand behind it: they never take turns otherwise, for
 * one that releases and acquires in a loop would always come first.
 *
 * Invariants:
 * - between a look at an object, which fails, and the wait that follows no
 *   Python code runs, and the GIL is not released; so no wake-up is missed.
 * - a wake-up is never lost: a fiber that was woken and cannot look, because it
 *   is unwound, wakes the next.  The looks themselves are not lost either: what
 *   one does not take is another's, who releases it, which wakes the next.
 * - who waits, and who holds, keeps a reference to the object, unless the object
 *   tells of its end.
 *
 * The GIL is the lock of all this, as of pyfiber's own primitives.
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
    PfThread *heir; /* the thread of the last of them, or NULL */
    /* Of what fibers hold: */
    PfOwner owner;
    Py_ssize_t depth; /* 0: no fiber holds it */
    PfLotEntry *held; /* the next one of the same fiber; of unused ones */
    bool weak;        /* no reference: see pf_lot_hold_weakly */
};

/* Entries, and lists of locks that dying fibers have lost. */
extern size_t pf_lot_busy;
static inline bool
pf_lot_is_busy(void)
{
    return PF_UNLIKELY(pf_lot_busy != 0);
}

/* False in a sub-interpreter.  Its types have the changed methods as well, for
 * their definitions are the process's; but nothing here is its own, nor need
 * it hold the GIL that guards this.  So it finds nothing, and never parks. */
bool pf_lot_is_ours(void);

/* The running thread if a wait here parks a fiber, else NULL. */
PfThread *pf_lot_parks_slow(PfThread *t);
static inline PfThread *
pf_lot_parks(void)
{
    PfThread *t = pf_thread_current;
    return PF_LIKELY(t == NULL || t->scheduler == NULL) ? NULL
                                                        : pf_lot_parks_slow(t);
}

PfLotEntry *pf_lot_find(PyObject *object); /* or NULL */
/* Found or made; NULL with MemoryError. */
PfLotEntry *pf_lot_entry(PyObject *object);
void pf_lot_tidy(PyObject *object); /* free the entry if nobody needs it */

/* A look at the object: 1, taken; 0, not now; -1, an exception.  It runs no
 * Python code if it returns 0. */
typedef int (*PfLook)(PyObject *object, PfThread *t, void *data);
/* Look, and wait, until it is taken: 0; 1: the deadline has passed; -1: an
 * exception.  `shielded`: a cancellation is deferred, and there is no deadline.
 * The caller holds a reference to the object. */
int pf_lot_until(PyObject *object, PfThread *t, int64_t deadline,
                 bool shielded, PfLook look, void *data);

/* The same as an acquire() by a fiber: 1: it has it; 0: not in time; -1. */
int pf_lot_acquire(PyObject *lock, PfThread *t, int64_t deadline, PfLook look,
                   void *data);
/* The running fiber has released the lock for a while and needs it to go on: no
 * cancellation point.  1: it has it; a dying fiber does not wait for it: 0; -1
 * with an exception, and as with 0 the fiber has lost it. */
int pf_lot_retake(PyObject *lock, PfThread *t, PfLook look, void *data);

/* The object may be had: let the first fiber look again. */
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
/* Make room for that, before it is taken: 0, or -1 with MemoryError. */
int pf_lot_may_hold(FiberObject *fiber);
static inline bool
pf_lot_is_held_by(const PfLotEntry *entry, const FiberObject *fiber)
{
    return entry != NULL && entry->depth > 0 &&
           pf_owner_is(&entry->owner, fiber);
}
/* Its room has been made.  The entry is the fiber's until one of these. */
void pf_lot_hold(PfLotEntry *entry, FiberObject *fiber, Py_ssize_t depth);
/* The same without a reference, for an object that tells of its end: a lock may
 * die while it is locked. */
void pf_lot_hold_weakly(PfLotEntry *entry, FiberObject *fiber);
void pf_lot_gone(PyObject *object);
/* The caller has a reference to the object.  The entry may be freed. */
void pf_lot_let_go(PfLotEntry *entry);

/* The dying fiber needs this lock back and cannot wait for it; when the block
 * that it is in ends, it must not release what is another's. */
void pf_lot_lose(PyObject *lock, FiberObject *fiber);
/* True, once: the fiber has lost it. */
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
