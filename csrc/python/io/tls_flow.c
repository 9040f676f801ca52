/* Moves bytes between a TLS session and its socket: see tls.h. */
#include "python/io/tls.h"

#include "python/core/compiler.h"
#include "python/core/state.h"
#include "python/core/tstate.h"
#include "python/io/waiting.h"
#include "python/wait/in_line.h"

#include <errno.h>

/* How many bytes are received at a time: several records.  More would leave
 * the processor's nearest cache before they are decrypted. */
#define AT_A_TIME ((size_t)64 * 1024)

/* -------------------------------------------------------- an operation --- */

static PyObject *
socket_of(const TlsObject *tls)
{
    PyObject *socket =
        tls->socket == NULL ? Py_None : PyObject_CallNoArgs(tls->socket);
    if (socket == Py_None) {
        pf_socket_closed_error();
        return NULL;
    }
    return tls->socket == NULL ? NULL : socket;
}

int
pf_tls_begin(PfTlsOp *op, TlsObject *tls, const char *late)
{
    PfThread *t = pf_thread_this();
    if (t == NULL) {
        return -1;
    }
    bool parks = pf_io_scheduler(t) != NULL;
    PyObject *socket = socket_of(tls);
    if (socket == NULL) {
        return -1;
    }
    int yielded = parks ? pf_io_charge(t, pf_socket_of(socket)->patched) : 0;
    if (yielded != 0) { /* another fiber may have detached the socket */
        Py_DECREF(socket);
        socket = yielded < 0 ? NULL : socket_of(tls);
        if (socket == NULL) {
            return -1;
        }
    }
    bool never_waits = pf_socket_of(socket)->timeout == 0;
    *op = (PfTlsOp){
        .tls = (TlsObject *)Py_NewRef((PyObject *)tls),
        .socket = socket,
        .t = t,
        .late = late,
        /* Other code may ask the system whether there is something to read. */
        .exact = !parks || never_waits,
    };
    return 0;
}

void
pf_tls_end(PfTlsOp *op)
{
    Py_DECREF(op->socket);
    Py_DECREF(op->tls);
}

static int64_t
deadline_of(PfTlsOp *op)
{
    if (!op->timed) {
        op->timed = true;
        op->deadline = pf_socket_deadline(pf_socket_of(op->socket),
                                          pf_io_scheduler(op->t));
    }
    return op->deadline;
}

static bool
never_waits(const PfTlsOp *op)
{
    return pf_socket_of(op->socket)->timeout == 0;
}

/* Raises what _ssl raises when an operation would block; returns -1. */
static int
want(pf_direction direction)
{
    bool reads = direction == PF_READING;
    PyObject *type = reads ? pf_tls.want_read : pf_tls.want_write;
    PyObject *error = PyObject_CallFunction(
        type, "is", reads ? 2 : 3,
        reads ? "The operation did not complete (read)"
              : "The operation did not complete (write)");
    if (error != NULL &&
        PyObject_SetAttrString(error, "reason", Py_None) == 0 &&
        PyObject_SetAttrString(error, "library", Py_None) == 0) {
        PyErr_SetObject(type, error);
    }
    Py_XDECREF(error);
    return -1;
}

/* ------------------------------------ fibers wait for each other --- */

static inline void
call_others(TlsObject *tls)
{
    if (PF_UNLIKELY(!pf_waitq_empty(&tls->changes))) {
        pf_waitq_grant_all(&tls->changes);
    }
}

int
pf_tls_await_change(PfTlsOp *op, pf_direction direction)
{
    if (never_waits(op)) {
        return want(direction);
    }
    int64_t deadline = deadline_of(op);
    bool before =
        pf_io_patched_begin(op->t, pf_socket_of(op->socket)->patched);
    int rc =
        pf_wait_once(&op->tls->changes, NULL, op->t, deadline, op->socket);
    pf_io_patched_end(op->t, before);
    if (rc == 1) {
        PyErr_SetString(PyExc_TimeoutError, op->late);
    }
    return rc == 0 ? 0 : -1;
}

int
pf_tls_claim(PfTlsOp *op, bool *flag, pf_direction direction)
{
    while (PF_UNLIKELY(*flag)) {
        if (pf_io_scheduler(op->t) != NULL &&
            !pf_socket_of(op->socket)->turns) {
            return pf_socket_busy_error(direction);
        }
        if (pf_tls_await_change(op, direction) < 0) {
            return -1;
        }
    }
    *flag = true;
    return 0;
}

void
pf_tls_unclaim(TlsObject *tls, bool *flag)
{
    *flag = false;
    call_others(tls);
}

Py_ssize_t
pf_tls_pending(PyObject *buffer)
{
    PyObject *number = PyObject_GetAttr(buffer, pf_tls.pending);
    Py_ssize_t pending = number == NULL ? -1 : PyLong_AsSsize_t(number);
    Py_XDECREF(number);
    return pending;
}

