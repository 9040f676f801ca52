/* Imports the modules that pyfiber needs only later, at their first use, which
 * keeps `import pyfiber` fast. All such imports are here.
 *
 * The user's code may run within an import: import hooks, trace functions,
 * finalizers. If it could switch, the next fiber would find an incomplete
 * module, and could not wait for it, because the fiber that completes it is on
 * this thread.
 */
#include "python/core/import.h"

#include "python/core/state.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"

/* Is the import of `module` in progress? */
static bool
is_half_made(PyObject *module)
{
    PyObject *spec = PyObject_GetAttrString(module, "__spec__");
    PyObject *flag =
        spec == NULL ? NULL : PyObject_GetAttrString(spec, "_initializing");
    bool half = flag == Py_True;
    PyErr_Clear(); /* a module need not have these attributes */
    Py_XDECREF(flag);
    Py_XDECREF(spec);
    return half;
}

static void
raise_half_made(const char *module, PyObject *culprit)
{
    PyErr_Format(pf.fiber_error,
                 "cannot import %s: the import of %S is under way in another "
                 "fiber of this thread, and has been left in the midst; do "
                 "not switch within an import",
                 module, culprit);
}

/* Turns the ImportError that is set into a FiberError, if the module that it
 * names is still being imported. */
static void
explain(const char *module)
{
    PyObject *error = pystate_take_exception();
    PyObject *name = PyObject_GetAttrString(error, "name");
    PyObject *culprit = name == NULL || !PyUnicode_Check(name)
                            ? NULL
                            : PyImport_GetModule(name);
    if (culprit != NULL && is_half_made(culprit)) {
        raise_half_made(module, name);
        PyObject *clearer = pystate_take_exception();
        PyException_SetCause(clearer, error);
        error = clearer;
    }
    Py_XDECREF(culprit);
    Py_XDECREF(name);
    pystate_restore_exception(error);
}

static PyObject *
import_whole(const char *name)
{
    PyObject *module = PyImport_ImportModule(name);
    if (module == NULL && PyErr_ExceptionMatches(PyExc_ImportError)) {
        explain(name);
    } else if (module != NULL && is_half_made(module)) {
        PyObject *text = PyUnicode_FromString(name);
        if (text != NULL) {
            raise_half_made(name, text);
        }
        Py_XDECREF(text);
        Py_CLEAR(module);
    }
    return module;
}

PyObject *
pf_import(const char *name)
{
    char why[100];
    PfThread *t = pf_thread_this();
    if (t == NULL) {
        return NULL;
    }
    PyOS_snprintf(why, sizeof(why), "while pyfiber imports %s", name);
    pf_thread_no_switch_begin(t, why); /* `why` outlives the region */
    PyObject *module = import_whole(name);
    pf_thread_no_switch_end(t);
    return module;
}

PyObject *
pf_import_from(const char *module, const char *name)
{
    PyObject *source = pf_import(module);
    PyObject *found =
        source == NULL ? NULL : PyObject_GetAttrString(source, name);
    Py_XDECREF(source);
    return found;
}

static PyObject *
load(PyObject *module, PyObject *name)
{
    (void)module;
    const char *text = PyUnicode_AsUTF8(name);
    return text == NULL ? NULL : pf_import(text);
}

static PyMethodDef import_methods[] = {
    {"_load", load, METH_O,
     "_load($module, name, /)\n--\n\n"
     "Import a module and return it; no switch can happen before it is\n"
     "complete. For imports within functions."},
    {NULL, NULL, 0, NULL},
};

int
pf_import_init(PyObject *module)
{
    return PyModule_AddFunctions(module, import_methods);
}
