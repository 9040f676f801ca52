/* HookedQueue's put() and get(): the steps from a semaphore's permit to the
 * item, which nothing may interrupt.  See pyfiber._queues.
 *
 * The overridden methods of a Queue's subclass may raise anywhere, as may a
 * trace function or a signal handler that runs in them.  So this file derives
 * the permits to release from the number of items before and after the call,
 * and the semaphores always agree with the real number of items.
 */
#include "python/core/arguments.h"
#include "python/core/tstate.h"
#include "python/sync/sync.h"

/* Interned names of attributes: constant after import. */
static struct {
    PyObject *qsize, *acquire, *release, *add_tasks;
    PyObject *places, *items, *mutex, *owner, *add, *take;
} name;

/* Returns the number of items, or -1 if that stays unknown after several calls
 * of _qsize().  Stores the first exception of these in *raised, if that is
 * NULL. */
static Py_ssize_t
count_items(PyObject *owner, PyObject **raised)
{
    for (int i = 0; i < PF_MOST_ATTEMPTS; i++) {
        PyObject *number = PyObject_CallMethodNoArgs(owner, name.qsize);
        Py_ssize_t count = number == NULL ? -1 : PyLong_AsSsize_t(number);
        Py_XDECREF(number);
        if (!PyErr_Occurred()) {
            return count;
        }
        PyObject *exc = pystate_take_exception();
        if (*raised == NULL) {
            *raised = exc;
        } else {
            Py_DECREF(exc);
        }
    }
    return -1;
}

static PyObject *
call_with_number(PyObject *object, PyObject *method, Py_ssize_t number)
{
    PyObject *argument = PyLong_FromSsize_t(number);
    PyObject *result =
        argument == NULL ? NULL
                         : PyObject_CallMethodOneArg(object, method, argument);
    Py_XDECREF(argument);
    return result;
}

/* Releases `count` permits, if that is above 0, to the semaphore in the
 * attribute `which`, which may also be None.  Keeps the exception that is set.
 */
static void
give(PyObject *hooked, PyObject *which, Py_ssize_t count)
{
    if (count < 1) {
        return;
    }
    PyObject *raised = pystate_take_exception();
    PyObject *semaphore = PyObject_GetAttr(hooked, which);
    PyObject *done = semaphore == NULL || semaphore == Py_None
                         ? Py_XNewRef(semaphore)
                         : call_with_number(semaphore, name.release, count);
    if (done == NULL) {
        PyErr_WriteUnraisable(hooked);
    }
    Py_XDECREF(done);
    Py_XDECREF(semaphore);
    pystate_restore_exception(raised);
}

static void
add_tasks(PyObject *owner, Py_ssize_t count)
{
    PyObject *raised = pystate_take_exception();
    PyObject *done = call_with_number(owner, name.add_tasks, count);
    if (done == NULL) {
        PyErr_WriteUnraisable(owner);
    }
    Py_XDECREF(done);
    pystate_restore_exception(raised);
}

/* Calls act(item), or act() if `item` is NULL, with the mutex held.  The mutex
 * is free afterwards in any case.  *change is set to how many items were
 * added, negative if items were taken, also after an exception.  An item that
 * is put is counted as a task.
 *
 * Returns the call's result, a new reference, or NULL with an exception.
 * There may be both: see result_unless_raised(). */
static PyObject *
change_items(PyObject *mutex, PyObject *owner, PyObject *act, PyObject *item,
             Py_ssize_t *change)
{
    *change = 0;
    PyObject *held = PyObject_CallMethodNoArgs(mutex, name.acquire);
    if (held == NULL) {
        return NULL;
    }
    Py_DECREF(held);
    PyObject *result = NULL, *raised = NULL;
    Py_ssize_t before = count_items(owner, &raised);
    if (raised == NULL) {
        result = item == NULL ? PyObject_CallNoArgs(act)
                              : PyObject_CallOneArg(act, item);
        raised = result == NULL ? pystate_take_exception() : NULL;
        Py_ssize_t after = count_items(owner, &raised);
        *change = after < 0 ? 0 : after - before;
        if (item != NULL && (result != NULL || *change > 0)) {
            add_tasks(owner, *change > 0 ? *change : 1);
        }
    }
    PyObject *freed = PyObject_CallMethodNoArgs(mutex, name.release);
    if (freed == NULL && raised == NULL) {
        raised = pystate_take_exception();
    }
    Py_XDECREF(freed);
    if (raised != NULL) {
        PyErr_Clear();
        pystate_restore_exception(raised);
    }
    return result;
}

