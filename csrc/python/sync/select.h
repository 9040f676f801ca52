/* Cases of select(): each is one operation on one object. */
#ifndef PF_SELECT_H
#define PF_SELECT_H

#include "python/task/fiber.h"
#include "python/waitq/waitq.h"

/* The first ones are types of cases, and all are types of results.  A fiber
 * and an Event are cases by themselves. */
typedef enum PfCaseKind {
    PF_RECEIVING,
    PF_SENDING,
    PF_GETTING,
    PF_PUTTING,
    PF_ACQUIRING,
    PF_CASE_KINDS,
    PF_JOINING = PF_CASE_KINDS,
    PF_HAPPENING,
    PF_RESULT_KINDS,
} PfCaseKind;

/* Why an operation is not done, and will not be. */
enum {
    PF_REFUSED = -1, /* the object is closed */
    PF_NO_MEMORY = -2,
};

/* How to do an operation, on an object of the type that defines it.  None but
 * the last runs Python code; those but the last two need the mutex. */
typedef struct PfCaseOps {
    /* Without waiting: 1: done; 0: would have to wait; or PF_REFUSED and the
     * like, without an exception.  `value` is what the case puts or sends,
     * *got what it gets. */
    int (*attempt)(PyObject *op, PyObject *value, PyObject **got);
    /* Would it not return 0?  What `asking` itself waits for does not help. */
    bool (*possible)(PyObject *op, const PfWaiter *asking);
    PfWaitq *(*line)(PyObject *op); /* where to wait */
    PfMutex *(*mutex)(PyObject *op);
    /* It was done for a fiber that cannot use it: undo it.  Steals `got`,
     * keeps the exception that is set.  NULL: it cannot be undone. */
    void (*take_back)(PyObject *op, PyObject *got);
    void (*raise_refused)(PyObject *op); /* NULL: it never refuses */
} PfCaseOps;

typedef struct CaseObject {
    PyObject_HEAD
    const PfCaseOps *ops;
    PyObject *source; /* its object: a channel, a queue ... */
    PyObject *value;  /* to send or put, or NULL */
    PyObject *via;    /* whose operation it is: `source`, or of a queue that
                         keeps its items its own way a semaphore */
    PyObject *finish; /* ... and the function for the rest; else NULL */
    PfCaseKind kind;
} CaseObject;

/* --- case.c --- */
/* `value` may be NULL. */
PyObject *pf_case_new(PfCaseKind kind, const PfCaseOps *ops, PyObject *source,
                      PyObject *value);
void pf_case_dealloc(PyObject *op);
/* NULL: it is not a CaseObject, but may be a fiber or an event. */
static inline CaseObject *
pf_as_case(PyObject *object)
{
    return Py_TYPE(object)->tp_dealloc == pf_case_dealloc
               ? (CaseObject *)object
               : NULL;
}
/* The result of select(); `value`, NULL for most kinds, is what it got.  It is
 * stolen, unless this fails. */
PyObject *pf_case_result(PfCaseKind kind, PyObject *source, PyObject *value,
                         Py_ssize_t index);
void pf_case_set_value(PyObject *result, PyObject *value);
int pf_case_init(PyObject *module);

/* --- semaphore.c --- */
extern const PfCaseOps pf_acquiring_ops;
bool pf_is_semaphore(PyObject *object);

#endif
