/* Looks up the names of hosts in addresses.  The base class would do that,
 * too, but would block its thread meanwhile. */
#include "python/io/socket.h"

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <winsock2.h>
#include <ws2tcpip.h>
#else
#include <arpa/inet.h>
#include <sys/socket.h>
#endif

static bool
is_number(const char *host)
{
    unsigned char out[16];
    if (inet_pton(AF_INET, host, out) == 1) {
        return true;
    }
#if defined(AF_INET6)
    return inet_pton(AF_INET6, host, out) == 1;
#else
    return false;
#endif
}

/* A host that is not a str, or that cannot be encoded, is left to
 * pyfiber.dns. */
static bool
is_name(PyObject *host)
{
    if (PyUnicode_Check(host) && PyUnicode_IS_ASCII(host)) {
        return !is_number((const char *)PyUnicode_1BYTE_DATA(host));
    }
    return true;
}

PyObject *
pf_socket_resolved(PyObject *op, PyObject *address)
{
    if (!pf_socket_of(op)->internet || !PyTuple_Check(address) ||
        PyTuple_GET_SIZE(address) == 0 ||
        !is_name(PyTuple_GET_ITEM(address, 0))) {
        return Py_NewRef(address);
    }
    return PyObject_CallMethod(op, "_resolved", "(O)", address);
}

PyObject *
pf_address_tuple(PyObject *args, Py_ssize_t place, PyObject *item)
{
    PyObject *all = PyTuple_New(PyTuple_GET_SIZE(args));
    for (Py_ssize_t i = 0; all != NULL && i < PyTuple_GET_SIZE(args); i++) {
        PyObject *arg = i == place ? item : PyTuple_GET_ITEM(args, i);
        PyTuple_SET_ITEM(all, i, Py_NewRef(arg));
    }
    return all;
}

PyObject *
pf_socket_resolved_in(PyObject *op, PyObject *args, Py_ssize_t place)
{
    PyObject *number = pf_socket_resolved(op, PyTuple_GET_ITEM(args, place));
    PyObject *all =
        number == NULL ? NULL : pf_address_tuple(args, place, number);
    Py_XDECREF(number);
    return all;
}
