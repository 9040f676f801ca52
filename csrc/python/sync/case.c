/* The cases of select(), and its results; see select.h. */
#include "python/core/arguments.h"
#include "python/sync/channel.h"
#include "python/sync/select.h"

#include <structmember.h>

/* -------------------------------------------------------------------- cases */

static PyTypeObject *case_types[PF_CASE_KINDS]; /* constant after import */

PyObject *
pf_case_new(PfCaseKind kind, const PfCaseOps *ops, PyObject *source,
            PyObject *value)
{
    PyTypeObject *type = case_types[kind];
    CaseObject *self = (CaseObject *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->ops = ops;
        self->source = Py_NewRef(source);
        self->via = Py_NewRef(source);
        self->value = Py_XNewRef(value);
        self->kind = kind;
    }
    return (PyObject *)self;
}

bool
pf_is_case(PyObject *object)
{
    return Py_IS_TYPE(object, case_types[PF_RECEIVING]) ||
           Py_IS_TYPE(object, case_types[PF_SENDING]);
}

ChannelObject *
pf_case_channel(PyObject *op, PyObject **value)
{
    CaseObject *self = (CaseObject *)op;
    *value = self->value;
    return (ChannelObject *)self->source;
}

static int
case_traverse(PyObject *op, visitproc visit, void *arg)
{
    CaseObject *self = (CaseObject *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->source);
    Py_VISIT(self->value);
    Py_VISIT(self->via);
    Py_VISIT(self->finish);
    return 0;
}

/* A case never changes, like a tuple: the collector clears another object of a
 * cycle. */
static int
case_drop(PyObject *op)
{
    CaseObject *self = (CaseObject *)op;
    Py_CLEAR(self->source);
    Py_CLEAR(self->value);
    Py_CLEAR(self->via);
    Py_CLEAR(self->finish);
    return 0;
}

void
pf_case_dealloc(PyObject *op)
{
    pf_dealloc_with(op, case_drop);
}

static PyObject *
case_repr(PyObject *op)
{
    return PyUnicode_FromFormat("<%s %R>", Py_TYPE(op)->tp_name,
                                ((CaseObject *)op)->source);
}

static PyMethodDef case_methods[] = {
    PF_NO_PICKLE,
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS, "About T's."},
    {NULL, NULL, 0, NULL},
};

#define FLAGS                                                                 \
    (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |                                \
     Py_TPFLAGS_DISALLOW_INSTANTIATION)

static int
add_case(PyObject *module, PfCaseKind kind, const char *name, const char *doc)
{
    PyType_Slot slots[] = {
        {Py_tp_doc, (void *)doc},        {Py_tp_dealloc, pf_case_dealloc},
        {Py_tp_traverse, case_traverse}, {Py_tp_repr, case_repr},
        {Py_tp_methods, case_methods},   {0, NULL},
    };
    PyType_Spec spec = {.name = name,
                        .basicsize = sizeof(CaseObject),
                        .flags = FLAGS,
                        .slots = slots};
    case_types[kind] = pf_add_type(module, &spec, NULL);
    return case_types[kind] == NULL ? -1 : 0;
}

/* For HookedQueue: (queue, semaphore, finish, item) to put an item, the same
 * without an item to get one. */
static PyObject *
mod_hooked_case(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *queue, *semaphore, *finish, *item = NULL;
    if (!PyArg_ParseTuple(args, "OOO|O:_hooked_case", &queue, &semaphore,
                          &finish, &item)) {
        return NULL;
    }
    if (!pf_is_semaphore(semaphore)) {
        PyErr_SetString(PyExc_TypeError, "a Semaphore is needed");
        return NULL;
    }
    CaseObject *self =
        (CaseObject *)pf_case_new(item == NULL ? PF_GETTING : PF_PUTTING,
                                  &pf_acquiring_ops, queue, item);
    if (self != NULL) {
        Py_SETREF(self->via, Py_NewRef(semaphore));
        self->finish = Py_NewRef(finish);
    }
    return (PyObject *)self;
}

/* ------------------------------------------------------------------ results */

/* The operation that was done. */
typedef struct DoneObject {
    PyObject_HEAD
    PyObject *source;
    PyObject *value;  /* of Received and Got */
    Py_ssize_t index; /* which of the arguments */
} DoneObject;

static PyTypeObject *done_types[PF_RESULT_KINDS]; /* constant after import */

PyObject *
pf_case_result(PfCaseKind kind, PyObject *source, PyObject *value,
               Py_ssize_t index)
{
    PyTypeObject *type = done_types[kind];
    DoneObject *result = (DoneObject *)type->tp_alloc(type, 0);
    if (result == NULL) {
        return NULL;
    }
    result->source = Py_NewRef(source);
    result->value = value;
    result->index = index;
    return (PyObject *)result;
}

void
pf_case_set_value(PyObject *result, PyObject *value)
{
    ((DoneObject *)result)->value = value;
}

static int
done_traverse(PyObject *op, visitproc visit, void *arg)
{
    DoneObject *self = (DoneObject *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->source);
    Py_VISIT(self->value);
    return 0;
}

static int
done_drop(PyObject *op)
{
    DoneObject *self = (DoneObject *)op;
    Py_CLEAR(self->source);
    Py_CLEAR(self->value);
    return 0;
}

/* Would it die together with its holder, and perhaps take the next object
 * along, and so on? */
static inline bool
goes_deeper(PyObject *held)
{
    return held != NULL && Py_REFCNT(held) == 1 && PyObject_IS_GC(held);
}

