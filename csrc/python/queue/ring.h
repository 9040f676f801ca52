/* A ring buffer of references to objects, added and taken at both ends, for
 * queues and channels.  A buffer of zeros is an empty one. */
#ifndef PF_RING_H
#define PF_RING_H

#include "python/core/pyinclude.h"

/* The objects are slots[(first + i) % size] for 0 <= i < count; `size` is 0 or
 * a power of 2. */
typedef struct PfRing {
    PyObject **slots;
    size_t first, count, size;
} PfRing;

/* Double the size.  Returns 0, or -1, without an exception, if there is no
 * memory. */
int pf_ring_grow(PfRing *ring);

/* Make room for one more object.  Returns as pf_ring_grow(). */
static inline int
pf_ring_reserve(PfRing *ring)
{
    return ring->count < ring->size ? 0 : pf_ring_grow(ring);
}

/* Add an object at the end, or at the front.  There must be room.  Both
 * functions steal the reference. */
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

/* Take the first object, or the last one.  The ring must not be empty.  The
 * reference goes to the caller. */
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

/* Drop all objects.  Code that runs because an object dies finds the ring
 * empty. */
void pf_ring_clear(PfRing *ring);
/* Drop all objects of a ring that no other code can reach, and its memory. */
void pf_ring_drop(PfRing *ring);
int pf_ring_traverse(const PfRing *ring, visitproc visit, void *arg);

#endif
