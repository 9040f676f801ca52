/* Failures that nobody has looked at: see unhandled.c. */
#ifndef PF_TASK_UNHANDLED_H
#define PF_TASK_UNHANDLED_H

#include "python/core/parts.h"
#include "python/task/scheduler.h"

/* A fiber or grain that has failed, in its scheduler's list. */
struct PfUnseen {
    PfUnseen *prev, *next;
    SchedulerObject *scheduler; /* borrowed; NULL: it is no longer in a list */
    PyObject *op;               /* borrowed: it owns this */
};

bool pf_is_unseen(PyObject *op);
void pf_unseen_add(SchedulerObject *s, PyObject *op);
void pf_unseen_lost(PyObject *op);
void pf_unseen_forget(PfUnseen **place);
/* The task is about to be freed: it leaves the list before its weak references
 * and what it holds are dropped.  That may run code in which the run ends, and
 * the end of a run takes a reference to each task that is in the list. */
void pf_unseen_leave(PyObject *op);
void pf_unseen_forget_all(SchedulerObject *s);
PyObject *pf_unseen_end_run(SchedulerObject *s, PyObject *result);
PyObject *pf_unseen_joined(SchedulerObject *s, PyObject *raised);
int pf_unseen_close(SchedulerObject *s);
void pf_unseen_close_quietly(SchedulerObject *s);
extern const PfPart pf_unseen_part;
PyObject *pf_on_unhandled(PyObject *value);

#endif
