/* How fibers and grains end (results, failures, cancellations), and how an
 * outcome is returned, raised, logged or dropped. */
#ifndef PF_TASK_OUTCOME_H
#define PF_TASK_OUTCOME_H

#include "python/task/task.h"

/* What result() returns: a new reference; or NULL with the exception that the
 * task ended with. */
PyObject *pf_outcome_value(PfTaskObject *task);
/* Store the traceback of a task that has just failed, before its failure is
 * raised for the first time. */
void pf_outcome_keep_traceback(PfTaskObject *task);
/* Clear the frames of a cancelled task at the end of its code, which has
 * raised: they drop their variables here, where the task's context is still
 * the current one. A generator among them may have to reset a context
 * variable. May run code. */
void pf_outcome_close_frames(void);
/* Drop the task's value, or its failure with the frames of the traceback: in
 * `context`, which was the task's; NULL: in any. */
void pf_outcome_drop(PfTaskObject *task, PyObject *context);
/* Has the collector cleared this context? NULL: no. No code may run in a
 * cleared one. */
bool pf_outcome_context_is_cleared(PyObject *context);
PyObject *pf_outcome_cancel_reason(PyObject *exc);
bool pf_outcome_ends_programs(PyObject *exc);
void pf_outcome_add_context(PyObject *exc, PyObject *context);
void pf_outcome_raised_instead_of(PyObject *lost);
PyObject *pf_outcome_make(int kind, PyObject *value);
void pf_outcome_raise_cancelled(PyObject *op, PyObject *exc);

int pf_outcome_log(PyObject *op, PyObject *exc, const char *text);

#endif
