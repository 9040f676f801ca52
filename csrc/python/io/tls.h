/* TLS over a socket that parks fibers.
 *
 * The interpreter's module _ssl does the work.  The object that it calls an
 * SSLObject is the session here: it reads from a buffer in memory, `incoming`,
 * and writes to another, `outgoing`, instead of using a descriptor.  The code
 * here moves bytes between these buffers and the socket; fibers wait there.
 *
 * - The session is called only when there is something for it to do, because
 *   reporting "I want to read" costs it an exception.
 * - Everything that has come is read at once, instead of the head of a record
 *   and then its rest: one system call for each direction.
 *
 * One fiber may read and one may write at the same time, and others may begin
 * or end the connection.  A reader may have to write (a key update), and a
 * writer to read (a handshake).  Only one fiber at a time is inside the
 * session, since the session lets other threads run, and may call Python code
 * (for the server's name) that parks.  Every fiber that waits for what another
 * one does is in one queue, `changes`, and looks again whenever it is woken.
 *
 * Bytes taken from the socket or from the session belong to the connection,
 * not to the fiber that took them.  So a cancelled fiber leaves nothing half
 * done.
 */
#ifndef PF_IO_TLS_H
#define PF_IO_TLS_H

#include "python/io/socket.h"
#include "python/waitq/waitq.h"

/* Follows the bytes received, to know where the last TLS record ends. */
typedef struct PfRecords {
    unsigned char head[5]; /* the last two bytes: the length of the rest */
    unsigned have;         /* bytes of the head that have come */
    size_t left;           /* bytes of the rest that are missing */
    size_t partial;        /* bytes after the last whole record */
} PfRecords;

typedef struct TlsObject {
    PyObject_HEAD
    PyObject *session;
    PyObject *incoming, *outgoing;
    PyObject *socket; /* a weak reference: the socket refers to this object */
    PfWaitq changes;  /* waiters for a change of holder or of a flag below */
    FiberObject *holder;   /* the fiber inside the session; no reference */
    bool feeding;          /* a fiber is receiving */
    bool flushing;         /* a fiber is sending */
    bool reading, writing; /* a whole read() or write() is in progress */
    bool more;             /* `outgoing` has bytes to send after `unsent` */
    bool drained;          /* the session has nothing to be read */
    uint64_t fed;          /* how often bytes have come */
    PfRecords records;
    PyObject *arrived; /* bytes for `incoming`, b"" at the end; or NULL */
    PyObject *unsent;  /* bytes from `outgoing`, or NULL */
    Py_ssize_t sent;   /* how many of the unsent bytes have gone */
    /* Data that write() had encrypted when it failed to send all of it, or
     * NULL. If the caller retries with the same data, as with OpenSSL, these
     * bytes are not sent twice. */
    PyObject *owed;
    /* Data decrypted before a read() asked for it, so that writing could be
     * ended; or NULL. */
    PyObject *ahead;
} TlsObject;

/* The state of one operation on the connection. */
typedef struct PfTlsOp {
    TlsObject *tls;
    PyObject *socket;
    PfThread *t;
    const char *late; /* the message of TimeoutError */
    bool timed;       /* `deadline` is set */
    int64_t deadline;
    uint64_t seen; /* `fed` at the time of the last call of the session */
    bool exact;    /* receive no byte beyond the TLS record */
    bool aside;    /* leave what has arrived to the readers */
    bool reads;    /* do not wait until others' bytes have been sent */
    bool wrote;    /* the session wrote bytes in the last call */
} PfTlsOp;

/* constant after import of pyfiber.ssl */
typedef struct PfTlsNames {
    PyObject *want_read, *want_write, *eof, *error; /* exceptions */
    PyObject *read, *write, *write_eof, *pending, *do_handshake, *shutdown;
    PyObject *most; /* bytes in a record, as an int */
} PfTlsNames;
extern PfTlsNames pf_tls;
extern const char pf_tls_reading_late[], pf_tls_writing_late[];

#define PF_TLS_RECORD 16384 /* most bytes of data in a record */

/* Begins an operation; a cancellation point.  Returns 0 or -1. */
int pf_tls_begin(PfTlsOp *op, TlsObject *tls, const char *late);
void pf_tls_end(PfTlsOp *op);

/* Calls a method of the session, with one argument unless that is NULL, as
 * often as it takes.  Returns its result, or NULL. */
PyObject *pf_tls_perform(PfTlsOp *op, PyObject *name, PyObject *argument);
/* Calls a method of the session once.  Returns 0 and the result, 1 if the
 * session has to read first, and -1 with an exception. */
int pf_tls_ask(PfTlsOp *op, PyObject *name, PyObject *const *arguments,
               size_t count, PyObject **result);
/* Sends everything that the session has written.  Returns 0 or -1. */
int pf_tls_flush(PfTlsOp *op);
/* Sends as much of `unsent` as goes without waiting.  Raises nothing. */
void pf_tls_flush_at_once(TlsObject *tls);
/* Drops the bytes in `unsent`.  No fiber may be sending. */
void pf_tls_forget_unsent(TlsObject *tls);
/* Waits until bytes may have come since the session was last called.  Before
 * that, sends what the other end may be waiting for.  Returns 0 if the caller
 * is to call the session again, and -1 with an exception. */
int pf_tls_feed(PfTlsOp *op);
/* Gives the session what has arrived.  No other fiber may be inside it.
 * Returns 0 or -1. */
int pf_tls_absorb(TlsObject *tls);

/* Waits until another fiber has changed something.  Returns 0 if the caller is
 * to look again, else -1. */
int pf_tls_await_change(PfTlsOp *op, pf_direction direction);
/* Waits until *flag is free, and takes it for an operation in that direction.
 * Returns 0 or -1. */
int pf_tls_claim(PfTlsOp *op, bool *flag, pf_direction direction);
void pf_tls_unclaim(TlsObject *tls, bool *flag);

/* Methods of the type, in tls_end.c. */
PyObject *pf_tls_do_handshake(PyObject *self, PyObject *ignored);
PyObject *pf_tls_shutdown(PyObject *self, PyObject *ignored);
PyObject *pf_tls_end_write(PyObject *self, PyObject *ignored);
PyObject *pf_tls_say_end(PyObject *self, PyObject *ignored);

/* Returns the number of bytes in a buffer in memory; -1 with an exception. */
Py_ssize_t pf_tls_pending(PyObject *buffer);

#endif
