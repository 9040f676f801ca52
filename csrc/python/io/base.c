/* Methods and attributes of the standard class: see base.h. */
#include "python/io/base.h"

#include "python/core/compiler.h"
#include "python/core/import.h"
#include "python/io/socket.h"

static const char *const names[PF_BASE_COUNT] = {
    [PF_BASE_ACCEPT] = "_accept",
    [PF_BASE_CLOSE] = "close",
    [PF_BASE_CONNECT] = "connect_ex",
    [PF_BASE_DETACH] = "detach",
    [PF_BASE_FILENO] = "fileno",
    [PF_BASE_GETSOCKOPT] = "getsockopt",
    [PF_BASE_GETTIMEOUT] = "gettimeout",
    [PF_BASE_RECVFROM] = "recvfrom",
    [PF_BASE_RECVFROM_INTO] = "recvfrom_into",
    [PF_BASE_SENDTO] = "sendto",
    [PF_BASE_SETBLOCKING] = "setblocking",
#if !defined(_WIN32)
    [PF_BASE_RECVMSG] = "recvmsg",
    [PF_BASE_RECVMSG_INTO] = "recvmsg_into",
    [PF_BASE_SENDMSG] = "sendmsg",
#endif
    [PF_BASE_FAMILY] = "family",
    [PF_BASE_TYPE] = "type",
    [PF_BASE_PROTO] = "proto",
};

PyTypeObject *pf_base_type;            /* constant after import */
static PyObject *found[PF_BASE_COUNT]; /* constant after import */
static PyObject *default_timeout;      /* constant after import */
static PyObject *closed, *io_refs;     /* constant after import */

static int
find_others(void)
{
    PyObject *function = pf_import_from("_socket", "getdefaulttimeout");
    if (function == NULL) {
        return -1;
    }
    Py_XSETREF(default_timeout, function);
    if (closed == NULL) {
        closed = PyUnicode_InternFromString("_closed");
    }
    if (io_refs == NULL) {
        io_refs = PyUnicode_InternFromString("_io_refs");
    }
    return closed == NULL || io_refs == NULL ? -1 : 0;
}

int
pf_base_init(void)
{
    PyObject *type =
        pf_base_type != NULL ? NULL : pf_import_from("_socket", "socket");
    if (type == NULL) {
        return pf_base_type != NULL ? 0 : -1;
    }
    for (int i = 0; i < PF_BASE_COUNT; i++) {
        PyObject *one = PyObject_GetAttrString(type, names[i]);
        if (one == NULL) {
            Py_DECREF(type);
            return -1;
        }
        Py_XSETREF(found[i], one);
    }
    int rc = find_others();
    Py_XSETREF(pf_base_type, rc < 0 ? NULL : (PyTypeObject *)type);
    return rc;
}

static PyObject *
get_in_memory(PyObject *op, PfBase which)
{
    PyObject *endpoint = PyObject_GetAttrString(op, "_endpoint");
    PyObject *found_there =
        endpoint == NULL ? NULL
                         : PyObject_GetAttrString(endpoint, names[which]);
    Py_XDECREF(endpoint);
    return found_there;
}

static PyObject *
call_in_memory(PyObject *op, PfBase which, PyObject *argument)
{
    PyObject *method = get_in_memory(op, which);
    PyObject *const arguments[] = {argument};
    PyObject *result =
        method == NULL ? NULL
                       : PyObject_Vectorcall(method, arguments,
                                             argument == NULL ? 0 : 1, NULL);
    Py_XDECREF(method);
    return result;
}

PyObject *
pf_base_descriptor(PfBase which)
{
    return found[which];
}

PyObject *
pf_base_get(PyObject *op, PfBase which)
{
    if (PF_UNLIKELY(pf_socket_of(op)->end != NULL)) {
        return get_in_memory(op, which);
    }
    PyObject *one = found[which];
    return Py_TYPE(one)->tp_descr_get(one, op, (PyObject *)Py_TYPE(op));
}

PyObject *
pf_base_call(PyObject *op, PfBase which, PyObject *argument)
{
    if (PF_UNLIKELY(pf_socket_of(op)->end != NULL)) {
        return call_in_memory(op, which, argument);
    }
    PyObject *const arguments[] = {op, argument};
    return PyObject_Vectorcall(found[which], arguments,
                               argument == NULL ? 1 : 2, NULL);
}

int
pf_base_int(PyObject *op, PfBase which, long *value)
{
    PyObject *number = pf_base_get(op, which);
    *value = number == NULL ? -1 : PyLong_AsLong(number);
    Py_XDECREF(number);
    return *value == -1 && PyErr_Occurred() ? -1 : 0;
}

int
pf_base_timeout(PyObject *seconds, int64_t *timeout)
{
    int rc = seconds == NULL ? -1 : pf_socket_parse_timeout(seconds, timeout);
    Py_XDECREF(seconds);
    return rc;
}

int
pf_base_default_timeout(int64_t *timeout)
{
    return pf_base_timeout(PyObject_CallNoArgs(default_timeout), timeout);
}

int
pf_base_begin_class(PyObject *op)
{
    PyObject *zero = PyLong_FromLong(0);
    int rc = zero == NULL ? -1 : PyObject_SetAttr(op, io_refs, zero);
    Py_XDECREF(zero);
    return rc < 0 ? -1 : PyObject_SetAttr(op, closed, Py_False);
}
