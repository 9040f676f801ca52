/* Dropping long chains of objects: see chain.h. */
#include "python/core/chain.h"

#include "python/fiber/fiber.h"
#include "python/grain/grain.h"
#include "python/greenlet/greenlet.h"

/* What dies with `op` if nobody else has it: the next link. */
static PyObject *
link_of(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    if (!PyType_IS_GC(type)) {
        return NULL;
    }
    if (PyType_IsSubtype(type, pf_fiber_type)) {
        FiberObject *fiber = (FiberObject *)op;
        return fiber->parent != NULL ? (PyObject *)fiber->parent
                                     : fiber->value;
    }
    if (type == pf_grain_type) {
        return ((GrainObject *)op)->value;
    }
    if (pf_is_greenlet(op) && ((PyGreenlet *)op)->pimpl != NULL) {
        return (PyObject *)IMPL((PyGreenlet *)op)->parent;
    }
    return NULL;
}

/* We hold the next link while one goes, so what it drops is not the last
 * reference to that. */
void
pf_drop_chain(PyObject *op)
{
    while (op != NULL) {
        PyObject *next = Py_REFCNT(op) == 1 ? Py_XNewRef(link_of(op)) : NULL;
        Py_DECREF(op);
        op = next;
    }
}
