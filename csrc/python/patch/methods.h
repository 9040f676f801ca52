/* Methods of the interpreter's own types, changed in place: in the definition
 * that a type's descriptor shares with every method that was bound to an
 * object, at any time.  So it does not matter who has taken hold of what
 * before, and nothing stands between a call and the function.
 */
#ifndef PF_METHODS_H
#define PF_METHODS_H

#include "python/core/pyinclude.h"
#include "python/task/deadline.h"

#include <stdbool.h>

typedef struct PfMethod {
    const char *name;
    int flags;            /* METH_: how it is called */
    PyCFunction inside;   /* what takes its place; NULL: nothing does */
    PyMethodDef *place;   /* NULL: none of that name, or called otherwise */
    PyCFunction original; /* set when it is found */
} PfMethod;

/* Those of one type.  While fibers wait in the parking lot, the methods stay
 * in place that wake them; `wanted` tells whether others may begin to.  Where
 * one name stands in the list several times, called in different ways, that
 * which the interpreter has is found; what it does not have is left out. */
typedef struct PfMethods {
    const char *module, *type;
    PfMethod *list;
    size_t count;
    /* Is told that the methods are there, in `type`, which the interpreter
     * keeps. */
    void (*found)(PyTypeObject *type);
    bool known, wanted, in_place;
} PfMethods;

extern PfMethods pf_lock_methods, pf_rlock_methods, pf_simple_queue_methods;

int pf_methods_init(PyObject *module);
/* The parking lot is empty: what is not wanted any more goes. */
void pf_methods_settle(void);

/* acquire(), found in the list, however this interpreter calls it. */
const PfMethod *pf_method_named(const PfMethods *methods, const char *name);
/* acquire(False): True, False, or NULL with an exception. */
PyObject *pf_methods_call_try(const PfMethod *acquire, PyObject *lock);
/* acquire(True, seconds), likewise. */
PyObject *pf_methods_call_timed(const PfMethod *acquire, PyObject *lock,
                                double seconds);

/* The deadline of an acquire(): 0 or -1. */
int pf_methods_deadline(PyObject *args, PyObject *kwargs, int64_t *deadline);

#define PF_METHODS(module_name, type_name, array, when_found)                 \
    {.module = (module_name),                                                 \
     .type = (type_name),                                                     \
     .list = (array),                                                         \
     .count = sizeof(array) / sizeof *(array),                                \
     .found = (when_found)}
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

/* What a lock's acquire_until() returns.  (1: taken; 0: not in time; -1 with an
 * exception.) */
#define PF_CALL_ORIGINAL 2

/* The methods of a lock, for each way in which interpreters call them.  The file
 * has is_for_fibers(self), acquire_until(self, deadline), to which the arguments
 * have been converted, and release_seen(self). */
#define PF_LOCK_ENTRIES                                                       \
    static PyObject *acquire_packed(PyObject *self, PyObject *args,           \
                                    PyObject *kwargs)                         \
    {                                                                         \
        int64_t deadline;                                                     \
        int rc = !is_for_fibers(self) ? PF_CALL_ORIGINAL                      \
                 : pf_methods_deadline(args, kwargs, &deadline) < 0           \
                     ? -1                                                     \
                     : acquire_until(self, deadline);                         \
        return rc == PF_CALL_ORIGINAL                                         \
                   ? PF_CALL_PACKED(acquire, self, args, kwargs)              \
               : rc < 0 ? NULL                                                \
                        : PyBool_FromLong(rc);                                \
    }                                                                         \
    static PyObject *acquire_unpacked(PyObject *self, PyObject *const *args,  \
                                      Py_ssize_t nargs, PyObject *kwnames)    \
    {                                                                         \
        int64_t deadline;                                                     \
        int rc = !is_for_fibers(self) ? PF_CALL_ORIGINAL                      \
                 : pf_deadline_acquire(args, nargs, kwnames, &deadline) < 0   \
                     ? -1                                                     \
                     : acquire_until(self, deadline);                         \
        return rc == PF_CALL_ORIGINAL                                         \
                   ? PF_CALL_UNPACKED(acquire, self, args, nargs, kwnames)    \
               : rc < 0 ? NULL                                                \
                        : PyBool_FromLong(rc);                                \
    }                                                                         \
    static PyObject *acquire_bare(PyObject *self, PyObject *ignored)          \
    {                                                                         \
        (void)ignored;                                                        \
        return acquire_unpacked(self, NULL, 0, NULL);                         \
    }                                                                         \
    static PyObject *release_bare(PyObject *self, PyObject *ignored)          \
    {                                                                         \
        (void)ignored;                                                        \
        return pf_lot_is_busy() ? release_seen(self)                          \
                                : release->original(self, NULL);              \
    }                                                                         \
    static PyObject *release_positional(                                      \
        PyObject *self, PyObject *const *args, Py_ssize_t nargs)              \
    {                                                                         \
        (void)args;                                                           \
        (void)nargs;                                                          \
        return release_bare(self, NULL);                                      \
    }

#endif
