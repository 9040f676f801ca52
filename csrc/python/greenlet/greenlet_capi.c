/* The C API of the package greenlet, the functions of its module, and the
 * set-up at the first import of pyfiber.greenlet. */
#include "python/core/chain.h"
#include "python/core/compiler.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/greenlet/greenlet.h"
#include "python/switch/pending.h"
#include "python/switch/switch.h"

PfGreenletGlobals pf_greenlet; /* constant after import of pyfiber.greenlet */
PF_ATOMIC(size_t) pf_greenlet_mains; /* shared, one word */

/* -------------------------------------------------------------- the C API */

/* Returns 0 if the caller has passed a greenlet, else -1 with TypeError. */
static int
check(PyGreenlet *g)
{
    if (pf_greenlet_check((PyObject *)g)) {
        return 0;
    }
    PyErr_BadArgument();
    return -1;
}

static PyGreenlet *
capi_new(PyObject *run, PyGreenlet *parent)
{
    PyObject *g = pf_greenlet_new(&PfGreenlet_Type, NULL, NULL);
    if (g == NULL) {
        return NULL;
    }
    IMPL((PyGreenlet *)g)->run = Py_XNewRef(run);
    if (parent != NULL && (PyObject *)parent != Py_None &&
        pf_greenlet_set_parent((PyGreenlet *)g, (PyObject *)parent) < 0) {
        Py_CLEAR(g);
    }
    return (PyGreenlet *)g;
}

static PyGreenlet *
capi_get_current(void)
{
    return (PyGreenlet *)pf_greenlet_getcurrent(NULL, NULL);
}

static PyObject *
capi_throw(PyGreenlet *g, PyObject *type, PyObject *value, PyObject *tb)
{
    return check(g) < 0 ? NULL : pf_greenlet_throw(g, type, value, tb);
}

static PyObject *
capi_switch(PyGreenlet *g, PyObject *args, PyObject *kwargs)
{
    if (check(g) < 0) {
        return NULL;
    }
    if (kwargs != NULL && !PyDict_Check(kwargs)) {
        kwargs = NULL;
    }
    return pf_greenlet_switch(g, args, kwargs);
}

static int
capi_set_parent(PyGreenlet *g, PyGreenlet *parent)
{
    return check(g) < 0 ? -1 : pf_greenlet_set_parent(g, (PyObject *)parent);
}

static int
capi_main(PyGreenlet *g)
{
    return check(g) < 0 ? -1 : IMPL(g)->kind == PF_GREENLET_MAIN;
}

static int
capi_started(PyGreenlet *g)
{
    return check(g) < 0 ? -1 : IMPL(g)->started;
}

static int
capi_active(PyGreenlet *g)
{
    return check(g) < 0 ? -1 : pf_greenlet_is_active(g);
}

static PyGreenlet *
capi_get_parent(PyGreenlet *g)
{
    return check(g) < 0 ? NULL : (PyGreenlet *)pf_greenlet_parent(g);
}

/* The table of functions, in the order of the package's greenlet.h.  (constant
 * after import of pyfiber.greenlet) */
static void *capi[12];

static PyObject *
make_capsule(void)
{
    void *table[] = {&PfGreenlet_Type,
                     pf_greenlet.error,
                     pf_greenlet.exit,
                     (void *)(uintptr_t)capi_new,
                     (void *)(uintptr_t)capi_get_current,
                     (void *)(uintptr_t)capi_throw,
                     (void *)(uintptr_t)capi_switch,
                     (void *)(uintptr_t)capi_set_parent,
                     (void *)(uintptr_t)capi_main,
                     (void *)(uintptr_t)capi_started,
                     (void *)(uintptr_t)capi_active,
                     (void *)(uintptr_t)capi_get_parent};
    memcpy(capi, table, sizeof(capi));
    return PyCapsule_New(capi, "greenlet._C_API", NULL);
}

/* -------------------------------------------------------- module functions */

PyObject *
pf_greenlet_getcurrent(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    if (pystate_finalizing()) {
        PyErr_SetString(PyExc_RuntimeError, "greenlet is being finalized");
        return NULL;
    }
    PfThread *t = pf_thread_this();
    if (t == NULL) {
        return NULL;
    }
    if (PF_UNLIKELY((t->pending & PF_PENDING_POSTS) && t->no_switch == 0)) {
        pf_pending_take_posts(t);
    }
    return Py_XNewRef((PyObject *)pf_greenlet_current(t));
}

static PyObject *
count_mains(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    return PyLong_FromSize_t(pf_load(&pf_greenlet_mains));
}

/* Always 0: the greenlets of a thread are cleared away when the thread ends,
 * not later. */
static PyObject *
count_pending_cleanups(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    return PyLong_FromLong(0);
}

