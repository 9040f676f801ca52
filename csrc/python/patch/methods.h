/* Methods of the interpreter's own types, changed in place.
 *
 * The change is made in the PyMethodDef, which the type's descriptor shares
 * with every method that has ever been bound to an object.  So a method that
 * code took a reference to before the change is changed as well, and nothing
 * stands between a call and the new function.  lock.c, rlock.c and
 * simple_queue.c supply the functions.
 */
#ifndef PF_METHODS_H
#define PF_METHODS_H

#include "python/core/pyinclude.h"
#include "python/task/deadline.h"

#include <stdbool.h>

typedef struct PfMethod {
    const char *name;
    int flags;            /* METH_ flags: how it is called */
    PyCFunction inside;   /* the new function; NULL: stays as it is */
    PyMethodDef *place;   /* NULL: no such method, or called in another way */
    PyCFunction original; /* the old function; set together with `place` */
} PfMethod;

/* The methods of one type.  The list may have a name several times, with
 * different ways to call it: the entry that fits this interpreter gets its
 * `place`, the others are ignored.  After the patch is undone, the methods
 * stay in place while fibers wait in the parking lot, because these methods
 * wake them; `wanted` says whether further fibers may begin to wait. */
typedef struct PfMethods {
    const char *module, *type;
    PfMethod *list;
    size_t count;
    /* Called when the methods have been found in `type`, which the interpreter
     * keeps alive. */
    void (*found)(PyTypeObject *type);
    bool known, wanted, in_place;
} PfMethods;

extern PfMethods pf_lock_methods, pf_rlock_methods, pf_simple_queue_methods;

int pf_methods_init(PyObject *module);
/* Called when the parking lot is empty: puts back the original functions of
 * all types whose patch is not wanted any more. */
void pf_methods_settle(void);

/* Returns the method of that name that this interpreter has, whichever way it
 * is called, or NULL. */
const PfMethod *pf_method_named(const PfMethods *methods, const char *name);
/* Calls acquire(False).  Returns True, False, or NULL with an exception. */
PyObject *pf_methods_call_try(const PfMethod *acquire, PyObject *lock);
/* Calls acquire(True, seconds), with the same results. */
PyObject *pf_methods_call_timed(const PfMethod *acquire, PyObject *lock,
                                double seconds);

/* Converts the arguments of an acquire() to its deadline.  Returns 0, or -1
 * with an exception. */
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

/* Types of the methods' C functions, by the way they are called. */
typedef PyObject *(*PfPacked)(PyObject *, PyObject *, PyObject *);
typedef PyObject *(*PfUnpacked)(PyObject *, PyObject *const *, Py_ssize_t,
                                PyObject *);
#define PF_CALL_PACKED(method, self, args, kwargs)                            \
    ((PfPacked)(void (*)(void))(method)->original)(self, args, kwargs)
#define PF_CALL_UNPACKED(method, self, args, nargs, kwnames)                  \
    ((PfUnpacked)(void (*)(void))(method)->original)(self, args, nargs,       \
                                                     kwnames)

/* acquire_until() returns this when the original method is to be called.  The
 * other results are: 1, taken; 0, not in time; -1 with an exception. */
#define PF_CALL_ORIGINAL 2

/* Defines the methods of a lock, one for each way in which interpreters call
 * them.  The including file defines is_for_fibers(self), acquire_until(self,
 * deadline), which is called after the arguments have been converted, and
 * release_seen(self), which is called while the parking lot is in use. */
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
