/* local: each fiber, and each plain thread, has its own attributes, in the
 * dict of a slot (switch/locals.h).  An attribute look-up may run code that
 * lets other fibers use the object before the look-up goes on.  So a look-up
 * gets the dict as an argument and reads no state of the object.
 */
#include "python/core/arguments.h"
#include "python/core/compiler.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/switch/locals.h"
#include "python/sync/local.h"
#include "python/sync/sync.h"
#include "python/task/fiber.h"

#include <structmember.h>

typedef struct LocalObject {
    PyObject_HEAD
    PyObject *weakrefs;
    PyObject *args, *kwargs; /* for a subclass's __init__ in each fiber */
    PfSlot *slots;
} LocalObject;

/* ------------------------------------------------------------------- access */

/* Makes the slot at the fiber's first access and calls __init__ of a subclass
 * with the constructor's arguments.  To make the dict may run the collector,
 * and with it code that accesses the object first: then that access has done
 * all this.  `args` is NULL if the collector has cleared the object. */
static PfSlot *
first_access(const PfLocal *local, FiberObject *fiber)
{
    PyObject *self = local->object;
    PyObject *dict = PyDict_New();
    PfSlot *slot = pf_locals_find(local->slots, fiber);
    if (slot != NULL) {
        Py_XDECREF(dict);
        return slot;
    }
    slot = pf_locals_add(local->slots, fiber, dict);
    if (slot == NULL || !pf_local_has_init(Py_TYPE(self)) ||
        local->args == NULL) {
        return slot;
    }
    if (Py_TYPE(self)->tp_init(self, local->args, local->kwargs) < 0) {
        slot = pf_locals_find(local->slots, fiber);
        if (slot != NULL) {
            PyObject *pending = pystate_take_exception();
            pf_locals_drop(slot);
            pystate_restore_exception(pending);
        }
        return NULL;
    }
    return pf_locals_find(local->slots, fiber);
}

PyObject *
pf_local_dict(const PfLocal *local, FiberObject *fiber)
{
    PfSlot *slot = pf_locals_find(local->slots, fiber);
    if (PF_UNLIKELY(slot == NULL)) {
        slot = first_access(local, fiber);
        if (slot == NULL) {
            return NULL;
        }
    }
    return Py_NewRef(slot->dict);
}

static bool
is_dict_name(PyObject *name)
{
    return PyUnicode_Check(name) &&
           PyUnicode_CompareWithASCIIString(name, "__dict__") == 0;
}

PyObject *
pf_local_get(PyObject *op, PyObject *name, PyObject *dict)
{
    if (dict == NULL || is_dict_name(name)) {
        return dict;
    }
    PyObject *value = _PyObject_GenericGetAttrWithDict(op, name, dict, 0);
    Py_DECREF(dict);
    return value;
}

int
pf_local_set(PyObject *op, PyObject *name, PyObject *value, PyObject *dict)
{
    if (dict == NULL) {
        return -1;
    }
    int rc = -1;
    if (is_dict_name(name)) {
        PyErr_Format(PyExc_AttributeError,
                     "'%.100s' object attribute '%U' is read-only",
                     Py_TYPE(op)->tp_name, name);
    } else {
        rc = _PyObject_GenericSetAttrWithDict(op, name, value, dict);
    }
    Py_DECREF(dict);
    return rc;
}

/* Returns the running fiber's dict: a new reference, or NULL with an
 * exception. */
static PyObject *
my_dict(PyObject *op)
{
    PfThread *t = pf_thread_this();
    if (t == NULL) {
        return NULL;
    }
    LocalObject *self = (LocalObject *)op;
    PfLocal local = {op, &self->slots, self->args, self->kwargs};
    return pf_local_dict(&local, CURRENT(t));
}

static PyObject *
local_getattro(PyObject *op, PyObject *name)
{
    return pf_local_get(op, name, my_dict(op));
}

static int
local_setattro(PyObject *op, PyObject *name, PyObject *value)
{
    return pf_local_set(op, name, value, my_dict(op));
}

/* ----------------------------------------------------------- birth and death */

static PyObject *
local_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    bool given = PyTuple_GET_SIZE(args) > 0 ||
                 (kwargs != NULL && PyDict_GET_SIZE(kwargs) > 0);
    if (given && !pf_local_has_init(type)) {
        PyErr_SetString(PyExc_TypeError,
                        "local() takes arguments only if a subclass has an "
                        "__init__ for them");
        return NULL;
    }
    PfThread *t = pf_thread_this();
    LocalObject *self =
        t == NULL ? NULL : (LocalObject *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->args = Py_NewRef(args);
    self->kwargs = Py_XNewRef(kwargs);
    /* With this slot in place no access calls __init__ again in this fiber:
     * type.__call__ calls it right after this function. */
    if (pf_locals_add(&self->slots, CURRENT(t), PyDict_New()) == NULL) {
        Py_CLEAR(self);
    }
    return (PyObject *)self;
}

static int
local_traverse(PyObject *op, visitproc visit, void *arg)
{
    LocalObject *self = (LocalObject *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->args);
    Py_VISIT(self->kwargs);
    for (PfSlot *slot = self->slots; slot != NULL; slot = slot->older) {
        Py_VISIT(slot->dict);
    }
    return 0;
}

static int
local_clear(PyObject *op)
{
    LocalObject *self = (LocalObject *)op;
    pf_locals_clear_local(&self->slots);
    Py_CLEAR(self->args);
    Py_CLEAR(self->kwargs);
    return 0;
}

static void
local_dealloc(PyObject *op)
{
    pf_arguments_dealloc_with(op, local_clear);
}

PyDoc_STRVAR(local_doc, "local(*args, **kwargs)\n--\n\n\
A threading.local for fibers: separate attributes in each fiber and thread.\n\
\n\
The attributes are dropped when their fiber or thread ends. __init__ of a\n\
subclass runs in each fiber and plain thread at its first use of the object,\n\
with the arguments of the constructor. TypeError for arguments without such\n\
an __init__.");

static PyMethodDef methods[] = {
    PF_NO_PICKLE,
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    PF_WEAKREFS(LocalObject),
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)local_doc},   {Py_tp_new, local_new},
    {Py_tp_dealloc, local_dealloc},   {Py_tp_traverse, local_traverse},
    {Py_tp_clear, local_clear},       {Py_tp_getattro, local_getattro},
    {Py_tp_setattro, local_setattro}, {Py_tp_methods, methods},
    {Py_tp_members, members},         {0, NULL},
};

static PyType_Spec spec = {
    .name = "pyfiber.local",
    .basicsize = sizeof(LocalObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};

int
pf_local_init(PyObject *module)
{
    PyTypeObject *type = pf_arguments_add_type(module, &spec, NULL);
    Py_XDECREF(type);
    return type == NULL ? -1 : 0;
}