int
pf_tls_absorb(TlsObject *tls)
{
    if (tls->arrived == NULL) {
        return 0;
    }
    PyObject *arrived = tls->arrived;
    PyObject *args[] = {tls->incoming, arrived};
    bool ends = PyBytes_GET_SIZE(arrived) == 0;
    tls->arrived = NULL;
    tls->drained = false;
    PyObject *done = PyObject_VectorcallMethod(
        ends ? pf_tls.write_eof : pf_tls.write, args, ends ? 1 : 2, NULL);
    Py_DECREF(arrived);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

static void
leave(TlsObject *tls)
{
    tls->holder = NULL;
    call_others(tls);
}

static int
enter(PfTlsOp *op, pf_direction direction)
{
    TlsObject *tls = op->tls;
    while (PF_UNLIKELY(tls->holder != NULL)) {
        if (tls->holder == CURRENT(op->t)) {
            PyErr_SetString(pf.fiber_error,
                            "a callback of a TLS connection must not read, "
                            "write or end that connection");
            return -1;
        }
        if (pf_tls_await_change(op, direction) < 0) {
            return -1;
        }
    }
    tls->holder = CURRENT(op->t);
    if (!op->aside && pf_tls_absorb(tls) < 0) {
        leave(tls);
        return -1;
    }
    return 0;
}

/* Moves what the session has written to `unsent`.  This fiber is inside the
 * session. Without memory the bytes remain in `outgoing`. */
static void
collect(TlsObject *tls)
{
    Py_ssize_t pending = pf_tls_pending(tls->outgoing);
    tls->more = pending != 0;
    if (pending > 0 && tls->unsent == NULL) {
        PyObject *args[] = {tls->outgoing};
        tls->unsent = PyObject_VectorcallMethod(pf_tls.read, args, 1, NULL);
        tls->more = tls->unsent == NULL;
        tls->sent = 0;
    }
    if (PyErr_Occurred()) {
        PyErr_Clear();
    }
}

int
pf_tls_ask(PfTlsOp *op, PyObject *name, PyObject *const *arguments,
           size_t count, PyObject **result)
{
    TlsObject *tls = op->tls;
    PyObject *args[3] = {tls->session};
    for (size_t i = 0; i < count; i++) {
        args[i + 1] = arguments[i];
    }
    if (enter(op, PF_READING) < 0) {
        return -1;
    }
    op->seen = tls->fed;
    *result = PyObject_VectorcallMethod(name, args, count + 1, NULL);
    PyObject *error = *result == NULL ? pystate_take_exception() : NULL;
    bool unsent = tls->unsent != NULL;
    collect(tls);
    op->wrote = !unsent && tls->unsent != NULL;
    leave(tls);
    if (*result != NULL) {
        return 0;
    }
    if (PyErr_GivenExceptionMatches(error, pf_tls.want_read)) {
        Py_DECREF(error);
        return 1;
    }
    pystate_restore_exception(error);
    return -1;
}

/* ------------------------------------------------------------ the wire --- */

/* Moves bytes without waiting.  Returns how many; -1 with an exception. */
static Py_ssize_t
move_at_once(PfTlsOp *op, pf_direction direction, const PfBytes *bytes)
{
    PfSocket *sock = pf_socket_of(op->socket);
    if (sock->owner == 0) {
        return pf_socket_closed_error();
    }
    int64_t moved = pf_socket_step(sock, direction, bytes);
    if (moved >= 0) {
        return (Py_ssize_t)moved;
    }
    return pf_socket_would_block(moved) || moved == -EINTR
               ? want(direction)
               : pf_io_error(moved);
}

static Py_ssize_t
move(PfTlsOp *op, pf_direction direction, const PfBytes *bytes)
{
    PfIo io;
    if (never_waits(op)) {
        return move_at_once(op, direction, bytes);
    }
    if (pf_socket_transfer_begin_part(&io, op->t, op->socket, direction) < 0) {
        return -1;
    }
    io.late = op->late;
    io.timed = op->timed;
    io.deadline = op->deadline;
    Py_ssize_t moved = pf_transfer_move(&io, bytes);
    op->timed = io.timed;
    op->deadline = io.deadline;
    pf_socket_transfer_end(&io);
    return moved;
}

void
pf_tls_forget_unsent(TlsObject *tls)
{
    tls->sent = 0;
    Py_CLEAR(tls->unsent); /* exactly bytes: runs no code */
}

static PfBytes
rest_of_unsent(const TlsObject *tls)
{
    return (PfBytes){PyBytes_AS_STRING(tls->unsent) + tls->sent,
                     (size_t)(PyBytes_GET_SIZE(tls->unsent) - tls->sent), 0};
}

static int
send_unsent(PfTlsOp *op)
{
    TlsObject *tls = op->tls;
    Py_ssize_t moved = 0;
    tls->flushing = true;
    while (moved >= 0 && tls->sent < PyBytes_GET_SIZE(tls->unsent)) {
        PfBytes bytes = rest_of_unsent(tls);
        moved = move(op, PF_WRITING, &bytes);
        tls->sent += moved < 0 ? 0 : moved;
    }
    tls->flushing = false;
    if (moved >= 0) {
        pf_tls_forget_unsent(tls);
    }
    call_others(tls);
    return moved < 0 ? -1 : 0;
}

static int
take_more(PfTlsOp *op)
{
    if (enter(op, PF_WRITING) < 0) {
        return -1;
    }
    collect(op->tls);
    leave(op->tls);
    return 0;
}

/* Sends everything that the session has written.  With `others`, also waits
 * for what another fiber is sending. */
static int
flush(PfTlsOp *op, bool others)
{
    TlsObject *tls = op->tls;
    int rc = 0;
    while (rc == 0 && (tls->unsent != NULL || tls->more)) {
        if (tls->flushing && !others) {
            return 0;
        }
        rc = tls->flushing         ? pf_tls_await_change(op, PF_WRITING)
             : tls->unsent != NULL ? send_unsent(op)
                                   : take_more(op);
    }
    return rc;
}

int
pf_tls_flush(PfTlsOp *op)
{
    return flush(op, true);
}

void
pf_tls_flush_at_once(TlsObject *tls)
{
    if (PF_LIKELY(tls->unsent == NULL) || tls->flushing) {
        return;
    }
    PyObject *error = pystate_take_exception();
    PyObject *socket = socket_of(tls);
    PyErr_Clear();
    if (socket != NULL) {
        PfSocket *sock = pf_socket_of(socket);
        PfBytes bytes = rest_of_unsent(tls);
        int64_t moved =
            sock->owner == 0 ? -1 : pf_socket_step(sock, PF_WRITING, &bytes);
        tls->sent += moved < 0 ? 0 : (Py_ssize_t)moved;
        if (tls->sent == PyBytes_GET_SIZE(tls->unsent)) {
            pf_tls_forget_unsent(tls);
        }
        Py_DECREF(socket);
    }
    pystate_restore_exception(error);
}

/* ------------------------------------------------------------- feeding --- */

/* Counts received bytes, record by record. */
static void
follow(PfRecords *r, const unsigned char *at, size_t size)
{
    r->partial += size;
    while (size > 0) {
        if (r->left > 0) {
            size_t step = r->left < size ? r->left : size;
            r->left -= step;
            at += step;
            size -= step;
        } else {
            r->head[r->have++] = *at++;
            size--;
            if (r->have < sizeof r->head) {
                continue;
            }
            r->have = 0;
            r->left = (size_t)r->head[3] << 8 | r->head[4];
        }
        if (r->left == 0) {
            r->partial = size;
        }
    }
}

/* Returns how many bytes are missing to the end of a record's head, or of the
 * record. */
static size_t
next_step(const PfRecords *r)
{
    return r->left > 0 ? r->left : sizeof r->head - r->have;
}

/* Receives bytes into the thread's buffer and copies them before any other
 * code can run.  (Making a bytes object does not start the collector.) */
static int
receive(PfTlsOp *op)
{
    TlsObject *tls = op->tls;
    PfBytes bytes = {pf_transfer_shared_buffer(op->t),
                     op->exact ? next_step(&tls->records) : AT_A_TIME, 0};
    if (bytes.data == NULL) {
        return -1;
    }
    Py_ssize_t got = move(op, PF_READING, &bytes);
    if (got < 0) {
        return -1;
    }
    follow(&tls->records, (unsigned char *)bytes.data, (size_t)got);
    tls->arrived = PyBytes_FromStringAndSize(bytes.data, got);
    tls->fed++;
    return tls->arrived == NULL ? -1 : 0;
}

/* Sends what must go before the socket is read.  A reader does not wait until
 * bytes that a writer has left have been sent: the other end may not read them
 * before this end has read. */
static int
flush_before(PfTlsOp *op)
{
    if (op->reads && (!op->wrote || never_waits(op))) {
        pf_tls_flush_at_once(op->tls);
        return 0;
    }
    return flush(op, false);
}

int
pf_tls_feed(PfTlsOp *op)
{
    TlsObject *tls = op->tls;
    if (flush_before(op) < 0) {
        return -1;
    }
    if (tls->fed != op->seen) {
        return 0;
    }
    if (tls->feeding) {
        return pf_tls_await_change(op, PF_READING);
    }
    tls->feeding = true;
    int rc = receive(op);
    tls->feeding = false;
    call_others(tls);
    return rc;
}

PyObject *
pf_tls_perform(PfTlsOp *op, PyObject *name, PyObject *argument)
{
    for (;;) {
        PyObject *result = NULL;
        int rc = pf_tls_ask(op, name, &argument, argument != NULL, &result);
        if (rc < 0) {
            pf_tls_flush_at_once(op->tls); /* perhaps the bytes of an alert */
        }
        if (rc <= 0) {
            return result;
        }
        if (pf_tls_feed(op) < 0) {
            return NULL;
        }
    }
}
