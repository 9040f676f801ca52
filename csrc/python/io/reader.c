/* The reading half of pyfiber.net.Stream: a buffer before a socket's recv().
 *
 * The buffer is a bytes object, of which the part from `start` to `end` has
 * been received and not been read yet.  An object that recv() returned may
 * have other users.  So it is never written to, and a read of all of it
 * returns the object itself.  When more bytes must be appended, both parts are
 * copied to a larger object.  The larger object has room at its end and
 * belongs to the buffer alone until it is returned in turn.
 *
 * A read takes nothing from the buffer before everything that it asked for has
 * arrived.  So a read that fails while it waits has consumed nothing.
 */
#include "python/core/arguments.h"
#include "python/core/state.h"
#include "python/io/io.h"

#include <string.h>
#include <structmember.h>

/* How many bytes recv() is asked for at a time, and the longest line. */
#define CHUNK 65536

/* The smallest buffer that is made when one has to grow, in bytes: a smaller
 * one would soon have to grow again. */
#define SMALLEST 512

typedef struct Reader {
    PyObject_HEAD
    PyObject *socket;
    PyObject *data; /* bytes; NULL when nothing is left */
    Py_ssize_t start, end;
    bool reading; /* a fiber is waiting in recv() */
} Reader;

/* constant after import of pyfiber.net */
static struct {
    PyTypeObject *type;
    PyObject *incomplete, *exceeded; /* exceptions */
    PyObject *recv;                  /* a name */
    PyObject *chunk;                 /* CHUNK */
} reader;

/* --------------------------------------------------------- the buffer --- */

static inline Py_ssize_t
left(const Reader *r)
{
    return r->end - r->start;
}

static inline const char *
first(const Reader *r)
{
    return PyBytes_AS_STRING(r->data) + r->start;
}

static PyObject *
take_whole_object(Reader *r)
{
    PyObject *data = r->data;
    Py_ssize_t size = r->end;
    r->data = NULL;
    r->start = r->end = 0;
    if (size < PyBytes_GET_SIZE(data)) {
        _PyBytes_Resize(&data, size); /* not shared with other code */
    }
    return data;
}

/* Takes the first `n` bytes; there are at least as many. */
static PyObject *
take(Reader *r, Py_ssize_t n)
{
    if (r->data == NULL) {
        return PyBytes_FromStringAndSize(NULL, 0);
    }
    if (r->start == 0 && n == r->end) {
        return take_whole_object(r);
    }
    PyObject *part = PyBytes_FromStringAndSize(first(r), n);
    if (part != NULL) {
        r->start += n;
        if (r->start == r->end) {
            r->start = r->end = 0;
            Py_CLEAR(r->data); /* exactly bytes: runs no code */
        }
    }
    return part;
}

/* Makes room for `more` bytes after those in the buffer. */
static int
make_room(Reader *r, Py_ssize_t more)
{
    Py_ssize_t there = left(r);
    if (PyBytes_GET_SIZE(r->data) - r->end >= more) {
        return 0;
    }
    if (more > PY_SSIZE_T_MAX / 4 - there) {
        PyErr_NoMemory();
        return -1;
    }
    Py_ssize_t size = 2 * (there + more);
    PyObject *larger =
        PyBytes_FromStringAndSize(NULL, size < SMALLEST ? SMALLEST : size);
    if (larger == NULL) {
        return -1;
    }
    memcpy(PyBytes_AS_STRING(larger), first(r), (size_t)there);
    Py_SETREF(r->data, larger);
    r->start = 0;
    r->end = there;
    return 0;
}

/* Appends what has been received; takes over the reference. */
static int
append(Reader *r, PyObject *got)
{
    Py_ssize_t size = PyBytes_GET_SIZE(got);
    if (r->data == NULL) {
        r->data = got;
        r->end = size;
        return 0;
    }
    int rc = make_room(r, size);
    if (rc == 0) {
        memcpy(PyBytes_AS_STRING(r->data) + r->end, PyBytes_AS_STRING(got),
               (size_t)size);
        r->end += size;
    }
    Py_DECREF(got);
    return rc;
}

