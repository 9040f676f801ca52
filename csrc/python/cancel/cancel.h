/* cancel/: scopes, cancellation, groups.
 *
 *   cancel.h  cancelling a fiber, Cancelled
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

int pf_cancelled_raise_with(PyObject *why, PyObject *scope); /* -1 */
int pf_cancel_fiber(FiberObject *fiber, PyObject *reason);
/* New references.  `why` is the pair that the latter makes, or NULL.  Make it
 * before you cancel, because that may run code. */
PyObject *pf_cancel_text(const char *text);
PyObject *pf_cancel_why(PyObject *reason, PyObject *by);
void pf_cancel_note(PfTaskObject *task, PyObject *why);
/* Owner thread.  The first reason stays.  Runs no Python code.  The second
 * function is for what the program asks for: a fiber that was cancelled before
 * and has been told of it is told again; see told.c. */
void pf_cancel_now(FiberObject *fiber, PyObject *why);
void pf_cancel_again(FiberObject *fiber, PyObject *why);
int pf_cancel_init(PyObject *module);

extern PyTypeObject *pf_scope_type, *pf_cancel_group_type;

extern const PfCancelling pf_cancel_table;
extern const PfPart pf_cancel_part;

/* (reason, author), as of pf_cancel_why; made once. */
extern PyObject *pf_cancel_why_deadline, *pf_cancel_why_body_ended;

#endif
