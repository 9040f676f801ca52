/* See world.h. */
#include "python/core/world.h"

PyObject *
pf_world_ref(const PfThread *owner, PyObject *const *field)
{
    bool stopped = pf_world_stop(owner);
    PyObject *found = Py_NewRef(*field != NULL ? *field : Py_None);
    pf_world_start(stopped);
    return found;
}

/* With the others stopped it has been left to this thread, or still counts
 * nothing and will be. */
bool
pf_world_hold(PyObject *op)
{
    if (pystate_try_incref(op)) {
        return true;
    }
    bool stopped = pf_world_stop(NULL);
    bool alive = pf_world_has(op);
    if (alive) {
        Py_INCREF(op);
    }
    pf_world_start(stopped);
    return alive;
}
