/* watch/: observes runs from outside.
 *
 *   watchdog.c  a thread that reports when a loop does not run
 *   turns.c     records every turn of a fiber, for a timeline and a profile
 *
 * Called by module.c.
 */
#ifndef PF_PYTHON_WATCH_H
#define PF_PYTHON_WATCH_H

#include "python/core/parts.h"
#include "python/core/pyinclude.h"

int pf_turns_init(PyObject *module);
int pf_watchdog_init(PyObject *module);
extern const PfPart pf_watchdog_part;
extern const PfPart pf_turns_part;

#endif
