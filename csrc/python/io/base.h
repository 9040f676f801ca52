/* Methods and attributes of the standard class _socket.socket, found once and
 * called without a look-up, so overrides in Python code are not called.  For a
 * socket in memory (inmemory.c) they are those of its endpoint, which takes
 * the place of that class.
 */
#ifndef PF_IO_BASE_H
#define PF_IO_BASE_H

#include "python/core/pyinclude.h"

typedef enum PfBase {
    PF_BASE_ACCEPT,
    PF_BASE_CLOSE,
    PF_BASE_CONNECT,
    PF_BASE_DETACH,
    PF_BASE_FILENO,
    PF_BASE_GETSOCKOPT,
    PF_BASE_GETTIMEOUT,
    PF_BASE_RECVFROM,
    PF_BASE_RECVFROM_INTO,
    PF_BASE_SENDTO,
    PF_BASE_SETBLOCKING,
#if !defined(_WIN32)
    PF_BASE_RECVMSG,
    PF_BASE_RECVMSG_INTO,
    PF_BASE_SENDMSG,
#endif
    PF_BASE_FAMILY,
    PF_BASE_TYPE,
    PF_BASE_PROTO,
    PF_BASE_COUNT,
} PfBase;

extern PyTypeObject *pf_base_type; /* constant after import */

/* Finds the type and its attributes, once.  Returns 0, or -1 with an
 * exception. */
int pf_base_init(void);
/* Returns what the class has under that name, unbound: a borrowed
 * reference. */
PyObject *pf_base_descriptor(PfBase which);
/* Returns the method, bound to the object, or the attribute's value: a new
 * reference. */
PyObject *pf_base_get(PyObject *op, PfBase which);
/* Calls the method, with one argument unless that is NULL. */
PyObject *pf_base_call(PyObject *op, PfBase which, PyObject *argument);
/* Converts a result of gettimeout() or a similar function to nanoseconds.
 * Takes over the reference; NULL means that the function has raised.  Returns
 * 0 or -1. */
int pf_base_timeout(PyObject *seconds, int64_t *timeout);
/* Finds the default timeout of new sockets, in nanoseconds.  Returns 0 or
 * -1. */
int pf_base_default_timeout(int64_t *timeout);
/* Sets the attributes that socket.socket.__init__ sets in addition to those of
 * _socket.socket.  Returns 0 or -1. */
int pf_base_begin_class(PyObject *op);
/* Reads an attribute that is an int.  Returns 0 or -1. */
int pf_base_int(PyObject *op, PfBase which, long *value);

#endif
