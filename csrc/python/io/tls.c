/* The type of a TLS connection, reading and writing: see tls.h. */
#include "python/io/tls.h"

#include "python/core/arguments.h"
#include "python/core/compiler.h"
#include "python/core/import.h"
#include "python/core/tstate.h"
#include "python/io/io.h"
#include "python/io/waiting.h"

/* How many bytes are encrypted at a time.  The rest waits unencrypted until
 * they have been sent. */
#define AT_A_TIME ((Py_ssize_t)64 * 1024)

PfTlsNames pf_tls;             /* constant after import */
static PyTypeObject *tls_type; /* constant after import of pyfiber.ssl */

const char pf_tls_reading_late[] = "The read operation timed out";
const char pf_tls_writing_late[] = "The write operation timed out";

/* ------------------------------------------------------------ reading --- */

typedef struct Read {
    PyObject *args[2]; /* the size, and perhaps a buffer */
    size_t count;
    Py_ssize_t size; /* most bytes that can come; 0: not known */
} Read;

/* Limits the size to PF_TLS_RECORD: no record has more, and the session would
 * allocate what it is asked for.  Wrong arguments are left to the session,
 * which refuses them. */
static void
read_at_most(Read *read)
{
    Py_ssize_t size = PyNumber_AsSsize_t(read->args[0], NULL);
    if (size > PF_TLS_RECORD) {
        read->args[0] = pf_tls.most;
        size = PF_TLS_RECORD;
    }
    if (size < 0) {
        PyErr_Clear();
        size = 0;
    }
    read->size = size;
}

/* Limits the size to the room in the buffer. */
static int
fit_in_buffer(Read *read)
{
    Py_buffer buffer;
    if (PyObject_GetBuffer(read->args[1], &buffer, PyBUF_WRITABLE) < 0) {
        return -1;
    }
    if (read->size > buffer.len) {
        read->size = buffer.len;
    }
    PyBuffer_Release(&buffer);
    return 0;
}

/* A read that returns less than it was asked for has used up the record.  The
 * session has no other one unless more has arrived. */
static void
notice_drained(TlsObject *tls, const Read *read, PyObject *result)
{
    Py_ssize_t got = PyBytes_Check(result) ? PyBytes_GET_SIZE(result)
                                           : PyLong_AsSsize_t(result);
    tls->drained = got > 0 && got < read->size && tls->holder == NULL &&
                   tls->arrived == NULL && pf_tls_pending(tls->incoming) == 0;
    if (PyErr_Occurred()) {
        PyErr_Clear();
    }
}

static PyObject *
read_some(PfTlsOp *op, const Read *read)
{
    TlsObject *tls = op->tls;
    PyObject *result = NULL;
    for (;;) {
        if (tls->drained && tls->arrived == NULL && read->size > 0) {
            op->seen = tls->fed;
        } else {
            int rc =
                pf_tls_ask(op, pf_tls.read, read->args, read->count, &result);
            if (rc <= 0) {
                break;
            }
        }
        if (pf_tls_feed(op) < 0) {
            return NULL;
        }
    }
    pf_tls_flush_at_once(tls);
    if (result != NULL) {
        notice_drained(tls, read, result);
    }
    return result;
}

static PyObject *
copy_into(PyObject *target, PyObject *bytes)
{
    Py_buffer buffer;
    if (PyObject_GetBuffer(target, &buffer, PyBUF_WRITABLE) < 0) {
        return NULL;
    }
    Py_ssize_t size = PyBytes_GET_SIZE(bytes);
    size = size < buffer.len ? size : buffer.len;
    memcpy(buffer.buf, PyBytes_AS_STRING(bytes), (size_t)size);
    PyBuffer_Release(&buffer);
    return PyLong_FromSsize_t(size);
}

/* Reads from what was decrypted before a read() asked for it. */
static PyObject *
read_ahead(TlsObject *tls, const Read *read)
{
    Py_ssize_t there = PyBytes_GET_SIZE(tls->ahead);
    Py_ssize_t size = read->size < there ? read->size : there;
    PyObject *first = PySequence_GetSlice(tls->ahead, 0, size);
    PyObject *rest = PySequence_GetSlice(tls->ahead, size, there);
    PyObject *result = NULL;
    if (first != NULL && rest != NULL) {
        result = read->count == 1 ? Py_NewRef(first)
                                  : copy_into(read->args[1], first);
    }
    if (result != NULL) {
        Py_XSETREF(tls->ahead, size < there ? Py_NewRef(rest) : NULL);
    }
    Py_XDECREF(first);
    Py_XDECREF(rest);
    return result;
}

