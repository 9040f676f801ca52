/* How a TLS connection begins and ends: see tls.h.  tls.c reads and writes. */
#include "python/io/tls.h"

#include "python/core/tstate.h"

/* ------------------------------- operations that involve both sides --- */

/* May the end of a handshake be lost?  In TLS 1.3 a server ends it with
 * tickets for later connections, and the client may have gone without waiting
 * for them.  What the client has sent can be read all the same.  (OpenSSL
 * ignores the error, too, where it writes by itself.) */
static bool
may_be_lost(const TlsObject *tls)
{
    if (!PyErr_ExceptionMatches(PyExc_BrokenPipeError) &&
        !PyErr_ExceptionMatches(PyExc_ConnectionResetError)) {
        return false;
    }
    PyObject *error = pystate_take_exception();
    PyObject *serves = PyObject_GetAttrString(tls->session, "server_side");
    PyObject *version = PyObject_CallMethod(tls->session, "version", NULL);
    bool may = serves == Py_True && version != NULL &&
               PyUnicode_Check(version) &&
               PyUnicode_CompareWithASCIIString(version, "TLSv1.3") == 0;
    Py_XDECREF(serves);
    Py_XDECREF(version);
    pystate_restore_exception(error);
    return may;
}

static int
flush_handshake(PfTlsOp *op)
{
    int rc = pf_tls_flush(op);
    if (rc < 0 && may_be_lost(op->tls)) {
        PyErr_Clear();
        pf_tls_forget_unsent(op->tls);
        return 0;
    }
    return rc;
}

PyObject *
pf_tls_do_handshake(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    PfTlsOp op;
    if (pf_tls_begin(&op, (TlsObject *)self,
                     "The handshake operation timed out") < 0) {
        return NULL;
    }
    PyObject *result = pf_tls_perform(&op, pf_tls.do_handshake, NULL);
    if (result != NULL && flush_handshake(&op) < 0) {
        Py_CLEAR(result);
    }
    pf_tls_end(&op);
    return result;
}

/* shutdown(): takes only bytes that belong to TLS from the socket. */
PyObject *
pf_tls_shutdown(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    PfTlsOp op;
    if (pf_tls_begin(&op, (TlsObject *)self, pf_tls_reading_late) < 0) {
        return NULL;
    }
    op.exact = true;
    PyObject *done = pf_tls_perform(&op, pf_tls.shutdown, NULL);
    PyObject *result =
        done == NULL || pf_tls_flush(&op) < 0 ? NULL : Py_NewRef(op.socket);
    Py_XDECREF(done);
    pf_tls_end(&op);
    return result;
}

/* ------------------------------------------- the end of writing --- */

/* To end writing, the session writes a message to the other end when its
 * shutdown() is called.  Then the session looks for the same message of the
 * other end, and takes anything else that it finds for a violation.  So all
 * data that the session has are read before. */

/* Decrypts a part of the data ahead.  Returns 1 then, 0 if there are no more,
 * and -1 with an exception.  An error of TLS is ignored: the next read() meets
 * it. */
static int
decrypt_ahead(PfTlsOp *op)
{
    TlsObject *tls = op->tls;
    PyObject *part = NULL;
    int rc = pf_tls_ask(op, pf_tls.read, &pf_tls.most, 1, &part);
    if (rc < 0 && PyErr_ExceptionMatches(pf_tls.error)) {
        PyErr_Clear();
        return 0;
    }
    if (rc != 0) {
        return rc < 0 ? -1 : 0;
    }
    bool some = PyBytes_GET_SIZE(part) > 0;
    if (tls->ahead == NULL) {
        tls->ahead = part;
    } else {
        PyBytes_ConcatAndDel(&tls->ahead, part);
    }
    return tls->ahead == NULL ? -1 : some;
}

/* Returns 1 if there is something to read for a fiber that is in read(), 0 if
 * not, and -1 with an exception. */
static int
has_unread(PfTlsOp *op)
{
    PyObject *number = NULL;
    int rc = pf_tls_ask(op, pf_tls.pending, NULL, 0, &number);
    long pending = rc == 0 ? PyLong_AsLong(number) : -1;
    Py_XDECREF(number);
    return rc < 0 ? -1 : pending > 0 || pf_tls_pending(op->tls->incoming) > 0;
}

static int
leave_nothing_unread(PfTlsOp *op)
{
    int rc = 1;
    while (rc > 0) {
        if (!op->tls->reading) {
            rc = decrypt_ahead(op);
        } else if ((rc = has_unread(op)) > 0) {
            rc = pf_tls_await_change(op, PF_WRITING) < 0 ? -1 : 1;
        }
    }
    return rc;
}

/* Writes the message that ends writing.  Returns 0 also if the other end has
 * gone without one, or sends nothing more; -1 with an exception. */
static int
write_end(PfTlsOp *op)
{
    PyObject *done = NULL;
    int rc = pf_tls_ask(op, pf_tls.shutdown, NULL, 0, &done);
    Py_XDECREF(done);
    if (rc < 0 && PyErr_ExceptionMatches(pf_tls.eof)) {
        PyErr_Clear();
        return 0;
    }
    return rc < 0 ? -1 : 0;
}

PyObject *
pf_tls_end_write(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    PfTlsOp op;
    if (pf_tls_begin(&op, (TlsObject *)self, pf_tls_writing_late) < 0) {
        return NULL;
    }
    int rc = -1;
    op.aside = true;
    if (pf_tls_claim(&op, &op.tls->writing, PF_WRITING) == 0) {
        rc = pf_tls_flush(&op) < 0 || leave_nothing_unread(&op) < 0 ||
                     write_end(&op) < 0
                 ? -1
                 : pf_tls_flush(&op);
        pf_tls_unclaim(op.tls, &op.tls->writing);
    }
    pf_tls_end(&op);
    return rc < 0 ? NULL : Py_NewRef(Py_None);
}

/* say_end(): writes the end before the socket is closed, without waiting.  If
 * not all data have gone by now, the end is not written: the other end shall
 * notice that data are missing. */
PyObject *
pf_tls_say_end(PyObject *self, PyObject *ignored)
{
    (void)ignored;
    TlsObject *tls = (TlsObject *)self;
    PfTlsOp op = {.tls = tls, .t = pf_thread_this(), .aside = true};
    if (op.t == NULL) {
        return NULL;
    }
    if (tls->session != NULL && tls->holder == NULL && !tls->writing) {
        pf_tls_flush_at_once(tls);
        if (tls->unsent == NULL && tls->owed == NULL && !tls->more) {
            if (write_end(&op) < 0) {
                PyErr_Clear();
            }
            pf_tls_flush_at_once(tls);
        }
    }
    Py_RETURN_NONE;
}
