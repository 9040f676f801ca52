/* cancel/: scopes, cancellation, groups.
 *
 *   cancel.h  cancelling a fiber, raising Cancelled
 *   scope.h   the tree of scopes and fibers; timeouts, shields, groups
 *
 * Called by run/ and every room above that.
 */
#ifndef PF_CANCEL_H
#define PF_CANCEL_H

#include "python/core/compiler.h"
#include "python/core/parts.h"
#include "python/core/thread.h"
#include "python/task/cancelling.h"
#include "python/task/fiber.h"

/* Raises Cancelled with the reason and author of `why` (or NULL: none).
 * `scope` absorbs the exception; NULL: the fiber ends with it.  Returns -1. */
int pf_cancelled_raise_with(PyObject *why, PyObject *scope);
/* Fiber.cancel() by the running fiber.  Any thread.  Returns 1, or 0 if the
 * fiber has ended; -1 with an exception. */
int pf_cancel_fiber(FiberObject *fiber, PyObject *reason);
/* Returns `text` as a reason, or None if there is no memory: a new
 * reference. */
PyObject *pf_cancel_text(const char *text);
/* Returns the pair (reason, by) that other functions take as `why`: a new
 * reference; or NULL without an exception, if both are None or there is no
 * memory.  `by` is the fiber that calls cancel(), or None.  Call this before
 * cancelling anything, because it may run code. */
PyObject *pf_cancel_why(PyObject *reason, PyObject *by);
/* Stores `why` (or NULL) as the reason of the task's cancellation. */
void pf_cancel_note(PfTaskObject *task, PyObject *why);
/* Cancels the fiber, on its own thread.  The first reason is kept.  Runs no
 * Python code.  For a fiber that is cancelled already, pf_cancel_now does
 * nothing.  pf_cancel_again is for a cancel() that the program calls: it is a
 * new cancellation even then, so a call that patch() has changed raises
 * Cancelled once more (see pf_delivery_note). */
void pf_cancel_now(FiberObject *fiber, PyObject *why);
void pf_cancel_again(FiberObject *fiber, PyObject *why);
int pf_cancel_init(PyObject *module);

extern PyTypeObject *pf_scope_type, *pf_cancel_group_type;

extern const PfCancelling pf_cancel_table;
extern const PfPart pf_cancel_part;

/* Pairs as from pf_cancel_why, made once: the reasons of the engine itself. */
extern PyObject *pf_cancel_why_deadline, *pf_cancel_why_body_ended;

#endif
