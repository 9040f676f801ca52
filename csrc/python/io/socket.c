/* The native socket's type: see socket.h. */
#include "python/io/socket.h"

#include "engine/base/clock.h"
#include "python/core/arguments.h"
#include "python/core/compiler.h"
#include "python/core/import.h"
#include "python/core/state.h"
#include "python/core/tstate.h"
#include "python/core/world.h"
#include "python/io/base.h"
#include "python/io/io.h"
#include "python/io/waiting.h"
#include "python/task/deadline.h"
#include "python/task/explore.h"
#include "python/task/post.h"

#include <errno.h>
#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <winsock2.h>
#else
#include <sys/socket.h>
#endif

PyTypeObject *pf_socket_type; /* constant after import */
Py_ssize_t pf_socket_offset;  /* constant after import */

/* ------------------------------------------------------- one operation */

int
pf_socket_closed_error(void)
{
    return pf_io_error(-EBADF);
}

static const char *const busy[] = {
    [PF_READING] = "another fiber reads from this socket: only one may at a "
                   "time, or their data would be mixed",
    [PF_WRITING] = "another fiber writes to this socket: only one may at a "
                   "time, or their data would be mixed",
};

/* Notes the thread as a user, whose schedulers are notified when the socket
 * closes. */
static inline void
note_user(PfSocket *sock, PfThread *t)
{
    if (PF_UNLIKELY(sock->user != t)) {
        sock->several_users = sock->several_users || sock->user != NULL;
        sock->user = t;
    }
}

int
pf_socket_busy_error(pf_direction direction)
{
    PyErr_SetString(pf.fiber_error, busy[direction]);
    return -1;
}

/* Checks that no other fiber does the same, and notes the thread.  Runs no
 * code. */
static inline int
take(PfIo *io)
{
    const pf_io_wait *first = io->at->waiting[io->direction];
    while (first != NULL && first->every) {
        first = first->next;
    }
    if (PF_UNLIKELY(first != NULL && !io->sock->turns)) {
        return pf_socket_busy_error(io->direction);
    }
    note_user(io->sock, io->t);
    return 0;
}

static int
take_record(PfIo *io)
{
    PfSocket *sock = io->sock;
    int rc = pf_descriptor_of(&io->s->descriptors, io->s, sock->number,
                              sock->owner, &io->at);
    return rc < 0 ? pf_io_error(rc) : take(io);
}

/* The network may run any code when it is asked, which may close the socket. */
static int
take_end(PfIo *io)
{
    if (pf_inmemory_ask(io->op, io->direction) < 0) {
        return -1;
    }
    pf_end *end = io->sock->end;
    io->owner = io->sock->owner;
    if (io->owner == 0 || end == NULL) {
        return pf_socket_closed_error();
    }
    io->s = pf_inmemory_run(end, io->t);
    io->at = &end->at;
    if (io->s == NULL || take(io) < 0) {
        return -1;
    }
    pf_end_keep(end); /* until pf_socket_transfer_end() */
    return 0;
}

int
pf_socket_claim(PfThread *t, PyObject *op)
{
    pf_scheduler *s = pf_io_scheduler(t);
    if (pf_socket_type == NULL || !PyObject_TypeCheck(op, pf_socket_type) ||
        s == NULL) {
        return 0;
    }
    PfSocket *sock = pf_socket_of(op);
    pf_descriptor *at;
    if (sock->owner == 0) {
        return pf_socket_closed_error();
    }
    note_user(sock, t);
    int rc =
        pf_descriptor_of(&s->descriptors, s, sock->number, sock->owner, &at);
    return rc < 0 ? pf_io_error(rc) : 0;
}

int
pf_socket_transfer_begin_part(PfIo *io, PfThread *t, PyObject *op,
                              pf_direction direction)
{
    io->op = op;
    io->sock = pf_socket_of(op);
    io->t = t;
    io->s = pf_io_scheduler(t);
    io->direction = direction;
    io->at_once = false;
    io->timed = false;
    io->late = "timed out";
    io->owner = io->sock->owner;
    if (PF_UNLIKELY(io->owner == 0)) {
        return pf_socket_closed_error();
    }
    if (PF_UNLIKELY(io->sock->end != NULL)) {
        return take_end(io);
    }
    return io->s == NULL ? 0 : take_record(io);
}

