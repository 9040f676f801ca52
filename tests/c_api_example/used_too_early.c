/* What must not be: functions of pyfiber.h before PyFiber_Import(). */
#include <pyfiber.h>

static PyObject *
raises(PyObject *module, PyObject *object)
{
    (void)module;
    return PyFiber_Switch(object, NULL);
}

static PyObject *
raises_from_int(PyObject *module, PyObject *ignored)
{
    (void)module, (void)ignored;
    return PyFiber_Yield() < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *
cannot_raise(PyObject *module, PyObject *object)
{
    (void)module;
    return PyLong_FromLong(PyFiber_UnparkNoGIL(object));
}

static PyObject *
import(PyObject *module, PyObject *ignored)
{
    (void)module, (void)ignored;
    return PyFiber_Import() < 0 ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef methods[] = {
    {"raises", raises, METH_O, NULL},
    {"raises_from_int", raises_from_int, METH_NOARGS, NULL},
    {"cannot_raise", cannot_raise, METH_O, NULL},
    {"import_", import, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                                 "used_too_early",
                                 NULL,
                                 -1,
                                 methods,
                                 NULL,
                                 NULL,
                                 NULL,
                                 NULL};

PyMODINIT_FUNC
PyInit_used_too_early(void)
{
    PyObject *module = PyModule_Create(&definition);
#ifdef Py_GIL_DISABLED
    if (module != NULL) {
        PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
    }
#endif
    return module;
}
