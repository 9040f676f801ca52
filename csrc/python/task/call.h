/* Functions that are given to run(), spawn() and their like. */
#ifndef PF_TASK_CALL_H
#define PF_TASK_CALL_H

#include "python/core/compiler.h"
#include "python/task/fiber.h"

int pf_call_check_slow(const char *who, PyObject *object);
static inline bool
pf_call_is_plain(PyFunctionObject *function)
{
    return !(((PyCodeObject *)function->func_code)->co_flags &
             (CO_COROUTINE | CO_GENERATOR | CO_ASYNC_GENERATOR));
}
/* `who`, say "spawn()", is to call it: 0, or -1 with TypeError if it is not
 * callable, or is an async or a generator function, whose call runs nothing. */
static inline int
pf_call_check(const char *who, PyObject *object)
{
    return PF_LIKELY(PyFunction_Check(object) &&
                     pf_call_is_plain((PyFunctionObject *)object))
               ? 0
               : pf_call_check_slow(who, object);
}
/* A fiber for who(fn, *args, **kwargs); NULL with TypeError, also if fn does
 * not take the arguments. */
FiberObject *pf_call_fiber(const char *who, PyObject *const *args,
                           Py_ssize_t nargs, PyObject *kwnames);

#endif
