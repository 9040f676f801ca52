/* select(): exactly one of several operations, the first that is possible.
 *
 * A case is an operation on a channel (Receiving, Sending) or a fiber, whose
 * end is waited for.  First every case is tried in order; if none is possible
 * the waiter stands in all queues at once, and whoever serves one of its
 * places takes it out of the others.
 */
#include "python/channel.h"
#include "python/schedule.h"

#include <structmember.h>

/* -------------------------------------------------------------------- cases */

typedef struct CaseObject {
    PyObject_HEAD
    ChannelObject *channel;
    PyObject *value; /* of a Sending, NULL in a Receiving */
} CaseObject;

static PyTypeObject *receiving_type, *sending_type;

static PyObject *
new_case(PyTypeObject *type, PyObject *channel, PyObject *value)
{
    CaseObject *self = (CaseObject *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->channel = (ChannelObject *)Py_NewRef(channel);
        self->value = Py_XNewRef(value);
    }
    return (PyObject *)self;
}

PyObject *
pf_case_receiving(PyObject *channel, PyObject *ignored)
{
    (void)ignored;
    return new_case(receiving_type, channel, NULL);
}

PyObject *
pf_case_sending(PyObject *channel, PyObject *value)
{
    return new_case(sending_type, channel, value);
}

bool
pf_is_case(PyObject *object)
{
    return Py_TYPE(object) == receiving_type ||
           Py_TYPE(object) == sending_type;
}

ChannelObject *
pf_case_channel(PyObject *op, PyObject **value)
{
    CaseObject *self = (CaseObject *)op;
    *value = self->value;
    return self->channel;
}

static int
case_traverse(PyObject *op, visitproc visit, void *arg)
{
    CaseObject *self = (CaseObject *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->channel);
    Py_VISIT(self->value);
    return 0;
}

static int
case_clear(PyObject *op)
{
    CaseObject *self = (CaseObject *)op;
    Py_CLEAR(self->channel);
    Py_CLEAR(self->value);
    return 0;
}

static void
case_dealloc(PyObject *op)
{
    pf_dealloc_with(op, case_clear);
}

static PyObject *
case_repr(PyObject *op)
{
    CaseObject *self = (CaseObject *)op;
    return PyUnicode_FromFormat("<%s %R>", Py_TYPE(op)->tp_name,
                                self->channel);
}

PyDoc_STRVAR(receiving_doc, "What Channel.receiving() makes, for select().");
PyDoc_STRVAR(sending_doc, "What Channel.sending() makes, for select().");

#define CASE_SLOTS(doc)                                                       \
    {                                                                         \
        {Py_tp_doc, (void *)(doc)}, {Py_tp_dealloc, case_dealloc},            \
            {Py_tp_traverse, case_traverse}, {Py_tp_clear, case_clear},       \
            {Py_tp_repr, case_repr}, {Py_tp_methods, case_methods},           \
        {                                                                     \
            0, NULL                                                           \
        }                                                                     \
    }

