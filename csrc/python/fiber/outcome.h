/* How fibers and grains end: results, failures, cancellations. */
#ifndef PF_OUTCOME_H
#define PF_OUTCOME_H

#include "python/fiber/fiber.h"

/* What result() returns: a new reference; or it raises how the task has ended. */
PyObject *pf_outcome_value(PfTaskObject *task);
/* The task has just failed: before its failure is raised for the first time. */
void pf_outcome_keep_traceback(PfTaskObject *task);
PyObject *pf_cancel_reason(PyObject *exc);
bool pf_ends_programs(PyObject *exc);
void pf_add_context(PyObject *exc, PyObject *context);
void pf_raised_instead_of(PyObject *lost);
PyObject *pf_make_outcome(int kind, PyObject *value);
void pf_raise_fiber_cancelled(PyObject *op, PyObject *exc);

int pf_log(PyObject *op, PyObject *exc, const char *text);

#endif
