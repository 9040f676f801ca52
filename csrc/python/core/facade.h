/* Functions and constants that the engine needs from Python code, and the only
 * place where C code refers to the façade.
 *
 * `import pyfiber` provides those that every program needs, the import of
 * pyfiber.grains provides the rest; see _engine._set_hooks. A function that
 * needs a module which is slow to import imports it at its first call.
 */
#ifndef PF_FACADE_H
#define PF_FACADE_H

#include "python/core/pyinclude.h"

/* Every field is NULL until its module has been imported. */
typedef struct PfFacade {
    PyObject *make_outcome;     /* (kind, value) -> Outcome */
    PyObject *fiber_cancelled;  /* (fiber or grain, Cancelled) -> exception */
    PyObject *log_failure;      /* (subject, exception, text) */
    PyObject *log_unresponsive; /* (fiber or grain) */
    PyObject *log_stall;        /* (fibers) */
    PyObject *could_be_woken;   /* () -> bool: by something that is no
                                   Python thread */
    PyObject *cannot_wait;      /* (object, holder or None, why) -> str */
    PyObject *profiled_switch;  /* (left, entered): see profiled.c */
    PyObject *log_blocked;      /* (object, why) */
    PyObject *log_abandoned;    /* (function, exception) */
    PyObject *deadlock_text;    /* (fibers) -> str */
    PyObject *group_text;       /* (exceptions) -> str */
    PyObject *no_run;           /* () -> str: advice, if no scheduler runs */
    PyObject *stack_summary;    /* (frames) -> StackSummary */
    PyObject *unhandled;        /* (failures, raised) -> exception */
    PyObject *interrupted;      /* () -> function to call at the run's end */
    PyObject *start_worker;     /* (run): call it on a new thread */
    PyObject *hooked_queue;     /* (queue, maxsize) -> HookedQueue */
    PyObject *trace_hook;       /* () -> what threading.settrace() was
                                   given, or None */
    /* provided by pyfiber.grains: */
    PyObject *ready, *sleeping, *stopped; /* states of a grain */
    PyObject *join_elsewhere;             /* (grain, timeout) -> bool */
    PyObject *policy_failed;              /* (pool, exception) */
} PfFacade;
extern PfFacade pf_facade;

int pf_facade_init(PyObject *module);

#endif