/* A byte sequence that ends what is read. */
typedef struct Separator {
    const char *text;
    Py_ssize_t size;
    Py_ssize_t limit;
    Py_ssize_t searched; /* the separator does not begin before this */
} Separator;

/* Returns the number of bytes up to the end of the separator; 0 if it has not
 * been received. */
static Py_ssize_t
find(const Reader *r, Separator *sep)
{
    Py_ssize_t there = left(r);
    if (there - sep->searched < sep->size) {
        return 0;
    }
    const char *from = first(r) + sep->searched;
    const char *last = first(r) + there - sep->size;
    while (from <= last &&
           (from = memchr(from, sep->text[0], (size_t)(last - from) + 1))) {
        if (memcmp(from, sep->text, (size_t)sep->size) == 0) {
            return from - first(r) + sep->size;
        }
        from++;
    }
    sep->searched = there - sep->size + 1;
    return 0;
}

/* ---------------------------------------------------------- receiving --- */

static int
refuse_if_reading(const Reader *r)
{
    if (!r->reading) {
        return 0;
    }
    PyErr_SetString(pf.fiber_error,
                    "another fiber reads from this stream: only one may at a "
                    "time, or their data would be mixed");
    return -1;
}

static PyObject *
receive(const Reader *r, PyObject *size)
{
    if (r->socket == NULL) {
        PyErr_SetString(PyExc_AttributeError, "the stream has no socket");
        return NULL;
    }
    PyObject *args[] = {Py_NewRef(r->socket), size};
    PyObject *got = PyObject_VectorcallMethod(reader.recv, args, 2, NULL);
    Py_DECREF(args[0]);
    return got;
}

/* Turns what recv() returned into an object of exactly the type bytes; takes
 * over the reference.  The buffer can drop such an object without running
 * code, whereas an instance of a subclass may have a __del__ that reads from
 * this stream. */
static PyObject *
plain_bytes(PyObject *got)
{
    if (got == NULL || PyBytes_CheckExact(got)) {
        return got;
    }
    PyObject *plain = NULL;
    if (PyBytes_Check(got)) {
        plain = PyBytes_FromStringAndSize(PyBytes_AS_STRING(got),
                                          PyBytes_GET_SIZE(got));
    } else {
        PyErr_SetString(PyExc_TypeError, "the socket's recv() must return "
                                         "bytes");
    }
    Py_DECREF(got);
    return plain;
}

/* Returns 1 if more has come, 0 if the stream has ended, and -1 with an
 * exception. */
static int
receive_more(Reader *r, PyObject *size)
{
    r->reading = true;
    PyObject *got = plain_bytes(receive(r, size));
    r->reading = false;
    if (got == NULL) {
        return -1;
    }
    if (PyBytes_GET_SIZE(got) == 0) {
        Py_DECREF(got);
        return 0;
    }
    return append(r, got) < 0 ? -1 : 1;
}

/* Raises the exception.  Takes over its arguments; returns NULL. */
static PyObject *
fail(PyObject *type, PyObject *args)
{
    PyObject *error = args == NULL ? NULL : PyObject_Call(type, args, NULL);
    if (error != NULL) {
        PyErr_SetObject(type, error);
    }
    Py_XDECREF(args);
    Py_XDECREF(error);
    return NULL;
}

/* Raises IncompleteRead, which carries what has been received; returns
 * NULL. */
static PyObject *
end_too_early(Reader *r, PyObject *wanted)
{
    return fail(reader.incomplete,
                Py_BuildValue("(NO)", take(r, left(r)), wanted));
}

static PyObject *
exceed(Reader *r, const Separator *sep)
{
    return fail(reader.exceeded,
                Py_BuildValue("(Ny#n)", take(r, left(r)), sep->text, sep->size,
                              sep->limit));
}

/* Reads up to the end of the separator.  Returns NULL without an exception if
 * the stream has ended. */
