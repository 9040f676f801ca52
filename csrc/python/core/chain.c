/* Dropping long chains of objects: see chain.h. */
#include "python/core/chain.h"

#include <assert.h>

#define MOST_TYPES 3
/* The types whose objects form chains: constant after import. */
static struct {
    PyTypeObject *type;
    pf_link_fn link_of;
} links[MOST_TYPES];

/* Replaces the entry of an earlier import: a module that is imported again has
 * new types. */
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

/* The next link, which dies with `op` if nothing else refers to it; borrowed,
 * or NULL. */
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

/* This holds a reference to the next link while it drops `op`; so dropping
 * `op` never drops the last reference to the next one. */
void
pf_chain_drop_all(PyObject *op)
{
    while (op != NULL) {
        PyObject *next = Py_REFCNT(op) == 1 ? Py_XNewRef(link_of(op)) : NULL;
        Py_DECREF(op);
        op = next;
    }
}
