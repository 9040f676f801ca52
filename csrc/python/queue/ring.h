/* A ring buffer of objects, added and taken at both ends, for queues and
 * channels. */
#ifndef PF_RING_H
#define PF_RING_H

#include "python/core/pyinclude.h"

/* slots[(first + i) % size] for 0 <= i < count; size is 0 or a power of 2. */
typedef struct PfRing {
    PyObject **slots;
    size_t first, count, size;
} PfRing;

/* Room for one more: 0; -1: no memory, without an exception. */
int pf_ring_grow(PfRing *ring);

static inline int
pf_ring_reserve(PfRing *ring)
{
    return ring->count < ring->size ? 0 : pf_ring_grow(ring);
}

/* There must be room.  Steals the reference. */
static inline void
pf_ring_push(PfRing *ring, PyObject *object)
{
    ring->slots[(ring->first + ring->count++) & (ring->size - 1)] = object;
}

static inline void
pf_ring_push_front(PfRing *ring, PyObject *object)
{
    ring->first = (ring->first - 1) & (ring->size - 1);
    ring->slots[ring->first] = object;
    ring->count++;
}

/* It must not be empty.  The reference goes to the caller. */
static inline PyObject *
pf_ring_pop(PfRing *ring)
{
    PyObject *object = ring->slots[ring->first];
    ring->first = (ring->first + 1) & (ring->size - 1);
    ring->count--;
    return object;
}

static inline PyObject *
pf_ring_pop_last(PfRing *ring)
{
    return ring->slots[(ring->first + --ring->count) & (ring->size - 1)];
}

/* Drop everything; code that this runs finds the ring empty. */
void pf_ring_clear(PfRing *ring);
void pf_ring_drop(PfRing *ring); /* one that nobody else knows */
int pf_ring_traverse(const PfRing *ring, visitproc visit, void *arg);

#endif
