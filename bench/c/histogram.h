/* Counts latencies in a table of fixed size.  Each power of two is cut into 64
 * parts, so that a value is known to 1.6 %. */
#ifndef BENCH_HISTOGRAM_H
#define BENCH_HISTOGRAM_H

#include <stdint.h>

#define PARTS_BITS 6
#define PARTS (1 << PARTS_BITS)

typedef struct histogram {
    uint64_t total;
    uint64_t largest;
    uint32_t counts[(64 - PARTS_BITS + 1) * PARTS];
} histogram;

static inline unsigned
histogram_slot(uint64_t value)
{
    if (value < PARTS)
        return (unsigned)value;
    unsigned shift = 63 - (unsigned)__builtin_clzll(value) - PARTS_BITS;
    return (shift << PARTS_BITS) + (unsigned)(value >> shift);
}

/* Returns the smallest value of a slot. */
static inline uint64_t
histogram_value(unsigned slot)
{
    if (slot < 2 * PARTS)
        return slot;
    unsigned shift = (slot >> PARTS_BITS) - 1;
    return (uint64_t)(slot - (shift << PARTS_BITS)) << shift;
}

static inline void
histogram_add(histogram *h, uint64_t value)
{
    h->counts[histogram_slot(value)]++;
    h->total++;
    if (value > h->largest)
        h->largest = value;
}

/* Returns the value that `part` (0 to 1) of all values do not exceed. */
static inline uint64_t
histogram_quantile(const histogram *h, double part)
{
    uint64_t wanted = (uint64_t)(part * (double)h->total), seen = 0;
    for (unsigned i = 0; i < sizeof h->counts / sizeof *h->counts; i++) {
        seen += h->counts[i];
        if (seen > wanted)
            return histogram_value(i);
    }
    return h->largest;
}

#endif
