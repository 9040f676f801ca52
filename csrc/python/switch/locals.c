/* What fibers have in local objects: see slots.h.  What dies with a dict may
 * use the local again, so that goes last, when the slot is in no list. */
#include "python/switch/locals.h"

#include "python/core/compiler.h"
#include "python/task/fiber.h"

/* Without a GIL; taken alone. */
static pf_mutex locals_lock = PF_MUTEX_INIT; /* shared: the lists of locals */

static inline void
lock_slots(void)
{
    if (PF_FREE_THREADED) {
        pf_mutex_lock(&locals_lock);
    }
}

static inline void
unlock_slots(void)
{
    if (PF_FREE_THREADED) {
        pf_mutex_unlock(&locals_lock);
    }
}

/* May this thread change the list of the fiber? */
static bool
is_ours(const FiberObject *fiber)
{
    return !PF_FREE_THREADED || fiber->thread == pf_thread_current;
}

/* The slot at *link is of a local that has died.  False: whoever ends that has
 * not come to this slot yet. */
static bool
free_empty(PfSlot **link)
{
    PfSlot *slot = *link;
    lock_slots();
    bool empty = slot->dict == NULL;
    unlock_slots();
    if (empty) {
        *link = slot->fiber_next;
        PyMem_Free(slot);
    }
    return empty;
}

/* Who only ever adds some has no more than that left of those that died. */
static void
free_first_empty(PfRare *rare)
{
    while (rare->slots != NULL && PF_SHARED_GET(&rare->slots->local) == NULL &&
           free_empty(&rare->slots)) {
    }
}

PfSlot *
pf_locals_find(PfSlot **local, FiberObject *fiber)
{
    PfRare *rare = fiber->rare;
    PfSlot **link = rare == NULL ? NULL : &rare->slots;
    while (link != NULL && *link != NULL) {
        PfSlot *slot = *link;
        PfSlot **of = PF_SHARED_GET(&slot->local);
        if (of == local) {
            *link = slot->fiber_next;
            slot->fiber_next = rare->slots;
            rare->slots = slot;
            return slot;
        }
        if (PF_LIKELY(of != NULL) || !free_empty(link)) {
            link = &slot->fiber_next;
        }
    }
    return NULL;
}

PfSlot *
pf_locals_add(PfSlot **local, FiberObject *fiber, PyObject *dict)
{
    PfRare *rare = dict == NULL ? NULL : pf_fiber_rare_of(fiber);
    PfSlot *slot = rare == NULL ? NULL : PyMem_New(PfSlot, 1);
    if (slot == NULL) {
        Py_XDECREF(dict);
        PyErr_NoMemory();
        return NULL;
    }
    free_first_empty(rare);
    *slot = (PfSlot){
        .local = local,
        .fiber = fiber,
        .dict = dict,
        .fiber_next = rare->slots,
    };
    lock_slots();
    slot->older = *local;
    if (*local != NULL) {
        (*local)->newer = slot;
    }
    *local = slot;
    rare->slots = slot;
    unlock_slots();
    return slot;
}

/* Remove it from the local's list, if that is still there; the caller sees to
 * the fiber's list. */
static void
unlink_from_local(PfSlot *slot)
{
    PfSlot **local = PF_SHARED_GET(&slot->local);
    if (local == NULL) {
        return;
    }
    if (slot->newer != NULL) {
        slot->newer->older = slot->older;
    } else {
        *local = slot->older;
    }
    if (slot->older != NULL) {
        slot->older->newer = slot->newer;
    }
}

static void
unlink_from_fiber(PfSlot *slot)
{
    PfSlot **link = &slot->fiber->rare->slots;
    while (*link != slot) {
        link = &(*link)->fiber_next;
    }
    *link = slot->fiber_next;
}

static void
free_slot(PfSlot *slot)
{
    PyObject *dict = slot->dict;
    PyMem_Free(slot);
    Py_XDECREF(dict);
}

void
pf_locals_drop(PfSlot *slot)
{
    lock_slots();
    unlink_from_local(slot);
    unlink_from_fiber(slot);
    unlock_slots();
    free_slot(slot);
}

/* The fiber's slots, in no list any more, but for those that whoever ends
 * their local has still to empty, and frees then. */
static PfSlot *
take_from_fiber(PfRare *rare)
{
    PfSlot *taken = NULL, **last = &taken;
    for (PfSlot *slot = rare->slots; slot != NULL; slot = slot->fiber_next) {
        slot->fiber = NULL;
        if (PF_SHARED_GET(&slot->local) != NULL || slot->dict == NULL) {
            unlink_from_local(slot);
            *last = slot;
            last = &slot->fiber_next;
        }
    }
    *last = NULL;
    rare->slots = NULL;
    return taken;
}

void
pf_locals_clear(FiberObject *fiber)
{
    if (pf_fiber_rare(fiber)->slots == NULL) {
        return;
    }
    lock_slots();
    PfSlot *slots = take_from_fiber(fiber->rare);
    unlock_slots();
    while (slots != NULL) {
        PfSlot *next = slots->fiber_next;
        free_slot(slots);
        slots = next;
    }
}

/* All are in no list afterwards, but for those in the lists of other threads'
 * fibers; linked by `older`. */
static PfSlot *
take_from_local(PfSlot **local)
{
    PfSlot *slots = *local;
    *local = NULL;
    for (PfSlot *slot = slots; slot != NULL; slot = slot->older) {
        PF_SHARED_SET(&slot->local, NULL);
        if (is_ours(slot->fiber)) {
            unlink_from_fiber(slot);
            slot->fiber = NULL;
        }
    }
    return slots;
}

static void
empty_slot(PfSlot *slot)
{
    PyObject *dict = slot->dict;
    lock_slots();
    slot->dict = NULL; /* from now on the fiber's thread may free it */
    bool alone = slot->fiber == NULL;
    unlock_slots();
    if (alone) {
        PyMem_Free(slot);
    }
    Py_DECREF(dict);
}

void
pf_locals_clear_local(PfSlot **local)
{
    lock_slots();
    PfSlot *slots = take_from_local(local);
    unlock_slots();
    while (slots != NULL) {
        PfSlot *older = slots->older;
        empty_slot(slots);
        slots = older;
    }
}
