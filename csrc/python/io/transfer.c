/* recv(), send() and their variants.
 *
 * Methods that move bytes of a stream are native.  Methods that carry
 * addresses or ancillary data call the base class's method, and again as long
 * as that would block.
 */
#include "python/core/arguments.h"
#include "python/core/compiler.h"
#include "python/core/state.h"
#include "python/core/tstate.h"
#include "python/io/base.h"
#include "python/io/io.h"
#include "python/io/socket.h"
#include "python/io/waiting.h"

#if !defined(_WIN32)
#include <sys/socket.h>
#endif

/* constant after import */
static PfKeeps buffer_of_thread = {.size = sizeof(char *)};

/* recv() first receives into a buffer of the thread, and copies from it to an
 * object of the right size.  The size that the caller asks for is mostly far
 * larger: to allocate it would map and unmap memory at each call.  The buffer,
 * by contrast, stays in the processor's cache.  Requests for more than the
 * buffer holds are allocated. */
char *
pf_transfer_shared_buffer(PfThread *t)
{
    char **buffer = pf_parts_at(t, &buffer_of_thread);
    if (*buffer == NULL) {
        *buffer = PyMem_RawMalloc(PF_SHARED_BUFFER);
        if (*buffer == NULL) {
            PyErr_NoMemory();
        }
    }
    return *buffer;
}

static void
free_buffer(PfThread *t)
{
    char **buffer = pf_parts_at(t, &buffer_of_thread);
    PyMem_RawFree(*buffer);
    *buffer = NULL;
}

const PfPart pf_io_part = {
    .of_thread = &buffer_of_thread,
    .free_spare = free_buffer,
};

/* A TCP socket that moves fewer bytes than it was asked to would block now,
 * until the poller reports otherwise.  Noting that saves the system call that
 * would fail.  Not done once the end, an error or urgent data have been seen,
 * because these need not cause an event, nor with flags, which may be a reason
 * for a short transfer. */
static void
notice_short(PfIo *io, int64_t moved, const PfBytes *bytes)
{
    if (io->s != NULL && io->sock->tcp && bytes->flags == 0 && moved > 0 &&
        (size_t)moved < bytes->size && io->at->seen == 0) {
        pf_descriptor_blocked(io->at, io->direction);
    }
}

static inline int64_t
try_once(PfIo *io, void *with)
{
    const PfBytes *bytes = with;
    int64_t moved = pf_socket_step(io->sock, io->direction, bytes);
    notice_short(io, moved, bytes);
    return moved;
}

static bool
never_waits(int flags)
{
#if defined(MSG_DONTWAIT)
    return (flags & MSG_DONTWAIT) != 0;
#else
    (void)flags;
    return false;
#endif
}

Py_ssize_t
pf_transfer_move(PfIo *io, const PfBytes *bytes)
{
    PfBytes with = *bytes;
    io->at_once = never_waits(with.flags);
    return (Py_ssize_t)pf_socket_transfer_until(io, try_once, &with);
}

/* --------------------------------------------------------------- reading */

static int
parse_flags(PyObject *object, int *flags)
{
    *flags = object == NULL ? 0 : (int)PyLong_AsLong(object);
    return *flags == -1 && PyErr_Occurred() ? -1 : 0;
}

static PyObject *
receive_much(PfIo *io, size_t size, int flags)
{
    PyObject *result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (result == NULL) {
        return NULL;
    }
    PfBytes bytes = {PyBytes_AS_STRING(result), size, flags};
    Py_ssize_t got = pf_transfer_move(io, &bytes);
    if (got < 0) {
        Py_DECREF(result);
        return NULL;
    }
    if ((size_t)got != size) {
        (void)_PyBytes_Resize(&result, got);
    }
    return result;
}

/* Other fibers may use the thread's buffer while this one waits, when the
 * buffer holds nothing of this fiber. */
static PyObject *
receive(PfIo *io, size_t size, int flags)
{
    if (size > PF_SHARED_BUFFER) {
        return receive_much(io, size, flags);
    }
    PfBytes bytes = {pf_transfer_shared_buffer(io->t), size, flags};
    if (bytes.data == NULL) {
        return NULL;
    }
    Py_ssize_t got = pf_transfer_move(io, &bytes);
    return got < 0 ? NULL : PyBytes_FromStringAndSize(bytes.data, got);
}

