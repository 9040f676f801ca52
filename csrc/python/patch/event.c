/* The interpreter's Event without a Condition, for virtual threads.
 *
 * An Event has a Condition, which has a Lock, a deque and two methods: one
 * kilobyte.  A fiber that waits for an Event needs none of these, because it
 * waits in the parking lot (lot.h).  So an Event is *light*, without a
 * Condition, until some code asks for its attribute `_cond`: a plain thread
 * that waits for the event, a place where no fiber may park, a method that the
 * program has replaced.  Then the attribute is made, by the class's attribute
 * of the same name, which is found only while the instance has none.  From then
 * on the methods are the interpreter's own.
 *
 * The fibers that wait in the parking lot at that moment have a *turn* each
 * among the Condition's waiters: an object whose release(), which notify()
 * calls, wakes the first of them.
 *
 * Invariant: between the look whether an event is light and what follows from
 * that, no Python code runs.  The GIL guards all of this.
 */
#include "python/patch/patch.h"

#include "python/core/arguments.h"
#include "python/core/compiler.h"
#include "python/core/state.h"
#include "python/io/waiting.h"
#include "python/patch/lot.h"
#include "python/task/deadline.h"
#include "python/task/explore.h"
#include "python/wait/in_line.h"

#define LONGEST 1e9 /* seconds; a longer timeout is the interpreter's */

static PyObject *name_of_condition, *name_of_flag; /* constant after import */

/* The class's attribute. */
typedef struct LazyObject {
    PyObject_HEAD
    PyObject *event_class;
    PyObject *make; /* make(event): a Condition and a turn */
} LazyObject;

static LazyObject *lazy; /* constant after import of pyfiber._virtual.events */
static PyTypeObject *lazy_type; /* constant after import */

/* shared, behind the GIL: is_light() looks, so lazy_get() makes nothing */
static bool looking;

/* ----------------------------------------------------------------- the look */

static bool
is_light(PyObject *event)
{
    if (lazy == NULL || (PyObject *)Py_TYPE(event) != lazy->event_class) {
        return false;
    }
    looking = true;
    PyObject *found = PyObject_GenericGetAttr(event, name_of_condition);
    looking = false;
    if (found == NULL) {
        PyErr_Clear();
        return false;
    }
    bool light = found == (PyObject *)lazy;
    Py_DECREF(found);
    return light;
}

static PfWaitq *
waiters_of(PyObject *event)
{
    PfLotEntry *entry = pf_lot_is_busy() ? pf_lot_find(event) : NULL;
    return entry == NULL ? NULL : &entry->waiters;
}

/* -------------------------------------------------------------- the methods */

/* Converts a timeout to a deadline; runs no code.  Returns false if the
 * interpreter's own wait() is to judge it. */
static bool
read_timeout(PyObject *timeout, int64_t *deadline)
{
    *deadline = PF_NEVER;
    if (timeout == Py_None) {
        return true;
    }
    if (!PyFloat_CheckExact(timeout) && !PyLong_CheckExact(timeout)) {
        return false;
    }
    double seconds = PyFloat_AsDouble(timeout);
    if (seconds == -1.0 && PyErr_Occurred()) {
        PyErr_Clear();
        return false;
    }
    if (!(seconds <= LONGEST)) {
        return false;
    }
    *deadline = seconds <= 0
                    ? PF_NOW
                    : pf_deadline_in(NULL, pf_arguments_nanoseconds(seconds));
    return true;
}

/* Waits in the parking lot.  The event is light and not set. */
static int
wait_for_set(PyObject *event, PfThread *t, int64_t deadline)
{
    PfLotEntry *entry = pf_lot_entry(event);
    if (entry == NULL) {
        return -1;
    }
    bool before = pf_io_patched_begin(t, true);
    int rc = pf_wait_once(&entry->waiters, NULL, t, deadline, event);
    pf_io_patched_end(t, before);
    pf_lot_tidy(event);
    return rc;
}

/* _event_wait(event, timeout): what wait() returns, or None if the
 * interpreter's own wait() is to be called. */
static PyObject *
event_wait(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    int64_t deadline;
    if (nargs != 2) {
        PyErr_SetString(PyExc_TypeError,
                        "_event_wait() takes an event and a timeout");
        return NULL;
    }
    if (!read_timeout(args[1], &deadline)) {
        Py_RETURN_NONE;
    }
    if (pf_lot_parks() != NULL && pf_explore_preempt() < 0) {
        return NULL;
    }
    PfThread *t = pf_lot_parks();
    if (t == NULL || !is_light(args[0])) {
        Py_RETURN_NONE;
    }
    PyObject *flag = PyObject_GenericGetAttr(args[0], name_of_flag);
    if (flag != Py_False || deadline == PF_NOW) {
        return flag;
    }
    Py_DECREF(flag);
    int rc = wait_for_set(args[0], t, deadline);
    return rc < 0 ? NULL : PyBool_FromLong(rc == 0);
}

/* _event_flag(event, value): sets the flag of a light event, and wakes its
 * waiters if the value is True.  Returns false if the event is not light. */
static PyObject *
event_flag(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    if (nargs != 2 || !PyBool_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError,
                        "_event_flag() takes an event and a bool");
        return NULL;
    }
    if (pf_lot_parks() != NULL && pf_explore_preempt() < 0) {
        return NULL;
    }
    if (!is_light(args[0])) {
        Py_RETURN_FALSE;
    }
    if (PyObject_GenericSetAttr(args[0], name_of_flag, args[1]) < 0) {
        return NULL;
    }
    PfWaitq *waiters = args[1] == Py_True ? waiters_of(args[0]) : NULL;
    if (waiters != NULL) {
        pf_waitq_grant_all(waiters);
    }
    Py_RETURN_TRUE;
}

