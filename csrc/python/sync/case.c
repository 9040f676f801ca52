/* The type Case, fiber.joining(), and the cases of queues with their own
 * storage; see select.h. */
#include "python/core/arguments.h"
#include "python/sync/select.h"
#include "python/wait/wait.h"

PyTypeObject *pf_select_case_type; /* constant after import */

PyObject *
pf_case_new(const char *name, const PfCaseOps *ops, PyObject *source,
            PyObject *value)
{
    CaseObject *self =
        (CaseObject *)pf_select_case_type->tp_alloc(pf_select_case_type, 0);
    if (self != NULL) {
        self->ops = ops;
        self->source = Py_NewRef(source);
        self->op = Py_NewRef(source);
        self->value = Py_XNewRef(value);
        self->name = name;
    }
    return (PyObject *)self;
}

static int
case_traverse(PyObject *op, visitproc visit, void *arg)
{
    CaseObject *self = (CaseObject *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->source);
    Py_VISIT(self->value);
    Py_VISIT(self->op);
    Py_VISIT(self->finish);
    return 0;
}

/* Used by tp_dealloc only.  A case has no tp_clear: a case never changes, like
 * a tuple, so a cycle has another object that the collector can clear. */
static int
case_drop(PyObject *op)
{
    CaseObject *self = (CaseObject *)op;
    Py_CLEAR(self->source);
    Py_CLEAR(self->value);
    Py_CLEAR(self->op);
    Py_CLEAR(self->finish);
    return 0;
}

static void
case_dealloc(PyObject *op)
{
    pf_arguments_dealloc_with(op, case_drop);
}

static PyObject *
case_repr(PyObject *op)
{
    CaseObject *self = (CaseObject *)op;
    return PyUnicode_FromFormat("<pyfiber.Case %s of %R>", self->name,
                                self->source);
}

PyDoc_STRVAR(case_doc, "One operation that select() may do.\n\
\n\
The -ing form of a waiting method makes a case: channel.receiving() is the\n\
case of channel.receive(). A case does nothing by itself, and can be used\n\
again. select() gets a T from a Case[T].");

static PyMethodDef methods[] = {
    PF_NO_PICKLE,
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS,
     "Case[T]: a case that gets a T."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)case_doc},   {Py_tp_dealloc, case_dealloc},
    {Py_tp_traverse, case_traverse}, {Py_tp_repr, case_repr},
    {Py_tp_methods, methods},        {0, NULL},
};

static PyType_Spec spec = {
    .name = "pyfiber.Case",
    .basicsize = sizeof(CaseObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = slots,
};

/* ------------------------------------------------------- a fiber's joining() */

static int
attempt_to_join(PyObject *op, PyObject *value, PyObject **got)
{
    (void)value;
    (void)got;
    return pf_task_is_done(PF_TASK(op));
}

static bool
may_join(PyObject *op, const PfWaiter *asking)
{
    (void)asking;
    return pf_task_is_done(PF_TASK(op));
}

static PfWaitq *
line_of_joiners(PyObject *op)
{
    return &((FiberObject *)op)->waiters;
}

static PfMutex *
no_mutex(PyObject *op)
{
    (void)op;
    return NULL;
}

static int
check_join(PfThread *t, PyObject *op)
{
    return pf_task_is_done(PF_TASK(op))
               ? 0
               : pf_wait_refuse_join(t, (FiberObject *)op);
}

static const PfCaseOps joining_ops = {
    .attempt = attempt_to_join,
    .possible = may_join,
    .line = line_of_joiners,
    .mutex = no_mutex,
    .check = check_join,
};

static PyObject *
fiber_joining(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    return pf_case_new("joining", &joining_ops, op, NULL);
}

static PyMethodDef joining = {"joining", fiber_joining, METH_NOARGS,
                              "joining($self, /)\n--\n\n\
join(), as a case for select()."};

/* Adds joining() to the type Fiber.  The room of that type may not call this
 * one, which is above it. */
static int
add_joining(void)
{
    PyObject *method = PyDescr_NewMethod(pf_task_fiber_type, &joining);
    int rc = method == NULL ? -1
                            : PyDict_SetItemString(pf_task_fiber_type->tp_dict,
                                                   joining.ml_name, method);
    Py_XDECREF(method);
    PyType_Modified(pf_task_fiber_type);
    return rc;
}

/* ------------------------------------------------------------------- set-up */

/* _hooked_case(puts, queue, semaphore, finish), for HookedQueue: the case
 * acquires the semaphore, and finish() then puts or gets the item. */
static PyObject *
mod_hooked_case(PyObject *module, PyObject *args)
{
    (void)module;
    int puts;
    PyObject *queue, *semaphore, *finish;
    if (!PyArg_ParseTuple(args, "pOOO:_hooked_case", &puts, &queue, &semaphore,
                          &finish)) {
        return NULL;
    }
    if (!pf_semaphore_is(semaphore)) {
        PyErr_SetString(PyExc_TypeError,
                        "_hooked_case() needs a Semaphore as third argument");
        return NULL;
    }
    CaseObject *self = (CaseObject *)pf_case_new(
        puts ? "putting" : "getting", &pf_select_acquiring_ops, queue, NULL);
    if (self != NULL) {
        Py_SETREF(self->op, Py_NewRef(semaphore));
        self->finish = Py_NewRef(finish);
    }
    return (PyObject *)self;
}

static PyMethodDef functions[] = {
    {"_hooked_case", mod_hooked_case, METH_VARARGS,
     "A case of a queue that stores its items in its own way."},
    {NULL, NULL, 0, NULL},
};

int
pf_case_init(PyObject *module)
{
    pf_select_case_type = pf_arguments_add_type(module, &spec, NULL);
    return pf_select_case_type == NULL || add_joining() < 0
               ? -1
               : PyModule_AddFunctions(module, functions);
}