int
pf_socket_transfer_begin(PfIo *io, PyObject *op, pf_direction direction)
{
    PfThread *t = pf_thread_this();
    if (t == NULL || (pf_io_scheduler(t) != NULL &&
                      pf_io_charge(t, pf_socket_of(op)->patched) < 0)) {
        return -1;
    }
    if (PF_UNLIKELY(pf_socket_of(op)->end != NULL) &&
        pf_explore_preempt() < 0) {
        return -1;
    }
    return pf_socket_transfer_begin_part(io, t, op, direction);
}

int64_t
pf_socket_deadline(const PfSocket *sock, pf_scheduler *s)
{
    return sock->timeout == PF_NEVER
               ? PF_NEVER
               : pf_timers_later(s != NULL ? pf_scheduler_now(s)
                                           : pf_clock_monotonic(),
                                 sock->timeout);
}

static int
timed_out(const PfIo *io)
{
    PyErr_SetString(PyExc_TimeoutError, io->late);
    return -1;
}

static inline int
park(PfIo *io)
{
    return pf_io_park(io->t, io->at, io->direction, false, io->deadline,
                      io->op);
}

static int
park_patched(PfIo *io)
{
    bool before = pf_io_patched_begin(io->t, true);
    int rc = park(io);
    pf_io_patched_end(io->t, before);
    return rc;
}

int
pf_socket_transfer_wait(PfIo *io)
{
    PfSocket *sock = io->sock;
    if (sock->owner != io->owner) {
        return pf_socket_closed_error(); /* another thread has closed it */
    }
    if (io->s != NULL) {
        pf_descriptor_blocked(io->at, io->direction);
    }
    if (sock->timeout == 0 || io->at_once) {
        return pf_io_error(-EAGAIN);
    }
    if (!io->timed) {
        io->timed = true;
        io->deadline = pf_socket_deadline(sock, io->s);
    }
    int rc = io->s == NULL
                 ? pf_io_block(sock->number, io->direction, io->deadline)
             : PF_UNLIKELY(sock->patched) ? park_patched(io)
                                          : park(io);
    if (rc != 0) {
        return rc < 0 ? -1 : timed_out(io);
    }
    return sock->owner == io->owner ? 0 : pf_socket_closed_error();
}

void
pf_socket_transfer_end(PfIo *io)
{
    if (io->s == NULL) {
        return;
    }
    bool in_memory = io->at->table == NULL;
    if (io->at->waiting[io->direction] != NULL &&
        (in_memory || io->at->owner == io->owner)) {
        pf_descriptor_pass_on(io->at, io->s, io->direction);
    }
    if (PF_UNLIKELY(in_memory)) {
        pf_end_drop((pf_end *)io->at);
    }
}

/* ----------------------------------- how the descriptor is given up */

/* Ends the waits for the descriptor in a scheduler of this thread.  For a
 * scheduler of another thread, that thread calls it: see release_in(). */
static void
release_arrived(SchedulerObject *s, PyObject *number, PyObject *owner)
{
    pf_descriptor_release(&s->core.descriptors, &s->core,
                          (intptr_t)PyLong_AsLongLong(number),
                          PyLong_AsUnsignedLongLong(owner));
}

static void
release_in(SchedulerObject *s, PyObject *number, PyObject *owner)
{
    if (s->closed) {
        return;
    }
    if (s->thread == pf_thread_current) {
        release_arrived(s, number, owner);
    } else if (pf_post_call(s, release_arrived, number, owner) < 0) {
        PyErr_Clear(); /* no memory: waiters there wait for their timeout */
    }
}

/* Returns a list of all schedulers that may have used the socket.  (What is
 * done with each of them may run code, so the threads cannot stay locked.) */
static PyObject *
schedulers_of(const PfSocket *sock)
{
    PyObject *list = PyList_New(0);
    bool ours = sock->user == pf_thread_current && !sock->several_users;
    bool stopped = pf_world_stop(ours ? pf_thread_current : NULL);
    pf_mutex_lock(&pf_threads_lock);
    for (PfThread *t = pf_threads; t != NULL && list != NULL; t = t->next) {
        bool used = t == sock->user || sock->several_users;
        if (used && pf_scheduler_list(t, list) < 0) {
            Py_CLEAR(list);
        }
    }
    pf_mutex_unlock(&pf_threads_lock);
    pf_world_start(stopped);
    return list;
}

