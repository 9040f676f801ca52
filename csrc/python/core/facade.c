/* Accepts from the façade's modules what the engine needs from them: see
 * facade.h. */
#include "python/core/facade.h"

#include "python/core/arguments.h"

#include <string.h>

/* Set by the façade's modules; constant after import of the module that
 * provides a field. */
PfFacade pf_facade;

typedef struct Hook {
    const char *giver; /* the module that provides it */
    const char *name;
    PyObject **place;
} Hook;

#define OF_PYFIBER(name) {"pyfiber", #name, &pf_facade.name}
#define OF_GRAINS(name) {"pyfiber.grains", #name, &pf_facade.name}

static const Hook hooks[] = {
    OF_PYFIBER(make_outcome),   OF_PYFIBER(fiber_cancelled),
    OF_PYFIBER(log_failure),    OF_PYFIBER(log_unresponsive),
    OF_PYFIBER(log_stall),      OF_PYFIBER(log_abandoned),
    OF_PYFIBER(deadlock_text),  OF_PYFIBER(group_text),
    OF_PYFIBER(stack_summary),  OF_PYFIBER(unhandled),
    OF_PYFIBER(interrupted),    OF_PYFIBER(start_worker),
    OF_PYFIBER(hooked_queue),   OF_PYFIBER(no_run),
    OF_PYFIBER(could_be_woken), OF_PYFIBER(cannot_wait),
    OF_PYFIBER(log_blocked),    OF_PYFIBER(profiled_switch),
    OF_PYFIBER(trace_hook),     OF_GRAINS(ready),
    OF_GRAINS(sleeping),        OF_GRAINS(stopped),
    OF_GRAINS(join_elsewhere),  OF_GRAINS(policy_failed),
};
#define COUNT (sizeof hooks / sizeof *hooks)

/* Checks that the module provides exactly what it has to. 0 or -1. */
static int
check_hooks(const char *giver, PyObject *given)
{
    Py_ssize_t wanted = 0;
    for (size_t i = 0; i < COUNT; i++) {
        if (strcmp(hooks[i].giver, giver) != 0) {
            continue;
        }
        wanted++;
        if (given == NULL ||
            PyDict_GetItemString(given, hooks[i].name) == NULL) {
            PyErr_Format(PyExc_TypeError, "_set_hooks() of %s needs %s", giver,
                         hooks[i].name);
            return -1;
        }
    }
    if (wanted == 0 || PyDict_GET_SIZE(given) != wanted) {
        PyErr_Format(PyExc_TypeError,
                     "_set_hooks() of %s: the engine knows %zd of them", giver,
                     wanted);
        return -1;
    }
    return 0;
}

static PyObject *
set_hooks(PyObject *module, PyObject *args, PyObject *given)
{
    (void)module;
    const char *giver;
    if (!PyArg_ParseTuple(args, "s:_set_hooks", &giver) ||
        check_hooks(giver, given) < 0) {
        return NULL;
    }
    for (size_t i = 0; i < COUNT; i++) {
        if (strcmp(hooks[i].giver, giver) == 0) {
            PyObject *hook = PyDict_GetItemString(given, hooks[i].name);
            Py_XSETREF(*hooks[i].place, Py_NewRef(hook));
        }
    }
    Py_RETURN_NONE;
}

static PyMethodDef facade_methods[] = {
    {"_set_hooks", PF_FAST(set_hooks), METH_VARARGS | METH_KEYWORDS,
     "_set_hooks(giver, /, **hooks)\n--\n\n"
     "Set all the hooks that the engine needs from the façade's module\n"
     "`giver`; TypeError if one is missing or unknown."},
    {NULL, NULL, 0, NULL},
};

int
pf_facade_init(PyObject *module)
{
    return PyModule_AddFunctions(module, facade_methods);
}
