/* How fibers and grains end: results, failures, cancellations. */
#ifndef PF_TASK_OUTCOME_H
#define PF_TASK_OUTCOME_H

#include "python/task/task.h"

/* What result() returns: a new reference; or it raises how the task has ended. */
PyObject *pf_outcome_value(PfTaskObject *task);
/* The task has just failed: before its failure is raised for the first time. */
void pf_outcome_keep_traceback(PfTaskObject *task);
/* At the end of a task's code, which has raised: the frames of a cancelled one
 * let go of their variables here, where its context is still the current one.
 * A generator among them may have to reset a context variable.  May run code. */
void pf_outcome_close_frames(void);
/* Drop its value, or its failure with the frames of its traceback: in `context`,
 * which was the task's; NULL: in any. */
void pf_outcome_drop(PfTaskObject *task, PyObject *context);
/* Has the collector cleared this context, or NULL?  No code may run in it. */
bool pf_outcome_context_is_cleared(PyObject *context);
PyObject *pf_outcome_cancel_reason(PyObject *exc);
bool pf_outcome_ends_programs(PyObject *exc);
void pf_outcome_add_context(PyObject *exc, PyObject *context);
void pf_outcome_raised_instead_of(PyObject *lost);
PyObject *pf_outcome_make(int kind, PyObject *value);
void pf_outcome_raise_cancelled(PyObject *op, PyObject *exc);

int pf_outcome_log(PyObject *op, PyObject *exc, const char *text);

#endif
