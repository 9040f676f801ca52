/* Sockets of a network in memory, in which a test runs its program.
 *
 * pyfiber.testing has the network: who listens where, who connects to whom,
 * and which options are set.  This file has the object for one end of a
 * connection (engine/io/inmemory.h), and the operations that move its bytes.
 */
#include "python/core/arguments.h"
#include "python/core/state.h"
#include "python/io/io.h"
#include "python/io/socket.h"
#include "python/io/waiting.h"
#include "python/task/deadline.h"
#include "python/task/scheduler.h"

#include <errno.h>
#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <winsock2.h>
#else
#include <sys/socket.h>
#endif

typedef struct EndObject {
    PyObject_HEAD
    pf_end *end;      /* NULL: end_new() has failed */
    PfThread *thread; /* only compared, never followed */
} EndObject;

static PyTypeObject *end_type; /* constant after import */

/* ------------------------------------------------ the table of operations */

/* Are all the flags supported?  Flags that say how an operation waits are
 * obeyed by the callers, or have no effect here. */
static bool
supports(int flags)
{
    int known = MSG_PEEK;
#if defined(MSG_DONTWAIT)
    known |= MSG_DONTWAIT | MSG_WAITALL;
#endif
#if defined(MSG_NOSIGNAL)
    known |= MSG_NOSIGNAL;
#endif
#if defined(MSG_MORE)
    known |= MSG_MORE;
#endif
    return (flags & ~known) == 0;
}

static int64_t
memory_recv(void *end, intptr_t number, void *buffer, size_t size, int flags)
{
    (void)number;
    return supports(flags)
               ? pf_end_recv(end, buffer, size, (flags & MSG_PEEK) != 0)
               : -EOPNOTSUPP;
}

static int64_t
memory_send(void *end, intptr_t number, const void *data, size_t size,
            int flags)
{
    (void)number;
    return supports(flags) ? pf_end_send(end, data, size) : -EOPNOTSUPP;
}

static const pf_net_ops memory_net = {memory_recv, memory_send};

/* ---------------------------------------------------------- the time */

/* The timer is in the end's memory.  While it is armed it has a reference to
 * the end. */
_Static_assert(sizeof(pf_timer_call) <= sizeof((pf_end *)NULL)->alarm,
               "the timer does not fit");

static pf_timer_call *
timer_of(pf_end *end)
{
    return (pf_timer_call *)(void *)end->alarm;
}

static void
fire(pf_timer_call *call, pf_scheduler *s)
{
    (void)s;
    pf_end *end = (pf_end *)(void *)((char *)call - offsetof(pf_end, alarm));
    pf_end_arrive(end);
    pf_end_drop(end);
}

static int
call_at(pf_end *end, int64_t when)
{
    pf_timer_call *call = timer_of(end);
    bool armed = pf_timer_armed(&call->timer);
    pf_timers *timers = &end->s->timers;
    if (when == PF_TRANSIT_NEVER) {
        pf_timers_remove(timers, &call->timer);
        if (armed) {
            pf_end_drop(end);
        }
        return 0;
    }
    call->timer.kind = PF_TIMER_CALL;
    call->fire = fire;
    int rc = pf_timers_add(timers, &call->timer, when);
    if (rc == 0 && !armed) {
        pf_end_keep(end);
    }
    return rc;
}

static int64_t
now_at(const pf_end *end)
{
    return pf_scheduler_now(end->s);
}

/* constant */
static const pf_end_clock clock_of_run = {now_at, call_at};

/* -------------------------------------------------- the scheduler's network */

/* constant after import */
static PfKeeps of_scheduler = {.size = sizeof(PyObject *)};

static PyObject **
network_of(SchedulerObject *s)
{
    return pf_scheduler_keeps(s, &of_scheduler);
}

static int
traverse(SchedulerObject *s, visitproc visit, void *arg)
{
    Py_VISIT(*network_of(s));
    return 0;
}

static void
clear(SchedulerObject *s)
{
    Py_CLEAR(*network_of(s));
}

const PfPart pf_inmemory_part = {
    .of_scheduler = &of_scheduler,
    .traverse = traverse,
    .clear = clear,
};

/* ---------------------------------------------- sockets of that network */

