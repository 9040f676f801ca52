/* Checks functions that are passed to run(), spawn() and similar functions,
 * and makes fibers for them. */
#ifndef PF_TASK_CALL_H
#define PF_TASK_CALL_H

#include "python/core/compiler.h"
#include "python/task/fiber.h"

int pf_call_check_slow(const char *caller, PyObject *object);
static inline bool
pf_call_is_plain(PyFunctionObject *function)
{
    return !(((PyCodeObject *)function->func_code)->co_flags &
             (CO_COROUTINE | CO_GENERATOR | CO_ASYNC_GENERATOR));
}
/* Checks what `caller` ("spawn()", say) is to call: 0, or -1 with TypeError if
 * that is not callable, or is an async or a generator function, whose call
 * runs nothing. */
static inline int
pf_call_check(const char *caller, PyObject *object)
{
    return PF_LIKELY(PyFunction_Check(object) &&
                     pf_call_is_plain((PyFunctionObject *)object))
               ? 0
               : pf_call_check_slow(caller, object);
}
/* Makes a fiber for caller(fn, *args, **kwargs). NULL with TypeError, also if fn
 * does not take the arguments. */
FiberObject *pf_call_fiber(const char *caller, PyObject *const *args,
                           Py_ssize_t nargs, PyObject *kwnames);

#endif
