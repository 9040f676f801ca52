/* Decides whether a run in which every fiber waits is deadlocked.
 *
 * A run is not deadlocked while something could still wake a fiber:
 * - another Python thread, unless it is known to wake nobody;
 * - a signal handler that the program has set;
 * - a thread that a C library has made and Python does not know, which may
 *   call into Python at any time.  To find such threads, Python's threads are
 *   compared with those that the system lists; where the system cannot list
 *   them, there may always be one.  CPython itself has such a thread, which
 *   calls nobody (faulthandler's), so unknown threads count only if foreign
 *   code is loaded (_help.py).
 * Nothing else runs in the process, so nothing else can wake a fiber.
 */
#ifndef PF_HELP_H
#define PF_HELP_H

#include "python/core/pyinclude.h"

#include "python/core/parts.h"

/* The calling thread begins, or ends, as one that pyfiber has started without
 * a Python thread state and that wakes nobody.  The child of a fork has no
 * such thread. */
void pf_help_thread_begins(void);
void pf_help_thread_ends(void);
void pf_help_after_fork(void);
/* Make, or free, the locks by which such a thread and others wait for each
 * other: binary semaphores, all of them taken at first. False: no memory, and
 * none is made. */
bool pf_help_locks_make(PyThread_type_lock *locks, int count);
void pf_help_locks_free(PyThread_type_lock *locks, int count);

/* Could anything outside the run wake a fiber of it?  May run Python code,
 * which may wake one. */
bool pf_help_is_possible(SchedulerObject *s);
/* _has_unknown_threads() */
PyObject *pf_help_unknown_threads(PyObject *module, PyObject *ignored);

#endif
