/* See still.h. */
#include "python/core/still.h"

PyObject *
pf_still_ref(const PfThread *owner, PyObject *const *field)
{
    bool stopped = pf_still_begin(owner);
    PyObject *found = Py_NewRef(*field != NULL ? *field : Py_None);
    pf_still_end(stopped);
    return found;
}

/* With the others stopped it has been left to this thread, or still counts
 * nothing and will be. */
bool
pf_still_hold(PyObject *op)
{
    if (pf_try_incref(op)) {
        return true;
    }
    bool stopped = pf_still_begin(NULL);
    bool alive = pf_is_counted(op);
    if (alive) {
        Py_INCREF(op);
    }
    pf_still_end(stopped);
    return alive;
}