static PyMethodDef case_methods[] = {
    PF_NO_PICKLE,
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS,
     "A case of a channel of T's."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot receiving_slots[] = CASE_SLOTS(receiving_doc);
static PyType_Slot sending_slots[] = CASE_SLOTS(sending_doc);

#define CASE_FLAGS                                                            \
    (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |                                \
     Py_TPFLAGS_DISALLOW_INSTANTIATION)

static PyType_Spec receiving_spec = {
    .name = "pyfiber.Receiving",
    .basicsize = sizeof(CaseObject),
    .flags = CASE_FLAGS,
    .slots = receiving_slots,
};

static PyType_Spec sending_spec = {
    .name = "pyfiber.Sending",
    .basicsize = sizeof(CaseObject),
    .flags = CASE_FLAGS,
    .slots = sending_slots,
};

/* ------------------------------------------------------------------ results */

/* What was done: Received, Sent or Joined. */
typedef struct DoneObject {
    PyObject_HEAD
    PyObject *source; /* the channel or the fiber */
    PyObject *value;  /* of Received */
    Py_ssize_t index; /* which of the arguments */
} DoneObject;

static PyTypeObject *received_type, *sent_type, *joined_type;

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
done_clear(PyObject *op)
{
    DoneObject *self = (DoneObject *)op;
    Py_CLEAR(self->source);
    Py_CLEAR(self->value);
    return 0;
}

static void
done_dealloc(PyObject *op)
{
    pf_dealloc_with(op, done_clear);
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
#define INDEX                                                                 \
    {"index", T_PYSSIZET, offsetof(DoneObject, index), READONLY,              \
     "Which of select()'s arguments it was."}

static PyMemberDef received_members[] = {
    SOURCE("channel", "Where the value came from."),
    {"value", T_OBJECT_EX, offsetof(DoneObject, value), READONLY,
     "What was received."},
    INDEX,
    {NULL, 0, 0, 0, NULL},
};
static PyMemberDef sent_members[] = {
    SOURCE("channel", "Where the value went."),
    INDEX,
    {NULL, 0, 0, 0, NULL},
};
static PyMemberDef joined_members[] = {
    SOURCE("fiber", "The fiber that has ended."),
    INDEX,
    {NULL, 0, 0, 0, NULL},
};

PyDoc_STRVAR(received_doc, "select() received a value.");
PyDoc_STRVAR(sent_doc, "select() sent a value.");
PyDoc_STRVAR(joined_doc, "select() saw the end of a fiber.");

#define DONE_SLOTS(doc, members)                                              \
    {                                                                         \
        {Py_tp_doc, (void *)(doc)}, {Py_tp_dealloc, done_dealloc},            \
            {Py_tp_traverse, done_traverse}, {Py_tp_clear, done_clear},       \
            {Py_tp_repr, done_repr}, {Py_tp_methods, case_methods},           \
            {Py_tp_members, members},                                         \
        {                                                                     \
            0, NULL                                                           \
        }                                                                     \
    }

/* clang-format off */
static PyType_Slot received_slots[] =
    DONE_SLOTS(received_doc, received_members);
static PyType_Slot sent_slots[] = DONE_SLOTS(sent_doc, sent_members);
static PyType_Slot joined_slots[] = DONE_SLOTS(joined_doc, joined_members);
/* clang-format on */

#define DONE_SPEC(name_, slots_)                                              \
    {.name = name_,                                                           \
     .basicsize = sizeof(DoneObject),                                         \
     .flags = CASE_FLAGS,                                                     \
     .slots = slots_}

static PyType_Spec received_spec =
    DONE_SPEC("pyfiber.Received", received_slots);
static PyType_Spec sent_spec = DONE_SPEC("pyfiber.Sent", sent_slots);
static PyType_Spec joined_spec = DONE_SPEC("pyfiber.Joined", joined_slots);

static bool
is_receiving(PyObject *one)
{
    return Py_IS_TYPE(one, receiving_type);
}

static bool
is_sending(PyObject *one)
{
    return Py_IS_TYPE(one, sending_type);
}

/* `value` is stolen; NULL but in Received. */
static PyObject *
make_result(PyObject *one, PyObject *value, Py_ssize_t index)
{
    PyTypeObject *type = is_receiving(one) ? received_type
                         : is_sending(one) ? sent_type
                                           : joined_type;
    DoneObject *result = (DoneObject *)type->tp_alloc(type, 0);
    if (result == NULL) {
        if (value != NULL) {
            pf_channel_give_back(((CaseObject *)one)->channel, value);
        }
        return NULL;
    }
    PyObject *source =
        type == joined_type ? one : (PyObject *)((CaseObject *)one)->channel;
    result->source = Py_NewRef(source);
    result->value = value;
    result->index = index;
    return (PyObject *)result;
}

/* --------------------------------------------------------------- the choice */

static int
check_case(PfThread *t, PyObject *one)
{
    if (is_receiving(one) || is_sending(one)) {
        return 0;
    }
    if (PyObject_TypeCheck(one, pf.fiber_type)) {
        FiberObject *fiber = (FiberObject *)one;
        return fiber->core.state == PF_DONE ? 0 : pf_refuse_join(t, fiber);
    }
    PyErr_Format(
        PyExc_TypeError,
        "select() takes channel.receiving(), channel.sending(value) and "
        "fibers, not '%.200s'",
        Py_TYPE(one)->tp_name);
    return -1;
}

/* 1: done; 0: not possible yet; -1: exception. */
static int
try_case(PyObject *one, PyObject **value)
{
    if (is_receiving(one)) {
        return pf_channel_try_receive(((CaseObject *)one)->channel, value);
    }
    if (is_sending(one)) {
        CaseObject *sending = (CaseObject *)one;
        return pf_channel_try_send(sending->channel, sending->value);
    }
    return ((FiberObject *)one)->core.state == PF_DONE;
}

static void
stand_in_line(PyObject *one, PfNode *node)
{
    if (is_receiving(one)) {
        pf_waitq_push(&((CaseObject *)one)->channel->receivers, node);
    } else if (is_sending(one)) {
        CaseObject *sending = (CaseObject *)one;
        node->item = Py_NewRef(sending->value);
        pf_waitq_push(&sending->channel->senders, node);
    } else {
        pf_waitq_push(&((FiberObject *)one)->waiters, node);
    }
}

/* The wait for `taken` is over; its item, if it has one, is a value received.
 * Those of the other nodes were not sent. */
static PyObject *
finish(PyObject *const *cases, PfWaiter *waiter, int rc)
{
    PfNode *taken = waiter->taken;
    Py_ssize_t index = taken == NULL ? -1 : taken - waiter->nodes;
    PyObject *value = NULL;
    if (taken != NULL && is_receiving(cases[index])) {
        value = taken->item;
        taken->item = NULL;
    }
    for (int i = 0; i < waiter->count; i++) {
        Py_CLEAR(waiter->nodes[i].item);
    }
    if (rc < 0) {
        if (value != NULL) {
            pf_channel_give_back(((CaseObject *)cases[index])->channel, value);
        }
        return NULL;
    }
    if (rc == 1) {
        Py_RETURN_NONE;
    }
    if (taken->refused) {
        pf_channel_raise_closed(((CaseObject *)cases[index])->channel);
        return NULL;
    }
    return make_result(cases[index], value, index);
}

#define FEW_CASES 8

static PyObject *
wait_for_one(PfThread *t, PyObject *const *cases, Py_ssize_t count,
             int64_t deadline, PyObject *what)
{
    PfWaiter waiter;
    PfNode few[FEW_CASES];
    PfNode *nodes = few;
    if (count > FEW_CASES) {
        nodes = PyMem_New(PfNode, count);
        if (nodes == NULL) {
            return PyErr_NoMemory();
        }
    }
    pf_waiter_init(&waiter, t, nodes, (int)count);
    for (Py_ssize_t i = 0; i < count; i++) {
        stand_in_line(cases[i], &nodes[i]);
    }
    int rc = pf_wait_in_line(&waiter, t, deadline, what);
    PyObject *result = finish(cases, &waiter, rc);
    if (nodes != few) {
        PyMem_Free(nodes);
    }
    return result;
}

/* From the first look at a case to the last node in line nothing may run in
 * between: `what`, made before, is all that allocates. */
static PyObject *
choose(PfThread *t, PyObject *const *cases, Py_ssize_t count, int64_t deadline,
       PyObject *what)
{
    Py_ssize_t first = 0;
    if (PF_UNLIKELY(pf.exploring != 0) && t->scheduler != NULL) {
        first = pf_choose(t->scheduler, (uint32_t)count, PF_CHOOSE_SELECT);
    }
    for (Py_ssize_t n = 0; n < count; n++) {
        Py_ssize_t i = first + n < count ? first + n : first + n - count;
        PyObject *value = NULL;
        int rc = try_case(cases[i], &value);
        if (rc != 0) {
            return rc < 0 ? NULL : make_result(cases[i], value, i);
        }
    }
    if (deadline == PF_NOW) {
        Py_RETURN_NONE;
    }
    return wait_for_one(t, cases, count, deadline, what);
}

static int
select_timeout(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
               int64_t *deadline)
{
    static const char *const names[] = {"timeout", NULL};
    PyObject *timeout = NULL;
    if (pf_arguments("select", names, 0, args + nargs, 0, kwnames, &timeout) <
            0 ||
        pf_timeout(timeout, deadline) < 0) {
        return -1;
    }
    if (nargs == 0 || nargs > INT_MAX) {
        PyErr_SetString(PyExc_TypeError, "select() needs a case to wait for");
        return -1;
    }
    return 0;
}

static PyObject *
mod_select(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
           PyObject *kwnames)
{
    (void)module;
    int64_t deadline;
    PfThread *t = pf_this_thread();
    if (t == NULL || select_timeout(args, nargs, kwnames, &deadline) < 0 ||
        pf_preempt() < 0) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < nargs; i++) {
        if (check_case(t, args[i]) < 0) {
            return NULL;
        }
    }
    PyObject *what = pf_tuple(args, nargs);
    if (what == NULL) {
        return NULL;
    }
    PyObject *result =
        choose(t, PySequence_Fast_ITEMS(what), nargs, deadline, what);
    Py_DECREF(what);
    return result;
}

PyDoc_STRVAR(select_doc, "select(*cases, timeout=None)\n--\n\n\
Do exactly one of several operations: the first that is possible.\n\
\n\
A case is channel.receiving(), channel.sending(value) or a fiber, whose end is\n\
waited for. Returns Received(channel, value, index), Sent(channel, index) or\n\
Joined(fiber, index); None after `timeout` seconds. If several are possible at\n\
once the first in order of the arguments is done.\n\
\n\
ChannelClosed, with its `channel`, if the operation would have raised it. A\n\
cancellation point if it has to wait: Cancelled means that none was done.\n\
ValueError for a negative timeout or NaN, TypeError without a case or for\n\
other objects, FiberError for a fiber that cannot be joined.");

static PyMethodDef functions[] = {
    PF_METHOD("select", mod_select, select_doc),
    {NULL, NULL, 0, NULL},
};

/* `match` finds the fields by their places.  Into the dictionary of the type,
 * on which nothing can be set. */
static PyTypeObject *
add_result(PyObject *module, PyType_Spec *spec, const char *first,
           const char *second, const char *third)
{
    PyTypeObject *type = pf_add_type(module, spec, NULL);
    PyObject *names = third == NULL
                          ? Py_BuildValue("(ss)", first, second)
                          : Py_BuildValue("(sss)", first, second, third);
    if (type == NULL || names == NULL ||
        PyDict_SetItemString(type->tp_dict, "__match_args__", names) < 0) {
        Py_CLEAR(type);
    } else {
        PyType_Modified(type);
    }
    Py_XDECREF(names);
    return type;
}

int
pf_select_init(PyObject *module)
{
    receiving_type = pf_add_type(module, &receiving_spec, NULL);
    sending_type = pf_add_type(module, &sending_spec, NULL);
    received_type =
        add_result(module, &received_spec, "channel", "value", "index");
    sent_type = add_result(module, &sent_spec, "channel", "index", NULL);
    joined_type = add_result(module, &joined_spec, "fiber", "index", NULL);
    if (receiving_type == NULL || sending_type == NULL ||
        received_type == NULL || sent_type == NULL || joined_type == NULL) {
        return -1;
    }
    return PyModule_AddFunctions(module, functions);
}
