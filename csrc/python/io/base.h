/* What the standard classes do themselves: methods and attributes of
 * _socket.socket, past what Python code makes of them, found once.  Of a socket
 * in memory they are those of what stands in for that class.
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

/* Finds them, once: 0, or -1 with an exception. */
int pf_base_init(void);
/* As the class has it: borrowed. */
PyObject *pf_base_descriptor(PfBase which);
/* The method, bound to the object; or the attribute's value.  A new reference.
 */
PyObject *pf_base_get(PyObject *op, PfBase which);
/* Call the method, with one argument unless that is NULL. */
PyObject *pf_base_call(PyObject *op, PfBase which, PyObject *argument);
/* Nanoseconds of what a function has returned (stolen; NULL: it has raised): 0
 * or -1. */
int pf_base_timeout(PyObject *seconds, int64_t *timeout);
/* Nanoseconds that a new socket's operations may take: 0 or -1. */
int pf_base_default_timeout(int64_t *timeout);
/* What the class of the module `socket` sets beside that; 0 or -1. */
int pf_base_begin_class(PyObject *op);
/* An attribute that is an int: 0 or -1. */
int pf_base_int(PyObject *op, PfBase which, long *value);

#endif
