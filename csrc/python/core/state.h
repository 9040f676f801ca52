/* core/: the basis of the binding, which knows nothing about fibers.
 *
 *   state.h      what is set when the module is imported, and process-wide
 *   facade.h     functions of the Python code that the engine calls
 *   parts.h      what the rooms above do when a thread, process or run ends
 *   thread.h     one record per Python thread that uses fibers
 *   tstate.h     CPython's thread state, saved and restored; version #ifs
 *   world.h      stopping other threads to look at their objects
 *   objlock.h    the mutex of an object that threads share
 *   arguments.h  arguments of methods; helpers for types
 *   import.h     modules that are imported at their first use
 *   list.h       lists through prev and next
 *   chain.h      long chains of objects that die together
 *   compiler.h   what compilers offer beyond C
 *
 * Every room of the binding may call it.
 *
 * State outside of objects has one of three kinds, which its declaration
 * names:
 *
 *   constant after import   written under the import lock; no lock to read
 *   shared                  behind a named lock, or one word that is atomic;
 *                           no Python code runs while a lock is held
 *   of a thread             thread-local, or in its PfThread
 *
 * docs/design_state.md has a table of what is shared.
 */
#ifndef PF_STATE_H
#define PF_STATE_H

#include "python/core/pyinclude.h"

#include "engine/base/atomics.h"
#include "python/core/compiler.h"

#include <stdbool.h>
/* Constant after import. (module.c refuses a second interpreter in a process.)
 */
typedef struct PfConstants {
    PyObject *fiber_error;
    PyObject *fiber_exit;
    PyObject *cancelled; /* set by cancel/ */
    PyObject *deadlock_error;
    /* interned */
    PyObject *s_run, *s_park, *s_sleep, *s_select, *s_yield, *s_slice;
    PyObject *s_failed, *s_log, *s_raise, *s_on_unhandled, *s_watchdog;
    bool in_parallel; /* no GIL, and more than one processor */
} PfConstants;
extern PfConstants pf;

/* Shared, one word: the interpreter is shutting down, and no switch is allowed
 * any more. */
extern PF_ATOMIC(uint8_t) pf_state_shut_down;
static inline bool
pf_state_is_shut_down(void)
{
    return pf_load_relaxed(&pf_state_shut_down) != 0;
}

int pf_state_init(PyObject *module);

#endif
