/* May the running fiber be preempted where it is? See slice.h.
 *
 * Below a call from C code the answer is no: that code may be in the middle of
 * its work. C code sorts a list, looks something up in a dict, frees an object,
 * or holds a lock that belongs to the thread. Such a call shows as an entry of
 * the interpreter among the fiber's frames. These entries are no hindrance:
 *
 * - A generator is entered. C code that iterates has nothing half done.
 * - Python code calls a function, a class or an instance, and C code only
 *   passes the call on, to __init__ for example. To know that, pyfiber compares
 *   the object which the calling instruction calls with what the entered frame
 *   runs. The object is in the caller's evaluation stack, at a place that the
 *   bytecode tells (_calls.py). The pointer is compared and never followed,
 *   because in the entry of a finalizer the object may have been freed.
 * - Python code calls one of the C functions that pyfiber knows to be ready for
 *   anything: exec(), Pattern.sub(), Context.run().
 *
 * CPython does not record what a call with `*` or `**` calls, except for Python
 * functions. There a method of the entered frame's own `self` counts as called.
 *
 * Import locks belong to threads, too: nothing is preempted inside of the
 * import system.
 */
#include "python/slice/slice.h"

#include "python/core/import.h"
#include "python/core/tstate.h"

/* Set by the import of pyfiber._calls: */
/* constant after import; the folder of pyfiber's code, with a separator */
static PyObject *own_folder;
/* constant after import; a tuple of C functions: see above */
static PyObject *passive;
/* constant after import; see find_call */
static PyObject *call_place;

bool
pf_entry_is_own(const PyCodeObject *code)
{
    return PyUnicode_Tailmatch(code->co_filename, own_folder, 0,
                               PY_SSIZE_T_MAX, -1) == 1;
}

static bool
is_named(const PyCodeObject *code, const char *name)
{
    return PyUnicode_CompareWithASCIIString(code->co_name, name) == 0;
}

/* Is it the code of a method like __eq__? */
static bool
is_special(const PyCodeObject *code)
{
    PyObject *name = code->co_name;
    return PyUnicode_GET_LENGTH(name) > 4 &&
           PyUnicode_READ_CHAR(name, 0) == '_' &&
           PyUnicode_READ_CHAR(name, 1) == '_';
}

static bool
imports(const PyCodeObject *code)
{
    return PyUnicode_CompareWithASCIIString(
               code->co_filename, "<frozen importlib._bootstrap>") == 0;
}

/* What the bytecode tells of a calling instruction. */
typedef struct Call {
    int place;   /* of the called object in the evaluation stack */
    bool spread; /* a call with * or ** */
} Call;

/* Asks pyfiber._calls for the call that the caller's frame is in. 1; 0: it is
 * in none; -1: exception. */
static int
find_call(PyFrameHead *caller, Call *call)
{
    PyObject *answer = PyObject_CallFunction(
        call_place, "Oi", (PyObject *)pystate_frame_code(caller),
        pystate_frame_offset(caller));
    long number = answer == NULL ? -2 : PyLong_AsLong(answer);
    Py_XDECREF(answer);
    call->place = (int)(number >> 1);
    call->spread = (number & 1) != 0;
    return number == -2 ? -1 : number >= 0;
}

/* The first argument of the frame's function, borrowed; NULL: it has none, or
 * none any more. */
static PyObject *
first_argument(PyFrameHead *f, const PyCodeObject *code)
{
    PyObject *first =
        code->co_argcount == 0 ? NULL : (PyObject *)pystate_frame_value(f, 0);
    return first != NULL && PyCell_Check(first) ? PyCell_GET(first) : first;
}

/* Does the class of `self` have this function under its name? Looks into the
 * dictionaries of classes, which runs no code. */
static bool
is_method_of(PyObject *self, uintptr_t function, const PyCodeObject *code)
{
    PyObject *mro = Py_TYPE(self)->tp_mro;
    for (Py_ssize_t i = 0; mro != NULL && i < PyTuple_GET_SIZE(mro); i++) {
        PyObject *dict = ((PyTypeObject *)PyTuple_GET_ITEM(mro, i))->tp_dict;
        PyObject *found =
            dict == NULL ? NULL : PyDict_GetItem(dict, code->co_name);
        if (found != NULL) {
            return (uintptr_t)found == function;
        }
    }
    return false;
}

