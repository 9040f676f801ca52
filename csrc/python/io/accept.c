/* accept(): makes the new socket from what its listener knows, instead of
 * asking the system, and finds the address of the other end.
 */
#include "python/core/pyinclude.h"

#include "engine/io/net.h"
#include "python/io/base.h"
#include "python/io/socket.h"

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <winsock2.h>
#include <ws2tcpip.h>
#else
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#endif

/* What is known of a new connection.  `never_blocks` is SOCK_NONBLOCK if the
 * descriptor has been opened non-blocking, else 0.  The standard class is
 * given it as a part of the type. */
typedef struct New {
    intptr_t number;
    long family, type;
    int never_blocks;
} New;

#if defined(SOCK_NONBLOCK)
#define NEVER_BLOCKS SOCK_NONBLOCK
#else
#define NEVER_BLOCKS 0
#endif

/* ----------------------------------------------------------- the object */

/* Does what the standard class's __init__ does. */
static int
begin_standard(PyObject *made, PyObject *op, const New *new)
{
    long proto;
    if (pf_base_int(op, PF_BASE_PROTO, &proto) < 0) {
        return -1;
    }
    PyObject *args =
        Py_BuildValue("lllL", new->family, new->type | new->never_blocks,
                      proto, (long long)new->number);
    int rc = args == NULL ? -1 : pf_base_type->tp_init(made, args, NULL);
    Py_XDECREF(args);
    return rc;
}

/* Begins our part of the object.  The timeout is the module's default, as for
 * every new socket.  The standard class knows the default, unless it believes
 * that this socket never blocks. */
static int
begin_ours(PyObject *made, const New *new)
{
    int64_t timeout;
    if (new->never_blocks == 0) {
        return pf_socket_adopt(made, new->number, new->family, new->type);
    }
    if (pf_base_default_timeout(&timeout) < 0) {
        return -1;
    }
    pf_socket_begin(made, new->number, new->family, new->type, timeout);
    return 0;
}

/* Makes the socket's object.  As soon as the standard class has the
 * descriptor, it closes the descriptor when the object dies; before that, this
 * function closes it. */
static PyObject *
make(PyTypeObject *kind, PyObject *op, const New *new)
{
    PyObject *none = PyTuple_New(0);
    PyObject *made =
        none == NULL ? NULL : pf_base_type->tp_new(kind, none, NULL);
    Py_XDECREF(none);
    if (made == NULL || begin_standard(made, op, new) < 0) {
        pf_net_close(new->number);
        Py_CLEAR(made);
    } else if (pf_base_begin_class(made) < 0 || begin_ours(made, new) < 0) {
        Py_CLEAR(made);
    }
    return made;
}

/* ------------------------------------------------- the system's accept */

typedef struct Address {
    struct sockaddr_storage storage;
    size_t size;
} Address;

static int64_t
accept_once(PfIo *io, void *with)
{
    Address *from = with;
    from->size = sizeof from->storage;
    return pf_net_accept(io->sock->number, &from->storage, &from->size);
}

static bool
is_ours(const PfSocket *sock, long family)
{
    return PF_NET_ACCEPTS && sock->end == NULL &&
           (family == AF_INET || family == AF_INET6);
}

/* Writes the address as text.  inet_ntop() uses sprintf(), which takes fifteen
 * times as long. */
static void
print_host(const struct in_addr *host, char *text)
{
    unsigned char numbers[4];
    memcpy(numbers, host, sizeof numbers);
    for (int i = 0; i < 4; i++) {
        unsigned n = numbers[i];
        if (n >= 100) {
            *text++ = (char)('0' + n / 100);
        }
        if (n >= 10) {
            *text++ = (char)('0' + n / 10 % 10);
        }
        *text++ = (char)('0' + n % 10);
        *text++ = i < 3 ? '.' : '\0';
    }
}

static PyObject *
host_and_port(const Address *from)
{
    char host[INET6_ADDRSTRLEN];
    if (from->storage.ss_family == AF_INET) {
        const struct sockaddr_in *at = (const void *)&from->storage;
        print_host(&at->sin_addr, host);
        return Py_BuildValue("si", host, (int)ntohs(at->sin_port));
    }
    const struct sockaddr_in6 *at = (const void *)&from->storage;
    (void)inet_ntop(AF_INET6, &at->sin6_addr, host, sizeof host);
    return Py_BuildValue("siII", host, (int)ntohs(at->sin6_port),
                         (unsigned)ntohl(at->sin6_flowinfo),
                         (unsigned)at->sin6_scope_id);
}

/* Returns the new descriptor, or -1 with an exception. */
static int64_t
accept_native(PyObject *op, Address *from)
{
    PfIo io;
    if (pf_socket_transfer_begin(&io, op, PF_READING) < 0) {
        return -1;
    }
    int64_t number = pf_socket_transfer_until(&io, accept_once, from);
    pf_socket_transfer_end(&io);
    return number;
}

/* Accepts a connection natively.  Returns 0 and a new reference to the
 * address, or -1. */
static int
accept_internet(PyObject *op, New *new, PyObject **address)
{
    Address from;
    int64_t number = accept_native(op, &from);
    if (number < 0) {
        return -1;
    }
    new->number = (intptr_t)number;
    new->never_blocks = NEVER_BLOCKS;
    *address = host_and_port(&from);
    if (*address == NULL) {
        pf_net_close(new->number);
        return -1;
    }
    return 0;
}

/* The same by the standard class, which knows all kinds of addresses. */
static int
accept_any(PyObject *op, New *new, PyObject **address)
{
    PyObject *pair = pf_socket_accept(op);
    if (pair == NULL) {
        return -1;
    }
    new->number = (intptr_t)PyLong_AsLongLong(PyTuple_GET_ITEM(pair, 0));
    *address = Py_NewRef(PyTuple_GET_ITEM(pair, 1));
    Py_DECREF(pair);
    return 0;
}

PyObject *
pf_socket_accept_as(PyObject *op, PyObject *type)
{
    New new = {.number = -1};
    PyObject *address;
    if (!PyType_Check(type) ||
        !PyType_IsSubtype((PyTypeObject *)type, pf_socket_type)) {
        PyErr_SetString(PyExc_TypeError, "_accept_as() takes a socket type");
        return NULL;
    }
    if (pf_base_int(op, PF_BASE_FAMILY, &new.family) < 0 ||
        pf_base_int(op, PF_BASE_TYPE, &new.type) < 0) {
        return NULL;
    }
    int rc = is_ours(pf_socket_of(op), new.family)
                 ? accept_internet(op, &new, &address)
                 : accept_any(op, &new, &address);
    if (rc < 0) {
        return NULL;
    }
    PyObject *made = make((PyTypeObject *)type, op, &new);
    PyObject *result = made == NULL ? NULL : PyTuple_Pack(2, made, address);
    Py_XDECREF(made);
    Py_DECREF(address);
    return result;
}
