/* References to objects of other threads: see world.h. */
#include "python/core/world.h"

PyObject *
pf_world_ref(const PfThread *owner, PyObject *const *field)
{
    bool stopped = pf_world_stop(owner);
    PyObject *found = Py_NewRef(*field != NULL ? *field : Py_None);
    pf_world_start(stopped);
    return found;
}

/* Once the others are stopped, another thread has either left the dying object
 * to this thread, or has a count of 0 for it and will do so. */
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
