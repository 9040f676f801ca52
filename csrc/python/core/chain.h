/* Long chains of objects (fibers, greenlets, grains), each kept alive only by
 * the one before it, as its parent or its result. The last reference to the
 * first object may be dropped on a small stack; so chain.c frees the objects
 * one after the other, and not one inside the other's deallocation. */
#ifndef PF_CHAIN_H
#define PF_CHAIN_H

#include "python/core/compiler.h"
#include "python/core/pyinclude.h"

/* The next object of the chain behind `op`: borrowed, or NULL.
 * pf_chain_register names the function for a type and the types derived from
 * it, at import. */
typedef PyObject *(*pf_link_fn)(PyObject *op);
void pf_chain_register(PyTypeObject *type, pf_link_fn link_of);

/* Drop the only reference to `op`, and then the chain behind it. */
void pf_chain_drop_all(PyObject *op);

static inline void
pf_chain_drop(PyObject *op)
{
    if (op != NULL && PF_UNLIKELY(Py_REFCNT(op) == 1)) {
        pf_chain_drop_all(op);
    } else {
        Py_XDECREF(op);
    }
}

/* Py_CLEAR() for the links of such chains. */
#define PF_CLEAR_LINK(link)                                                   \
    do {                                                                      \
        PyObject *dropped_ = (PyObject *)(link);                              \
        (link) = NULL;                                                        \
        pf_chain_drop(dropped_);                                              \
    } while (0)

#endif
