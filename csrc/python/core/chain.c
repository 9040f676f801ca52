/* Dropping long chains of objects: see chain.h. */
#include "python/core/chain.h"

#include <assert.h>

#define MOST_TYPES 3
/* The types whose objects form chains: constant after import. */
static struct {
    PyTypeObject *type;
    pf_link_fn link_of;
} links[MOST_TYPES];

/* The module may be imported anew: then its types are others. */
void
pf_chain_register(PyTypeObject *type, pf_link_fn link_of)
{
    int i = 0;
    while (links[i].link_of != NULL && links[i].link_of != link_of) {
        i++;
        assert(i < MOST_TYPES);
    }
    links[i].type = type;
    links[i].link_of = link_of;
}

/* What dies with `op` if nobody else has it: the next link. */
static PyObject *
link_of(PyObject *op)
{
    if (!PyType_IS_GC(Py_TYPE(op))) {
        return NULL;
    }
    for (int i = 0; i < MOST_TYPES && links[i].type != NULL; i++) {
        if (PyObject_TypeCheck(op, links[i].type)) {
            return links[i].link_of(op);
        }
    }
    return NULL;
}

/* We hold the next link while one goes, so what it drops is not the last
 * reference to that. */
void
pf_chain_drop_all(PyObject *op)
{
    while (op != NULL) {
        PyObject *next = Py_REFCNT(op) == 1 ? Py_XNewRef(link_of(op)) : NULL;
        Py_DECREF(op);
        op = next;
    }
}
