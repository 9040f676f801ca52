/* What an object with attributes of its own in each fiber does: pyfiber.local,
 * and the standard class in a fiber. */
#ifndef PF_LOCAL_H
#define PF_LOCAL_H

#include "python/switch/locals.h"
#include "python/task/fiber.h"

typedef struct PfLocal {
    PyObject *object;
    PfSlot **slots;          /* where its list begins */
    PyObject *args, *kwargs; /* of its constructor */
} PfLocal;

/* Does a subclass have an __init__, to be called in each fiber? */
static inline bool
pf_local_has_init(const PyTypeObject *type)
{
    return type->tp_init != PyBaseObject_Type.tp_init;
}

/* The fiber's: a new reference, or NULL. */
PyObject *pf_local_dict(const PfLocal *local, FiberObject *fiber);
/* Attributes; `dict` is stolen, and may be NULL with an exception. */
PyObject *pf_local_get(PyObject *op, PyObject *name, PyObject *dict);
int pf_local_set(PyObject *op, PyObject *name, PyObject *value,
                 PyObject *dict);

#endif
