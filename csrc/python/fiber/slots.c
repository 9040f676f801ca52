/* What fibers have in local objects: see slots.h.  What dies with a dict may
 * use the local again, so that goes last, when the slot is in no list. */
#include "python/fiber/slots.h"

#include "python/core/compiler.h"
#include "python/fiber/fiber.h"

PfSlot *
pf_slot_find(PfSlot **local, FiberObject *fiber)
{
    PfRare *rare = fiber->rare;
    if (rare == NULL) {
        return NULL;
    }
    for (PfSlot **link = &rare->slots; *link != NULL;
         link = &(*link)->fiber_next) {
        PfSlot *slot = *link;
        if (slot->local == local) {
            *link = slot->fiber_next;
            slot->fiber_next = rare->slots;
            rare->slots = slot;
            return slot;
        }
    }
    return NULL;
}

PfSlot *
pf_slot_add(PfSlot **local, FiberObject *fiber, PyObject *dict)
{
    PfRare *rare = dict == NULL ? NULL : pf_rare_of(fiber);
    PfSlot *slot = rare == NULL ? NULL : PyMem_New(PfSlot, 1);
    if (slot == NULL) {
        Py_XDECREF(dict);
        PyErr_NoMemory();
        return NULL;
    }
    *slot = (PfSlot){
        .local = local,
        .fiber = fiber,
        .dict = dict,
        .older = *local,
        .fiber_next = rare->slots,
    };
    if (*local != NULL) {
        (*local)->newer = slot;
    }
    *local = slot;
    rare->slots = slot;
    return slot;
}

/* Remove it from the local's list; the caller sees to the fiber's list. */
static void
unlink_from_local(PfSlot *slot)
{
    if (slot->newer != NULL) {
        slot->newer->older = slot->older;
    } else {
        *slot->local = slot->older;
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
    Py_DECREF(dict);
}

void
pf_slot_drop(PfSlot *slot)
{
    unlink_from_local(slot);
    unlink_from_fiber(slot);
    free_slot(slot);
}

void
pf_slots_clear(FiberObject *fiber)
{
    PfSlot *slots = pf_rare(fiber)->slots;
    if (slots == NULL) {
        return;
    }
    fiber->rare->slots = NULL;
    for (PfSlot *slot = slots; slot != NULL; slot = slot->fiber_next) {
        unlink_from_local(slot);
    }
    while (slots != NULL) {
        PfSlot *next = slots->fiber_next;
        free_slot(slots);
        slots = next;
    }
}

void
pf_slots_clear_local(PfSlot **local)
{
    PfSlot *slots = *local;
    *local = NULL;
    for (PfSlot *slot = slots; slot != NULL; slot = slot->older) {
        unlink_from_fiber(slot);
    }
    while (slots != NULL) {
        PfSlot *older = slots->older;
        free_slot(slots);
        slots = older;
    }
}