static PyObject *
read_up_to(Reader *r, Separator *sep)
{
    if (refuse_if_reading(r) < 0) {
        return NULL;
    }
    int rc = 1;
    while (rc > 0) {
        Py_ssize_t n = find(r, sep);
        if (n > 0 && n <= sep->limit) {
            return take(r, n);
        }
        if (n > 0 || left(r) >= sep->limit) {
            return exceed(r, sep);
        }
        rc = receive_more(r, reader.chunk);
    }
    return NULL;
}

/* ------------------------------------------------------------ methods --- */

static int
number(PyObject *object, Py_ssize_t *n)
{
    *n = PyNumber_AsSsize_t(object, PyExc_OverflowError);
    return *n == -1 && PyErr_Occurred() ? -1 : 0;
}

/* Converts the size that a method has been given.  Fails if it is negative
 * (`what` begins the message), or if another fiber is reading. */
static int
size_to_read(const Reader *r, PyObject *object, const char *what,
             Py_ssize_t *n)
{
    if (number(object, n) < 0) {
        return -1;
    }
    if (*n < 0) {
        PyErr_Format(PyExc_ValueError, "%s: not negative", what);
        return -1;
    }
    return refuse_if_reading(r);
}

static PyObject *
reader_read(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
            PyObject *kwnames)
{
    Reader *r = (Reader *)op;
    PyObject *size = reader.chunk;
    Py_ssize_t n;
    if (pf_arguments_optional("read", "n", args, nargs, kwnames, &size) < 0 ||
        size_to_read(r, size,
                     "read() takes the largest number of bytes to return",
                     &n) < 0) {
        return NULL;
    }
    if (n == 0) {
        return PyBytes_FromStringAndSize(NULL, 0);
    }
    return r->data != NULL ? take(r, n < left(r) ? n : left(r))
                           : receive(r, size);
}

/* Asks for everything that is missing at once, which saves system calls where
 * that is much. */
static int
receive_missing(Reader *r, Py_ssize_t missing)
{
    PyObject *size = missing > CHUNK ? PyLong_FromSsize_t(missing)
                                     : Py_NewRef(reader.chunk);
    int rc = size == NULL ? -1 : receive_more(r, size);
    Py_XDECREF(size);
    return rc;
}

static PyObject *
reader_read_exactly(PyObject *op, PyObject *wanted)
{
    Reader *r = (Reader *)op;
    Py_ssize_t n;
    if (size_to_read(r, wanted, "read_exactly() takes a number of bytes", &n) <
        0) {
        return NULL;
    }
    while (left(r) < n) {
        int rc = receive_missing(r, n - left(r));
        if (rc <= 0) {
            return rc < 0 ? NULL : end_too_early(r, wanted);
        }
    }
    return take(r, n);
}

static PyObject *
read_until(Reader *r, PyObject *text, Py_ssize_t limit)
{
    Separator sep = {PyBytes_AS_STRING(text), PyBytes_GET_SIZE(text), limit,
                     0};
    if (sep.size == 0) {
        PyErr_SetString(PyExc_ValueError,
                        "read_until() needs a separator of at least one "
                        "byte");
        return NULL;
    }
    PyObject *line = read_up_to(r, &sep);
    return line == NULL && !PyErr_Occurred() ? end_too_early(r, text) : line;
}

static PyObject *
reader_read_until(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                  PyObject *kwnames)
{
    static const char *const names[] = {"separator", "limit", NULL};
    PyObject *out[2] = {NULL, reader.chunk};
    Py_ssize_t limit;
    if (pf_arguments("read_until", names, 1, args, nargs, kwnames, out) < 0 ||
        number(out[1], &limit) < 0) {
        return NULL;
    }
    if (!PyObject_CheckBuffer(out[0])) {
        PyErr_Format(PyExc_TypeError,
                     "read_until() needs a separator of bytes, not '%s'",
                     Py_TYPE(out[0])->tp_name);
        return NULL;
    }
    PyObject *text = PyBytes_FromObject(out[0]);
    PyObject *line =
        text == NULL ? NULL : read_until((Reader *)op, text, limit);
    Py_XDECREF(text);
    return line;
}