PyObject *
pf_inmemory_network(void)
{
    PfThread *t = pf_thread_current;
    return t == NULL || t->scheduler == NULL ? NULL
                                             : *network_of(t->scheduler);
}

PyTypeObject *
pf_inmemory_network_class(PyObject *network, PyTypeObject *asked,
                          PyObject *args, PyObject *kwargs)
{
    PyObject *kind =
        PyObject_CallMethod(network, "_class_for", "OOO", asked, args,
                            kwargs == NULL ? Py_None : kwargs);
    if (kind != NULL && (!PyType_Check(kind) ||
                         !PyType_IsSubtype((PyTypeObject *)kind, asked))) {
        PyErr_SetString(PyExc_TypeError,
                        "a network's _class_for() must return a "
                        "subclass of the class it is given");
        Py_CLEAR(kind);
    }
    return (PyTypeObject *)kind;
}

pf_end *
pf_inmemory_end(PyObject *op)
{
    return Py_IS_TYPE(op, end_type) ? ((EndObject *)op)->end : NULL;
}

pf_scheduler *
pf_inmemory_run(const pf_end *end, PfThread *t)
{
    if (t->scheduler != NULL && &t->scheduler->core == end->s) {
        return end->s;
    }
    PyErr_SetString(pf.fiber_error,
                    "this socket is one of a network in memory: it works in "
                    "the run that made it, and nowhere else");
    return NULL;
}

int
pf_inmemory_ask(PyObject *op, pf_direction direction)
{
    const PfSocket *sock = pf_socket_of(op);
    if (direction != PF_WRITING || !sock->end->asks) {
        return 0;
    }
    PyObject *endpoint = PyObject_GetAttrString(op, "_endpoint");
    PyObject *done =
        endpoint == NULL ? NULL : PyObject_CallMethod(endpoint, "sends", NULL);
    Py_XDECREF(done);
    Py_XDECREF(endpoint);
    return done == NULL ? -1 : 0;
}

void
pf_socket_leave_memory(PfSocket *sock)
{
    pf_end *end = sock->end;
    sock->end = NULL;
    if (end != NULL) {
        pf_end_drop(end);
    }
}

PyObject *
pf_socket_begin_in_memory(PyObject *op, PyObject *args)
{
    PyObject *given;
    Py_ssize_t number;
    int internet;
    if (!PyArg_ParseTuple(args, "O!np", end_type, &given, &number,
                          &internet)) {
        return NULL;
    }
    pf_end *end = ((EndObject *)given)->end;
    PfSocket *sock = pf_socket_of(op);
    if (end == NULL || sock->owner != 0) {
        PyErr_SetString(PyExc_ValueError,
                        "_begin_in_memory() takes an end, for a "
                        "socket that is not open yet");
        return NULL;
    }
    pf_socket_leave_memory(sock);
    pf_end_keep(end);
    *sock = (PfSocket){
        .number = number,
        .owner = pf_descriptor_new_owner(),
        .timeout = PF_NEVER,
        .net = &memory_net,
        .end = end,
        .internet = internet,
    };
    Py_RETURN_NONE;
}

PyObject *
pf_socket_number(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    const PfSocket *sock = pf_socket_of(op);
    return PyLong_FromSsize_t(sock->owner == 0 ? -1 : sock->number);
}

int
pf_inmemory_wait(PfThread *t, PyObject *op, pf_direction direction,
                 int64_t length)
{
    const PfSocket *sock = pf_socket_of(op);
    pf_end *end = sock->end;
    if (sock->owner == 0) {
        return pf_socket_closed_error();
    }
    pf_scheduler *s = pf_inmemory_run(end, t);
    if (s == NULL || !pf_end_blocks(end, direction) || length == 0) {
        return s == NULL ? -1 : pf_end_blocks(end, direction);
    }
    int64_t deadline = pf_deadline_in(t->scheduler, length);
    uint64_t owner = sock->owner;
    int rc = 0;
    pf_end_keep(end);
    while (rc == 0 && pf_end_blocks(end, direction)) {
        pf_descriptor_blocked(&end->at, direction);
        rc = pf_io_park(t, &end->at, direction, true, deadline, op);
        if (rc == 0 && sock->owner != owner) {
            rc = pf_socket_closed_error();
        }
    }
    pf_end_drop(end);
    return rc;
}