/* Calls change_items() with the attributes of `hooked` that it needs.  To look
 * them up runs no Python code. */
static PyObject *
change_of(PyObject *hooked, PyObject *how, PyObject *item, Py_ssize_t *change)
{
    PyObject *mutex = PyObject_GetAttr(hooked, name.mutex);
    PyObject *owner = PyObject_GetAttr(hooked, name.owner);
    PyObject *act = PyObject_GetAttr(hooked, how);
    PyObject *result = NULL;
    *change = 0;
    if (mutex != NULL && owner != NULL && act != NULL) {
        result = change_items(mutex, owner, act, item, change);
    }
    Py_XDECREF(act);
    Py_XDECREF(owner);
    Py_XDECREF(mutex);
    return result;
}

/* Drops the result (stolen) if an exception is set, and returns NULL then. */
static PyObject *
result_unless_raised(PyObject *result)
{
    if (PyErr_Occurred()) {
        Py_CLEAR(result);
    }
    return result;
}

/* The caller has taken a permit for a place.  The permit is returned if the
 * item needs no place, because it replaced another one or was not added. */
static PyObject *
hooked_put(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    if (nargs != 2) {
        PyErr_SetString(PyExc_TypeError,
                        "_hooked_put() takes a HookedQueue and an item");
        return NULL;
    }
    Py_ssize_t added;
    PyObject *result = change_of(args[0], name.add, args[1], &added);
    give(args[0], name.places, 1 - added);
    give(args[0], name.items, added);
    return result_unless_raised(result);
}

/* The caller has taken a permit for an item.  So there is one, unless the
 * queue is shut down. */
static PyObject *
hooked_get(PyObject *module, PyObject *hooked)
{
    (void)module;
    Py_ssize_t added;
    PyObject *result = change_of(hooked, name.take, NULL, &added);
    Py_ssize_t taken = result != NULL && added > -1 ? 1 : -added;
    give(hooked, name.items, taken < 1);
    give(hooked, name.places, taken);
    return result_unless_raised(result);
}

static PyObject *
call_with_permit(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    if (nargs < 5) {
        PyErr_SetString(PyExc_TypeError,
                        "_with_permit() takes a semaphore, block, timeout, "
                        "an exception and a function");
        return NULL;
    }
    PyObject *wait[] = {args[0], args[1], args[2]};
    PyObject *permit = PyObject_VectorcallMethod(name.acquire, wait, 3, NULL);
    bool taken = permit == Py_True;
    if (permit == NULL) {
        return NULL;
    }
    Py_DECREF(permit);
    if (!taken) {
        PyErr_SetNone(args[3]);
        return NULL;
    }
    return PyObject_Vectorcall(args[4], args + 5, (size_t)nargs - 5, NULL);
}

static PyMethodDef functions[] = {
    {"_hooked_put", PF_FAST(hooked_put), METH_FASTCALL,
     "_hooked_put(hooked, item, /)\n--\n\n"
     "Put an item for which a permit of hooked._places has been taken."},
    {"_hooked_get", hooked_get, METH_O,
     "_hooked_get(hooked, /)\n--\n\n"
     "Take an item for which a permit of hooked._items has been taken."},
    {"_with_permit", PF_FAST(call_with_permit), METH_FASTCALL,
     "_with_permit(semaphore, block, timeout, otherwise, fn, /, *args)\n--\n\n"
     "Take a permit and call fn(*args); nothing can interrupt in between.\n"
     "\n"
     "`block` and `timeout` are the arguments of acquire().  Raises the\n"
     "exception `otherwise` if there is no permit in time."},
    {NULL, NULL, 0, NULL},
};

static int
make_names(void)
{
    static const char *const texts[] = {
        "_qsize", "acquire", "release", "_add_tasks", "_places",
        "_items", "_mutex",  "_owner",  "_add",       "_take"};
    PyObject **names = (PyObject **)&name;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        names[i] = PyUnicode_InternFromString(texts[i]);
        if (names[i] == NULL) {
            return -1;
        }
    }
    return 0;
}

int
pf_hooked_init(PyObject *module)
{
    return make_names() < 0 ? -1 : PyModule_AddFunctions(module, functions);
}
