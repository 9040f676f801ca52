/* Fiber.__init__.
 *
 * Code that runs while the arguments are converted may call __init__ again.
 * So all arguments are converted first, then the fiber is checked, then it
 * takes them; the values that they replace are dropped at the end.
 */
#include "python/core/state.h"
#include "python/core/tstate.h"
#include "python/fiber/fiber_type.h"
#include "python/task/call.h"
#include "python/task/fiber.h"

typedef struct Given {
    PyObject *target, *args, *kwargs, *name, *context; /* owned, or NULL */
    size_t stack_size;                                 /* 0: not given */
    bool daemon, own_stack;
} Given;

static void
drop_given(Given *given)
{
    Py_XDECREF(given->target);
    Py_XDECREF(given->args);
    Py_XDECREF(given->kwargs);
    Py_XDECREF(given->name);
    Py_XDECREF(given->context);
}

static int
convert_name(Given *given, PyObject *name)
{
    if (name == NULL || name == Py_None) {
        return 0;
    }
    given->name = pf_name_check(name);
    return given->name == NULL ? -1 : 0;
}

static int
convert_stack_size(Given *given, PyObject *size)
{
    if (size == NULL || size == Py_None) {
        return 0;
    }
    Py_ssize_t bytes = PyNumber_AsSsize_t(size, PyExc_OverflowError);
    if (bytes == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (bytes < (Py_ssize_t)pystate_min_stack()) {
        PyErr_Format(PyExc_ValueError,
                     "stack_size must be at least %zu bytes, not %zd",
                     pystate_min_stack(), bytes);
        return -1;
    }
    given->stack_size = (size_t)bytes;
    return 0;
}

static int
convert_context(Given *given, PyObject *context)
{
    if (context == NULL || context == Py_None) {
        return 0;
    }
    if (!PyContext_CheckExact(context)) {
        PyErr_Format(PyExc_TypeError,
                     "context must be a contextvars.Context, not '%.200s'",
                     Py_TYPE(context)->tp_name);
        return -1;
    }
    given->context = Py_NewRef(context);
    return 0;
}

static int
convert_target(Given *given, FiberObject *self, PyObject *target)
{
    if (target == NULL || target == Py_None) {
        if (Py_TYPE(self) != pf_task_fiber_type) {
            return 0;
        }
        PyErr_SetString(PyExc_TypeError,
                        "Fiber() needs a target, or a subclass that defines "
                        "run()");
        return -1;
    }
    if (pf_call_check("Fiber()", target) < 0) {
        return -1;
    }
    given->target = Py_NewRef(target);
    return 0;
}

static int
convert_args(Given *given, PyObject *args)
{
    given->args = args == NULL ? NULL : PySequence_Tuple(args);
    if (given->args != NULL && PyTuple_GET_SIZE(given->args) == 0) {
        Py_CLEAR(given->args);
    }
    return PyErr_Occurred() ? -1 : 0;
}

static int
convert_kwargs(Given *given, PyObject *kwargs)
{
    if (kwargs == NULL || kwargs == Py_None) {
        return 0;
    }
    if (!PyObject_HasAttrString(kwargs, "keys")) {
        PyErr_Format(PyExc_TypeError, "kwargs must be a mapping, not '%.200s'",
                     Py_TYPE(kwargs)->tp_name);
        return -1;
    }
    given->kwargs = PyDict_New();
    if (given->kwargs == NULL || PyDict_Update(given->kwargs, kwargs) < 0) {
        return -1;
    }
    if (PyDict_GET_SIZE(given->kwargs) == 0) {
        Py_CLEAR(given->kwargs);
    }
    return 0;
}

static void
exchange(PyObject **a, PyObject **b)
{
    PyObject *object = *a;
    *a = *b;
    *b = object;
}

/* Keeps other threads from starting the fiber until pf_fiber_unclaim.  Returns
 * 0, or -1 with FiberError if the fiber has been started. */
static int
claim(FiberObject *self)
{
    int new = pf_fiber_claim_new(self);
    if (new == 0) {
        PyErr_SetString(pf.fiber_error,
                        "the fiber has been started: that comes too late");
    }
    return new > 0 ? 0 : -1;
}

/* Moves the values into the fiber, and its previous ones into `given`.  Runs
 * no Python code.  Returns 0, or -1 with FiberError. */
static int
take_given(FiberObject *self, Given *given)
{
    if (claim(self) < 0) {
        return -1;
    }
    pf_fiber_own_target(self);
    exchange(&self->target, &given->target);
    exchange(&self->args, &given->args);
    exchange(&self->kwargs, &given->kwargs);
    if (given->name != NULL) {
        exchange(&self->name, &given->name);
    }
    if (given->context != NULL) {
        exchange(&self->context, &given->context);
    }
    if (given->stack_size != 0) {
        self->stack_size =
            given->stack_size | (self->stack_size & PF_OWN_STACK);
    }
    if (given->own_stack) {
        self->stack_size |= PF_OWN_STACK;
    }
    self->daemon |= given->daemon;
    pf_fiber_unclaim(self);
    return 0;
}

int
pf_fiber_own_stack(FiberObject *self)
{
    if (claim(self) < 0) {
        return -1;
    }
    self->stack_size |= PF_OWN_STACK;
    pf_fiber_unclaim(self);
    return 0;
}

int
pf_fiber_init(PyObject *op, PyObject *args, PyObject *kwds)
{
    static char *names[] = {"target",  "args",      "kwargs",
                            "name",    "daemon",    "stack_size",
                            "context", "own_stack", NULL};
    FiberObject *self = (FiberObject *)op;
    PyObject *target = NULL, *call_args = NULL, *call_kwargs = NULL;
    PyObject *name = NULL, *size = NULL, *context = NULL;
    int daemon = 0, own_stack = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwds, "|OOO$OpOOp:Fiber", names,
                                     &target, &call_args, &call_kwargs, &name,
                                     &daemon, &size, &context, &own_stack)) {
        return -1;
    }
    Given given = {.daemon = daemon != 0, .own_stack = own_stack != 0};
    int rc = -1;
    if (convert_target(&given, self, target) == 0 &&
        convert_args(&given, call_args) == 0 &&
        convert_kwargs(&given, call_kwargs) == 0 &&
        convert_name(&given, name) == 0 &&
        convert_stack_size(&given, size) == 0 &&
        convert_context(&given, context) == 0) {
        rc = take_given(self, &given);
    }
    PyObject *raised = pystate_take_exception();
    drop_given(&given);
    pystate_restore_exception(raised);
    return rc;
}
