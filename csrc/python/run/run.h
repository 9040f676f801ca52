/* run/: the Scheduler type, its loop, and signals while it runs.
 *
 *   run.c             the function run()
 *   scheduler_type.c  the Scheduler type
 *   loop.c            what runs next, how the loop waits, how a run ends
 *   signals.c         Ctrl-C; wakeup.h wakes the idle loop for any signal
 *   help.c            could anything outside wake a fiber, or is it a deadlock?
 *   team.c            a run on several threads; team_run.c begins and ends it
 *
 * Called by threads/, testing/, grain/, greenlet/ and above.
 */
#ifndef PF_RUN_H
#define PF_RUN_H

#include "python/core/parts.h"
#include "python/core/thread.h"
#include "python/task/fiber.h"
#include "python/task/scheduler.h"

/* May `s` run on the calling thread now?  0, or -1 with FiberError. */
int pf_run_may_run(SchedulerObject *s);
/* The same, and prepares a run that begins now (PfPart.run_may_begin).  May
 * run code.  0, or -1 with an exception. */
int pf_run_prepare(SchedulerObject *s);
/* May a run begin inside of the one that this thread is running? */
bool pf_run_may_nest(PfThread *t);
/* Scheduler.run(): a new reference, or NULL with an exception.  Steals `main`.
 */
PyObject *pf_run_main(SchedulerObject *s, FiberObject *main);
void pf_run_close_now(SchedulerObject *s);
PyObject *pf_loop_run(SchedulerObject *s, FiberObject *main);
void pf_loop_once(SchedulerObject *s, PyObject *timeout, int64_t deadline);
void pf_run_abandon(SchedulerObject *s);
/* The fibers that are not done, oldest first; a new list, or NULL. */
PyObject *pf_run_fibers(SchedulerObject *s);
/* The same and the waiting tasks of the rooms above, for a report. */
PyObject *pf_run_waiting_ones(SchedulerObject *s);
void pf_run_cancel_because(SchedulerObject *s, const char *reason);

PyTypeObject *pf_run_add_scheduler_type(PyObject *module);
extern bool pf_run_debugs; /* debug every run; constant after import */
/* A scheduler that the user has made begins a run: turn on debugging if
 * pf_run_debugs says so.  0, or -1 with an exception. */
int pf_run_debug(SchedulerObject *s);
PyObject *pf_run(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
/* Any thread: start `fiber`, which is assigned here and enrolled when the
 * scheduler reads the message.  0, or -1 with an exception. */
int pf_run_start_soon(SchedulerObject *s, FiberObject *fiber);
/* What the message of pf_run_start_soon runs when it arrives.  Declared here
 * because pf_post_list() finds such messages by it. */
void pf_run_soon_arrived(SchedulerObject *s, PyObject *fiber,
                         PyObject *ignored);
extern const PfPart pf_runs_part;

void pf_run_cancel_all(SchedulerObject *s, PyObject *reason);

typedef struct PfSignals {
    PyObject *old_handler; /* of SIGINT; NULL: we did not replace it */
    long old_wakeup;       /* PF_WAKEUP_UNTOUCHED: we did not set it */
} PfSignals;
int pf_signals_begin(SchedulerObject *s, PfSignals *saved);
void pf_signals_end(SchedulerObject *s, PfSignals *saved);
PyObject *pf_signals_on_sigint(PyObject *module, PyObject *args);

/* Call this when only another thread could wake a fiber.  Returns how many
 * nanoseconds of real time to wait before the next call; 0: do not wait, a
 * fiber may be ready; -1: no thread could wake one. */
int64_t pf_run_wait_for_help(SchedulerObject *s);

/* Warn after this many nanoseconds without any event; 0: never. */
extern PF_ATOMIC(int64_t) pf_run_stall_limit;

#endif
