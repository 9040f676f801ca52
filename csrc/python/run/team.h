/* A run on several threads, for run() and the loop.  team.c explains how it
 * works. */
#ifndef PF_RUN_TEAM_H
#define PF_RUN_TEAM_H

#include "python/run/run.h"

/* Converts the argument `threads` of run(); None: as many as this process may
 * use processors.  0, or -1 with TypeError or ValueError. */
int pf_team_threads(PyObject *value, Py_ssize_t *threads);
PyObject *pf_team_run(SchedulerObject *s, FiberObject *main,
                      Py_ssize_t threads, int64_t watchdog);

/* --- for the loop; they do nothing for a run on one thread --- */
/* Nothing is ready here.  Returns how many nanoseconds to wait at most;
 * PF_NEVER: without limit; -1: every member is stuck.  Only for a run on
 * several threads. */
int64_t pf_team_idle(SchedulerObject *s);
/* The member runs again: it is neither hungry nor empty nor stuck. */
void pf_team_awake(SchedulerObject *s);
void pf_team_left(SchedulerObject *s); /* the loop of `s` is over */
/* Have other members non-daemon fibers left?  Returns false unless `s` is the
 * first member. */
bool pf_team_works(SchedulerObject *s);
/* The first member ends: stop the others. */
void pf_team_cancel(SchedulerObject *s);
/* Appends the other members' fibers to `list` (which may be NULL) and returns
 * it; NULL with an exception.  Does nothing without a GIL, where each member
 * reports its own fibers (pf_team_add_reports). */
PyObject *pf_team_fibers(SchedulerObject *s, PyObject *list);
/* Adds the other members' reports to `text` (stolen, or NULL). */
PyObject *pf_team_add_reports(SchedulerObject *s, PyObject *text);
/* In the child of a fork: 0, or -1 with an exception. */
int pf_team_after_fork(SchedulerObject *s);

int pf_team_run_init(PyObject *module);
extern const PfPart pf_team_part;

#endif
