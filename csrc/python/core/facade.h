/* What the engine needs from Python code: the one place that knows the façade.
 *
 * `import pyfiber` provides what every program needs, the import of
 * pyfiber.grains provides the rest; see _engine._set_hooks.  A function that
 * needs a module which is slow to import imports it at its first call.
 */
#ifndef PF_FACADE_H
#define PF_FACADE_H

#include "python/core/pyinclude.h"

/* NULL before they are given. */
typedef struct PfFacade {
    PyObject *make_outcome;     /* (kind, value) -> Outcome */
    PyObject *fiber_cancelled;  /* (fiber or grain, Cancelled) -> exception */
    PyObject *log_failure;      /* (subject, exception, text) */
    PyObject *log_unresponsive; /* (fiber or grain) */
    PyObject *log_stall;        /* (fibers) */
    PyObject *could_be_woken;   /* () -> bool, by no thread of Python's */
    PyObject *cannot_wait;      /* (object, holder or None, why) -> str */
    PyObject *profiled_switch;  /* (left, entered): see profiled.c */
    PyObject *log_blocked;      /* (object, why) */
    PyObject *log_abandoned;    /* (function, exception) */
    PyObject *deadlock_text;    /* (fibers) -> str */
    PyObject *group_text;       /* (exceptions) -> str */
    PyObject *no_run;           /* () -> str: advice where no run is */
    PyObject *stack_summary;    /* (frames) -> StackSummary */
    PyObject *unhandled;        /* (failures, raised) -> exception */
    PyObject *interrupted;      /* () -> what to call at the run's end */
    PyObject *start_worker;     /* (run): on a new thread */
    PyObject *hooked_queue;     /* (queue, maxsize) -> HookedQueue */
    PyObject *trace_hook;       /* () -> of threading.settrace(), or None */
    /* pyfiber.grains': */
    PyObject *ready, *sleeping, *stopped; /* states of a grain */
    PyObject *join_elsewhere;             /* (grain, timeout) -> bool */
    PyObject *policy_failed;              /* (pool, exception) */
} PfFacade;
extern PfFacade pf_facade;

int pf_facade_init(PyObject *module);

#endif