static PyObject *
tls_read(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    PfTlsOp op;
    if (nargs != 1 && nargs != 2) {
        PyErr_SetString(PyExc_TypeError, "read() takes 1 or 2 arguments");
        return NULL;
    }
    Read read = {{args[0], nargs == 2 ? args[1] : NULL}, (size_t)nargs, 0};
    read_at_most(&read);
    if ((nargs == 2 && fit_in_buffer(&read) < 0) ||
        pf_tls_begin(&op, (TlsObject *)self, pf_tls_reading_late) < 0) {
        return NULL;
    }
    PyObject *result = NULL;
    op.reads = true;
    if (pf_tls_claim(&op, &op.tls->reading, PF_READING) == 0) {
        result = PF_UNLIKELY(op.tls->ahead != NULL) && read.size > 0
                     ? read_ahead(op.tls, &read)
                     : read_some(&op, &read);
        pf_tls_unclaim(op.tls, &op.tls->reading);
    }
    pf_tls_end(&op);
    return result;
}

/* ------------------------------------------------------------ writing --- */

typedef struct Write {
    PyObject *data;
    Py_buffer view;
    Py_ssize_t done;
    Py_ssize_t taken; /* encrypted, after `done`; will be sent */
} Write;

static int
begin_write(Write *write, PyObject *data)
{
    *write = (Write){.data = data};
    return PyObject_GetBuffer(data, &write->view, PyBUF_SIMPLE);
}

static const char *
rest_of(const Write *write, Py_ssize_t *size)
{
    *size = write->view.len - write->done;
    return (const char *)write->view.buf + write->done;
}

/* Is this a retry with data that an earlier write() had already encrypted?
 * Then stores how many bytes that is. */
static bool
is_owed(TlsObject *tls, const Write *write, Py_ssize_t *count)
{
    PyObject *owed = tls->owed;
    Py_ssize_t size;
    const char *rest = rest_of(write, &size);
    if (owed == NULL) {
        return false;
    }
    tls->owed = NULL;
    *count = PyBytes_GET_SIZE(owed);
    bool same = *count <= size &&
                memcmp(PyBytes_AS_STRING(owed), rest, (size_t)*count) == 0;
    Py_DECREF(owed);
    return same;
}

/* Returns the data to encrypt next.  Only an object of exactly the type bytes
 * is passed as it is.  The session would ask another object for its buffer
 * once more, and an object whose __buffer__() is Python code might return
 * another size. */
static PyObject *
next_piece(const Write *write)
{
    Py_ssize_t size;
    const char *rest = rest_of(write, &size);
    if (write->done == 0 && size <= AT_A_TIME &&
        PyBytes_CheckExact(write->data)) {
        return Py_NewRef(write->data);
    }
    return PyMemoryView_FromMemory(
        (char *)rest, size < AT_A_TIME ? size : AT_A_TIME, PyBUF_READ);
}

static int
encrypt(PfTlsOp *op, Write *write)
{
    PyObject *piece = next_piece(write);
    PyObject *number =
        piece == NULL ? NULL : pf_tls_perform(op, pf_tls.write, piece);
    Py_XDECREF(piece);
    write->taken = number == NULL ? 0 : PyLong_AsSsize_t(number);
    Py_XDECREF(number);
    return number == NULL || write->taken < 0 ? -1 : 0;
}

/* Writes some of the data, after everything that must be sent before. */
static int
write_some(PfTlsOp *op, Write *write)
{
    Py_ssize_t count;
    write->taken = 0;
    if (pf_tls_flush(op) < 0) {
        return -1;
    }
    if (is_owed(op->tls, write, &count)) {
        write->done += count;
        return 0;
    }
    if (encrypt(op, write) < 0 || pf_tls_flush(op) < 0) {
        return -1;
    }
    write->done += write->taken;
    return 0;
}

static void
remember_owed(TlsObject *tls, const Write *write)
{
    PyObject *error = pystate_take_exception();
    Py_ssize_t size;
    tls->owed = PyBytes_FromStringAndSize(rest_of(write, &size), write->taken);
    PyErr_Clear();
    pystate_restore_exception(error);
}