static int
release_everywhere(const PfSocket *sock, intptr_t number, uint64_t owner)
{
    int rc = -1;
    PyObject *name = NULL, *whose = NULL;
    PyObject *list = schedulers_of(sock);
    if (list == NULL) {
        goto done;
    }
    name = PyLong_FromLongLong(number);
    whose = name == NULL ? NULL : PyLong_FromUnsignedLongLong(owner);
    if (whose == NULL) {
        goto done;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) {
        release_in((SchedulerObject *)PyList_GET_ITEM(list, i), name, whose);
    }
    rc = 0;
done:
    Py_XDECREF(whose);
    Py_XDECREF(name);
    Py_XDECREF(list);
    return rc;
}

/* Called before the socket closes its descriptor or hands it on: ends all
 * waits for it.  Returns 0 or -1. */
static int
let_go(PfSocket *sock)
{
    intptr_t number = sock->number;
    uint64_t owner = sock->owner;
    PfThread *t = pf_thread_current;
    sock->number = -1;
    sock->owner = 0;
    if (owner == 0 || sock->user == NULL || sock->end != NULL) {
        return 0; /* nobody has waited, or the end wakes its waiters */
    }
    if (sock->user == t && !sock->several_users && t->scheduler != NULL &&
        t->schedulers == t->scheduler && t->scheduler->next == NULL) {
        pf_scheduler *s = &t->scheduler->core; /* the usual case */
        pf_descriptor_release(&s->descriptors, s, number, owner);
        return 0;
    }
    return release_everywhere(sock, number, owner);
}

/* Does for a socket in memory what the base class's finalizer does for others.
 * A socket of a machine that has crashed could not be closed any more, so that
 * is no reason for a warning. */
static void
finalize_in_memory(PyObject *op, PfSocket *sock)
{
    if (sock->owner != 0) {
        if (!sock->end->closed &&
            PyErr_ResourceWarning(op, 1, "unclosed %R", op) < 0) {
            PyErr_WriteUnraisable(op);
        }
        (void)let_go(sock);
        PyObject *done = pf_base_call(op, PF_BASE_CLOSE, NULL);
        if (done == NULL) {
            PyErr_Clear();
        }
        Py_XDECREF(done);
    }
    pf_socket_leave_memory(sock);
}

/* The socket dies without close(): the base class warns and closes the
 * descriptor. */
static void
socket_finalize(PyObject *op)
{
    PyObject *pending = pystate_take_exception();
    if (pf_socket_of(op)->end != NULL) {
        finalize_in_memory(op, pf_socket_of(op));
    } else if (let_go(pf_socket_of(op)) < 0) {
        PyErr_Clear(); /* no memory; a waiter would keep the socket alive */
    }
    pystate_restore_exception(pending);
    pf_base_type->tp_finalize(op);
}

/* close() or detach().  A socket in memory does it only once, because its
 * endpoint counts the sockets that use it. */
static PyObject *
leave(PyObject *op, PfBase how)
{
    PfSocket *sock = pf_socket_of(op);
    if (sock->end != NULL && sock->owner == 0) {
        Py_RETURN_NONE;
    }
    return let_go(sock) < 0 ? NULL : pf_base_call(op, how, NULL);
}

static PyObject *
socket_real_close(PyObject *op, PyObject *args)
{
    (void)args; /* the parameter _ss of the standard method */
    return leave(op, PF_BASE_CLOSE);
}

static PyObject *
socket_detach(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    return PyObject_SetAttrString(op, "_closed", Py_True) < 0
               ? NULL
               : leave(op, PF_BASE_DETACH);
}

/* ------------------------------------------------------------ timeouts */

