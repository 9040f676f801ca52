/* Channel.
 *
 * A value goes straight from a sender to a waiting receiver.  In a channel
 * with a capacity it may wait in between.  A receiver takes the channel's
 * values before those of waiting senders, so values are received in the order
 * in which they were sent.
 */
#include "python/queue/channel.h"

#include "python/core/arguments.h"
#include "python/core/compiler.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/queue/ring.h"
#include "python/sync/select.h"
#include "python/task/deadline.h"
#include "python/task/explore.h"
#include "python/task/fiber.h"
#include "python/wait/in_line.h"
#include "python/waitq/waitq.h"

#include <structmember.h>

PyTypeObject *pf_channel_type;   /* constant after import */
static PyObject *channel_closed; /* constant after import */

/* ------------------------------------------------------------------- values */

void
pf_channel_raise_closed(ChannelObject *self)
{
    PyObject *exc =
        PyObject_CallFunction(channel_closed, "s", "the channel is closed");
    if (exc != NULL &&
        PyObject_SetAttrString(exc, "channel", (PyObject *)self) == 0) {
        PyErr_SetObject(channel_closed, exc);
    }
    Py_XDECREF(exc);
}

int
pf_channel_raise(ChannelObject *self, int rc)
{
    if (rc == PF_REFUSED) {
        pf_channel_raise_closed(self);
    } else {
        PyErr_NoMemory();
    }
    return -1;
}

/* Gives the value (stolen) to the next receiver.  Returns false, and steals
 * nothing, if nobody waits for a value.  The caller of this function and of
 * the next three holds the mutex. */
static bool
hand_to_receiver(ChannelObject *self, PyObject *value)
{
    PfNode *receiver = pf_waitq_choose(&self->receivers);
    if (receiver == NULL) {
        return false;
    }
    receiver->item = value;
    pf_waitq_grant(receiver);
    return true;
}

/* Takes the value of the next waiting sender, or returns NULL if there is
 * none. */
static PyObject *
take_from_sender(ChannelObject *self)
{
    PfNode *sender = pf_waitq_choose(&self->senders);
    if (sender == NULL) {
        return NULL;
    }
    PyObject *value = sender->item;
    sender->item = NULL;
    pf_waitq_grant(sender);
    return value;
}

int
pf_channel_try_send(ChannelObject *self, PyObject *value)
{
    if (PF_SHARED_GET(&self->closed)) {
        return PF_REFUSED;
    }
    if (hand_to_receiver(self, value)) {
        Py_INCREF(value);
        return 1;
    }
    if (self->values.count >= self->capacity) {
        return 0;
    }
    if (pf_ring_reserve(&self->values) < 0) {
        return PF_NO_MEMORY;
    }
    pf_ring_push(&self->values, Py_NewRef(value));
    return 1;
}

int
pf_channel_try_receive(ChannelObject *self, PyObject **value)
{
    if (self->values.count > 0) {
        *value = pf_ring_pop(&self->values);
        PyObject *next = self->values.count < self->capacity
                             ? take_from_sender(self)
                             : NULL;
        if (next != NULL) {
            pf_ring_push(&self->values, next);
        }
        return 1;
    }
    *value = take_from_sender(self);
    return *value != NULL ? 1 : PF_SHARED_GET(&self->closed) ? PF_REFUSED : 0;
}

void
pf_channel_give_back(ChannelObject *self, PyObject *value)
{
    PF_LOCK(self);
    bool handed = hand_to_receiver(self, value);
    bool kept = !handed && pf_ring_reserve(&self->values) == 0;
    if (kept) {
        pf_ring_push_front(&self->values, value);
    }
    PF_UNLOCK(self);
    if (!handed && !kept) {
        PyObject *pending = pystate_take_exception();
        PyErr_NoMemory();
        PyErr_WriteUnraisable((PyObject *)self);
        Py_DECREF(value);
        pystate_restore_exception(pending);
    }
}

/* ----------------------------------------------------------- send and receive */