static void
done_dealloc(PyObject *op)
{
    DoneObject *self = (DoneObject *)op;
    if (goes_deeper(self->source) || goes_deeper(self->value)) {
        pf_dealloc_with(op, done_drop);
        return;
    }
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    Py_DECREF(self->source);
    Py_XDECREF(self->value);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyObject *
done_repr(PyObject *op)
{
    DoneObject *self = (DoneObject *)op;
    if (self->value == NULL) {
        return PyUnicode_FromFormat("<%s %R, index %zd>", Py_TYPE(op)->tp_name,
                                    self->source, self->index);
    }
    return PyUnicode_FromFormat("<%s %R from %R, index %zd>",
                                Py_TYPE(op)->tp_name, self->value,
                                self->source, self->index);
}

#define SOURCE(name, doc)                                                     \
    {name, T_OBJECT_EX, offsetof(DoneObject, source), READONLY, doc}
#define VALUE(name, doc)                                                      \
    {name, T_OBJECT_EX, offsetof(DoneObject, value), READONLY, doc}
#define INDEX                                                                 \
    {"index", T_PYSSIZET, offsetof(DoneObject, index), READONLY,              \
     "Which of select()'s arguments it was."},                                \
    {                                                                         \
        NULL, 0, 0, 0, NULL                                                   \
    }

/* `match` uses their positions, so the order counts. */
static PyMemberDef received_members[] = {
    SOURCE("channel", "The channel that the value came from."),
    VALUE("value", "The value that was received."),
    INDEX,
};
static PyMemberDef sent_members[] = {
    SOURCE("channel", "The channel that took the value."),
    INDEX,
};
static PyMemberDef got_members[] = {
    SOURCE("queue", "The queue that the item came from."),
    VALUE("item", "The item that was taken out."),
    INDEX,
};
static PyMemberDef put_members[] = {
    SOURCE("queue", "The queue that took the item."),
    INDEX,
};
static PyMemberDef acquired_members[] = {
    SOURCE("semaphore", "The semaphore that was acquired."),
    INDEX,
};
static PyMemberDef joined_members[] = {
    SOURCE("fiber", "The fiber that has ended."),
    INDEX,
};
static PyMemberDef happened_members[] = {
    SOURCE("event", "The event that is set."),
    INDEX,
};

/* Written into the dictionary of the type, which is immutable. */
static int
add_match_args(PyTypeObject *type, const PyMemberDef *members)
{
    PyObject *names =
        members[2].name == NULL
            ? Py_BuildValue("(ss)", members[0].name, members[1].name)
            : Py_BuildValue("(sss)", members[0].name, members[1].name,
                            members[2].name);
    int rc = names == NULL ? -1
                           : PyDict_SetItemString(type->tp_dict,
                                                  "__match_args__", names);
    Py_XDECREF(names);
    PyType_Modified(type);
    return rc;
}

static int
add_result(PyObject *module, PfCaseKind kind, const char *name,
           PyMemberDef *members, const char *doc)
{
    PyType_Slot slots[] = {
        {Py_tp_doc, (void *)doc},
        {Py_tp_dealloc, done_dealloc},
        {Py_tp_traverse, done_traverse},
        {Py_tp_repr, done_repr},
        {Py_tp_methods, case_methods},
        {Py_tp_members, members},
        {0, NULL},
    };
    PyType_Spec spec = {.name = name,
                        .basicsize = sizeof(DoneObject),
                        .flags = FLAGS,
                        .slots = slots};
    done_types[kind] = pf_add_type(module, &spec, NULL);
    return done_types[kind] == NULL
               ? -1
               : add_match_args(done_types[kind], members);
}

/* ------------------------------------------------------------------- set-up */

static PyMethodDef functions[] = {
    {"_hooked_case", mod_hooked_case, METH_VARARGS,
     "A case of a queue that stores its items in its own way."},
    {NULL, NULL, 0, NULL},
};

static int
add_cases(PyObject *module)
{
    return add_case(module, PF_RECEIVING, "pyfiber.Receiving",
                    "What Channel.receiving() returns, for select().") |
           add_case(module, PF_SENDING, "pyfiber.Sending",
                    "What Channel.sending() returns, for select().") |
           add_case(module, PF_GETTING, "pyfiber.Getting",
                    "What Queue.getting() returns, for select().") |
           add_case(module, PF_PUTTING, "pyfiber.Putting",
                    "What Queue.putting() returns, for select().") |
           add_case(module, PF_ACQUIRING, "pyfiber.Acquiring",
                    "What Semaphore.acquiring() returns, for select().");
}

static int
add_results(PyObject *module)
{
    return add_result(module, PF_RECEIVING, "pyfiber.Received",
                      received_members, "select() received a value.") |
           add_result(module, PF_SENDING, "pyfiber.Sent", sent_members,
                      "select() sent a value.") |
           add_result(module, PF_GETTING, "pyfiber.Got", got_members,
                      "select() took an item out of a queue.") |
           add_result(module, PF_PUTTING, "pyfiber.Put", put_members,
                      "select() put an item into a queue.") |
           add_result(module, PF_ACQUIRING, "pyfiber.Acquired",
                      acquired_members, "select() acquired a semaphore.") |
           add_result(module, PF_JOINING, "pyfiber.Joined", joined_members,
                      "select() saw the end of a fiber.") |
           add_result(module, PF_HAPPENING, "pyfiber.Happened",
                      happened_members, "select() saw that an event is set.");
}

int
pf_case_init(PyObject *module)
{
    return add_cases(module) < 0 || add_results(module) < 0
               ? -1
               : PyModule_AddFunctions(module, functions);
}
