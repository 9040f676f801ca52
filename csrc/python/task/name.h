/* Names of tasks and of their states. Functions that return an object return a
 * new reference, or NULL with an exception. */
#ifndef PF_TASK_NAME_H
#define PF_TASK_NAME_H

#include "python/task/fiber.h"

PyObject *pf_name_of(FiberObject *fiber);
PyObject *pf_name_of_task(PfTaskObject *task); /* the same */
/* The default name of an object made from a function or a coroutine, say. */
PyObject *pf_name_after(PyObject *made_of);
PyObject *pf_name_check(PyObject *value); /* a str; TypeError otherwise */
const char *pf_name_of_state(const pf_task *core);
/* Is `descendant` `fiber` itself, or one of its descendants? There are no
 * cycles of parents. */
bool pf_name_descends(FiberObject *descendant, FiberObject *fiber);

#endif
