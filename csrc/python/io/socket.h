/* The native socket: a subclass of socket.socket that parks fibers.
 *
 * Its descriptor never blocks.  What the program set as its timeout is kept
 * here; the standard base class believes in a timeout of 0, so that its own
 * methods, which do what is rare here, come back at once when they would
 * block.
 */
#ifndef PF_IO_SOCKET_H
#define PF_IO_SOCKET_H

#include "python/core/pyinclude.h"

#include "engine/io/descriptor.h"
#include "engine/io/inmemory.h"
#include "engine/io/net.h"
#include "python/core/thread.h"
#include "python/io/waiting.h"

#include <errno.h>

/* Behind the base class's own part of the object. */
typedef struct PfSocket {
    intptr_t number;
    uint64_t owner;  /* of that number, see descriptor.h; 0: it has none */
    int64_t timeout; /* nanoseconds; PF_NEVER: none; 0: never wait */
    const pf_net_ops *net;
    pf_end *end;            /* in memory; NULL: a socket of the system */
    PfThread *user;         /* waited last; to compare, not to follow */
    bool several_users : 1; /* ... and others before */
    bool internet : 1;      /* its addresses may have names of hosts */
    bool tcp : 1;           /* less than was asked for: all is read */
    bool turns : 1;         /* others wait: datagrams, a listener, a patch */
    bool patched : 1;       /* made by code that patch() serves */
} PfSocket;

/* constant after import of pyfiber.socket; NULL before */
extern PyTypeObject *pf_socket_type;
extern Py_ssize_t pf_socket_offset;

static inline PfSocket *
pf_socket_of(PyObject *op)
{
    return (PfSocket *)(void *)((char *)op + pf_socket_offset);
}

/* One operation of a socket, which may have to try several times. */
typedef struct PfIo {
    PyObject *op;
    PfSocket *sock;
    PfThread *t;
    pf_scheduler *s;   /* NULL: the thread blocks */
    pf_descriptor *at; /* in a run */
    uint64_t owner;    /* as it was */
    pf_direction direction;
    bool at_once; /* by its flags: never wait */
    bool timed;   /* `deadline` is set */
    int64_t deadline;
    const char *late; /* what TimeoutError says */
} PfIo;

/* What is to be moved. */
typedef struct PfBytes {
    char *data;
    size_t size;
    int flags;
} PfBytes;

/* One operation of the system: how many bytes have moved, or -errno. */
static inline int64_t
pf_socket_step(const PfSocket *sock, pf_direction direction,
               const PfBytes *bytes)
{
    return direction == PF_READING
               ? sock->net->recv(sock->end, sock->number, bytes->data,
                                 bytes->size, bytes->flags)
               : sock->net->send(sock->end, sock->number, bytes->data,
                                 bytes->size, bytes->flags);
}

/* 0, or -1 with an exception: it is closed, another fiber does the same, or
 * this one is cancelled.  No try is due yet if pf_socket_transfer_is_blocked. */
int pf_socket_transfer_begin(PfIo *io, PyObject *op, pf_direction direction);
/* The same for a part of an operation: no cancellation point. */
int pf_socket_transfer_begin_part(PfIo *io, PfThread *t, PyObject *op,
                                  pf_direction direction);
/* Not for sockets that never wait: they ask the system each time. */
static inline bool
pf_socket_transfer_is_blocked(const PfIo *io)
{
    return io->s != NULL && !pf_descriptor_may(io->at, io->direction) &&
           io->sock->timeout != 0 && !io->at_once;
}
/* It would block: wait.  0: try again; -1 with an exception. */
int pf_socket_transfer_wait(PfIo *io);
/* It is done, well or not: others that stand in line may try. */
void pf_socket_transfer_end(PfIo *io);

/* One try of an operation: a number, or -errno. */
typedef int64_t (*PfTry)(PfIo *io, void *with);

static inline bool
pf_socket_would_block(int64_t error)
{
    return error == -EAGAIN || error == -EWOULDBLOCK;
}