static int
timed_out(const char *what)
{
    PyErr_Format(PyExc_TimeoutError, "%s timed out", what);
    return -1;
}

static int send_value(ChannelObject *self, PyObject *value, int64_t deadline);

/* The caller holds the mutex; this function unlocks it. */
static PF_ALWAYS_INLINE int
wait_to_send(ChannelObject *self, PyObject *value, int64_t deadline)
{
    PfThread *t = pf_thread_current;
    if (t == NULL) {
        /* To create the thread's record may run code that receives a value, so
         * start again. */
        PF_UNLOCK(self);
        return pf_thread_create() == NULL ? -1
                                          : send_value(self, value, deadline);
    }
    PfWait *wait = pf_wait_new(t, PF_MUTEX_OF(self));
    if (wait == NULL) {
        return -1;
    }
    wait->node.item = Py_NewRef(value);
    int rc = pf_wait_for(wait, &self->senders, PF_MUTEX_OF(self), t, deadline,
                         (PyObject *)self);
    PyObject *kept = wait->node.item;
    bool refused = wait->node.refused;
    pf_wait_free(t, wait);
    Py_XDECREF(kept);
    if (rc == 0 && refused) {
        pf_channel_raise_closed(self);
        return -1;
    }
    return rc == 1 ? timed_out("send()") : rc;
}

static inline int
send_value(ChannelObject *self, PyObject *value, int64_t deadline)
{
    if (pf_explore_preempt() < 0) {
        return -1;
    }
    PF_LOCK(self);
    int rc = pf_channel_try_send(self, value);
    if (rc == 0) {
        return wait_to_send(self, value, deadline);
    }
    PF_UNLOCK(self);
    return PF_LIKELY(rc > 0) ? rc : pf_channel_raise(self, rc);
}