static bool
is_passive(uintptr_t called)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(passive); i++) {
        if ((uintptr_t)PyTuple_GET_ITEM(passive, i) == called) {
            return true;
        }
    }
    return false;
}

/* Is the frame `f`, entered from C code, what the call in `caller` calls? */
static bool
is_passed_on(PyFrameHead *f, PyFrameHead *caller, const Call *call)
{
    const PyCodeObject *code = pystate_frame_code(f);
    int at = pystate_frame_code(caller)->co_nlocalsplus + call->place;
    uintptr_t called = pystate_frame_value(caller, at);
    if (called == 0) { /* the other of the two places for an object and self */
        called = pystate_frame_value(caller, at + 1);
    }
    if (called == 0) {
        return false;
    }
    if (called == pystate_frame_function(f) || is_passive(called)) {
        return true;
    }
    PyObject *self = first_argument(f, code);
    if (self == NULL) {
        return false;
    }
    if (is_named(code, "__init__")) {
        return called == (uintptr_t)Py_TYPE(self);
    }
    if (is_named(code, "__call__") || is_named(code, "__new__")) {
        return called == (uintptr_t)self;
    }
    return call->spread && !is_special(code) &&
           is_method_of(self, pystate_frame_function(f), code);
}

/* Is the entry of frame `f` from C code a hindrance? 1, 0 or -1. */
static int
hinders(PyFrameHead *f, PyFrameHead *caller)
{
    if (f->owner == PF_OWNED_BY_GENERATOR) {
        return 0;
    }
    Call call;
    int found = find_call(caller, &call);
    return found < 0 ? -1 : found == 0 || !is_passed_on(f, caller, &call);
}

int
pf_entry_find(PfThread *t, PyCodeObject **below)
{
    int found = 0;
    bool wanted = false; /* *below is the next code */
    bool first = true;
    PyFrameHead *end, *caller, *f = pystate_running_frames(t->tstate, &end);
    *below = NULL;
    for (; f != NULL && f != end; f = f->previous) {
        PyCodeObject *code = pystate_frame_code(f);
        if (code == NULL) {
            continue; /* an entry frame */
        }
        if (first && pf_entry_is_own(code)) {
            return 1;
        }
        first = false;
        if (wanted) {
            *below = code;
        }
        wanted = imports(code);
        if (wanted) {
            found = 1;
            continue;
        }
        if (!pystate_frame_is_entry(f, &caller) || caller == NULL ||
            caller == end || pystate_frame_code(caller) == NULL) {
            continue;
        }
        int verdict = hinders(f, caller);
        if (verdict < 0) {
            return -1;
        }
        if (verdict > 0) {
            found = 1;
            wanted = true;
        }
    }
    return found;
}

int
pf_entry_load(void)
{
    PyObject *module = pf_import("pyfiber._calls");
    Py_XDECREF(module);
    return module == NULL ? -1 : 0;
}

/* _set_calls(own_folder, passive, call_place) */
static PyObject *
set_calls(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *folder, *functions, *place;
    if (!PyArg_ParseTuple(args, "UO!O:_set_calls", &folder, &PyTuple_Type,
                          &functions, &place)) {
        return NULL;
    }
    Py_XSETREF(own_folder, Py_NewRef(folder));
    Py_XSETREF(passive, Py_NewRef(functions));
    Py_XSETREF(call_place, Py_NewRef(place));
    Py_RETURN_NONE;
}

static PyMethodDef entry_methods[] = {
    {"_set_calls", set_calls, METH_VARARGS,
     "_set_calls(own_folder, passive, call_place, /)\n--\n\n"
     "Set the folder of pyfiber's code, the C functions below which a fiber\n"
     "may be preempted, and the function that finds the called object."},
    {NULL, NULL, 0, NULL},
};

int
pf_entry_init(PyObject *module)
{
    return PyModule_AddFunctions(module, entry_methods);
}
