/* Cases of select(): each is one operation on one object.  The file of each
 * type that has such operations fills in a PfCaseOps for it. */
#ifndef PF_SELECT_H
#define PF_SELECT_H

#include "python/task/fiber.h"
#include "python/waitq/waitq.h"

/* Codes of an operation that has failed: to wait would not help. */
enum {
    PF_REFUSED = -1, /* the object is closed */
    PF_NO_MEMORY = -2,
};

/* How to do one kind of operation on the object `op`.  Only take_back,
 * raise_refused and check may run Python code or set an exception.  The caller
 * of attempt, possible and line holds the mutex. */
typedef struct PfCaseOps {
    /* Do the operation without waiting.  Returns 1: done; 0: it would have to
     * wait; or one of the codes above, without an exception.  `value` is what
     * the case puts or sends.  *got is set to what it gets, if anything. */
    int (*attempt)(PyObject *op, PyObject *value, PyObject **got);
    /* Returns true if `attempt` would not return 0.  The places in line of
     * `asking` do not count: a waiter cannot serve itself. */
    bool (*possible)(PyObject *op, const PfWaiter *asking);
    PfWaitq *(*line)(PyObject *op);  /* returns the queue to wait in */
    PfMutex *(*mutex)(PyObject *op); /* returns the object's, or NULL */
    /* Undo the operation, which was done for a fiber that cannot use the
     * result.  Steals `got` and keeps the exception that is set.  NULL: the
     * operation cannot be undone. */
    void (*take_back)(PyObject *op, PyObject *got);
    /* Raise the exception for PF_REFUSED.  NULL: `attempt` never returns it.
     */
    void (*raise_refused)(PyObject *op);
    /* Returns 0 if this thread may wait for `op`, else -1 with an exception.
     * NULL: it may always. */
    int (*check)(PfThread *t, PyObject *op);
} PfCaseOps;

typedef struct CaseObject {
    PyObject_HEAD
    const PfCaseOps *ops;
    PyObject *source; /* the object whose method made the case */
    PyObject *value;  /* to send or put, or NULL */
    PyObject *op;     /* what `ops` work on: `source`; or a semaphore of
                         `source`, if that is a queue with its own storage */
    PyObject *finish; /* called when that semaphore is acquired, to get or put
                         the item; else NULL */
    const char *name; /* of the method that made the case */
} CaseObject;

/* --- case.c --- */
extern PyTypeObject *pf_select_case_type;
/* Returns a new case, or NULL with an exception.  `source` and `value`, which
 * may be NULL, are borrowed; `name` and `ops` must stay valid for good. */
PyObject *pf_case_new(const char *name, const PfCaseOps *ops, PyObject *source,
                      PyObject *value);
int pf_case_init(PyObject *module);

/* --- semaphore.c --- */
extern const PfCaseOps pf_select_acquiring_ops;
bool pf_semaphore_is(PyObject *object);

#endif
