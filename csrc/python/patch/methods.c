/* Methods changed in place: see methods.h. */
#include "python/patch/methods.h"

#include "python/core/import.h"
#include "python/patch/lot.h"
#include "python/task/deadline.h"

#include <string.h>

#define CALLED                                                                \
    (METH_VARARGS | METH_FASTCALL | METH_NOARGS | METH_O | METH_KEYWORDS |    \
     METH_METHOD)

static PfMethods *all; /* constant after import, of pyfiber._patch's parts */

/* Borrowed; NULL without an exception if there is none. */
static PyMethodDef *
definition_of(PyObject *type, const char *name)
{
    PyObject *dict = ((PyTypeObject *)type)->tp_dict;
    PyObject *found = PyDict_GetItemString(dict, name);
    return found != NULL && Py_IS_TYPE(found, &PyMethodDescr_Type)
               ? ((PyMethodDescrObject *)found)->d_method
               : NULL;
}

static void
look_for(PyObject *type, PfMethod *method)
{
    PyMethodDef *place = definition_of(type, method->name);
    if (place != NULL && (place->ml_flags & CALLED) == method->flags) {
        method->place = place;
        method->original = place->ml_meth;
    }
}

const PfMethod *
pf_method_named(const PfMethods *methods, const char *name)
{
    for (size_t i = 0; i < methods->count; i++) {
        const PfMethod *method = &methods->list[i];
        if (method->place != NULL && strcmp(method->name, name) == 0) {
            return method;
        }
    }
    return NULL;
}

static int
find_in(PfMethods *methods, PyObject *type)
{
    for (size_t i = 0; i < methods->count; i++) {
        look_for(type, &methods->list[i]);
    }
    for (size_t i = 0; i < methods->count; i++) {
        const char *name = methods->list[i].name;
        if (definition_of(type, name) != NULL &&
            pf_method_named(methods, name) == NULL) {
            PyErr_Format(PyExc_RuntimeError,
                         "pyfiber does not know how this interpreter calls "
                         "%s.%s(): it cannot be patched",
                         ((PyTypeObject *)type)->tp_name, name);
            return -1;
        }
    }
    return 0;
}

int
pf_methods_find(PfMethods *methods, const char *module, const char *type)
{
    PyObject *found = pf_import_from(module, type);
    if (found == NULL) {
        return -1;
    }
    int rc = find_in(methods, found);
    Py_DECREF(found); /* the interpreter keeps it: see rlock.c */
    if (rc == 0) {
        methods->next = all;
        all = methods;
    }
    return rc;
}

static void
put(PfMethods *methods, bool in_place)
{
    for (size_t i = 0; i < methods->count; i++) {
        PfMethod *method = &methods->list[i];
        if (method->place != NULL && method->inside != NULL) {
            method->place->ml_meth =
                in_place ? method->inside : method->original;
        }
    }
    methods->in_place = in_place;
}

void
pf_methods_settle(void)
{
    for (PfMethods *each = all; each != NULL; each = each->next) {
        if (each->in_place && !each->wanted) {
            put(each, false);
        }
    }
}

void
pf_methods_set(PfMethods *methods, bool wanted)
{
    methods->wanted = wanted;
    if (wanted) {
        put(methods, true);
    } else if (!pf_lot_is_busy()) {
        pf_methods_settle();
    }
}

PyObject *
pf_call_try(const PfMethod *acquire, PyObject *lock)
{
    PyObject *const no[] = {Py_False};
    if (acquire->flags & METH_FASTCALL) {
        return PF_CALL_UNPACKED(acquire, lock, no, 1, NULL);
    }
    static PyObject *packed; /* (False,); constant after import, as above */
    if (packed == NULL) {
        packed = PyTuple_Pack(1, Py_False);
    }
    return packed == NULL ? NULL : PF_CALL_PACKED(acquire, lock, packed, NULL);
}

PyObject *
pf_call_timed(const PfMethod *acquire, PyObject *lock, double seconds)
{
    PyObject *args = Py_BuildValue("(Od)", Py_True, seconds);
    if (args == NULL) {
        return NULL;
    }
    PyObject *taken =
        acquire->flags & METH_FASTCALL
            ? PF_CALL_UNPACKED(acquire, lock, &PyTuple_GET_ITEM(args, 0), 2,
                               NULL)
            : PF_CALL_PACKED(acquire, lock, args, NULL);
    Py_DECREF(args);
    return taken;
}

int
pf_packed_deadline(PyObject *args, PyObject *kwargs, int64_t *deadline)
{
    static char *names[] = {"blocking", "timeout", NULL};
    PyObject *given[] = {Py_True, NULL};
    if (PyTuple_GET_SIZE(args) == 0 && kwargs == NULL) {
        *deadline = PF_NEVER;
        return 0;
    }
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|OO:acquire", names,
                                     &given[0], &given[1])) {
        return -1;
    }
    return pf_acquire_arguments(given, given[1] == NULL ? 1 : 2, NULL,
                                deadline);
}
