/* core/: what the rest of the binding stands on, and knows nothing of fibers.
 *
 *   state.h      what is set when the module is imported, and process-wide
 *   facade.h     what the engine asks of Python code
 *   parts.h      what the rooms above do on the great occasions
 *   thread.h     one record per Python thread that uses fibers
 *   tstate.h     CPython's thread state, saved and restored; all #ifs by version
 *   arguments.h  what methods take, what types are made of
 *   import.h     modules that are imported when they are first needed
 *   list.h       lists through prev and next
 *   chain.h      long chains of objects that die together
 *   compiler.h   what compilers offer beyond C
 *
 * Every room of the binding may call it.
 */
#ifndef PF_STATE_H
#define PF_STATE_H

#include "python/core/compiler.h"
#include "python/core/pyinclude.h"

#include <stdbool.h>
/* Written once, when the module is imported, under the import lock, and read
 * by everybody from then on.  (One interpreter per process: module.c refuses
 * others.) */
typedef struct PfConstants {
    PyObject *fiber_error;
    PyObject *fiber_exit;
    PyObject *cancelled; /* by cancel/ */
    PyObject *deadlock_error;
    /* interned */
    PyObject *s_run, *s_park, *s_sleep, *s_yield, *s_result;
    PyObject *s_failed, *s_log, *s_raise, *s_on_unhandled;
} PfConstants;
extern PfConstants pf;

/* The interpreter is going away: switch no more. */
extern bool pf_shut_down;

int pf_state_init(PyObject *module);

#endif
