/* A run on several threads: see team.c. */
#ifndef PF_RUN_TEAM_H
#define PF_RUN_TEAM_H

#include "python/run/run.h"

/* TypeError or ValueError unless it is a number of threads; None: as many as
 * this process may use processors. */
int pf_team_threads(PyObject *value, Py_ssize_t *threads);
PyObject *pf_team_run(SchedulerObject *s, FiberObject *main,
                      Py_ssize_t threads, int64_t watchdog);

/* --- for the loop; they do nothing for a run on one thread --- */
/* Nothing is ready here.  How long to wait, PF_NEVER: no limit of its own;
 * -1: every member is stuck. */
int64_t pf_team_idle(SchedulerObject *s);
void pf_team_awake(SchedulerObject *s);
void pf_team_left(SchedulerObject *s); /* its loop is over */
/* Have other members non-daemon fibers left?  Asked by the first one. */
bool pf_team_works(SchedulerObject *s);
/* The first one ends: so do the others. */
void pf_team_cancel(SchedulerObject *s);
/* `list` (which may be NULL) and the fibers of the others; without a GIL these
 * report themselves. */
PyObject *pf_team_fibers(SchedulerObject *s, PyObject *list);
PyObject *pf_team_add_reports(SchedulerObject *s, PyObject *text);
/* In the child of a fork: 0, or -1 with an exception. */
int pf_team_after_fork(SchedulerObject *s);

int pf_team_run_init(PyObject *module);
extern const PfPart pf_team_part;

#endif