/* Try until it does not block: the number, or -1 with an exception.  A signal's
 * handler may raise. */
static inline int64_t
pf_socket_transfer_until(PfIo *io, PfTry once, void *with)
{
    int64_t result = -EAGAIN;
    for (;;) {
        if (!pf_socket_transfer_is_blocked(io)) {
            result = once(io, with);
        }
        if (result >= 0) {
            return result;
        }
        int rc = result == -EINTR                ? PyErr_CheckSignals()
                 : pf_socket_would_block(result) ? pf_socket_transfer_wait(io)
                                                 : pf_io_error(result);
        if (rc < 0) {
            return -1;
        }
    }
}

/* Wait until some bytes have moved: how many; -1 with an exception. */
Py_ssize_t pf_transfer_move(PfIo *io, const PfBytes *bytes);
/* The exception that is set learns how much has gone: `sent`. */
void pf_transfer_tell(Py_ssize_t sent);

/* The thread's buffer for what comes, or NULL with an exception.  Whoever gets
 * bytes there copies them before any other code runs. */
#define PF_SHARED_BUFFER ((size_t)256 * 1024)
char *pf_transfer_shared_buffer(PfThread *t);

/* When an operation that begins now must be over; `s`: NULL, it blocks. */
int64_t pf_socket_deadline(const PfSocket *sock, pf_scheduler *s);
/* -1 with FiberError: another fiber does the same. */
int pf_socket_busy_error(pf_direction direction);
int pf_socket_closed_error(void);
/* `op` is any object.  If it is a socket of ours, a wait for its number that is
 * made now ends when it is closed. 0; -1 with an exception: it is closed. */
int pf_socket_claim(PfThread *t, PyObject *op);
/* The number is this object's. */
void pf_socket_begin(PyObject *op, intptr_t number, long family, long type,
                     int64_t timeout);
/* The same for one that the standard class has taken over; 0 or -1. */
int pf_socket_adopt(PyObject *op, intptr_t number, long family, long type);
/* Seconds or None; 0, or -1 with an exception. */
int pf_socket_parse_timeout(PyObject *timeout, int64_t *ns);
extern PyMethodDef pf_transfer_methods[];
PyObject *pf_socket_connect(PyObject *op, PyObject *address);
/* The base class's accept: (number, address). */
PyObject *pf_socket_accept(PyObject *op);

/* --- accept.c --- */
/* _accept_as(type): a socket of that type, and the other end's address. */
PyObject *pf_socket_accept_as(PyObject *op, PyObject *type);

/* --- inmemory.c --- */
/* The network that new sockets of this run belong to, borrowed; or NULL. */
PyObject *pf_inmemory_network(void);
/* The class of a new socket there: a new reference, or NULL. */
PyTypeObject *pf_inmemory_network_class(PyObject *network, PyTypeObject *asked,
                                        PyObject *args, PyObject *kwargs);
/* The run that the end belongs to, if it runs here; or NULL with FiberError. */
pf_scheduler *pf_inmemory_run(const pf_end *end, PfThread *t);
/* wait_readable() and wait_writable() of such a socket: as
 * pf_readiness_wait_for_number. */
int pf_inmemory_wait(PfThread *t, PyObject *op, pf_direction direction,
                     int64_t length);
PyObject *pf_socket_begin_in_memory(PyObject *op, PyObject *args);
PyObject *pf_socket_number(PyObject *op, PyObject *ignored);
/* For the last time: the end is not the socket's any more. */
void pf_socket_leave_memory(PfSocket *sock);

/* --- address.c --- */
/* The address with a number in place of a host's name.  It parks if there is
 * one.  A new reference. */
PyObject *pf_socket_resolved(PyObject *op, PyObject *address);
/* The same of the one that is at that place of a tuple of arguments. */
PyObject *pf_socket_resolved_in(PyObject *op, PyObject *args,
                                Py_ssize_t place);
/* A new tuple, with another item at that place; or NULL. */
PyObject *pf_address_tuple(PyObject *args, Py_ssize_t place, PyObject *item);

#endif
