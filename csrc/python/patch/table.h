/* Records of objects that have no room for them: a table by address.  The
 * records are the caller's; each begins with an item. */
#ifndef PF_TABLE_H
#define PF_TABLE_H

#include "python/core/pyinclude.h"

typedef struct PfItem {
    struct PfItem *next; /* in its chain */
    PyObject *object;    /* borrowed */
} PfItem;

#define PF_FEWEST_CHAINS 64
typedef struct PfTable {
    PfItem **chains;
    size_t chain_count; /* a power of two; no fewer than there are items */
    size_t count;
    PfItem *first_chains[PF_FEWEST_CHAINS];
} PfTable;

/* It was cleared. */
static inline void
pf_table_init(PfTable *table)
{
    table->chains = table->first_chains;
    table->chain_count = PF_FEWEST_CHAINS;
}

static inline PfItem **
pf_table_chain(const PfTable *table, const PyObject *object)
{
    uintptr_t address = (uintptr_t)object >> 4;
    return &table->chains[(address ^ (address >> 10)) &
                          (table->chain_count - 1)];
}

static inline PfItem *
pf_table_find(const PfTable *table, const PyObject *object)
{
    PfItem *item = *pf_table_chain(table, object);
    while (item != NULL && item->object != object) {
        item = item->next;
    }
    return item;
}

/* There is none yet for item->object. */
void pf_table_add(PfTable *table, PfItem *item);
void pf_table_remove(PfTable *table, PfItem *item);

#endif