static PyObject *
channel_send(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
             PyObject *kwnames)
{
    static const char *const names[] = {"value", "timeout", NULL};
    ChannelObject *self = (ChannelObject *)op;
    PyObject *out[2] = {NULL, NULL};
    int64_t deadline = PF_NEVER;
    if (PF_LIKELY(nargs == 1 && kwnames == NULL)) {
        out[0] = args[0];
    } else if (pf_arguments("send", names, 1, args, nargs, kwnames, out) < 0 ||
               pf_deadline_timeout(out[1], &deadline) < 0) {
        return NULL;
    }
    return send_value(self, out[0], deadline) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *receive(ChannelObject *self, int64_t deadline);

/* The caller holds the mutex; this function unlocks it. */
static PyObject *
wait_to_receive(ChannelObject *self, int64_t deadline)
{
    PfThread *t = pf_thread_current;
    if (t == NULL) {
        /* To create the thread's record may run code that sends a value, so
         * start again. */
        PF_UNLOCK(self);
        return pf_thread_create() == NULL ? NULL : receive(self, deadline);
    }
    PfWait *wait = pf_wait_new(t, PF_MUTEX_OF(self));
    if (wait == NULL) {
        return NULL;
    }
    int rc = pf_wait_for(wait, &self->receivers, PF_MUTEX_OF(self), t,
                         deadline, (PyObject *)self);
    PyObject *value = wait->node.item;
    bool refused = wait->node.refused;
    pf_wait_free(t, wait);
    if (PF_LIKELY(rc == 0 && !refused)) {
        return value;
    }
    if (rc == 0) {
        pf_channel_raise_closed(self);
    } else if (rc == 1) {
        timed_out("receive()");
    } else if (value != NULL) {
        pf_channel_give_back(self, value);
    }
    return NULL;
}

static PyObject *
receive(ChannelObject *self, int64_t deadline)
{
    PyObject *value = NULL;
    if (pf_explore_preempt() < 0) {
        return NULL;
    }
    PF_LOCK(self);
    int rc = pf_channel_try_receive(self, &value);
    if (rc == 0) {
        return wait_to_receive(self, deadline);
    }
    PF_UNLOCK(self);
    if (PF_UNLIKELY(rc < 0)) {
        pf_channel_raise(self, rc);
    }
    return value;
}

static PyObject *
channel_receive(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                PyObject *kwnames)
{
    static const char *const names[] = {"timeout", NULL};
    PyObject *timeout = NULL;
    int64_t deadline = PF_NEVER;
    if ((nargs > 0 || kwnames != NULL) &&
        (pf_arguments("receive", names, 0, args, nargs, kwnames, &timeout) <
             0 ||
         pf_deadline_timeout(timeout, &deadline) < 0)) {
        return NULL;
    }
    return receive((ChannelObject *)op, deadline);
}

/* Returns true if the exception that is set is this channel's ChannelClosed.
 */
static bool
is_end_of(PyObject *channel)
{
    if (!PyErr_ExceptionMatches(channel_closed)) {
        return false;
    }
    PyObject *raised = pystate_take_exception();
    PyObject *which = PyObject_GetAttrString(raised, "channel");
    PyErr_Clear();
    pystate_restore_exception(raised);
    Py_XDECREF(which);
    return which == channel;
}

static PyObject *
channel_next(PyObject *op)
{
    Py_INCREF(op); /* other code may drop the iterator during the wait */
    PyObject *value = receive((ChannelObject *)op, PF_NEVER);
    if (value == NULL && is_end_of(op)) {
        PyErr_Clear(); /* NULL without an error ends the iteration */
    }
    Py_DECREF(op);
    return value;
}

static PyObject *
channel_close(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    ChannelObject *self = (ChannelObject *)op;
    PF_LOCK(self);
    PF_SHARED_SET(&self->closed, true);
    pf_waitq_refuse_all(&self->receivers);
    pf_waitq_refuse_all(&self->senders);
    PF_UNLOCK(self);
    Py_RETURN_NONE;
}

static PyObject *
channel_enter(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    return Py_NewRef(op);
}

static PyObject *
channel_exit(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    (void)args;
    (void)nargs;
    return channel_close(op, NULL);
}

static Py_ssize_t
channel_length(PyObject *op)
{
    ChannelObject *self = (ChannelObject *)op;
    PF_LOCK(self);
    size_t count = self->values.count;
    PF_UNLOCK(self);
    return (Py_ssize_t)count;
}

/* A channel is true even if it is empty. */
static int
channel_bool(PyObject *op)
{
    (void)op;
    return 1;
}

/* -------------------------------------------------------------- for select() */

static int
attempt_to_receive(PyObject *op, PyObject *ignored, PyObject **value)
{
    (void)ignored;
    return pf_channel_try_receive((ChannelObject *)op, value);
}

static int
attempt_to_send(PyObject *op, PyObject *value, PyObject **got)
{
    (void)got;
    return pf_channel_try_send((ChannelObject *)op, value);
}

static bool
may_receive(PyObject *op, const PfWaiter *asking)
{
    ChannelObject *self = (ChannelObject *)op;
    return self->values.count > 0 || PF_SHARED_GET(&self->closed) ||
           pf_waitq_has(&self->senders, asking);
}

static bool
may_send(PyObject *op, const PfWaiter *asking)
{
    ChannelObject *self = (ChannelObject *)op;
    return self->values.count < self->capacity ||
           PF_SHARED_GET(&self->closed) ||
           pf_waitq_has(&self->receivers, asking);
}

static PfMutex *
mutex_of(PyObject *op)
{
    return PF_MUTEX_OF((ChannelObject *)op);
}

static PfWaitq *
line_of_receivers(PyObject *op)
{
    return &((ChannelObject *)op)->receivers;
}

static PfWaitq *
line_of_senders(PyObject *op)
{
    return &((ChannelObject *)op)->senders;
}

static void
take_back(PyObject *op, PyObject *value)
{
    pf_channel_give_back((ChannelObject *)op, value);
}

static void
raise_closed(PyObject *op)
{
    pf_channel_raise_closed((ChannelObject *)op);
}

static const PfCaseOps receiving_ops = {
    .attempt = attempt_to_receive,
    .possible = may_receive,
    .line = line_of_receivers,
    .mutex = mutex_of,
    .take_back = take_back,
    .raise_refused = raise_closed,
};
static const PfCaseOps sending_ops = {
    .attempt = attempt_to_send,
    .possible = may_send,
    .line = line_of_senders,
    .mutex = mutex_of,
    .raise_refused = raise_closed,
};

bool
pf_channel_is_case(PyObject *object)
{
    return Py_IS_TYPE(object, pf_select_case_type) &&
           (((CaseObject *)object)->ops == &receiving_ops ||
            ((CaseObject *)object)->ops == &sending_ops);
}

ChannelObject *
pf_channel_of_case(PyObject *op, PyObject **value)
{
    CaseObject *self = (CaseObject *)op;
    *value = self->value;
    return (ChannelObject *)self->source;
}

static PyObject *
channel_receiving(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    return pf_case_new("receiving", &receiving_ops, op, NULL);
}

static PyObject *
channel_sending(PyObject *op, PyObject *value)
{
    return pf_case_new("sending", &sending_ops, op, value);
}

/* ---------------------------------------------------------------- reporting */

/* At any time at most one of the two queues has waiters. */
static PyObject *
channel_waiters(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    ChannelObject *self = (ChannelObject *)op;
    PF_LOCK(self);
    bool sending = pf_waitq_empty(&self->receivers);
    PF_UNLOCK(self);
    return pf_waitq_list(sending ? &self->senders : &self->receivers,
                         PF_MUTEX_OF(self));
}

static PyObject *
channel_repr(PyObject *op)
{
    ChannelObject *self = (ChannelObject *)op;
    return PyUnicode_FromFormat(
        "<%s at %p: %zu values, capacity %zu%s>", Py_TYPE(op)->tp_name, op,
        (size_t)channel_length(op), self->capacity,
        PF_SHARED_GET(&self->closed) ? ", closed" : "");
}

/* ----------------------------------------------------------- birth and death */

static int
channel_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"capacity", NULL};
    ChannelObject *self = (ChannelObject *)op;
    Py_ssize_t capacity = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|n:Channel", names,
                                     &capacity)) {
        return -1;
    }
    if (capacity < 0) {
        PyErr_SetString(PyExc_ValueError,
                        "a channel's capacity must not be negative");
        return -1;
    }
    PF_LOCK(self);
    bool waited_for =
        !pf_waitq_empty(&self->senders) || !pf_waitq_empty(&self->receivers);
    bool used = self->values.count > 0 || PF_SHARED_GET(&self->closed);
    if (!waited_for && !used) {
        self->capacity = (size_t)capacity;
    }
    PF_UNLOCK(self);
    return waited_for ? pf_arguments_too_late("somebody waits")
           : used     ? pf_arguments_too_late("the channel is in use")
                      : 0;
}

