/* Unhandled failures, at which nobody has looked: see unhandled.c. */
#ifndef PF_TASK_UNHANDLED_H
#define PF_TASK_UNHANDLED_H

#include "python/core/parts.h"
#include "python/task/scheduler.h"

/* A fiber or grain that has failed, as an entry of its scheduler's list. */
struct PfUnhandled {
    PfUnhandled *prev, *next;
    SchedulerObject *scheduler; /* borrowed; NULL: in no list any more */
    PyObject *op;               /* the task, borrowed: it owns this entry */
};

bool pf_unhandled_has(PyObject *op);
void pf_unhandled_add(SchedulerObject *s, PyObject *op);
void pf_unhandled_lost(PyObject *op);
void pf_unhandled_forget(PfUnhandled **place);
/* Take the task, which is about to be freed, out of the list, before its weak
 * references and what it holds are dropped: that may run code in which the run
 * ends, and the end of a run takes a reference to each task in the list. */
void pf_unhandled_leave(PyObject *op);
void pf_unhandled_forget_all(SchedulerObject *s);
PyObject *pf_unhandled_end_run(SchedulerObject *s, PyObject *result);
PyObject *pf_unhandled_joined(SchedulerObject *s, PyObject *raised);
int pf_unhandled_close(SchedulerObject *s);
void pf_unhandled_close_quietly(SchedulerObject *s);
extern const PfPart pf_unhandled_part;
PyObject *pf_unhandled_option(PyObject *value);

#endif
