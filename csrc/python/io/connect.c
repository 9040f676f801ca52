/* connect(): begins it, waits for it, and asks the system how it ended. */
#include "python/core/arguments.h"
#include "python/io/base.h"
#include "python/io/socket.h"
#include "python/io/waiting.h"

#include <errno.h>
#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <winsock2.h>
#else
#include <sys/socket.h>
#endif

/* Takes over the reference to a result.  Returns an error's number, 0 if there
 * is none, and -1 with an exception. */
static long
number_and_drop(PyObject *result)
{
    long number = result == NULL ? -1 : PyLong_AsLong(result);
    Py_XDECREF(result);
    return number;
}

static long
begin_connect(PyObject *op, PyObject *address)
{
    return number_and_drop(pf_base_call(op, PF_BASE_CONNECT, address));
}

static long
ask_error(PyObject *op)
{
    PyObject *method = pf_base_get(op, PF_BASE_GETSOCKOPT);
    PyObject *result =
        method == NULL
            ? NULL
            : PyObject_CallFunction(method, "ii", SOL_SOCKET, SO_ERROR);
    Py_XDECREF(method);
    return number_and_drop(result);
}

static bool
is_under_way(long error)
{
#if defined(_WIN32)
    return error == WSAEWOULDBLOCK;
#else
    return error == EINPROGRESS || error == EINTR;
#endif
}

/* _connect(): returns the error's number or 0, as an int.  Ignores what is
 * remembered of the descriptor's readiness, which means nothing before the
 * socket is connected.  The descriptor becomes writable when the attempt has
 * ended. */
PyObject *
pf_socket_connect(PyObject *op, PyObject *address)
{
    PfIo io;
    PyObject *place = pf_socket_resolved(op, address);
    if (place == NULL || pf_socket_transfer_begin(&io, op, PF_WRITING) < 0) {
        Py_XDECREF(place);
        return NULL;
    }
    long error = begin_connect(op, place);
    if (is_under_way(error) && io.sock->timeout != 0) {
        error = pf_socket_transfer_wait(&io) < 0 ? -1 : ask_error(op);
    }
    pf_socket_transfer_end(&io);
    Py_DECREF(place);
    return error < 0 ? NULL : PyLong_FromLong(error);
}
