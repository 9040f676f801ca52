/* Methods of the interpreter's own types, changed in place: in the definition
 * that a type's descriptor shares with every method that was bound to an
 * object, at any time.  So it does not matter who has taken hold of what
 * before, and nothing stands between a call and the function.
 */
#ifndef PF_METHODS_H
#define PF_METHODS_H

#include "python/core/pyinclude.h"

#include <stdbool.h>

typedef struct PfMethod {
    const char *name;
    int flags;            /* METH_: how it is called */
    PyCFunction inside;   /* what takes its place; NULL: nothing does */
    PyMethodDef *place;   /* NULL: none of that name, or called otherwise */
    PyCFunction original; /* set when it is found */
} PfMethod;

/* Those of one type.  While fibers wait in the parking lot, the methods stay
 * in place that wake them; `wanted` tells whether others may begin to. */
typedef struct PfMethods {
    PfMethod *list;
    size_t count;
    bool wanted, in_place;
    struct PfMethods *next;
} PfMethods;

/* Find the definitions in `module.type`: 0, or -1 with an exception.  Where one
 * name stands in the list several times, called in different ways, that which
 * the interpreter has is found.  RuntimeError for a method that is called in
 * another way; one that is not there is left out. */
int pf_methods_find(PfMethods *methods, const char *module, const char *type);
void pf_methods_set(PfMethods *methods, bool wanted);
/* The parking lot is empty: what is not wanted any more goes. */
void pf_methods_settle(void);

/* acquire(), found in the list, however this interpreter calls it. */
const PfMethod *pf_method_named(const PfMethods *methods, const char *name);
/* acquire(False): True, False, or NULL with an exception. */
PyObject *pf_call_try(const PfMethod *acquire, PyObject *lock);
/* acquire(True, seconds), likewise. */
PyObject *pf_call_timed(const PfMethod *acquire, PyObject *lock,
                        double seconds);

/* The deadline of an acquire(): 0 or -1. */
int pf_packed_deadline(PyObject *args, PyObject *kwargs, int64_t *deadline);

#define PF_METHODS(array)                                                     \
    {.list = (array), .count = sizeof(array) / sizeof *(array)}
#define PF_PACKED(fn)                                                         \
    METH_VARARGS | METH_KEYWORDS, (PyCFunction)(void (*)(void))(fn), NULL, NULL
#define PF_UNPACKED(fn)                                                       \
    METH_FASTCALL | METH_KEYWORDS, (PyCFunction)(void (*)(void))(fn), NULL,   \
        NULL
#define PF_POSITIONAL(fn)                                                     \
    METH_FASTCALL, (PyCFunction)(void (*)(void))(fn), NULL, NULL
#define PF_TUPLE(fn) METH_VARARGS, (fn), NULL, NULL
#define PF_BARE(fn) METH_NOARGS, (fn), NULL, NULL
#define PF_ONE(fn) METH_O, (fn), NULL, NULL

/* How the definitions' functions are called. */
typedef PyObject *(*PfPacked)(PyObject *, PyObject *, PyObject *);
typedef PyObject *(*PfUnpacked)(PyObject *, PyObject *const *, Py_ssize_t,
                                PyObject *);
#define PF_CALL_PACKED(method, self, args, kwargs)                            \
    ((PfPacked)(void (*)(void))(method)->original)(self, args, kwargs)
#define PF_CALL_UNPACKED(method, self, args, nargs, kwnames)                  \
    ((PfUnpacked)(void (*)(void))(method)->original)(self, args, nargs,       \
                                                     kwnames)

#endif
