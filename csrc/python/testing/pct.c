/* The hash table in which an explorer stores each task's number and priority.
 * choices.c gives and uses these. */
#include "python/task/fiber.h"
#include "python/testing/testing.h"

#include <string.h>

#define FIRST_CAPACITY 64

void
pf_pct_known_reset(PfKnownTable *table)
{
    if (table->used != 0) {
        memset(table->slots, 0, table->capacity * sizeof(PfKnown));
    }
    table->used = 0;
    table->numbered = 0;
}

void
pf_pct_known_free(PfKnownTable *table)
{
    PyMem_RawFree(table->slots);
    memset(table, 0, sizeof *table);
}

/* Finds the slot of `task`, or the empty one where it belongs. */
static PfKnown *
slot_of(const PfKnownTable *table, const pf_task *task)
{
    uint64_t hash = pf_testing_random_mix((uint64_t)(uintptr_t)task);
    uint32_t mask = table->capacity - 1;
    uint32_t i = (uint32_t)hash & mask;
    while (table->slots[i].task != NULL && table->slots[i].task != task) {
        i = (i + 1) & mask;
    }
    return &table->slots[i];
}

static bool
grow(PfKnownTable *table)
{
    PfKnownTable larger = *table;
    larger.capacity =
        table->capacity == 0 ? FIRST_CAPACITY : table->capacity * 2;
    larger.slots = PyMem_RawCalloc(larger.capacity, sizeof(PfKnown));
    if (larger.slots == NULL) {
        return false;
    }
    for (uint32_t i = 0; i < table->capacity; i++) {
        if (table->slots[i].task != NULL) {
            *slot_of(&larger, table->slots[i].task) = table->slots[i];
        }
    }
    PyMem_RawFree(table->slots);
    *table = larger;
    return true;
}

PfKnown *
pf_pct_known_find(PfKnownTable *table, pf_task *task, bool *fresh)
{
    if (table->used * 2 >= table->capacity && !grow(table)) {
        return NULL;
    }
    PfKnown *known = slot_of(table, task);
    PfTaskObject *object = pf_task_object(task);
    *fresh = known->task == NULL || !object->tracked;
    if (*fresh) {
        table->used += known->task == NULL;
        known->task = task;
        known->number = known->priority = known->imports = 0;
        object->tracked = true;
    }
    return known;
}
