/* Calls to the thread that owns a scheduler, from any thread.
 *
 * A scheduler, its queue and timers, and its fibers' state are written by
 * their own thread alone.  Who wants something of them from elsewhere, or does
 * not know where it is, posts a call: a function and up to two objects.  There
 * are two ways:
 *
 *   pf_call_owner  with the GIL: anything; takes memory
 *   pf_task_post   without it as well: bits to a task, which its `posted` gets
 *                  on its own thread; takes none, several may come as one
 *
 * A raw fiber that waits in no run has no scheduler to post to: its permit is
 * given to it at once, under the GIL (pf_fiber_unpark).  Without one its thread
 * is called: pf_call_thread.
 *
 * An unread call holds the scheduler and the objects, which the collector
 * knows.
 */
#ifndef PF_TASK_POST_H
#define PF_TASK_POST_H

#include "python/task/fiber.h"
#include "python/task/scheduler.h"

/* Bits of pf_fiber.posted */
enum {
    PF_POST_UNPARK = 1 << 0,
    PF_POST_WAKE = 1 << 1, /* check whether your wait is over; see waitq.h */
    PF_POST_SEEN = 1 << 2, /* another thread has seen how it ended */
};

/* Runs on the thread of `s`, where nothing may switch.  The objects, as given,
 * are the call's. */
typedef void (*PfOwnerFn)(SchedulerObject *s, PyObject *target,
                          PyObject *argument);

typedef struct PfOwnerCall {
    pf_message message; /* first */
    PfOwnerFn run;
    PyObject *target;   /* or NULL */
    PyObject *argument; /* or NULL */
    bool embedded;      /* in its target, which therefore holds the memory */
} PfOwnerCall;

/* `run` will be called.  1; 0: the scheduler is closed, and so all is over
 * there; -1: MemoryError. */
int pf_call_owner(SchedulerObject *s, PfOwnerFn run, PyObject *target,
                  PyObject *argument);

/* A fiber that was not started goes to the scheduler, which counts it as
 * `coming` until `arrived` has counted it otherwise.  1; 0: closed; -1: an
 * exception; in both the fiber is as it was. */
int pf_post_fiber(SchedulerObject *s, FiberObject *fiber, PfOwnerFn arrived,
                  PyObject *argument);

/* As pf_call_owner for a thread, whether a scheduler runs there or not; if none does,
 * `run` gets NULL, at the latest before the thread next waits.  1; 0: the thread
 * has ended; -1: MemoryError. */
int pf_call_thread(PfThread *thread, PfOwnerFn run, PyObject *target,
                   PyObject *argument);
void pf_run_thread_calls(PfThread *t);  /* from pf_pending_run */
void pf_drop_thread_calls(PfThread *t); /* it has ended: no more can come */

/* The same by steps, for what must be done in between, or must not fail. */
PfOwnerCall *pf_owner_call_new(PfOwnerFn run, PyObject *target,
                               PyObject *argument);
void pf_owner_call_embed(PfOwnerCall *call, PfOwnerFn run, PyObject *target);
/* False: the scheduler is closed, and the call still the caller's to drop. */
bool pf_owner_call_post(SchedulerObject *s, PfOwnerCall *call);
void pf_owner_call_drop(PfOwnerCall *call);

/* Append the targets of unread calls of `run` to a list, newest first; on the
 * scheduler's thread. 0, or -1. */
int pf_owner_calls_list(SchedulerObject *s, PfOwnerFn run, PyObject *list);

/* What unread calls hold. */
int pf_owner_calls_traverse(SchedulerObject *s, visitproc visit, void *arg);

#endif