static PyObject *
set_thread_local(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *key, *value, *dict = PyThreadState_GetDict();
    if (dict == NULL ||
        !PyArg_UnpackTuple(args, "set_thread_local", 2, 2, &key, &value) ||
        PyDict_SetItem(dict, key, value) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
get_trash_nesting(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    return PyLong_FromLong(pystate_trash_nesting(PyThreadState_Get()));
}

PyDoc_STRVAR(getcurrent_doc,
             "getcurrent()\n--\n\nReturn the running greenlet.");
PyDoc_STRVAR(settrace_doc, "settrace(callback, /)\n--\n\n\
Call callback(event, (origin, target)) after each switch on this thread.\n\
\n\
`event` is 'switch' or 'throw'. A callback of None ends the tracing. Returns\n\
the previous callback. A callback that raises is removed, and its exception is\n\
raised in the target.");
PyDoc_STRVAR(gettrace_doc, "gettrace()\n--\n\n\
Return the callback of settrace() on this thread, or None.");

static PyMethodDef functions[] = {
    {"getcurrent", pf_greenlet_getcurrent, METH_NOARGS, getcurrent_doc},
    {"settrace", pf_greenlet_settrace, METH_O, settrace_doc},
    {"gettrace", pf_greenlet_gettrace, METH_NOARGS, gettrace_doc},
    /* The tests of the package greenlet use the following functions. */
    {"get_total_main_greenlets", count_mains, METH_NOARGS,
     "The number of main greenlets that are alive."},
    {"get_pending_cleanup_count", count_pending_cleanups, METH_NOARGS,
     "Always 0: a thread's greenlets are cleared away when it ends."},
    {"set_thread_local", set_thread_local, METH_VARARGS,
     "Store a value under a key in the dict of the thread."},
    {"get_tstate_trash_delete_nesting", get_trash_nesting, METH_NOARGS,
     "The depth of nested deallocations; 0 from Python 3.13 on."},
    {NULL, NULL, 0, NULL},
};

/* ------------------------------------------------------------------ set-up */

static int
add_functions(PyObject *api)
{
    PyObject *name = PyUnicode_FromString("greenlet");
    int rc = name == NULL ? -1 : 0;
    for (PyMethodDef *def = functions; rc == 0 && def->ml_name != NULL;
         def++) {
        PyObject *fn = PyCFunction_NewEx(def, NULL, name);
        rc = fn == NULL ? -1 : PyDict_SetItemString(api, def->ml_name, fn);
        Py_XDECREF(fn);
    }
    Py_XDECREF(name);
    return rc;
}

static int
make_names(void)
{
    pf_greenlet.error = PyErr_NewExceptionWithDoc(
        "greenlet.error", "A greenlet was used in a way it cannot be.", NULL,
        NULL);
    pf_greenlet.exit = PyErr_NewExceptionWithDoc(
        "greenlet.GreenletExit",
        "Ends a greenlet; uncaught it becomes its result.\n\n"
        "Raised in a suspended greenlet whose last reference is gone.",
        PyExc_BaseException, NULL);
    pf_greenlet.s_run = PyUnicode_InternFromString("run");
    pf_greenlet.s_switch = PyUnicode_InternFromString("switch");
    pf_greenlet.s_throw = PyUnicode_InternFromString("throw");
    return pf_greenlet.error && pf_greenlet.exit && pf_greenlet.s_run &&
                   pf_greenlet.s_switch && pf_greenlet.s_throw
               ? 0
               : -1;
}

static int
add_objects(PyObject *api)
{
    PyObject *capsule = make_capsule();
    int rc =
        capsule == NULL || PyDict_SetItemString(api, "_C_API", capsule) < 0 ||
                PyDict_SetItemString(api, "error", pf_greenlet.error) < 0 ||
                PyDict_SetItemString(api, "GreenletExit", pf_greenlet.exit) < 0
            ? -1
            : 0;
    Py_XDECREF(capsule);
    return rc;
}

/* Adds those functions and exceptions to the class that are also attributes of
 * the package's class, and adds the class to the module's contents. */
static int
add_to_class(PyObject *api)
{
    static const char *const names[] = {"getcurrent", "error", "GreenletExit",
                                        "settrace", "gettrace"};
    PyTypeObject *type = &PfGreenlet_Type;
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        PyObject *object = PyDict_GetItemString(api, names[i]);
        if (PyDict_SetItemString(type->tp_dict, names[i], object) < 0) {
            return -1;
        }
    }
    PyType_Modified(type);
    return PyDict_SetItemString(api, "greenlet", (PyObject *)type);
}

/* The link to the parent, for pf_chain_register(): borrowed. */
static PyObject *
greenlet_link(PyObject *op)
{
    PyGreenlet *g = (PyGreenlet *)op;
    return g->pimpl == NULL ? NULL : (PyObject *)IMPL(g)->parent;
}

/* Returns true if pyfiber.greenlet has been imported.  Then functions that run
 * at the exit of the interpreter, after pyfiber's, may still ask for the
 * current greenlet. */
static bool
are_wanted(void)
{
    return pf_greenlet.error != NULL;
}

/* constant after import */
PfKeeps pf_greenlet_of_thread = {.size = sizeof(GreenThread)};

const PfPart pf_greenlets_part = {
    .of_thread = &pf_greenlet_of_thread,
    .hooks = {.view_done = pf_greenlet_view_done},
    .thread_end = pf_greenlets_orphan,
    .needs_record = are_wanted,
    .free_spare = pf_greenlets_free_spare,
};

void
pf_greenlet_module_init(void)
{
    pf_chain_register(&PfGreenlet_Type, greenlet_link);
}

/* Returns a dict of everything that pyfiber.greenlet offers, which the first
 * call creates. */
PyObject *
pf_greenlet_api(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    static PyObject *api; /* constant after import of pyfiber.greenlet */
    if (api == NULL) {
        PyObject *made = PyDict_New();
        if (made == NULL || PyType_Ready(&PfGreenlet_Type) < 0 ||
            make_names() < 0 || add_functions(made) < 0 ||
            add_objects(made) < 0 || add_to_class(made) < 0) {
            Py_XDECREF(made);
            return NULL;
        }
        api = made;
    }
    return Py_NewRef(api);
}
