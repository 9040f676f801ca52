/* The interpreter's SimpleQueue: get() parks a fiber of a run, put() wakes
 * it. */
#include "python/patch/patch.h"

#include "python/core/arguments.h"
#include "python/core/compiler.h"
#include "python/patch/lot.h"
#include "python/patch/methods.h"
#include "python/patch/stay.h"
#include "python/task/deadline.h"
#include "python/task/explore.h"

/* constant after import of pyfiber._patch, which finds them */
static const PfMethod *empty, *get, *get_nowait, *put, *put_nowait;

static PyObject *
call_get(const PfMethod *method, PyObject *self, PyTypeObject *cls,
         PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    return ((PyCMethod)(void (*)(void))method->original)(
        self, cls, args, (size_t)nargs, kwnames);
}

typedef struct Got {
    PyTypeObject *cls;
    PyObject *item;
} Got;

static int
look(PyObject *self, PfThread *t, void *data)
{
    (void)t;
    Got *got = data;
    PyObject *nothing = empty->original(self, NULL);
    bool is_there = nothing == Py_False;
    if (nothing == NULL) {
        return -1;
    }
    Py_DECREF(nothing);
    if (!is_there) {
        return 0;
    }
    got->item = call_get(get_nowait, self, got->cls, NULL, 0, NULL);
    return got->item == NULL ? -1 : 1;
}

static int
get_arguments(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
              int64_t *deadline)
{
    static const char *const names[] = {"block", "timeout", NULL};
    PyObject *given[] = {Py_True, Py_None};
    double seconds;
    *deadline = PF_NEVER;
    if (pf_arguments("get", names, 0, args, nargs, kwnames, given) < 0) {
        return -1;
    }
    int block = PyObject_IsTrue(given[0]);
    if (block <= 0 || given[1] == Py_None) {
        *deadline = block == 0 ? PF_NOW : PF_NEVER;
        return block < 0 ? -1 : 0;
    }
    if (pf_arguments_real(given[1], "timeout", &seconds) < 0) {
        return -1;
    }
    if (seconds < 0) {
        PyErr_SetString(PyExc_ValueError,
                        "'timeout' must be a non-negative number");
        return -1;
    }
    *deadline = pf_deadline_in(NULL, pf_arguments_nanoseconds(seconds));
    return 0;
}

/* get() where the fiber cannot park.  Returns 1 if there is an item, 0 if the
 * queue's own get() is to wait, and -1 with an exception. */
static int
get_staying(PyObject *self, PfThread *t, int64_t deadline, Got *got)
{
    int rc = look(self, t, got);
    return rc != 0 ? rc : deadline == PF_NOW ? 0 : pf_stay_check(self, t);
}

static inline bool
is_for_fibers(void)
{
    return PF_UNLIKELY(pf_stay_thread() != NULL &&
                       pf_simple_queue_methods.wanted);
}

/* If the deadline passes, get_nowait() raises Empty. */
static PyObject *
get_inside(PyObject *self, PyTypeObject *cls, PyObject *const *args,
           Py_ssize_t nargs, PyObject *kwnames)
{
    int64_t deadline;
    Got got = {.cls = cls};
    if (!is_for_fibers()) {
        return call_get(get, self, cls, args, nargs, kwnames);
    }
    if (get_arguments(args, nargs, kwnames, &deadline) < 0 ||
        (pf_lot_parks() != NULL && pf_explore_preempt() < 0)) {
        return NULL;
    }
    if (!is_for_fibers()) { /* the code above has left the run */
        return call_get(get, self, cls, args, nargs, kwnames);
    }
    PfThread *t = pf_thread_current;
    if (pf_lot_parks() == NULL) {
        return get_staying(self, t, deadline, &got) == 0
                   ? call_get(get, self, cls, args, nargs, kwnames)
                   : got.item;
    }
    int rc = pf_lot_until(self, t, deadline, false, look, &got);
    return rc == 1 ? call_get(get_nowait, self, cls, NULL, 0, NULL) : got.item;
}

static PyObject *
put_with(const PfMethod *method, PyObject *self, PyObject *const *args,
         Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *done = PF_CALL_UNPACKED(method, self, args, nargs, kwnames);
    if (done != NULL) {
        pf_lot_wake(self);
    }
    return done;
}

static PyObject *
put_unpacked(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
             PyObject *kwnames)
{
    return put_with(put, self, args, nargs, kwnames);
}

static PyObject *
put_nowait_unpacked(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                    PyObject *kwnames)
{
    return put_with(put_nowait, self, args, nargs, kwnames);
}

#define PF_OF_CLASS(fn)                                                       \
    METH_METHOD | METH_FASTCALL | METH_KEYWORDS,                              \
        (PyCFunction)(void (*)(void))(fn), NULL, NULL

/* constant after import, too; a method without a function is only called */
static PfMethod list[] = {
    {"get", PF_OF_CLASS(get_inside)},
    {"get_nowait", PF_OF_CLASS(NULL)},
    {"empty", PF_BARE(NULL)},
    {"put", PF_UNPACKED(put_unpacked)},
    {"put_nowait", PF_UNPACKED(put_nowait_unpacked)},
};
static void
found(PyTypeObject *type)
{
    (void)type;
    empty = pf_method_named(&pf_simple_queue_methods, "empty");
    get_nowait = pf_method_named(&pf_simple_queue_methods, "get_nowait");
    put = pf_method_named(&pf_simple_queue_methods, "put");
    put_nowait = pf_method_named(&pf_simple_queue_methods, "put_nowait");
    get = pf_method_named(&pf_simple_queue_methods, "get");
}

/* constant after import, but for `wanted` and `in_place` */
PfMethods pf_simple_queue_methods =
    PF_METHODS("_queue", "SimpleQueue", list, found);
