/* One attempt at an operation on a socket of the standard class that never
 * waits, whatever the socket's timeout is.  Linux only.
 *
 * A standard socket with a timeout asks the system whether it is ready before
 * each operation, and blocks in that; a socket without one blocks in the
 * operation itself.  So the operation is called on a twin: another object of
 * the C class that has the same descriptor, believes that the descriptor is
 * non-blocking, and gives it up before anything else can happen.  (In Python,
 * an exception between two lines could make the twin close the descriptor,
 * which is not its own.)
 */
#include "python/core/arguments.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/io/base.h"
#include "python/io/waiting.h"
#include "python/patch/patch.h"

#include <errno.h>

#if defined(__linux__)
#include <fcntl.h>
#include <sys/socket.h>

#define MOST_ARGUMENTS 6

/* Returns the value of the socket's attribute, or of fileno(): an int that is
 * not negative; -1 with an exception, or from fileno() of a closed socket. */
static long
number_of(PyObject *sock, PfBase which)
{
    PyObject *found = pf_base_descriptor(which);
    PyObject *value = which == PF_BASE_FILENO
                          ? PyObject_CallOneArg(found, sock)
                          : Py_TYPE(found)->tp_descr_get(
                                found, sock, (PyObject *)Py_TYPE(sock));
    long number = value == NULL ? -1 : PyLong_AsLong(value);
    Py_XDECREF(value);
    return number;
}

static PyObject *
make_twin(PyObject *sock, long number)
{
    long family = number_of(sock, PF_BASE_FAMILY);
    long type = number_of(sock, PF_BASE_TYPE);
    long proto = number_of(sock, PF_BASE_PROTO);
    return PyErr_Occurred()
               ? NULL
               : PyObject_CallFunction((PyObject *)pf_base_type, "llll",
                                       family, type | SOCK_NONBLOCK, proto,
                                       number);
}

/* Frees the twin without closing its descriptor; keeps an exception that is
 * set. */
static void
drop_twin(PyObject *twin)
{
    PyObject *pending = pystate_take_exception();
    PyObject *number =
        PyObject_CallOneArg(pf_base_descriptor(PF_BASE_DETACH), twin);
    if (number == NULL) {
        PyErr_Clear(); /* the twin has given up its descriptor all the same */
    }
    Py_XDECREF(number);
    Py_DECREF(twin);
    pystate_restore_exception(pending);
}

/* Makes the descriptor non-blocking during the call, for connect() and
 * accept(), which have no flag for that. */
static PyObject *
call_unblocked(PyObject *method, PyObject *const *args, size_t count,
               int number)
{
    int flags = fcntl(number, F_GETFL);
    bool blocks = flags >= 0 && (flags & O_NONBLOCK) == 0;
    if (blocks) {
        (void)fcntl(number, F_SETFL, flags | O_NONBLOCK);
    }
    PyObject *result = PyObject_Vectorcall(method, args, count, NULL);
    if (blocks) {
        (void)fcntl(number, F_SETFL, flags);
    }
    return result;
}

static PyObject *
try_once(PyObject *sock, PyObject *method, PyObject *const *args,
         Py_ssize_t count, bool has_flag)
{
    PyObject *with[MOST_ARGUMENTS + 1];
    long number = number_of(sock, PF_BASE_FILENO);
    if (number < 0) {
        return PyErr_Occurred() ? NULL
                                : (pf_io_error(-EBADF), (PyObject *)NULL);
    }
    with[0] = make_twin(sock, number);
    if (with[0] == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        with[i + 1] = args[i];
    }
    size_t all = (size_t)count + 1;
    PyObject *result = has_flag
                           ? PyObject_Vectorcall(method, with, all, NULL)
                           : call_unblocked(method, with, all, (int)number);
    drop_twin(with[0]);
    return result;
}

/* _at_once(socket, method, has_flag, *args) */
static PyObject *
at_once(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    if (nargs < 3 || nargs - 3 > MOST_ARGUMENTS || pf_base_init() < 0 ||
        !PyObject_TypeCheck(args[0], pf_base_type)) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_TypeError, "_at_once() takes a socket, a "
                                             "method, and its arguments");
        }
        return NULL;
    }
    PfThread *t = pf_thread_current;
    if (t != NULL && pf_io_scheduler(t) != NULL && pf_io_charge(t, true) < 0) {
        return NULL;
    }
    return try_once(args[0], args[1], args + 3, nargs - 3, args[2] == Py_True);
}

static PyMethodDef functions[] = {
    {"_at_once", PF_FAST(at_once), METH_FASTCALL,
     "_at_once(socket, method, has_flag, /, *args)\n--\n\n"
     "Call a method of _socket.socket without waiting: BlockingIOError.\n"
     "has_flag: the arguments contain a flag that makes it non-blocking."},
    {NULL, NULL, 0, NULL},
};

#else

static PyMethodDef functions[] = {{NULL, NULL, 0, NULL}};

#endif

int
pf_standard_init(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