static int
count_arguments(const char *name, Py_ssize_t nargs)
{
    if (nargs == 1 || nargs == 2) {
        return 0;
    }
    PyErr_Format(PyExc_TypeError, "%s() takes 1 or 2 arguments (%zd given)",
                 name, nargs);
    return -1;
}

static PyObject *
sock_recv(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    int flags;
    if (count_arguments("recv", nargs) < 0) {
        return NULL;
    }
    Py_ssize_t size = PyLong_CheckExact(args[0])
                          ? PyLong_AsSsize_t(args[0])
                          : PyNumber_AsSsize_t(args[0], PyExc_OverflowError);
    if ((size == -1 && PyErr_Occurred()) ||
        parse_flags(nargs > 1 ? args[1] : NULL, &flags) < 0) {
        return NULL;
    }
    if (size < 0) {
        PyErr_SetString(PyExc_ValueError, "negative buffersize in recv");
        return NULL;
    }
    PfIo io;
    if (pf_socket_transfer_begin(&io, op, PF_READING) < 0) {
        return NULL;
    }
    PyObject *result = receive(&io, (size_t)size, flags);
    pf_socket_transfer_end(&io);
    return result;
}

/* Returns how many bytes of the buffer to fill; -1 with ValueError. */
static Py_ssize_t
part_of(const Py_buffer *buffer, Py_ssize_t wanted)
{
    if (wanted < 0) {
        PyErr_SetString(PyExc_ValueError, "negative buffersize in recv_into");
        return -1;
    }
    if (wanted > buffer->len) {
        PyErr_SetString(PyExc_ValueError, "buffer too small for requested "
                                          "bytes");
        return -1;
    }
    return wanted == 0 ? buffer->len : wanted;
}

static PyObject *
receive_into(PyObject *op, Py_buffer *buffer, Py_ssize_t wanted, int flags)
{
    PfIo io;
    Py_ssize_t size = part_of(buffer, wanted);
    if (size < 0 || pf_socket_transfer_begin(&io, op, PF_READING) < 0) {
        return NULL;
    }
    PfBytes bytes = {buffer->buf, (size_t)size, flags};
    Py_ssize_t got = size == 0 ? 0 : pf_transfer_move(&io, &bytes);
    pf_socket_transfer_end(&io);
    return got < 0 ? NULL : PyLong_FromSsize_t(got);
}

static PyObject *
sock_recv_into(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
               PyObject *kwnames)
{
    static const char *const names[] = {"buffer", "nbytes", "flags", NULL};
    PyObject *given[] = {NULL, NULL, NULL};
    Py_ssize_t wanted = 0;
    int flags;
    Py_buffer buffer;
    if (pf_arguments("recv_into()", names, 1, args, nargs, kwnames, given) <
        0) {
        return NULL;
    }
    if (given[1] != NULL) {
        wanted = PyNumber_AsSsize_t(given[1], PyExc_OverflowError);
    }
    if ((wanted == -1 && PyErr_Occurred()) ||
        parse_flags(given[2], &flags) < 0 ||
        PyObject_GetBuffer(given[0], &buffer, PyBUF_WRITABLE) < 0) {
        return NULL;
    }
    PyObject *result = receive_into(op, &buffer, wanted, flags);
    PyBuffer_Release(&buffer);
    return result;
}

/* --------------------------------------------------------------- writing */

/* Parses (data, flags=0).  The view keeps others from resizing the data's
 * buffer. An object of exactly the type bytes needs no view: the caller holds
 * it. */
static int
parse_data(const char *name, PyObject *const *args, Py_ssize_t nargs,
           Py_buffer *data, int *flags)
{
    if (count_arguments(name, nargs) < 0 ||
        parse_flags(nargs > 1 ? args[1] : NULL, flags) < 0) {
        return -1;
    }
    if (PyBytes_CheckExact(args[0])) {
        data->obj = NULL;
        data->buf = PyBytes_AS_STRING(args[0]);
        data->len = PyBytes_GET_SIZE(args[0]);
        return 0;
    }
    return PyObject_GetBuffer(args[0], data, PyBUF_SIMPLE);
}

static inline void
release_data(Py_buffer *data)
{
    if (data->obj != NULL) {
        PyBuffer_Release(data);
    }
}

static PyObject *
sock_send(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer data;
    int flags;
    PfIo io;
    if (parse_data("send", args, nargs, &data, &flags) < 0) {
        return NULL;
    }
    Py_ssize_t sent = -1;
    if (pf_socket_transfer_begin(&io, op, PF_WRITING) == 0) {
        PfBytes bytes = {data.buf, (size_t)data.len, flags};
        sent = pf_transfer_move(&io, &bytes);
        pf_socket_transfer_end(&io);
    }
    release_data(&data);
    return sent < 0 ? NULL : PyLong_FromSsize_t(sent);
}

