/* What tasks need of schedulers: waking the hub, failing the run, the owner of
 * a task. See scheduler.h. */
#include "python/task/scheduler.h"

#include "python/core/arguments.h"
#include "python/core/compiler.h"
#include "python/core/facade.h"
#include "python/core/state.h"
#include "python/core/thread.h"
#include "python/task/outcome.h"

#include "python/task/explore.h"
#include "python/task/migrate.h"

PF_ATOMIC(size_t) pf_explore_runs; /* shared, one word */

PyTypeObject *pf_scheduler_type; /* constant after import */

bool pf_scheduler_turns_on; /* shared, one word */

/* Called when a fiber was made ready: notifies the loop that hosts this one,
 * if any. */
void
pf_scheduler_notify_host(SchedulerObject *s)
{
    if (PF_UNLIKELY(s->hosted) && !s->running && !s->closed) {
        pf_scheduler_notify(&s->core);
    }
}

/* Called when the hub has something to decide: it runs when its turn comes, or
 * at once after the second Ctrl-C, which waits for nothing. */
void
pf_scheduler_wake_hub(SchedulerObject *s)
{
    pf_task *hub = pf_scheduler_hub_task(&s->core);
    if (hub == NULL) {
        return;
    }
    if (s->interrupts > 1 && hub->state == PF_READY) {
        pf_queue_remove(&s->core.ready, hub);
        hub->state = PF_PARKED;
    }
    if (hub->state != PF_PARKED) {
        return;
    }
    if (s->interrupts > 1) {
        hub->state = PF_READY;
        pf_queue_push_front(&s->core.ready, hub);
    } else {
        pf_scheduler_make_ready(&s->core, hub);
    }
}

/* Ends the run with `exc` (stolen). If an exception has ended it before, that
 * one gets `exc` as its context. */
void
pf_scheduler_fail(SchedulerObject *s, PyObject *exc)
{
    if (s->fatal == NULL) {
        s->fatal = exc;
    } else {
        pf_outcome_add_context(s->fatal, exc);
        Py_DECREF(exc);
    }
}

int64_t pf_scheduler_default_slice;    /* constant after import */
#define SHORTEST_SLICE INT64_C(100000) /* nanoseconds */

int
pf_scheduler_time_slice(PyObject *seconds, int64_t *ns)
{
    *ns = pf_scheduler_default_slice;
    if (seconds == Py_None) {
        return 0;
    }
    if (pf_arguments_seconds(seconds, "time_slice", ns) < 0) {
        return -1;
    }
    if (*ns < SHORTEST_SLICE || *ns == PF_NEVER) {
        PyErr_Format(PyExc_ValueError,
                     "time_slice must be at least 0.0001 seconds (0.1 ms) and "
                     "finite, not %R",
                     seconds);
        return -1;
    }
    if (PF_FREE_THREADED) {
        PyErr_SetString(PyExc_NotImplementedError,
                        "time slices need the GIL: without it, run(threads=) "
                        "lets fibers compute side by side");
        return -1;
    }
    return 0;
}

int
pf_scheduler_watch_limit(PyObject *seconds, int64_t *ns)
{
    if (pf_arguments_seconds(seconds, "the watchdog's limit", ns) < 0) {
        return -1;
    }
    if (*ns <= 0 || *ns == PF_NEVER) {
        PyErr_SetString(PyExc_ValueError,
                        "the watchdog's limit must be positive and finite; "
                        "None: no limit");
        return -1;
    }
    return 0;
}

pf_scheduler *
pf_scheduler_refuse_outside(const char *what)
{
    PyObject *advice = pf_facade.no_run == NULL
                           ? PyUnicode_FromString("")
                           : PyObject_CallNoArgs(pf_facade.no_run);
    if (advice != NULL) {
        PyErr_Format(pf.fiber_error, "%s needs a running scheduler%S", what,
                     advice);
        Py_DECREF(advice);
    } else if (PyErr_ExceptionMatches(PyExc_Exception)) {
        PyErr_Clear(); /* as when the interpreter shuts down */
        PyErr_Format(pf.fiber_error, "%s needs a running scheduler", what);
    }
    return NULL;
}

int
pf_scheduler_list(const PfThread *t, PyObject *list)
{
    int rc = 0;
    for (SchedulerObject *s = t->schedulers; rc == 0 && s != NULL;
         s = s->next) {
        if (pystate_try_incref((PyObject *)s)) {
            rc = PyList_Append(list, (PyObject *)s);
            Py_DECREF(s); /* never the last reference */
        }
    }
    return rc;
}

const PfThread *
pf_task_owner(PfTaskObject *task)
{
    const FiberObject *fiber = pf_task_fiber(task);
    const PfThread *t = pf_thread_current;
    if (fiber != NULL) {
        return fiber->thread;
    }
    bool ours = t != NULL && t->scheduler != NULL &&
                task->core.scheduler == &t->scheduler->core;
    return ours ? t : NULL;
}

bool
pf_task_is_remote(const PfTaskObject *task)
{
    if (!task->scheduled || task->core.scheduler == NULL) {
        return false;
    }
    PfThread *owner = SCHEDULER_OF(task->core.scheduler)->thread;
    return owner != NULL && owner != pf_thread_current;
}