static PyObject *
event_is_light(PyObject *module, PyObject *event)
{
    (void)module;
    return PyBool_FromLong(is_light(event));
}

/* _event_wake(event): wakes the first fiber that waits in the parking lot.
 * Returns false if there is none. */
static PyObject *
event_wake(PyObject *module, PyObject *event)
{
    (void)module;
    PfWaitq *waiters = waiters_of(event);
    bool found = waiters != NULL && !pf_waitq_empty(waiters);
    if (found) {
        pf_waitq_grant(pf_waitq_choose(waiters));
    }
    return PyBool_FromLong(found);
}

/* ------------------------------------------------------------- the Condition */

/* Gives each fiber that waits in the parking lot a turn.  The collector may
 * run code here, which at most wakes some of them. */
static int
add_turns(PyObject *event, PyObject *condition, PyObject *turn)
{
    PyObject *turns = PyObject_GetAttrString(condition, "_waiters");
    PfWaitq *waiters = waiters_of(event);
    PyObject *list =
        waiters == NULL ? PyList_New(0) : pf_waitq_list(waiters, NULL);
    Py_ssize_t count = list == NULL ? 0 : PyList_GET_SIZE(list);
    int rc = turns == NULL || list == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; rc == 0 && i < count; i++) {
        PyObject *done = PyObject_CallMethod(turns, "append", "O", turn);
        rc = done == NULL ? -1 : 0;
        Py_XDECREF(done);
    }
    Py_XDECREF(list);
    Py_XDECREF(turns);
    return rc;
}

/* Makes the event's Condition, unless other code has done so meanwhile. */
static PyObject *
make_condition(PyObject *event)
{
    PyObject *condition, *turn;
    PyObject *made = PyObject_CallOneArg(lazy->make, event);
    if (made == NULL) {
        return NULL;
    }
    int rc = PyArg_ParseTuple(made, "OO", &condition, &turn) ? 0 : -1;
    if (rc == 0 && is_light(event)) {
        rc = add_turns(event, condition, turn);
    }
    if (rc == 0 && is_light(event)) {
        rc = PyObject_GenericSetAttr(event, name_of_condition, condition);
    }
    Py_DECREF(made);
    return rc < 0 ? NULL : PyObject_GenericGetAttr(event, name_of_condition);
}

static PyObject *
lazy_get(PyObject *op, PyObject *instance, PyObject *type)
{
    (void)type;
    if (looking || instance == NULL) {
        return Py_NewRef(op);
    }
    if (op == (PyObject *)lazy && is_light(instance)) {
        return make_condition(instance);
    }
    PyErr_Format(PyExc_AttributeError, "'%s' object has no attribute '%U'",
                 Py_TYPE(instance)->tp_name, name_of_condition);
    return NULL;
}

static void
lazy_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    Py_XDECREF(((LazyObject *)op)->event_class);
    Py_XDECREF(((LazyObject *)op)->make);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyType_Slot slots[] = {
    {Py_tp_doc, (void *)"The Condition of an Event, made when it is needed."},
    {Py_tp_descr_get, lazy_get},
    {Py_tp_dealloc, lazy_dealloc},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "pyfiber._engine._EventCondition",
    .basicsize = sizeof(LazyObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = slots,
};

/* _event_condition(class, make): the class's attribute `_cond`, the same one
 * for each call. */
static PyObject *
event_condition(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *event_class, *make;
    if (!PyArg_ParseTuple(args, "O!O:_event_condition", &PyType_Type,
                          &event_class, &make)) {
        return NULL;
    }
    if (lazy == NULL) {
        LazyObject *made = (LazyObject *)lazy_type->tp_alloc(lazy_type, 0);
        if (made == NULL) {
            return NULL;
        }
        made->event_class = Py_NewRef(event_class);
        made->make = Py_NewRef(make);
        lazy = made;
    }
    return Py_NewRef((PyObject *)lazy);
}

static PyMethodDef functions[] = {
    {"_event_condition", event_condition, METH_VARARGS,
     "_event_condition(event_class, make, /)\n--\n\n"
     "The attribute _cond of the class, by which an event gets its own."},
    {"_event_wait", PF_FAST(event_wait), METH_FASTCALL,
     "_event_wait(event, timeout, /)\n--\n\n"
     "wait() of a light event; None: call the interpreter's own."},
    {"_event_flag", PF_FAST(event_flag), METH_FASTCALL,
     "_event_flag(event, value, /)\n--\n\n"
     "set() and clear() of a light event; False: it is not light."},
    {"_event_is_light", event_is_light, METH_O,
     "_event_is_light(event, /)\n--\n\nHas the event no Condition yet?"},
    {"_event_wake", event_wake, METH_O,
     "_event_wake(event, /)\n--\n\n"
     "Wake the first fiber that waits without the Condition; False: none."},
    {NULL, NULL, 0, NULL},
};

int
pf_patch_event_init(PyObject *module)
{
    name_of_condition = PyUnicode_InternFromString("_cond");
    name_of_flag = PyUnicode_InternFromString("_flag");
    lazy_type = name_of_condition == NULL || name_of_flag == NULL
                    ? NULL
                    : pf_arguments_add_type(module, &spec, NULL);
    return lazy_type == NULL ? -1 : PyModule_AddFunctions(module, functions);
}