static int
channel_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    return pf_ring_traverse(&((ChannelObject *)op)->values, visit, arg);
}

static int
channel_clear(PyObject *op)
{
    pf_ring_clear(&((ChannelObject *)op)->values);
    return 0;
}

static void
channel_dealloc(PyObject *op)
{
    pf_arguments_dealloc_with(op, channel_clear);
}

/* ------------------------------------------------------------------ the type */

PyDoc_STRVAR(channel_doc, "Channel(capacity=0)\n--\n\n\
A channel through which fibers and threads pass values to each other.\n\
\n\
With capacity 0 a sender waits for its receiver. Otherwise up to `capacity`\n\
values may wait in the channel. The longest waiter is served next. Iteration\n\
receives until the channel is closed and empty; `with` closes it at the end.\n\
ValueError for a negative capacity.");
PyDoc_STRVAR(send_doc, "send($self, /, value, timeout=None)\n--\n\n\
Send a value; wait for a receiver or a free place in the channel.\n\
\n\
ChannelClosed after close(), TimeoutError after `timeout` seconds (None: no\n\
limit): then the value was not sent. A cancellation point if it has to wait:\n\
Cancelled, too, means that the value was not sent. ValueError for a negative\n\
timeout or NaN.");
PyDoc_STRVAR(receive_doc, "receive($self, /, timeout=None)\n--\n\n\
Return the next value; wait for one.\n\
\n\
ChannelClosed if the channel is closed and empty, TimeoutError after `timeout`\n\
seconds (None: no limit). A cancellation point if it has to wait: Cancelled\n\
means that nothing was received. ValueError for a negative timeout or NaN.");
PyDoc_STRVAR(close_doc, "close($self, /)\n--\n\n\
Close the channel: from now on send() raises ChannelClosed.\n\
\n\
So does receive() when the channel is empty. Fibers and threads that wait in\n\
either get ChannelClosed at once. Closing twice is fine.");
PyDoc_STRVAR(receiving_doc, "receiving($self, /)\n--\n\n\
receive(), as a case for select().");
PyDoc_STRVAR(sending_doc, "sending($self, value, /)\n--\n\n\
send(value), as a case for select().");
PyDoc_STRVAR(holders_doc, "_holders($self, /)\n--\n\n\
An empty list: any fiber or thread may send or receive. For reports.");
PyDoc_STRVAR(waiters_doc, "_waiters($self, /)\n--\n\n\
The fibers that wait in send() or receive(), in queue order; for reports.");

