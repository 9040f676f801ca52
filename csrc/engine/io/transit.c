/* What is on its way to an end in memory: see transit.h. */
#include "engine/io/transit.h"

#include <errno.h>
#include <string.h>

#include "engine/base/memory.h"

#define FIRST_CAPACITY 8

pf_transit *
pf_transit_new(void)
{
    pf_transit *transit = pf_memory_calloc(1, sizeof *transit);
    if (transit != NULL) {
        transit->doom = PF_TRANSIT_NEVER;
    }
    return transit;
}

void
pf_transit_free(pf_transit *transit)
{
    if (transit != NULL) {
        free(transit->items);
        free(transit);
    }
}

static pf_arrival *
item(const pf_transit *transit, size_t index)
{
    return &transit->items[(transit->first + index) & (transit->capacity - 1)];
}

static bool
grow(pf_transit *transit)
{
    size_t capacity =
        transit->capacity == 0 ? FIRST_CAPACITY : transit->capacity * 2;
    pf_arrival *items = pf_memory_malloc(capacity * sizeof *items);
    if (items == NULL) {
        return false;
    }
    for (size_t i = 0; i < transit->count; i++) {
        items[i] = *item(transit, i);
    }
    free(transit->items);
    transit->items = items;
    transit->capacity = capacity;
    transit->first = 0;
    return true;
}

int
pf_transit_add(pf_transit *transit, pf_arrival arrival)
{
    if (transit->count == transit->capacity && !grow(transit)) {
        return -ENOMEM;
    }
    if (transit->count != 0) {
        int64_t before = item(transit, transit->count - 1)->due;
        arrival.due = arrival.due < before ? before : arrival.due;
    }
    transit->bytes += arrival.bytes;
    transit->count++;
    *item(transit, transit->count - 1) = arrival;
    return 0;
}

bool
pf_transit_take(pf_transit *transit, int64_t now, pf_arrival *arrival)
{
    if (transit->count == 0 || transit->held || item(transit, 0)->due > now) {
        return false;
    }
    *arrival = *item(transit, 0);
    transit->first = (transit->first + 1) & (transit->capacity - 1);
    transit->count--;
    transit->bytes -= arrival->bytes;
    return true;
}

void
pf_transit_delay(pf_transit *transit, int64_t when)
{
    for (size_t i = 0; i < transit->count; i++) {
        pf_arrival *each = item(transit, i);
        each->due = each->due < when ? when : each->due;
    }
}

size_t
pf_transit_forget(pf_transit *transit)
{
    size_t bytes = transit->bytes;
    transit->count = transit->bytes = 0;
    return bytes;
}

int64_t
pf_transit_next(const pf_transit *transit)
{
    int64_t next = transit->count == 0 || transit->held
                       ? PF_TRANSIT_NEVER
                       : item(transit, 0)->due;
    return next < transit->doom ? next : transit->doom;
}
