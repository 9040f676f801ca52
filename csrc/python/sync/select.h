/* Cases of select(): each is one operation on one object. */
#ifndef PF_SELECT_H
#define PF_SELECT_H

#include "python/task/fiber.h"
#include "python/waitq/waitq.h"

/* Why an operation is not done, and will not be. */
enum {
    PF_REFUSED = -1, /* the object is closed */
    PF_NO_MEMORY = -2,
};

/* How to do an operation, on an object of the type that defines it.  Only
 * take_back, raise_refused and check may run Python code or set an exception;
 * attempt, possible and line need the mutex. */
typedef struct PfCaseOps {
    /* Without waiting: 1: done; 0: would have to wait; or PF_REFUSED and the
     * like, without an exception.  `value` is what the case puts or sends,
     * *got what it gets, if it gets anything. */
    int (*attempt)(PyObject *op, PyObject *value, PyObject **got);
    /* Would it not return 0?  What `asking` itself waits for does not help. */
    bool (*possible)(PyObject *op, const PfWaiter *asking);
    PfWaitq *(*line)(PyObject *op);  /* where to wait */
    PfMutex *(*mutex)(PyObject *op); /* may be NULL, as may what it returns */
    /* It was done for a fiber that cannot use it: undo it.  Steals `got`,
     * keeps the exception that is set.  NULL: it cannot be undone. */
    void (*take_back)(PyObject *op, PyObject *got);
    void (*raise_refused)(PyObject *op); /* NULL: it never refuses */
    /* May it be waited for here?  0, or -1 with an exception.  NULL: always. */
    int (*check)(PfThread *t, PyObject *op);
} PfCaseOps;

typedef struct CaseObject {
    PyObject_HEAD
    const PfCaseOps *ops;
    PyObject *source; /* its object: a channel, a queue ... */
    PyObject *value;  /* to send or put, or NULL */
    PyObject *op;     /* whose operation it is: `source`, or of a queue that
                         keeps its items its own way a semaphore */
    PyObject *finish; /* ... and the function for the rest; else NULL */
    const char *name; /* of the method that has made it */
} CaseObject;

/* --- case.c --- */
extern PyTypeObject *pf_select_case_type;
/* `value` may be NULL. */
PyObject *pf_case_new(const char *name, const PfCaseOps *ops, PyObject *source,
                      PyObject *value);
int pf_case_init(PyObject *module);

/* --- semaphore.c --- */
extern const PfCaseOps pf_select_acquiring_ops;
bool pf_semaphore_is(PyObject *object);

#endif