static int
write_once(PfTlsOp *op, Write *write)
{
    int rc = write_some(op, write);
    if (rc < 0 && write->taken > 0) {
        remember_owed(op->tls, write);
    }
    return rc;
}

/* Writes all of the data.  The attribute `sent` of the exception says how much
 * has gone, so a caller that catches the exception and continues there sends
 * nothing twice. */
static int
write_to_end(PfTlsOp *op, Write *write)
{
    while (write->done < write->view.len) {
        if (write_once(op, write) < 0) {
            pf_transfer_set_sent(write->done);
            return -1;
        }
    }
    return 0;
}

static PyObject *
do_write(PyObject *self, PyObject *data, int (*how)(PfTlsOp *, Write *))
{
    Write write;
    PfTlsOp op;
    PyObject *result = NULL;
    if (begin_write(&write, data) < 0) {
        return NULL;
    }
    if (pf_tls_begin(&op, (TlsObject *)self, pf_tls_writing_late) == 0) {
        if (pf_tls_claim(&op, &op.tls->writing, PF_WRITING) == 0) {
            if (how(&op, &write) == 0) {
                result = PyLong_FromSsize_t(write.done);
            }
            pf_tls_unclaim(op.tls, &op.tls->writing);
        }
        pf_tls_end(&op);
    }
    PyBuffer_Release(&write.view);
    return result;
}

static PyObject *
tls_write(PyObject *self, PyObject *data)
{
    return do_write(self, data, write_once);
}

static PyObject *
tls_write_all(PyObject *self, PyObject *data)
{
    return do_write(self, data, write_to_end);
}

/* ---------------------------------------- what has been received --- */

/* Returns the size of the whole records that the session has not seen yet; -1
 * with an exception. */
static Py_ssize_t
whole_records(TlsObject *tls)
{
    Py_ssize_t more =
        tls->arrived == NULL ? 0 : PyBytes_GET_SIZE(tls->arrived);
    Py_ssize_t pending = pf_tls_pending(tls->incoming);
    if (pending < 0) {
        return -1;
    }
    Py_ssize_t whole = pending + more - (Py_ssize_t)tls->records.partial;
    return whole < 0 ? 0 : whole;
}

/* pending(): a caller that asks the system whether the socket can be read asks
 * this first, as with the standard module. */
static PyObject *
tls_pending(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    TlsObject *tls = (TlsObject *)self;
    if (tls->ahead != NULL) {
        return PyLong_FromSsize_t(PyBytes_GET_SIZE(tls->ahead));
    }
    if (tls->holder != NULL || tls->session == NULL) {
        return PyLong_FromLong(0);
    }
    PyObject *number = PyObject_CallMethodNoArgs(tls->session, pf_tls.pending);
    if (number == NULL || PyLong_AsLong(number) != 0) {
        return number;
    }
    Py_DECREF(number);
    Py_ssize_t whole = whole_records(tls);
    const Py_ssize_t least = 5 + 16 + 1; /* bytes that a record adds to data */
    return whole < 0 ? NULL
                     : PyLong_FromSsize_t(whole > least ? whole - least
                                          : whole > 0   ? 1
                                                        : 0);
}

/* take_rest(): what has come after the end of TLS. */
static PyObject *
tls_take_rest(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    TlsObject *tls = (TlsObject *)self;
    if (tls->holder != NULL || pf_tls_absorb(tls) < 0) {
        return PyErr_Occurred() ? NULL : PyBytes_FromStringAndSize(NULL, 0);
    }
    return PyObject_CallMethodNoArgs(tls->incoming, pf_tls.read);
}

/* ----------------------------------------------------------- the type --- */

