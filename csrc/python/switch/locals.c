/* What fibers store in local objects: see locals.h. Dropping a dict may run
 * code that uses the local again; so each function drops a dict last, when the
 * slot is in no list. */
#include "python/switch/locals.h"

#include "python/core/compiler.h"
#include "python/task/fiber.h"

/* Used only without a GIL; no other lock is taken while a thread holds it. */
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

/* Frees the slot at *link, whose local has died. False: the thread that frees
 * the local has not emptied this slot yet. */
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

/* Frees the dead slots at the front of the list on each insertion, so a fiber
 * that only ever uses new locals does not collect dead slots. */
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

/* Removes a slot from the local's list, if the local is alive; the caller
 * takes care of the fiber's list. */
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

/* Takes all slots of the fiber out of their lists and returns those to free. A
 * slot whose local is being freed on another thread, and which is not empty
 * yet, is left to that thread. */
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

/* Takes all slots of a local out of their lists and returns them, linked by
 * `older`. Only those in the lists of other threads' fibers stay there. */
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
    slot->dict = NULL; /* from here on the fiber's thread may free it */
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
