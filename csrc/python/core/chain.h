/* Long chains of objects, each kept alive only by the one before it (as its
 * parent or its result): fibers, greenlets, grains.  The last reference to the
 * first may be dropped on a small stack, so they die one after the other, not
 * one inside the other. */
#ifndef PF_CHAIN_H
#define PF_CHAIN_H

#include "python/core/compiler.h"
#include "python/core/pyinclude.h"

/* At import: on an object of `type`, or of one derived from it, hangs what
 * `link_of` answers (borrowed; NULL: nothing). */
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
