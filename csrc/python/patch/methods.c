/* Changes methods of the interpreter's types in place: see methods.h. */
#include "python/patch/methods.h"

#include "python/core/import.h"
#include "python/patch/lot.h"
#include "python/task/deadline.h"

#include <string.h>

#define CALLED                                                                \
    (METH_VARARGS | METH_FASTCALL | METH_NOARGS | METH_O | METH_KEYWORDS |    \
     METH_METHOD)

static PfMethods *const all[] = {&pf_lock_methods, &pf_rlock_methods,
                                 &pf_simple_queue_methods};
#define KINDS (sizeof all / sizeof *all)

/* Returns a borrowed pointer; NULL, without an exception, if the type has no
 * such method. */
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

static int
find(PfMethods *methods)
{
    PyObject *type = pf_import_from(methods->module, methods->type);
    if (type == NULL || find_in(methods, type) < 0) {
        Py_XDECREF(type);
        return -1;
    }
    methods->found((PyTypeObject *)type);
    methods->known = true;
    Py_DECREF(type); /* the interpreter keeps a reference */
    return 0;
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
    for (size_t i = 0; i < KINDS; i++) {
        if (all[i]->in_place && !all[i]->wanted) {
            put(all[i], false);
        }
    }
}

static PyObject *
patch_methods(PyObject *module, PyObject *args)
{
    (void)module;
    const char *type;
    int wanted;
    if (!PyArg_ParseTuple(args, "sp:_patch_methods", &type, &wanted)) {
        return NULL;
    }
    size_t i = 0;
    while (i + 1 < KINDS && strcmp(all[i]->type, type) != 0) {
        i++;
    }
    if (!all[i]->known && find(all[i]) < 0) {
        return NULL;
    }
    all[i]->wanted = wanted != 0;
    if (wanted) {
        put(all[i], true);
    } else if (!pf_lot_is_busy()) {
        pf_methods_settle();
    }
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"_patch_methods", patch_methods, METH_VARARGS,
     "_patch_methods(type, wanted, /)\n--\n\n"
     "Whether the interpreter's 'LockType', 'RLock' or 'SimpleQueue' park "
     "fibers."},
    {NULL, NULL, 0, NULL},
};

int
pf_methods_init(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}

PyObject *
pf_methods_call_try(const PfMethod *acquire, PyObject *lock)
{
    PyObject *const no[] = {Py_False};
    if (acquire->flags & METH_FASTCALL) {
        return PF_CALL_UNPACKED(acquire, lock, no, 1, NULL);
    }
    static PyObject *packed; /* (False,); constant after import */
    if (packed == NULL) {
        packed = PyTuple_Pack(1, Py_False);
    }
    return packed == NULL ? NULL : PF_CALL_PACKED(acquire, lock, packed, NULL);
}

PyObject *
pf_methods_call_timed(const PfMethod *acquire, PyObject *lock, double seconds)
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
pf_methods_deadline(PyObject *args, PyObject *kwargs, int64_t *deadline)
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
    return pf_deadline_acquire(given, given[1] == NULL ? 1 : 2, NULL,
                               deadline);
}