static PyObject *
tls_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *session, *incoming, *outgoing, *socket;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "OOOO!:Tls", &session, &incoming, &outgoing,
                          pf_socket_type, &socket)) {
        return NULL;
    }
    TlsObject *self = (TlsObject *)type->tp_alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->session = Py_NewRef(session);
    self->incoming = Py_NewRef(incoming);
    self->outgoing = Py_NewRef(outgoing);
    self->socket = PyWeakref_NewRef(socket, NULL);
    if (self->socket == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int
tls_traverse(PyObject *op, visitproc visit, void *arg)
{
    TlsObject *self = (TlsObject *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->session);
    Py_VISIT(self->incoming);
    Py_VISIT(self->outgoing);
    Py_VISIT(self->socket);
    return 0;
}

static int
tls_clear(PyObject *op)
{
    TlsObject *self = (TlsObject *)op;
    Py_CLEAR(self->socket); /* first: no operation begins without it */
    Py_CLEAR(self->session);
    Py_CLEAR(self->incoming);
    Py_CLEAR(self->outgoing);
    Py_CLEAR(self->arrived);
    Py_CLEAR(self->unsent);
    Py_CLEAR(self->owed);
    Py_CLEAR(self->ahead);
    return 0;
}

static void
tls_dealloc(PyObject *op)
{
    pf_arguments_dealloc_with(op, tls_clear);
}

/* Attributes that concern neither reading nor writing are the session's. */
static PyObject *
tls_getattro(PyObject *op, PyObject *name)
{
    PyObject *value = PyObject_GenericGetAttr(op, name);
    PyObject *session = ((TlsObject *)op)->session;
    if (value != NULL || session == NULL ||
        !PyErr_ExceptionMatches(PyExc_AttributeError)) {
        return value;
    }
    PyErr_Clear();
    return PyObject_GetAttr(session, name);
}

static int
tls_setattro(PyObject *op, PyObject *name, PyObject *value)
{
    PyObject *session = ((TlsObject *)op)->session;
    return session == NULL ? pf_socket_closed_error()
                           : PyObject_SetAttr(session, name, value);
}

static PyMethodDef methods[] = {
    {"read", PF_FAST(tls_read), METH_FASTCALL,
     "read(size, buffer=None): return decrypted bytes, or how many are in\n"
     "the buffer."},
    {"write", tls_write, METH_O,
     "write(data): return how many of the bytes went."},
    {"write_all", tls_write_all, METH_O,
     "write_all(data): send all; an exception has `sent`, as sendall()'s."},
    {"do_handshake", pf_tls_do_handshake, METH_NOARGS,
     "do_handshake(): do the handshake, or what is missing of it."},
    {"shutdown", pf_tls_shutdown, METH_NOARGS,
     "shutdown(): end TLS in both directions; return the socket."},
    {"end_write", pf_tls_end_write, METH_NOARGS,
     "end_write(): notify the other end that nothing more comes; reading\n"
     "goes on."},
    {"say_end", pf_tls_say_end, METH_NOARGS,
     "say_end(): end_write() before the socket is closed, without waiting."},
    {"pending", tls_pending, METH_NOARGS,
     "pending(): how much can be read without asking the system."},
    {"take_rest", tls_take_rest, METH_NOARGS,
     "take_rest(): return what has come after the end of TLS."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)"A TLS session over a socket that parks fibers."},
    {Py_tp_new, tls_new},
    {Py_tp_dealloc, tls_dealloc},
    {Py_tp_traverse, tls_traverse},
    {Py_tp_clear, tls_clear},
    {Py_tp_getattro, tls_getattro},
    {Py_tp_setattro, tls_setattro},
    {Py_tp_methods, methods},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "pyfiber._engine.Tls",
    .basicsize = sizeof(TlsObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = slots,
};

static int
make_names(void)
{
    PfTlsNames names = {
        .want_read = pf_import_from("_ssl", "SSLWantReadError"),
        .want_write = pf_import_from("_ssl", "SSLWantWriteError"),
        .eof = pf_import_from("_ssl", "SSLEOFError"),
        .error = pf_import_from("_ssl", "SSLError"),
        .read = PyUnicode_InternFromString("read"),
        .write = PyUnicode_InternFromString("write"),
        .write_eof = PyUnicode_InternFromString("write_eof"),
        .pending = PyUnicode_InternFromString("pending"),
        .do_handshake = PyUnicode_InternFromString("do_handshake"),
        .shutdown = PyUnicode_InternFromString("shutdown"),
        .most = PyLong_FromLong(PF_TLS_RECORD),
    };
    pf_tls = names;
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *
io_tls_type(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    if (tls_type == NULL && make_names() == 0) {
        tls_type = (PyTypeObject *)PyType_FromSpec(&spec);
    }
    return Py_XNewRef((PyObject *)tls_type);
}

static PyMethodDef functions[] = {
    {"_tls_type", io_tls_type, METH_NOARGS,
     "_tls_type(): the native type of a TLS connection."},
    {NULL, NULL, 0, NULL},
};

int
pf_tls_init(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