void
pf_transfer_set_sent(Py_ssize_t sent)
{
    PyObject *exc = pystate_take_exception();
    PyObject *number = PyLong_FromSsize_t(sent);
    if (number == NULL || PyObject_SetAttrString(exc, "sent", number) < 0) {
        PyErr_Clear();
    }
    Py_XDECREF(number);
    pystate_restore_exception(exc);
}

/* The timeout is for the whole operation, as in the standard class.  The
 * system is asked even if there is nothing to send, as it may report a broken
 * connection. */
static int
send_all(PfIo *io, const Py_buffer *data, int flags)
{
    Py_ssize_t done = 0;
    do {
        PfBytes bytes = {(char *)data->buf + done, (size_t)(data->len - done),
                         flags};
        Py_ssize_t sent = pf_transfer_move(io, &bytes);
        if (sent < 0) {
            pf_transfer_set_sent(done);
            return -1;
        }
        done += sent;
    } while (done < data->len);
    return 0;
}

static PyObject *
sock_sendall(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    Py_buffer data;
    int flags;
    PfIo io;
    if (parse_data("sendall", args, nargs, &data, &flags) < 0) {
        return NULL;
    }
    int rc = pf_socket_transfer_begin(&io, op, PF_WRITING);
    if (rc == 0) {
        rc = send_all(&io, &data, flags);
        pf_socket_transfer_end(&io);
    }
    release_data(&data);
    return rc < 0 ? NULL : Py_NewRef(Py_None);
}

/* --------------------------------------- methods of the base class */

typedef struct BaseMethod {
    PfBase method;
    pf_direction direction;
    int flags;   /* index of the argument with the flags; -1: none */
    int buffers; /* index of that with several buffers; -1: none */
} BaseMethod;

/* Do the flags say that the operation never waits?  Flags that are not an int
 * are left to the base class, which refuses them. */
static bool
says_at_once(const BaseMethod *method, PyObject *args, PyObject *kwargs)
{
    PyObject *flags = NULL;
    if (method->flags >= 0 && PyTuple_GET_SIZE(args) > method->flags) {
        flags = PyTuple_GET_ITEM(args, method->flags);
    } else if (kwargs != NULL) {
        flags = PyDict_GetItemString(kwargs, "flags");
    }
    if (flags == NULL || !PyLong_Check(flags)) {
        return false;
    }
    long value = PyLong_AsLong(flags);
    if (value == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        return false;
    }
    return never_waits((int)value);
}

/* Puts buffers that may come from an iterator in a list, since each attempt
 * needs them.  Returns a new reference to the arguments, or NULL. */
static PyObject *
keep_buffers(const BaseMethod *method, PyObject *args)
{
    int at = method->buffers;
    if (at < 0 || PyTuple_GET_SIZE(args) <= at ||
        PyList_CheckExact(PyTuple_GET_ITEM(args, at)) ||
        PyTuple_CheckExact(PyTuple_GET_ITEM(args, at))) {
        return Py_NewRef(args);
    }
    PyObject *list = PySequence_List(PyTuple_GET_ITEM(args, at));
    PyObject *kept = list == NULL ? NULL : pf_address_tuple(args, at, list);
    Py_XDECREF(list);
    return kept;
}

static PyObject *
try_until_done(PfIo *io, PyObject *bound, PyObject *args, PyObject *kwargs)
{
    for (;;) {
        if (!pf_socket_transfer_is_blocked(io)) {
            PyObject *result = PyObject_Call(bound, args, kwargs);
            if (result != NULL ||
                !PyErr_ExceptionMatches(PyExc_BlockingIOError)) {
                return result;
            }
            PyErr_Clear();
        }
        if (pf_socket_transfer_wait(io) < 0) {
            return NULL;
        }
    }
}

/* Calls the base class's method until it does not block.  Each call converts
 * the arguments again. */
