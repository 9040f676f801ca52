/* The native socket: a subclass of socket.socket that parks fibers.
 *
 * The descriptor never blocks.  The timeout that the program has set is kept
 * in PfSocket.  The standard base class believes in a timeout of 0, so its
 * methods, which do what is rarely needed, return at once when they would
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

/* Follows the base class's part of the object. */
typedef struct PfSocket {
    intptr_t number;
    uint64_t owner;  /* of `number`, see descriptor.h; 0: it is closed */
    int64_t timeout; /* nanoseconds; PF_NEVER: none; 0: never wait */
    const pf_net_ops *net;
    pf_end *end;            /* in memory; NULL: a socket of the system */
    PfThread *user;         /* has used it last; only compared */
    bool several_users : 1; /* other threads have used it before */
    bool internet : 1;      /* addresses may contain a host's name */
    bool tcp : 1;           /* after a short transfer the next would block */
    bool turns : 1;         /* several fibers may wait, instead of FiberError:
                               datagrams, listeners, patched code */
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

/* One operation of a socket, which may need several attempts. */
typedef struct PfIo {
    PyObject *op;
    PfSocket *sock;
    PfThread *t;
    pf_scheduler *s;   /* NULL: the thread blocks */
    pf_descriptor *at; /* the descriptor's record, in a run */
    uint64_t owner;    /* PfSocket.owner when the operation began */
    pf_direction direction;
    bool at_once; /* never wait, because of the operation's flags */
    bool timed;   /* `deadline` is set */
    int64_t deadline;
    const char *late; /* the message of TimeoutError */
} PfIo;

/* What is to be sent, or where to receive. */
typedef struct PfBytes {
    char *data;
    size_t size;
    int flags;
} PfBytes;

/* Calls the system once.  Returns how many bytes have moved, or
 * -errno. */
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

/* Begins an operation; a cancellation point.  Returns 0, or -1 with an
 * exception: the socket is closed, another fiber does the same, or this one
 * has been cancelled.  pf_socket_transfer_is_blocked() says whether an attempt
 * is due. */
int pf_socket_transfer_begin(PfIo *io, PyObject *op, pf_direction direction);
/* The same for a part of an operation, which is no cancellation point. */
int pf_socket_transfer_begin_part(PfIo *io, PfThread *t, PyObject *op,
                                  pf_direction direction);
/* Is it known that an attempt would block?  False for sockets and operations
 * that never wait: they ask the system each time. */
static inline bool
pf_socket_transfer_is_blocked(const PfIo *io)
{
    return io->s != NULL && !pf_descriptor_may(io->at, io->direction) &&
           io->sock->timeout != 0 && !io->at_once;
}
/* Waits, because an attempt would block.  Returns 0 if the caller is to try
 * again, and -1 with an exception. */
int pf_socket_transfer_wait(PfIo *io);
/* Ends the operation, successful or not: the next waiting fiber may try. */
void pf_socket_transfer_end(PfIo *io);

/* One attempt at an operation.  Returns a number, or -errno. */
typedef int64_t (*PfTry)(PfIo *io, void *with);

static inline bool
pf_socket_would_block(int64_t error)
{
    return error == -EAGAIN || error == -EWOULDBLOCK;
}

/* Tries until the operation does not block.  Returns the number, or -1 with an
 * exception, which a signal handler may have raised. */
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

/* Waits until some bytes have moved.  Returns how many; -1 with an
 * exception. */
Py_ssize_t pf_transfer_move(PfIo *io, const PfBytes *bytes);
/* Sets the attribute `sent` of the exception that is set: how many bytes
 * went. */
void pf_transfer_set_sent(Py_ssize_t sent);

/* Returns the thread's buffer for receiving, PF_SHARED_BUFFER bytes, or NULL
 * with an exception.  The caller must copy what it receives there before any
 * other code runs. */
#define PF_SHARED_BUFFER ((size_t)256 * 1024)
char *pf_transfer_shared_buffer(PfThread *t);

/* Returns the deadline of an operation that begins now.  Without `s` the
 * thread blocks, and the deadline is a time of the monotonic clock. */
int64_t pf_socket_deadline(const PfSocket *sock, pf_scheduler *s);
/* Raises FiberError, because another fiber does the same; returns -1. */
int pf_socket_busy_error(pf_direction direction);
/* Raises OSError (EBADF); returns -1. */
int pf_socket_closed_error(void);
/* Sees to it that a wait for the descriptor of `op` that is made now ends when
 * the socket is closed.  Does nothing for an object that is not a socket of
 * ours. Returns 0; -1 with an exception if the socket is closed. */
int pf_socket_claim(PfThread *t, PyObject *op);
/* Makes the object the owner of the descriptor. */
void pf_socket_begin(PyObject *op, intptr_t number, long family, long type,
                     int64_t timeout);
/* The same for a descriptor that the standard class has taken over, with the
 * timeout that this class knows.  Returns 0 or -1. */
int pf_socket_adopt(PyObject *op, intptr_t number, long family, long type);
/* Converts seconds or None to nanoseconds.  Returns 0, or -1 with an
 * exception. */
int pf_socket_parse_timeout(PyObject *timeout, int64_t *ns);
extern PyMethodDef pf_transfer_methods[];
PyObject *pf_socket_connect(PyObject *op, PyObject *address);
/* The base class's _accept(): returns (descriptor, address). */
PyObject *pf_socket_accept(PyObject *op);

/* --- accept.c --- */
/* _accept_as(type): returns a socket of that type, and the other end's
 * address. */
PyObject *pf_socket_accept_as(PyObject *op, PyObject *type);

/* --- inmemory.c --- */
/* Returns the network in memory that new sockets of this run use, borrowed; or
 * NULL. */
PyObject *pf_inmemory_network(void);
/* Returns the class of a new socket of the network: a new reference, or
 * NULL. */
PyTypeObject *pf_inmemory_network_class(PyObject *network, PyTypeObject *asked,
                                        PyObject *args, PyObject *kwargs);
/* Returns the end of an object that is a _MemoryEnd, borrowed; NULL for any
 * other object. */
pf_end *pf_inmemory_end(PyObject *op);
/* Returns the run that the end belongs to, if that is this thread's run; else
 * NULL with FiberError. */
pf_scheduler *pf_inmemory_run(const pf_end *end, PfThread *t);
/* Asks the network what happens to what the socket sends next, if the network
 * has a say in that.  May run any code.  Returns 0, or -1 with an
 * exception. */
int pf_inmemory_ask(PyObject *op, pf_direction direction);
/* wait_readable() and wait_writable() of such a socket; parameters and results
 * as those of pf_readiness_wait_for_number(). */
int pf_inmemory_wait(PfThread *t, PyObject *op, pf_direction direction,
                     int64_t length);
PyObject *pf_socket_begin_in_memory(PyObject *op, PyObject *args);
PyObject *pf_socket_number(PyObject *op, PyObject *ignored);
/* Drops the socket's reference to its end, at the end of the socket's life. */
void pf_socket_leave_memory(PfSocket *sock);

/* --- address.c --- */
/* Returns the address with a number in place of a host's name, which it looks
 * up; the fiber parks meanwhile.  A new reference, or NULL. */
PyObject *pf_socket_resolved(PyObject *op, PyObject *address);
/* The same for the address at index `place` of a tuple of arguments; returns a
 * new tuple. */
PyObject *pf_socket_resolved_in(PyObject *op, PyObject *args,
                                Py_ssize_t place);
/* Returns a copy of the tuple with another item at index `place`; or NULL. */
PyObject *pf_address_tuple(PyObject *args, Py_ssize_t place, PyObject *item);

#endif
