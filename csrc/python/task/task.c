/* What tasks of any kind have in common: see task.h. */
#include "python/task/task.h"

#include "python/task/unhandled.h"

/* ------------------------------------------------------------------- types */

/* constant after import */
PyTypeObject *pf_task_fiber_type, *pf_task_stackless_type;

bool
pf_task_check(PyObject *op)
{
    return PyObject_TypeCheck(op, pf_task_fiber_type) ||
           PyObject_TypeCheck(op, pf_task_stackless_type);
}

/* --------------------------------------------------------------- rare data */

const PfRare pf_task_no_rare = {0};

PfRare *
pf_task_rare_of(PfTaskObject *task)
{
    if (task->rare == NULL) {
        task->rare = PyMem_Calloc(1, sizeof(PfRare));
        if (task->rare == NULL) {
            PyErr_NoMemory();
        }
    }
    return task->rare;
}

void
pf_task_free_rare(PfTaskObject *task)
{
    if (task->rare != NULL) {
        pf_unhandled_forget(&task->rare->unhandled);
        PyMem_Free(task->rare);
        task->rare = NULL;
    }
}

int
pf_task_traverse(PfTaskObject *task, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(task));
    Py_VISIT(task->name);
    Py_VISIT(task->value);
    Py_VISIT(task->base);
    if (task->rare != NULL) {
        Py_VISIT(task->rare->callbacks);
        Py_VISIT(task->rare->cancel);
        Py_VISIT(task->rare->traceback);
        Py_VISIT(task->rare->puller);
        Py_VISIT(task->rare->pulled);
        Py_VISIT(task->rare->other);
    }
    return 0;
}

/* -------------------------------------------------------------------- awaiting */

PyObject *
pf_task_await(PyObject *op)
{
    return pf_parts_hooks.await(op);
}