static PyMethodDef methods[] = {
    PF_METHOD("send", channel_send, send_doc),
    PF_METHOD("receive", channel_receive, receive_doc),
    {"close", channel_close, METH_NOARGS, close_doc},
    {"receiving", channel_receiving, METH_NOARGS, receiving_doc},
    {"sending", channel_sending, METH_O, sending_doc},
    {"__enter__", channel_enter, METH_NOARGS, "The channel."},
    {"__exit__", PF_FAST(channel_exit), METH_FASTCALL, close_doc},
    {"_holders", pf_waitq_no_holders, METH_NOARGS, holders_doc},
    {"_waiters", channel_waiters, METH_NOARGS, waiters_doc},
    PF_NO_PICKLE,
    {"__class_getitem__", Py_GenericAlias, METH_O | METH_CLASS,
     "Channel[T]: a channel of T's."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    PF_WEAKREFS(ChannelObject),
    {"capacity", T_PYSSIZET, offsetof(ChannelObject, capacity), READONLY,
     "The number of values that may wait in the channel."},
    {"closed", T_BOOL, offsetof(ChannelObject, closed), READONLY,
     "True after close()."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)channel_doc},   {Py_tp_new, PyType_GenericNew},
    {Py_tp_init, channel_init},         {Py_tp_dealloc, channel_dealloc},
    {Py_tp_traverse, channel_traverse}, {Py_tp_clear, channel_clear},
    {Py_tp_repr, channel_repr},         {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, channel_next},     {Py_sq_length, channel_length},
    {Py_nb_bool, channel_bool},         {Py_tp_methods, methods},
    {Py_tp_members, members},           {0, NULL},
};

static PyType_Spec spec = {
    .name = "pyfiber.Channel",
    .basicsize = sizeof(ChannelObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};

int
pf_channel_init(PyObject *module)
{
    PyObject *dict = Py_BuildValue("{sO}", "channel", Py_None);
    if (dict == NULL) {
        return -1;
    }
    channel_closed = PyErr_NewExceptionWithDoc(
        "pyfiber.ChannelClosed",
        "A channel is closed; the attribute `channel` is that channel.\n\n"
        "send() raises this, and so does receive() if the channel is empty.",
        PyExc_Exception, dict);
    Py_DECREF(dict);
    if (channel_closed == NULL ||
        PyModule_AddObjectRef(module, "ChannelClosed", channel_closed) < 0) {
        return -1;
    }
    pf_channel_type = pf_arguments_add_type(module, &spec, NULL);
    return pf_channel_type == NULL ? -1 : 0;
}
