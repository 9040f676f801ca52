/* Names of tasks, and of the functions that they run: see name.h. */
#include "python/task/name.h"

#include "python/core/world.h"

/* The object's __qualname__, as a str; NULL, without an exception, if it has
 * none. */
static PyObject *
qualified_name(PyObject *function)
{
    PyObject *name = PyObject_GetAttrString(function, "__qualname__");
    if (name != NULL) {
        Py_SETREF(name,
                  PyUnicode_Check(name) ? PyUnicode_FromObject(name) : NULL);
    }
    if (name == NULL) {
        PyErr_Clear(); /* a report shows its type instead */
    }
    return name;
}

/* The name of a functools.partial: that of its function. NULL without an
 * exception. */
static PyObject *
name_of_partial(PyObject *function)
{
    if (strcmp(Py_TYPE(function)->tp_name, "functools.partial") != 0) {
        return NULL;
    }
    PyObject *inner = PyObject_GetAttrString(function, "func");
    if (inner == NULL) {
        PyErr_Clear(); /* a subclass may hide the attribute */
        return NULL;
    }
    PyObject *name = qualified_name(inner);
    Py_DECREF(inner);
    return name;
}

/* Holds `made_of`, because computing an attribute may drop other references to
 * it. */
PyObject *
pf_name_after(PyObject *made_of)
{
    Py_INCREF(made_of);
    PyObject *name = qualified_name(made_of);
    if (name == NULL) {
        name = name_of_partial(made_of);
    }
    if (name == NULL) {
        name = PyUnicode_FromString(Py_TYPE(made_of)->tp_name);
    }
    Py_DECREF(made_of);
    return name;
}

/* Converts to a plain str: code that reads names, perhaps in the middle of a
 * switch, must not call methods of a subclass. */
PyObject *
pf_name_check(PyObject *value)
{
    if (value == NULL || !PyUnicode_Check(value)) {
        PyErr_Format(PyExc_TypeError, "name must be a str, not '%.200s'",
                     value == NULL ? "nothing" : Py_TYPE(value)->tp_name);
        return NULL;
    }
    return PyUnicode_FromObject(value);
}

const char *
pf_name_of_state(const pf_task *core)
{
    switch (core->state) {
    case PF_NEW:
        return "new";
    case PF_READY:
        return "ready";
    case PF_RUNNING:
        return "running";
    case PF_DONE:
        return "done";
    default:
        return "parked";
    }
}

PyObject *
pf_name_of(FiberObject *self)
{
    bool stopped = pf_world_stop(self->thread);
    PyObject *name = Py_XNewRef(self->name);
    PyObject *target = name == NULL ? Py_XNewRef(pf_fiber_target(self)) : NULL;
    pf_world_start(stopped);
    if (name == NULL) {
        name = target != NULL ? pf_name_after(target)
                              : PyUnicode_FromString(Py_TYPE(self)->tp_name);
    }
    Py_XDECREF(target);
    return name;
}

PyObject *
pf_name_of_task(PfTaskObject *task)
{
    return pf_name_of((FiberObject *)task);
}

bool
pf_name_descends(FiberObject *descendant, FiberObject *fiber)
{
    while (descendant != NULL && descendant != fiber) {
        descendant = descendant->parent;
    }
    return descendant != NULL;
}
