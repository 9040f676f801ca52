/* TLS over a socket that parks.
 *
 * The interpreter's own module _ssl does the work, on two buffers in memory in
 * place of a descriptor: it reads from `incoming` and writes to `outgoing`.
 * What it calls its SSLSocket is the session here.  This code carries bytes
 * between the buffers and the socket, and it is there that fibers wait.  So
 *
 * - the session is asked only when there is something for it: to be told "I
 *   want to read" costs it an exception;
 * - what comes is read at once, not a record's head first and then the rest:
 *   one system call for each way.
 *
 * One fiber reads and one writes, perhaps at the same time, and others may make
 * or end the connection; a reader may have to write (a key update), a writer to
 * read (a handshake).  Nobody enters the session while another is in there: it
 * lets other threads run, and may call Python code (for the server's name) that
 * parks.  All that waits for another's doing stands in one line, `changes`, and
 * looks again when it is called.
 *
 * What has been taken from the socket or from the session belongs to the
 * connection, not to the fiber that took it: a fiber that is cancelled leaves
 * nothing half-done behind.
 */
#ifndef PF_IO_TLS_H
#define PF_IO_TLS_H

#include "python/io/socket.h"
#include "python/waitq/waitq.h"

/* Where among TLS records the bytes end that have come. */
typedef struct PfRecords {
    unsigned char head[5]; /* its last two bytes: how long the rest is */
    unsigned have;         /* of the head */
    size_t left;           /* of the rest */
    size_t partial;        /* bytes after the last whole record */
} PfRecords;

typedef struct TlsObject {
    PyObject_HEAD
    PyObject *session;
    PyObject *incoming, *outgoing;
    PyObject *socket; /* a weak reference: it has this object */
    PfWaitq changes;  /* those who wait for one of the next four to change */
    FiberObject *holder;   /* is in the session; not a reference */
    bool feeding;          /* somebody receives */
    bool flushing;         /* ... and sends */
    bool reading, writing; /* a whole read() or write() is under way */
    bool more;    /* `outgoing` has something, for when `unsent` has gone */
    bool drained; /* the session has nothing to be read */
    uint64_t fed; /* how often something has come */
    PfRecords records;
    PyObject *arrived; /* bytes for `incoming`, b"" at the end; or NULL */
    PyObject *unsent;  /* bytes from `outgoing`, or NULL */
    Py_ssize_t sent;   /* of them */
    /* What write() had encrypted when it failed to send it all: as with OpenSSL,
     * who tries the same again does not send it twice.  Or NULL. */
    PyObject *owed;
    /* Decrypted before somebody asked for it, so that writing could be ended;
     * or NULL. */
    PyObject *ahead;
} TlsObject;

/* An operation. */
typedef struct PfTlsOp {
    TlsObject *tls;
    PyObject *socket;
    PfThread *t;
    const char *late; /* what TimeoutError says */
    bool timed;       /* `deadline` is set */
    int64_t deadline;
    uint64_t seen; /* of `fed`, when the session was asked */
    bool exact;    /* take no byte too much from the socket */
    bool aside;    /* leave what has arrived to those who read */
    bool reads;    /* it waits for no room to send what it has not written */
    bool wrote;    /* the session did, when it was asked */
} PfTlsOp;

/* constant after import of pyfiber.ssl */
typedef struct PfTlsNames {
    PyObject *want_read, *want_write, *eof, *error; /* exceptions */
    PyObject *read, *write, *write_eof, *pending, *do_handshake, *shutdown;
    PyObject *most; /* bytes in a record, as an int */
} PfTlsNames;
extern PfTlsNames pf_tls;
extern const char pf_tls_reading_late[], pf_tls_writing_late[];

#define PF_TLS_RECORD 16384 /* bytes in a record, at most */

/* 0 or -1.  A cancellation point. */
int pf_tls_begin(PfTlsOp *op, TlsObject *tls, const char *late);
void pf_tls_end(PfTlsOp *op);

/* A call of the session, seen to its end: its result, or NULL. */
PyObject *pf_tls_perform(PfTlsOp *op, PyObject *name, PyObject *argument);
/* The same once: 1: it wants to read. */
int pf_tls_ask(PfTlsOp *op, PyObject *name, PyObject *const *arguments,
               size_t count, PyObject **result);
/* All that the session has written goes out, or -1. */
int pf_tls_flush(PfTlsOp *op);
/* As much as goes without waiting; no error. */
void pf_tls_flush_at_once(TlsObject *tls);
/* What is to be sent is not wanted any more.  Nobody sends. */
void pf_tls_forget_unsent(TlsObject *tls);
/* Something has come since the session was asked, or -1.  What is to be sent
 * before is sent before. */
int pf_tls_feed(PfTlsOp *op);
/* What has arrived is the session's.  Nobody is in there.  0 or -1. */
int pf_tls_absorb(TlsObject *tls);

/* Wait for what somebody else is doing.  0: look again; -1. */
int pf_tls_await_change(PfTlsOp *op, pf_direction direction);
/* Wait until *flag is free, and take it: `direction` is that of its user. */
int pf_tls_claim(PfTlsOp *op, bool *flag, pf_direction direction);
void pf_tls_unclaim(TlsObject *tls, bool *flag);

/* Methods of the type, in tls_end.c. */
PyObject *pf_tls_do_handshake(PyObject *self, PyObject *ignored);
PyObject *pf_tls_shutdown(PyObject *self, PyObject *ignored);
PyObject *pf_tls_end_write(PyObject *self, PyObject *ignored);
PyObject *pf_tls_say_end(PyObject *self, PyObject *ignored);

/* Bytes in a buffer in memory; -1. */
Py_ssize_t pf_tls_pending(PyObject *buffer);

#endif