static PyObject *
until_done(PyObject *op, const BaseMethod *method, PyObject *args,
           PyObject *kwargs)
{
    PfIo io;
    PyObject *result = NULL, *kept = NULL;
    bool at_once = says_at_once(method, args, kwargs);
    PyObject *bound = pf_base_get(op, method->method);
    if (bound == NULL) {
        goto done;
    }
    kept = keep_buffers(method, args);
    if (kept == NULL ||
        pf_socket_transfer_begin(&io, op, method->direction) < 0) {
        goto done;
    }
    io.at_once = at_once;
    result = try_until_done(&io, bound, kept, kwargs);
    pf_socket_transfer_end(&io);
done:
    Py_XDECREF(kept);
    Py_XDECREF(bound);
    return result;
}

#define BASE_METHOD(name, ...)                                                \
    static PyObject *sock_##name(PyObject *op, PyObject *args,                \
                                 PyObject *kwargs)                            \
    {                                                                         \
        static const BaseMethod method = {__VA_ARGS__};                       \
        return until_done(op, &method, args, kwargs);                         \
    }

BASE_METHOD(accept, PF_BASE_ACCEPT, PF_READING, -1, -1)
BASE_METHOD(recvfrom, PF_BASE_RECVFROM, PF_READING, 1, -1)
BASE_METHOD(recvfrom_into, PF_BASE_RECVFROM_INTO, PF_READING, 2, -1)
BASE_METHOD(send_address, PF_BASE_SENDTO, PF_WRITING, 1, -1)
#if !defined(_WIN32)
BASE_METHOD(recvmsg, PF_BASE_RECVMSG, PF_READING, 2, -1)
BASE_METHOD(recvmsg_into, PF_BASE_RECVMSG_INTO, PF_READING, 2, 0)
BASE_METHOD(send_buffers, PF_BASE_SENDMSG, PF_WRITING, 2, 0)
#endif

/* Calls `send` after looking up the address, which is the argument at
 * `place`. */
static PyObject *
send_there(PyObject *op, PyCFunctionWithKeywords send, PyObject *args,
           Py_ssize_t place)
{
    PyObject *numbers = place >= PyTuple_GET_SIZE(args)
                            ? Py_NewRef(args)
                            : pf_socket_resolved_in(op, args, place);
    PyObject *sent = numbers == NULL ? NULL : send(op, numbers, NULL);
    Py_XDECREF(numbers);
    return sent;
}

static PyObject *
sock_sendto(PyObject *op, PyObject *args)
{
    Py_ssize_t place = PyTuple_GET_SIZE(args) == 2 ? 1 : 2;
    return send_there(op, sock_send_address, args, place);
}

#if !defined(_WIN32)
static PyObject *
sock_sendmsg(PyObject *op, PyObject *args)
{
    return send_there(op, sock_send_buffers, args, 3);
}
#endif

PyObject *
pf_socket_accept(PyObject *op)
{
    PyObject *none = PyTuple_New(0);
    PyObject *pair = none == NULL ? NULL : sock_accept(op, none, NULL);
    Py_XDECREF(none);
    return pair;
}

#define LIKE_BASE(name)                                                       \
    {#name, PF_FAST(sock_##name), METH_VARARGS | METH_KEYWORDS,               \
     #name "(...): as socket.socket's, but parks the running fiber."}

PyMethodDef pf_transfer_methods[] = {
    {"recv", PF_FAST(sock_recv), METH_FASTCALL,
     "recv(bufsize, flags=0): return up to bufsize bytes; b'' at the end."},
    PF_METHOD("recv_into", sock_recv_into,
              "recv_into(buffer, nbytes=0, flags=0): return how many bytes "
              "came."),
    {"send", PF_FAST(sock_send), METH_FASTCALL,
     "send(data, flags=0): return how many of the bytes went."},
    {"sendall", PF_FAST(sock_sendall), METH_FASTCALL,
     "sendall(data, flags=0): send all of the bytes.\n\n"
     "If an exception ends it, the exception's attribute `sent` is the number "
     "of bytes that went."},
    {"_accept", PF_FAST(sock_accept), METH_VARARGS | METH_KEYWORDS,
     "_accept(): return a descriptor and an address."},
    LIKE_BASE(recvfrom),
    LIKE_BASE(recvfrom_into),
    {"sendto", sock_sendto, METH_VARARGS,
     "sendto(data, flags=0, address): as socket.socket's, but parks the\n"
     "running fiber."},
#if !defined(_WIN32)
    LIKE_BASE(recvmsg),
    LIKE_BASE(recvmsg_into),
    {"sendmsg", sock_sendmsg, METH_VARARGS,
     "sendmsg(buffers, ancdata=(), flags=0, address=None): as\n"
     "socket.socket's, but parks the running fiber."},
#endif
    {NULL, NULL, 0, NULL},
};
