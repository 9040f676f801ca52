/* run/: the Scheduler type, its loop, and signals while it runs.
 *
 * Called by threads/, testing/, grain/, greenlet/ and above.
 */
#ifndef PF_RUN_H
#define PF_RUN_H

#include "python/core/parts.h"
#include "python/core/thread.h"
#include "python/task/fiber.h"
#include "python/task/scheduler.h"

int pf_run_may_run(SchedulerObject *s); /* 0, or -1 with FiberError */
bool pf_run_may_nest(PfThread *t);      /* or nothing runs on this thread */
/* `main` is stolen. */
PyObject *pf_run_main(SchedulerObject *s, FiberObject *main);
void pf_run_close_now(SchedulerObject *s);
PyObject *pf_loop_run(SchedulerObject *s, FiberObject *main);
void pf_loop_once(SchedulerObject *s, PyObject *timeout, int64_t deadline);
void pf_run_abandon(SchedulerObject *s);
PyObject *pf_run_fibers(SchedulerObject *s);       /* a list */
PyObject *pf_run_waiting_ones(SchedulerObject *s); /* ... for a report */
void pf_run_cancel_because(SchedulerObject *s, const char *reason);

PyTypeObject *pf_run_add_scheduler_type(PyObject *module);
extern bool pf_run_debugs; /* each run; constant after import */
/* A run by a scheduler that the user has made begins: 0, or -1. */
int pf_run_debug(SchedulerObject *s);
PyObject *pf_run(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
/* Any thread: start `fiber`, which is assigned here and enrolled when the
 * scheduler reads it. */
int pf_run_start_soon(SchedulerObject *s, FiberObject *fiber);
/* It has come.  To tell such calls from others. */
void pf_run_soon_arrived(SchedulerObject *s, PyObject *fiber,
                         PyObject *ignored);
extern const PfPart pf_runs_part;

void pf_run_cancel_all(SchedulerObject *s, PyObject *reason);

typedef struct PfSignals {
    PyObject *old_handler; /* of SIGINT, or NULL: not ours */
    long old_wakeup;       /* -2: we did not set it */
} PfSignals;
int pf_signals_begin(SchedulerObject *s, PfSignals *saved);
void pf_signals_end(SchedulerObject *s, PfSignals *saved);
PyObject *pf_signals_on_sigint(PyObject *module, PyObject *args);

/* Only another thread could wake a fiber.  Returns how long to wait, in real
 * time, before the next call; 0: do not wait, a fiber may be ready; -1: no
 * thread could wake one. */
int64_t pf_run_wait_for_help(SchedulerObject *s);

/* Warn after this many nanoseconds without any event; 0: never. */
extern PF_ATOMIC(int64_t) pf_run_stall_limit;

#endif
