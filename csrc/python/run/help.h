/* A run in which every fiber waits: is that a deadlock?
 *
 * Not while somebody could wake a fiber. That may be
 * - another thread of Python's, unless it is known to wake nobody;
 * - a handler of a signal that the program has set;
 * - a thread that Python does not know, because a C library has made it. Such a
 *   thread may call in at any time. So the threads of Python are compared with
 *   those that the system knows, and where the system does not tell these, there
 *   may always be one. But CPython has such a thread itself, which calls nobody
 *   (of faulthandler): they count only if foreign code is loaded (_help.py).
 * Nobody else runs in the process, so nothing else can wake a fiber.
 */
#ifndef PF_HELP_H
#define PF_HELP_H

#include "python/core/pyinclude.h"

#include "python/core/parts.h"

/* Threads without a state of Python's that pyfiber has made itself, and that wake
 * nobody: each says when it begins and ends, and the child of a fork has none. */
void pf_help_thread_begins(void);
void pf_help_thread_ends(void);
void pf_help_after_fork(void);

/* Could somebody wake a fiber of the run?  May run code, which may wake one. */
bool pf_help_is_possible(SchedulerObject *s);
/* _has_unknown_threads() */
PyObject *pf_help_unknown_threads(PyObject *module, PyObject *ignored);

#endif