static PyObject *
reader_next(PyObject *op)
{
    Reader *r = (Reader *)op;
    Separator newline = {"\n", 1, CHUNK, 0};
    PyObject *line = read_up_to(r, &newline);
    return line == NULL && !PyErr_Occurred() && r->data != NULL
               ? take(r, left(r))
               : line;
}

static PyObject *
reader_buffered(PyObject *op, void *closure)
{
    (void)closure;
    return PyLong_FromSsize_t(left((Reader *)op));
}

/* ----------------------------------------------------------- the type --- */

static int
reader_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(((Reader *)op)->socket);
    return 0;
}

static int
reader_clear(PyObject *op)
{
    Reader *r = (Reader *)op;
    r->start = r->end = 0;
    Py_CLEAR(r->data);
    Py_CLEAR(r->socket);
    return 0;
}

static void
reader_dealloc(PyObject *op)
{
    pf_arguments_dealloc_with(op, reader_clear);
}

static PyMethodDef methods[] = {
    PF_METHOD("read", reader_read,
              "read($self, /, n=65536)\n--\n\n"
              "Read up to n bytes, as soon as there are any; b\"\" at the "
              "end."),
    {"read_exactly", reader_read_exactly, METH_O,
     "read_exactly($self, n, /)\n--\n\n"
     "Read exactly n bytes; IncompleteRead if the stream ends first."},
    PF_METHOD("read_until", reader_read_until,
              "read_until($self, /, separator, limit=65536)\n--\n\n"
              "Read all bytes up to and including the separator.\n\n"
              "IncompleteRead if the stream ends first, LimitExceeded if that "
              "would be more than\n``limit`` bytes."),
    {NULL, NULL, 0, NULL},
};

static PyMemberDef members[] = {
    {"socket", T_OBJECT_EX, offsetof(Reader, socket), 0,
     "The socket, for its options; reading from it would bypass the "
     "buffer."},
    {"_reading", T_BOOL, offsetof(Reader, reading), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef getset[] = {
    {"_buffered", reader_buffered, NULL,
     "How many bytes have been received and not been read.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)"A buffer before a socket's recv()."},
    {Py_tp_dealloc, reader_dealloc},
    {Py_tp_traverse, reader_traverse},
    {Py_tp_clear, reader_clear},
    {Py_tp_iter, PyObject_SelfIter},
    {Py_tp_iternext, reader_next},
    {Py_tp_methods, methods},
    {Py_tp_members, members},
    {Py_tp_getset, getset},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "pyfiber._engine.Reader",
    .basicsize = sizeof(Reader),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
             Py_TPFLAGS_IMMUTABLETYPE,
    .slots = slots,
};

static int
make_type(PyObject *incomplete, PyObject *exceeded)
{
    reader.recv = PyUnicode_InternFromString("recv");
    reader.chunk = PyLong_FromLong(CHUNK);
    if (reader.recv == NULL || reader.chunk == NULL) {
        return -1;
    }
    reader.incomplete = Py_NewRef(incomplete);
    reader.exceeded = Py_NewRef(exceeded);
    reader.type = (PyTypeObject *)PyType_FromSpec(&spec);
    return reader.type == NULL ? -1 : 0;
}

static PyObject *
io_reader_type(PyObject *module, PyObject *args)
{
    PyObject *incomplete, *exceeded;
    (void)module;
    if (!PyArg_ParseTuple(args, "OO:_reader_type", &incomplete, &exceeded) ||
        (reader.type == NULL && make_type(incomplete, exceeded) < 0)) {
        return NULL;
    }
    return Py_NewRef((PyObject *)reader.type);
}

static PyMethodDef functions[] = {
    {"_reader_type", io_reader_type, METH_VARARGS,
     "_reader_type(incomplete, exceeded): the native base of streams; the "
     "arguments are the exceptions that it raises."},
    {NULL, NULL, 0, NULL},
};

int
pf_reader_init(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
