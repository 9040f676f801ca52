/* A ring buffer of objects; see ring.h. */
#include "python/queue/ring.h"

#define FIRST_SIZE 8

int
pf_ring_grow(PfRing *ring)
{
    size_t size = ring->size == 0 ? FIRST_SIZE : ring->size * 2;
    PyObject **slots = NULL;
    if (size <= PY_SSIZE_T_MAX / sizeof(*slots)) {
        slots = PyMem_Malloc(size * sizeof(*slots));
    }
    if (slots == NULL) {
        return -1;
    }
    for (size_t i = 0; i < ring->count; i++) {
        slots[i] = ring->slots[(ring->first + i) & (ring->size - 1)];
    }
    PyMem_Free(ring->slots);
    ring->slots = slots;
    ring->size = size;
    ring->first = 0;
    return 0;
}

void
pf_ring_clear(PfRing *ring)
{
    PfRing old = *ring;
    *ring = (PfRing){NULL, 0, 0, 0};
    pf_ring_drop(&old);
}

void
pf_ring_drop(PfRing *ring)
{
    while (ring->count > 0) {
        Py_DECREF(pf_ring_pop(ring));
    }
    PyMem_Free(ring->slots);
}

int
pf_ring_traverse(const PfRing *ring, visitproc visit, void *arg)
{
    for (size_t i = 0; i < ring->count; i++) {
        Py_VISIT(ring->slots[(ring->first + i) & (ring->size - 1)]);
    }
    return 0;
}
