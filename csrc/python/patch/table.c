/* A hash table by address: see table.h. */
#include "python/patch/table.h"

static void
put(PfTable *table, PfItem *item)
{
    PfItem **chain = pf_table_chain(table, item->object);
    item->next = *chain;
    *chain = item;
}

/* Doubles the number of chains.  Without memory for that the present chains
 * just grow longer. */
static void
grow(PfTable *table)
{
    size_t before = table->chain_count;
    PfItem **old = table->chains;
    PfItem **more = PyMem_Calloc(2 * before, sizeof(PfItem *));
    if (more == NULL) {
        return;
    }
    table->chains = more;
    table->chain_count = 2 * before;
    for (size_t i = 0; i < before; i++) {
        while (old[i] != NULL) {
            PfItem *item = old[i];
            old[i] = item->next;
            put(table, item);
        }
    }
    if (old != table->first_chains) {
        PyMem_Free(old);
    }
}

void
pf_table_add(PfTable *table, PfItem *item)
{
    if (table->count == table->chain_count) {
        grow(table);
    }
    put(table, item);
    table->count++;
}

void
pf_table_remove(PfTable *table, PfItem *item)
{
    PfItem **link = pf_table_chain(table, item->object);
    while (*link != item) {
        link = &(*link)->next;
    }
    *link = item->next;
    table->count--;
}
