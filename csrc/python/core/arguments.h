/* Arguments of methods, by position or name, packed or not; timeouts; and
 * helpers that make and free types. */
#ifndef PF_ARGUMENTS_H
#define PF_ARGUMENTS_H

#include "python/core/pyinclude.h"

#include "engine/core/timers.h"
#include "python/core/compiler.h"

/* Store the arguments in out[], whether given by position or by name; entries
 * of absent ones are not changed. `names` ends with NULL; the first `required`
 * of them must be given. 0, or -1 with TypeError. */
int pf_arguments(const char *function, const char *const *names, int required,
                 PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                 PyObject **out);

/* The same for the most common case: one optional argument. */
static inline int
pf_arguments_optional(const char *function, const char *name,
                      PyObject *const *args, Py_ssize_t nargs,
                      PyObject *kwnames, PyObject **out)
{
    if (PF_LIKELY(kwnames == NULL && nargs <= 1)) {
        if (nargs == 1) {
            *out = args[0];
        }
        return 0;
    }
    const char *const names[] = {name, NULL};
    return pf_arguments(function, names, 0, args, nargs, kwnames, out);
}

PyObject *pf_arguments_tuple(PyObject *const *items, Py_ssize_t count);
/* Pack the arguments into a tuple and a dict: new references, *dict NULL if no
 * argument was given by name. 0, or -1 with an exception and both NULL. */
int pf_arguments_pack(PyObject *const *args, Py_ssize_t nargs,
                      PyObject *kwnames, PyObject **tuple, PyObject **dict);
/* Make an object by way of the type's __new__ and __init__, for arguments that
 * its tp_vectorcall does not handle itself. */
PyObject *pf_arguments_make(PyObject *type, PyObject *const *args,
                            Py_ssize_t nargs, PyObject *kwnames);

/* Convert numbers; call these before you check a state. 0 or -1. */
int pf_arguments_real(PyObject *number, const char *what,
                      double *value); /* refuses NaN */
int pf_arguments_seconds(PyObject *number, const char *what, int64_t *ns);
int pf_arguments_length(PyObject *timeout, int64_t *ns); /* None: PF_NEVER */
int64_t pf_arguments_nanoseconds(double seconds); /* +inf gives PF_NEVER */

/* Raise FiberError: __init__() of an object that is in use. -1. */
int pf_arguments_too_late(const char *why);

PyObject *pf_arguments_refuse_pickle(PyObject *op, PyObject *ignored);

#define PF_FAST(fn) ((PyCFunction)(void (*)(void))(fn))
#define PF_METHOD(name, fn, doc)                                              \
    {name, PF_FAST(fn), METH_FASTCALL | METH_KEYWORDS, doc}
#define PF_NO_PICKLE                                                          \
    {"__reduce__", pf_arguments_refuse_pickle, METH_NOARGS,                   \
     "Raises TypeError."},                                                    \
        {"__reduce_ex__", pf_arguments_refuse_pickle, METH_O,                 \
         "Raises TypeError."}

/* The member for weak references; the user includes <structmember.h>. */
#define PF_WEAKREFS(Type)                                                     \
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Type, weakrefs), READONLY,    \
     NULL}

/* tp_dealloc of a type whose objects own what `clear` drops (the first
 * function), or nothing (the second). */
void pf_arguments_dealloc_with(PyObject *op, inquiry clear);
void pf_arguments_dealloc(PyObject *op);
/* Make a type and add it to the module: a new reference, or NULL. The type is
 * immutable, as the interpreter's own types are: only then do the
 * interpreter's specialised instructions call tp_vectorcall. */
PyTypeObject *pf_arguments_add_type(PyObject *module, PyType_Spec *spec,
                                    PyTypeObject *base);

/* How often to repeat a step that must be done when the user's code raises in
 * it: a trace function is removed when it raises, and a signal handler raises
 * once for each signal. */
#define PF_MOST_ATTEMPTS 10

#endif
