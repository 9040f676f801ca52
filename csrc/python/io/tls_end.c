/* How a TLS connection begins and ends: see tls.h. */
#include "python/io/tls.h"

#include "python/core/tstate.h"

/* ---------------------------------------- what both sides have part in --- */

/* A server's last words of a handshake in TLS 1.3 are tickets for later, and
 * the client may have gone without waiting for them.  What it has sent can be
 * read all the same.  (OpenSSL does so, too, where it writes itself.) */
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

/* Only what belongs to TLS is taken from the socket. */
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

/* ----------------------------------------------- the end of one's own --- */

/* Writing is ended by a message to the other end, which the session writes when
 * it is asked to shut down; then it looks for the other end's.  What it finds
 * in its place it takes for a violation.  So all that it has is read before. */

/* A part of it: 1; 0: there is no more.  An error will meet who reads. */
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

/* Somebody is about to read: 1: there is something for that. */
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

/* 0 as well when the other end has gone without a word, or says no more. */
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

/* What has not gone by now the other end shall miss: then it is not told that
 * this was all. */
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
