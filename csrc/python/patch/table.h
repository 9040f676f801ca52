/* Records of objects that have no room for them, in a hash table by the
 * object's address.  Each record belongs to the caller and begins with a
 * PfItem.  Used by lot.c and local.c. */
#ifndef PF_TABLE_H
#define PF_TABLE_H

#include "python/core/pyinclude.h"

typedef struct PfItem {
    struct PfItem *next; /* next in the chain */
    PyObject *object;    /* borrowed */
} PfItem;

#define PF_FEWEST_CHAINS 64
typedef struct PfTable {
    PfItem **chains;
    size_t chain_count; /* a power of two; at least `count`, given memory */
    size_t count;
    PfItem *first_chains[PF_FEWEST_CHAINS];
} PfTable;

/* Initializes a table whose memory has been zeroed. */
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

/* Adds a record.  The table has none yet for item->object. */
void pf_table_add(PfTable *table, PfItem *item);
void pf_table_remove(PfTable *table, PfItem *item);

#endif
