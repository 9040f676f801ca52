/* How fibers and grains end: results, failures, cancellations. */
#ifndef PF_OUTCOME_H
#define PF_OUTCOME_H

#include "python/fiber/fiber.h"

/* Or raises it. */
PyObject *pf_outcome_value(PyObject *op, int kind, PyObject *value);
PyObject *pf_cancel_reason(PyObject *exc);
bool pf_ends_programs(PyObject *exc);
void pf_add_context(PyObject *exc, PyObject *context);
void pf_raised_instead_of(PyObject *lost);
PyObject *pf_make_outcome(int kind, PyObject *value);
void pf_raise_fiber_cancelled(PyObject *op, PyObject *exc);

int pf_log(PyObject *op, PyObject *exc, const char *text);

#endif
