/* Attribute access of objects that have a separate __dict__ in each fiber:
 * pyfiber.local and, in patched programs (patch/local.c), threading.local. */
#ifndef PF_LOCAL_H
#define PF_LOCAL_H

#include "python/switch/locals.h"
#include "python/task/fiber.h"

typedef struct PfLocal {
    PyObject *object;
    PfSlot **slots;          /* the head of the object's list of slots */
    PyObject *args, *kwargs; /* the constructor's arguments */
} PfLocal;

/* Returns true if the type has an __init__, to be called in each fiber. */
static inline bool
pf_local_has_init(const PyTypeObject *type)
{
    return type->tp_init != PyBaseObject_Type.tp_init;
}

/* Returns the dict that `fiber`, one of this thread, has in the object: a new
 * reference, or NULL with an exception.  The first call for a fiber makes the
 * dict and calls __init__ of a subclass. */
PyObject *pf_local_dict(const PfLocal *local, FiberObject *fiber);
/* Get, set or delete (`value` NULL) an attribute that is stored in `dict`.
 * Both functions steal `dict`.  If it is NULL they fail with the exception
 * that is already set. */
PyObject *pf_local_get(PyObject *op, PyObject *name, PyObject *dict);
int pf_local_set(PyObject *op, PyObject *name, PyObject *value,
                 PyObject *dict);

#endif
