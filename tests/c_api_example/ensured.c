/* Threads whose state PyThreadState_Ensure has made, from CPython 3.15 on. */
#include <Python.h>

#include <pthread.h>

/* fn(), as C code calls it that does not know whether it may. */
static PyObject *
nested(PyObject *module, PyObject *fn)
{
    (void)module;
    PyInterpreterView *view = PyInterpreterView_FromMain();
    PyThreadStateToken *token = PyThreadState_EnsureFromView(view);
    PyObject *result = PyObject_CallNoArgs(fn);
    PyThreadState_Release(token);
    PyInterpreterView_Close(view);
    return result;
}

static void *
thread_main(void *fn)
{
    PyInterpreterView *view = PyInterpreterView_FromMain();
    PyThreadStateToken *token = PyThreadState_EnsureFromView(view);
    PyObject *result = PyObject_CallNoArgs(fn);
    if (result == NULL) {
        PyErr_Print();
    }
    Py_XDECREF(result);
    PyThreadState_Release(token);
    PyInterpreterView_Close(view);
    return NULL;
}

static PyObject *
in_thread(PyObject *module, PyObject *fn)
{
    (void)module;
    pthread_t thread;
    int error;
    PyThreadState *state = PyEval_SaveThread();
    error = pthread_create(&thread, NULL, thread_main, fn);
    if (error == 0) {
        pthread_join(thread, NULL);
    }
    PyEval_RestoreThread(state);
    return PyLong_FromLong(error);
}

static PyMethodDef methods[] = {
    {"nested", nested, METH_O, NULL},
    {"in_thread", in_thread, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
    {0, NULL},
};

static PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                                 "ensured",
                                 NULL,
                                 0,
                                 methods,
                                 slots,
                                 NULL,
                                 NULL,
                                 NULL};

PyMODINIT_FUNC
PyInit_ensured(void)
{
    return PyModuleDef_Init(&definition);
}