/* -------------------------------------------------------- an end's object */

static PyObject *
end_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    int tcp;
    Py_ssize_t room;
    PfThread *t = pf_thread_this();
    if (t == NULL || kwargs != NULL ||
        !PyArg_ParseTuple(args, "pn", &tcp, &room)) {
        return NULL;
    }
    pf_scheduler *s = pf_scheduler_active(t, "a connection in memory");
    EndObject *self = s == NULL ? NULL : (EndObject *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->thread = t;
    self->end = pf_end_new(s, tcp, room < 1 ? 1 : (size_t)room);
    if (self->end == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void
end_dealloc(PyObject *op)
{
    EndObject *self = (EndObject *)op;
    PyTypeObject *type = Py_TYPE(op);
    if (self->end != NULL) {
        if (self->thread == pf_thread_current) {
            pf_end_close(self->end, false);
        }
        pf_end_drop(self->end);
    }
    type->tp_free(op);
    Py_DECREF(type);
}

/* Returns the end, or NULL with FiberError on another thread than the one
 * whose fibers use it. */
static pf_end *
end_of(PyObject *op)
{
    EndObject *self = (EndObject *)op;
    if (self->thread == pf_thread_current) {
        return self->end;
    }
    PyErr_SetString(pf.fiber_error, "this socket in memory belongs to another "
                                    "thread, whose run made it");
    return NULL;
}

static PyObject *
end_join(PyObject *op, PyObject *other)
{
    pf_end *one = end_of(op);
    if (one == NULL) {
        return NULL;
    }
    if (!Py_IS_TYPE(other, end_type) || other == op ||
        ((EndObject *)other)->end->s != one->s ||
        ((EndObject *)other)->end->connected || one->connected) {
        PyErr_SetString(PyExc_ValueError,
                        "join() takes another end of the same run; neither "
                        "has been connected");
        return NULL;
    }
    pf_end_join(one, ((EndObject *)other)->end);
    Py_RETURN_NONE;
}

static PyObject *
end_shutdown(PyObject *op, PyObject *args)
{
    int reading, writing;
    pf_end *end = end_of(op);
    if (end == NULL || !PyArg_ParseTuple(args, "pp", &reading, &writing)) {
        return NULL;
    }
    int rc = pf_end_shutdown(end, reading, writing);
    if (rc < 0) {
        (void)pf_io_error(rc);
        return NULL;
    }
    Py_RETURN_NONE;
}

/* Calls a function of the end that takes a flag. */
static PyObject *
act_on(PyObject *op, PyObject *argument, void (*act)(pf_end *end, bool flag))
{
    int flag = PyObject_IsTrue(argument);
    pf_end *end = flag < 0 ? NULL : end_of(op);
    if (end == NULL) {
        return NULL;
    }
    act(end, flag);
    Py_RETURN_NONE;
}

static PyObject *
end_close(PyObject *op, PyObject *reset)
{
    return act_on(op, reset, pf_end_close);
}

static PyObject *
end_crash(PyObject *op, PyObject *silent)
{
    return act_on(op, silent, pf_end_crash);
}

static PyObject *
end_offer(PyObject *op, PyObject *from)
{
    pf_end *end = end_of(op);
    if (end == NULL) {
        return NULL;
    }
    if (!Py_IS_TYPE(from, end_type)) {
        PyErr_SetString(PyExc_TypeError, "offer() takes the client's end");
        return NULL;
    }
    pf_end_offer(end, ((EndObject *)from)->end);
    Py_RETURN_NONE;
}

static PyObject *
end_take_offer(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    pf_end *end = end_of(op);
    return end == NULL ? NULL : PyBool_FromLong(pf_end_take_offer(end));
}

/* Calls a function of the end. */
static PyObject *
act(PyObject *op, void (*function)(pf_end *end))
{
    pf_end *end = end_of(op);
    if (end == NULL) {
        return NULL;
    }
    function(end);
    Py_RETURN_NONE;
}

static PyObject *
end_disturb(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    return act(op, pf_end_disturb);
}

static PyObject *
end_withdraw(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    return act(op, pf_end_withdraw);
}

static PyObject *
end_cut(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    return act(op, pf_end_cut);
}

static PyObject *
end_forget(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    return act(op, pf_end_forget);
}

static PyObject *
end_fail(PyObject *op, PyObject *args)
{
    int error;
    long long after = 0;
    pf_end *end = end_of(op);
    if (end == NULL || !PyArg_ParseTuple(args, "i|L", &error, &after)) {
        return NULL;
    }
    pf_end_fail(end, error, after);
    Py_RETURN_NONE;
}

static PyObject *
done_or_no_memory(int rc)
{
    return rc < 0 ? PyErr_NoMemory() : Py_NewRef(Py_None);
}

static PyObject *
end_set_line(PyObject *op, PyObject *args)
{
    long long delay, bandwidth;
    pf_end *end = end_of(op);
    if (end == NULL || !PyArg_ParseTuple(args, "LL", &delay, &bandwidth)) {
        return NULL;
    }
    pf_end_set_line(end, delay, (uint64_t)bandwidth);
    Py_RETURN_NONE;
}

static PyObject *
end_hold(PyObject *op, PyObject *argument)
{
    int held = PyObject_IsTrue(argument);
    pf_end *end = held < 0 ? NULL : end_of(op);
    return end == NULL ? NULL : done_or_no_memory(pf_end_hold(end, held));
}

/* doom(nanoseconds from now, error); a negative number of nanoseconds: never */
static PyObject *
end_doom(PyObject *op, PyObject *args)
{
    long long after;
    int error;
    pf_end *end = end_of(op);
    if (end == NULL || !PyArg_ParseTuple(args, "Li", &after, &error)) {
        return NULL;
    }
    int64_t when = after < 0
                       ? PF_TRANSIT_NEVER
                       : pf_timers_later(pf_scheduler_now(end->s), after);
    return done_or_no_memory(pf_end_doom(end, when, error));
}

static PyObject *
end_take_error(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    pf_end *end = end_of(op);
    return end == NULL ? NULL : PyLong_FromLong(pf_end_take_error(end));
}

static PyObject *
end_connected(PyObject *op, void *closure)
{
    (void)closure;
    const pf_end *end = ((EndObject *)op)->end;
    return PyBool_FromLong(end->connected && !pf_end_is_over(end));
}

/* The bits of `ready`. */
enum { IS_READABLE = 1, IS_WRITABLE = 2, HAS_ERROR = 4, HAS_HUNG_UP = 8 };

static PyObject *
end_ready(PyObject *op, void *closure)
{
    (void)closure;
    const pf_end *end = ((EndObject *)op)->end;
    long bits = pf_end_blocks(end, PF_READING) ? 0 : IS_READABLE;
    bits |= pf_end_blocks(end, PF_WRITING) ? 0 : IS_WRITABLE;
    bits |= end->error != 0 ? HAS_ERROR : 0;
    bits |= end->lost || (end->ended && end->mute) ? HAS_HUNG_UP : 0;
    return PyLong_FromLong(bits);
}

static PyMethodDef end_methods[] = {
    {"join", end_join, METH_O, "join(other): connect the two ends."},
    {"shutdown", end_shutdown, METH_VARARGS,
     "shutdown(reading, writing): may raise OSError (ENOTCONN)."},
    {"close", end_close, METH_O,
     "close(reset): waiters get OSError (EBADF), the peer reads the end."},
    {"disturb", end_disturb, METH_NOARGS,
     "disturb(): wake all waiters, which look again."},
    {"offer", end_offer, METH_O,
     "offer(client): the client's connection can be accepted here."},
    {"take_offer", end_take_offer, METH_NOARGS,
     "take_offer(): whether a connection has arrived; it has not any more."},
    {"withdraw", end_withdraw, METH_NOARGS,
     "withdraw(): no connection can be accepted here any more."},
    {"fail", end_fail, METH_VARARGS,
     "fail(errno, after=0): the attempt to connect fails, in nanoseconds."},
    {"set_line", end_set_line, METH_VARARGS,
     "set_line(delay, bandwidth): of what is sent; nanoseconds, bytes a\n"
     "second (0: no limit)."},
    {"hold", end_hold, METH_O,
     "hold(held): stop what is on its way to this end, or let it go on."},
    {"doom", end_doom, METH_VARARGS,
     "doom(after, errno): give up in so many nanoseconds; negative: never."},
    {"cut", end_cut, METH_NOARGS,
     "cut(): reset the connection; what is sent before both ends have\n"
     "learned of it is lost."},
    {"crash", end_crash, METH_O,
     "crash(silent): end without the bytes that are on their way; the peer\n"
     "is reset, or learns nothing."},
    {"forget", end_forget, METH_NOARGS,
     "forget(): forget what is on its way to this end."},
    {"take_error", end_take_error, METH_NOARGS,
     "take_error(): return the pending error once, and 0 afterwards."},
    {NULL, NULL, 0, NULL},
};

static PyObject *
end_is_here(PyObject *op, void *closure)
{
    (void)closure;
    return PyBool_FromLong(((EndObject *)op)->thread == pf_thread_current);
}

static PyObject *
end_on_its_way(PyObject *op, void *closure)
{
    (void)closure;
    const pf_end *end = ((EndObject *)op)->end;
    return PyLong_FromSize_t(end->used - pf_end_arrived(end));
}

static PyObject *
end_asks(PyObject *op, void *closure)
{
    (void)closure;
    return PyBool_FromLong(((EndObject *)op)->end->asks);
}

static int
end_set_asks(PyObject *op, PyObject *value, void *closure)
{
    (void)closure;
    int asks = value == NULL ? 0 : PyObject_IsTrue(value);
    if (asks >= 0) {
        ((EndObject *)op)->end->asks = asks;
    }
    return asks < 0 ? -1 : 0;
}

static PyObject *
end_vanished(PyObject *op, void *closure)
{
    (void)closure;
    return PyBool_FromLong(((EndObject *)op)->end->vanished);
}

static int
end_set_vanished(PyObject *op, PyObject *value, void *closure)
{
    (void)closure;
    int vanished = value == NULL ? 0 : PyObject_IsTrue(value);
    if (vanished >= 0) {
        ((EndObject *)op)->end->vanished = vanished;
    }
    return vanished < 0 ? -1 : 0;
}

static PyGetSetDef end_getset[] = {
    {"asks", end_asks, end_set_asks,
     "Whether the endpoint's sends() is called before each send.", NULL},
    {"vanished", end_vanished, end_set_vanished,
     "Whether the peer is gone without a word: what is sent is lost.", NULL},
    {"connected", end_connected, NULL,
     "Whether it has a peer, or may at least read what the peer has sent.",
     NULL},
    {"is_here", end_is_here, NULL,
     "Whether it belongs to a run of this thread.", NULL},
    {"on_its_way", end_on_its_way, NULL,
     "How many bytes are on their way to this end.", NULL},
    {"ready", end_ready, NULL,
     "What would not block, as bits: 1 reading, 2 writing; 4 there is an\n"
     "error, 8 both directions have ended.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot end_slots[] = {
    {Py_tp_doc, (void *)"_MemoryEnd(tcp, room): one end of a connection."},
    {Py_tp_new, end_new},
    {Py_tp_dealloc, end_dealloc},
    {Py_tp_methods, end_methods},
    {Py_tp_getset, end_getset},
    {0, NULL},
};

static PyType_Spec end_spec = {
    .name = "pyfiber._engine._MemoryEnd",
    .basicsize = sizeof(EndObject),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = end_slots,
};

/* ------------------------------------------------------- a run's network */

static PyObject *
io_network(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    PyObject *network = pf_inmemory_network();
    return Py_NewRef(network == NULL ? Py_None : network);
}

static PyObject *
io_set_network(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *scheduler, *network;
    if (!PyArg_ParseTuple(args, "O!O", pf_scheduler_type, &scheduler,
                          &network)) {
        return NULL;
    }
    PyObject **place = network_of((SchedulerObject *)scheduler);
    Py_XSETREF(*place, network == Py_None ? NULL : Py_NewRef(network));
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"_network", io_network, METH_NOARGS,
     "_network(): the network in memory that this run has, or None."},
    {"_set_network", io_set_network, METH_VARARGS,
     "_set_network(scheduler, network): new sockets of its runs use it."},
    {NULL, NULL, 0, NULL},
};

int
pf_inmemory_init(PyObject *module)
{
    pf_end_time = &clock_of_run;
    end_type = pf_arguments_add_type(module, &end_spec, NULL);
    return end_type == NULL ? -1 : PyModule_AddFunctions(module, functions);
}
