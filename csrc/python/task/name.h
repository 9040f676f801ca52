/* What tasks and what they run are called. */
#ifndef PF_TASK_NAME_H
#define PF_TASK_NAME_H

#include "python/task/fiber.h"

PyObject *pf_name_of(FiberObject *fiber);
PyObject *pf_name_of_task(PfTaskObject *task); /* the same */
/* For everything made from something callable or running. */
PyObject *pf_name_after(PyObject *made_of);
PyObject *pf_name_check(PyObject *value); /* NULL with TypeError */
const char *pf_name_of_state(const pf_task *core);
/* Is it `fiber` itself, or one of its descendants?  There are no cycles of
 * parents. */
bool pf_name_descends(FiberObject *descendant, FiberObject *fiber);

#endif