static int
never_block(PyObject *op)
{
    PyObject *done = pf_base_call(op, PF_BASE_SETBLOCKING, Py_False);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Raises OSError for a closed socket, as the standard methods do: these set
 * the flag of the system, which fails. */
static int
check_number(PyObject *op)
{
    const PfSocket *sock = pf_socket_of(op);
    if (sock->owner == 0) {
        return pf_socket_closed_error();
    }
    return sock->end != NULL ? 0 : never_block(op);
}

int
pf_socket_parse_timeout(PyObject *timeout, int64_t *ns)
{
    if (timeout == Py_None) {
        *ns = PF_NEVER;
        return 0;
    }
    if (pf_arguments_seconds(timeout, "timeout", ns) < 0) {
        return -1;
    }
    if (*ns < 0) {
        PyErr_SetString(PyExc_ValueError, "Timeout value out of range");
        return -1;
    }
    return 0;
}

static PyObject *
set_timeout(PyObject *op, int64_t ns)
{
    if (check_number(op) < 0) {
        return NULL;
    }
    pf_socket_of(op)->timeout = ns;
    Py_RETURN_NONE;
}

static PyObject *
socket_settimeout(PyObject *op, PyObject *timeout)
{
    int64_t ns;
    return pf_socket_parse_timeout(timeout, &ns) < 0 ? NULL
                                                     : set_timeout(op, ns);
}

static PyObject *
socket_gettimeout(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    int64_t ns = pf_socket_of(op)->timeout;
    return ns == PF_NEVER ? Py_NewRef(Py_None)
                          : PyFloat_FromDouble((double)ns / 1e9);
}

static PyObject *
socket_setblocking(PyObject *op, PyObject *flag)
{
    int block = PyObject_IsTrue(flag);
    return block < 0 ? NULL : set_timeout(op, block ? PF_NEVER : 0);
}

static PyObject *
socket_getblocking(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    return PyBool_FromLong(pf_socket_of(op)->timeout != 0);
}

/* ------------------------------------------------ how a socket begins */

static bool
is_internet(long family)
{
    bool internet = family == AF_INET;
#if defined(AF_INET6)
    internet = internet || family == AF_INET6;
#endif
    return internet;
}

void
pf_socket_begin(PyObject *op, intptr_t number, long family, long type,
                int64_t timeout)
{
    *pf_socket_of(op) = (PfSocket){
        .number = number,
        .owner = pf_descriptor_new_owner(),
        .timeout = timeout,
        .net = &pf_net_system,
        .internet = is_internet(family),
        .tcp = is_internet(family) && type == SOCK_STREAM,
        .turns = type != SOCK_STREAM,
    };
}

int
pf_socket_adopt(PyObject *op, intptr_t number, long family, long type)
{
    int64_t timeout;
    /* The standard class's timeout is the module's default. */
    PyObject *standard = pf_base_call(op, PF_BASE_GETTIMEOUT, NULL);
    if (pf_base_timeout(standard, &timeout) < 0 || never_block(op) < 0) {
        return -1;
    }
    pf_socket_begin(op, number, family, type, timeout);
    return 0;
}

/* _adopt(): the standard __init__ has opened or taken over a descriptor. */
static PyObject *
socket_adopt(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    long family, type;
    PyObject *number = pf_base_call(op, PF_BASE_FILENO, NULL);
    if (number == NULL) {
        return NULL;
    }
    intptr_t value = (intptr_t)PyLong_AsLongLong(number);
    Py_DECREF(number);
    if ((value == -1 && PyErr_Occurred()) ||
        pf_base_int(op, PF_BASE_FAMILY, &family) < 0 ||
        pf_base_int(op, PF_BASE_TYPE, &type) < 0 ||
        pf_socket_adopt(op, value, family, type) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
socket_set_turns(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    pf_socket_of(op)->turns = true;
    pf_socket_of(op)->patched = true;
    Py_RETURN_NONE;
}

/* _wait(): waits for the socket on behalf of code that does the operation
 * itself. */
static PyObject *
socket_wait(PyObject *op, PyObject *writing)
{
    int direction = PyObject_IsTrue(writing);
    PfIo io;
    if (direction < 0 ||
        pf_socket_transfer_begin(&io, op,
                                 direction ? PF_WRITING : PF_READING) < 0) {
        return NULL;
    }
    int rc = pf_socket_transfer_wait(&io);
    pf_socket_transfer_end(&io);
    return rc < 0 ? NULL : Py_NewRef(Py_None);
}

/* In a run that has a network in memory, a new socket is one of that
 * network. */
static PyObject *
socket_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    newfunc make = pf_base_type->tp_new;
    PyObject *network = pf_inmemory_network();
    if (PF_LIKELY(network == NULL)) {
        return make(type, args, kwargs);
    }
    PyTypeObject *kind =
        pf_inmemory_network_class(network, type, args, kwargs);
    PyObject *made = kind == NULL ? NULL : make(kind, args, kwargs);
    Py_XDECREF(kind);
    return made;
}

static PyGetSetDef getset[] = {
    {"timeout", (getter)(void (*)(void))socket_gettimeout, NULL,
     "The timeout in seconds, or None: see gettimeout().", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef life_methods[] = {
    {"settimeout", socket_settimeout, METH_O,
     "settimeout(timeout): set it in seconds; None waits for ever, 0 never."},
    {"gettimeout", socket_gettimeout, METH_NOARGS,
     "gettimeout(): return the timeout in seconds, or None."},
    {"setblocking", socket_setblocking, METH_O,
     "setblocking(flag): the same as settimeout(None) or settimeout(0)."},
    {"getblocking", socket_getblocking, METH_NOARGS,
     "getblocking(): return False if an operation never waits."},
    {"detach", socket_detach, METH_NOARGS,
     "detach(): give up the descriptor without closing it; return it."},
    {"_real_close", socket_real_close, METH_VARARGS, "Close the descriptor."},
    {"_accept_as", pf_socket_accept_as, METH_O,
     "_accept_as(type): a connection, and the address of its other end."},
    {"_adopt", socket_adopt, METH_NOARGS, "Take over the descriptor."},
    {"_set_turns", socket_set_turns, METH_NOARGS,
     "_set_turns(): let several fibers wait to read or write at a time, in\n"
     "turn, as threads may: code for threads has made this socket."},
    {"_connect", pf_socket_connect, METH_O,
     "_connect(address): return the number of an error, or 0; TimeoutError."},
    {"_wait", socket_wait, METH_O,
     "_wait(writing): wait, because an operation would have blocked."},
    {"_begin_in_memory", pf_socket_begin_in_memory, METH_VARARGS,
     "_begin_in_memory(end, number, internet): become that end's socket."},
    {"_number", pf_socket_number, METH_NOARGS,
     "_number(): of a socket in memory: its number, -1 when it is closed."},
    {NULL, NULL, 0, NULL},
};

/* -------------------------------------------------------------- the type */

static PyMethodDef *
all_methods(void)
{
    static PyMethodDef all[64];
    int count = 0;
    for (const PyMethodDef *m = life_methods; m->ml_name != NULL; m++) {
        all[count++] = *m;
    }
    for (const PyMethodDef *m = pf_transfer_methods; m->ml_name != NULL; m++) {
        all[count++] = *m;
    }
    assert(count < 64);
    return all;
}

/* The size of the base class, which is written in Python, is known only
 * now. */
static PyTypeObject *
make_type(PyTypeObject *standard)
{
    const Py_ssize_t word = (Py_ssize_t)sizeof(uint64_t);
    PyType_Slot slots[] = {
        {Py_tp_methods, all_methods()},
        {Py_tp_getset, getset},
        {Py_tp_new, socket_new},
        {Py_tp_finalize, socket_finalize},
        {Py_tp_doc, (void *)"A socket whose operations park fibers."},
        {0, NULL},
    };
    pf_socket_offset = (standard->tp_basicsize + word - 1) / word * word;
    PyType_Spec spec = {
        .name = "pyfiber._engine.Socket",
        .basicsize = (int)(pf_socket_offset + (Py_ssize_t)sizeof(PfSocket)),
        .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
        .slots = slots,
    };
    return (PyTypeObject *)PyType_FromSpecWithBases(&spec,
                                                    (PyObject *)standard);
}

static PyObject *
io_socket_type(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    if (pf_socket_type == NULL) {
        PyObject *standard = pf_import_from("socket", "socket");
        PyTypeObject *made = standard == NULL || pf_base_init() < 0
                                 ? NULL
                                 : make_type((PyTypeObject *)standard);
        Py_XDECREF(standard);
        if (made == NULL || pf_socket_type != NULL) {
            Py_XDECREF(made);
        } else {
            pf_socket_type = made;
        }
    }
    return Py_XNewRef((PyObject *)pf_socket_type);
}

static PyMethodDef functions[] = {
    {"_socket_type", io_socket_type, METH_NOARGS,
     "_socket_type(): the native socket, a subclass of socket.socket."},
    {NULL, NULL, 0, NULL},
};

int
pf_socket_init(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
