/* The standard threading.local: in a fiber of a run its attributes belong to
 * the fiber, elsewhere to the thread, as they did before.
 *
 * The type is changed in place, in the slots by which attributes are found.
 * The subclasses have copies of these slots, which are changed as well.  So
 * the change reaches every object, whenever it was made.  The object has no
 * room for the attributes that fibers set, so they are in a record (table.h).
 */
#include "python/core/arguments.h"
#include "python/core/compiler.h"
#include "python/core/import.h"
#include "python/patch/patch.h"
#include "python/patch/table.h"
#include "python/sync/local.h"
#include "python/task/fiber.h"

typedef struct LocalRecord {
    PfItem item;
    PfSlot *slots;
    PyObject *weak; /* weak reference; its callback frees the record */
    uint64_t owed;  /* the thread that made the object in a fiber and has not
                       called __init__ for itself yet; 0: none */
} LocalRecord;

/* constant after import; what it points to is guarded by the GIL */
static PfTable *records;
static PF_ATOMIC(size_t) owed_count; /* shared, one word */

typedef struct Slots {
    getattrofunc get;
    setattrofunc set;
    newfunc new;
} Slots;

/* constant after import of pyfiber._patch._local, which finds it */
static PyTypeObject *standard;
/* constant after import of pyfiber._patch, which finds them */
static Slots original;
/* How many objects tp_traverse visits in a local that was made without keyword
 * arguments; constant after import, too. */
static Py_ssize_t visits;
static bool in_place; /* shared, one word */

/* Returns the running fiber if it belongs to a run; else NULL, and attributes
 * are the thread's. */
static inline FiberObject *
fiber_here(void)
{
    PfThread *t = pf_thread_current;
    if (PF_LIKELY(t == NULL || t->scheduler == NULL)) {
        return NULL;
    }
    return CURRENT(t)->scheduled ? CURRENT(t) : NULL;
}

/* ------------------------------------------------------------------ records */

static inline LocalRecord *
find(PyObject *op)
{
    return (LocalRecord *)pf_table_find(records, op);
}

static void
free_record(LocalRecord *record)
{
    PyObject *weak = record->weak;
    pf_fetch_add(&owed_count, record->owed != 0 ? (size_t)-1 : 0);
    pf_locals_clear_local(&record->slots);
    PyMem_Free(record);
    Py_XDECREF(weak);
}

/* The weak reference's callback: the object has died. */
static PyObject *
on_death(PyObject *capsule, PyObject *weak)
{
    (void)weak;
    LocalRecord *record = PyCapsule_GetPointer(capsule, NULL);
    if (record != NULL) {
        pf_table_remove(records, &record->item);
        free_record(record);
    }
    Py_RETURN_NONE;
}

static PyMethodDef death = {"forget_local", on_death, METH_O, NULL};

static PyObject *
watch(PyObject *op, LocalRecord *record)
{
    PyObject *capsule = PyCapsule_New(record, NULL, NULL);
    PyObject *callback =
        capsule == NULL ? NULL : PyCFunction_New(&death, capsule);
    PyObject *weak = callback == NULL ? NULL : PyWeakref_NewRef(op, callback);
    Py_XDECREF(callback);
    Py_XDECREF(capsule);
    return weak;
}

/* Finds or makes the object's record.  Making one may run code that makes it,
 * too: then that one is returned. */
static LocalRecord *
record_of(PyObject *op)
{
    LocalRecord *record = find(op);
    if (PF_LIKELY(record != NULL)) {
        return record;
    }
    record = PyMem_Calloc(1, sizeof *record);
    if (record == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    record->item.object = op;
    record->weak = watch(op, record);
    LocalRecord *other = find(op);
    if (record->weak == NULL || other != NULL) {
        free_record(record);
        return other;
    }
    pf_table_add(records, &record->item);
    return record;
}

/* -------------------------------------------- the arguments of its constructor
 */

typedef struct Visits {
    Py_ssize_t count;
    PyObject *first[3]; /* the type, the tuple, the dict if there is one */
} Visits;

static int
visit(PyObject *op, void *data)
{
    Visits *seen = data;
    if (seen->count < 3) {
        seen->first[seen->count] = op;
    }
    seen->count++;
    return 0;
}

/* Finds the arguments of the constructor, which the object keeps and shows to
 * the collector.  The references are new; NULL if the collector has cleared
 * the object. */
static PfLocal
described(PyObject *op, LocalRecord *record)
{
    PfLocal local = {.object = op, .slots = &record->slots};
    Visits seen = {.count = 0};
    (void)standard->tp_traverse(op, visit, &seen);
    if (seen.count >= visits && PyTuple_Check(seen.first[1])) {
        local.args = Py_NewRef(seen.first[1]);
        local.kwargs = seen.count > visits ? Py_NewRef(seen.first[2]) : NULL;
    }
    return local;
}

static int
look_at_one(void)
{
    PyObject *one = PyObject_CallNoArgs((PyObject *)standard);
    if (one == NULL) {
        return -1;
    }
    Visits seen = {.count = 0};
    (void)standard->tp_traverse(one, visit, &seen);
    bool known = seen.count >= 2 && seen.first[0] == (PyObject *)standard &&
                 PyTuple_CheckExact(seen.first[1]);
    visits = seen.count;
    Py_DECREF(one);
    if (!known) {
        PyErr_SetString(PyExc_RuntimeError,
                        "pyfiber does not know this interpreter's "
                        "threading.local: it cannot be patched");
    }
    return known ? 0 : -1;
}

/* --------------------------------------------------------------- attributes */

static PyObject *
dict_in(PyObject *op, FiberObject *fiber)
{
    LocalRecord *record = record_of(op);
    if (record == NULL) {
        return NULL;
    }
    PfSlot *slot = pf_locals_find(&record->slots, fiber);
    if (PF_LIKELY(slot != NULL)) {
        return Py_NewRef(slot->dict);
    }
    PfLocal local = described(op, record);
    PyObject *dict = pf_local_dict(&local, fiber);
    Py_XDECREF(local.args);
    Py_XDECREF(local.kwargs);
    return dict;
}

/* Calls __init__ for the thread if it made the object in a fiber and now uses
 * it for itself for the first time.  Returns 0, or -1 with an exception. */
static int
call_owed_init(PyObject *op)
{
    PfThread *t = pf_thread_current;
    LocalRecord *record = t == NULL ? NULL : find(op);
    if (record == NULL || record->owed != t->tstate_id) {
        return 0;
    }
    record->owed = 0;
    pf_fetch_add(&owed_count, (size_t)-1);
    PfLocal local = described(op, record);
    int rc = local.args == NULL
                 ? 0
                 : Py_TYPE(op)->tp_init(op, local.args, local.kwargs);
    Py_XDECREF(local.args);
    Py_XDECREF(local.kwargs);
    return rc;
}

static PyObject *
get(PyObject *op, PyObject *name)
{
    FiberObject *fiber = fiber_here();
    if (PF_UNLIKELY(fiber != NULL)) {
        return pf_local_get(op, name, dict_in(op, fiber));
    }
    if (PF_UNLIKELY(pf_load_relaxed(&owed_count) != 0) &&
        call_owed_init(op) < 0) {
        return NULL;
    }
    return original.get(op, name);
}

static int
set(PyObject *op, PyObject *name, PyObject *value)
{
    FiberObject *fiber = fiber_here();
    if (PF_UNLIKELY(fiber != NULL)) {
        return pf_local_set(op, name, value, dict_in(op, fiber));
    }
    if (PF_UNLIKELY(pf_load_relaxed(&owed_count) != 0) &&
        call_owed_init(op) < 0) {
        return -1;
    }
    return original.set(op, name, value);
}

/* Gives the fiber its dict of attributes, without a call of __init__(): the
 * call that makes the object does that, in this fiber. */
static int
begin_in(FiberObject *fiber, PyObject *op)
{
    LocalRecord *record = record_of(op);
    if (record == NULL ||
        pf_locals_add(&record->slots, fiber, PyDict_New()) == NULL) {
        return -1;
    }
    record->owed = fiber->thread->tstate_id;
    pf_fetch_add(&owed_count, record->owed != 0);
    return 0;
}

static PyObject *
make(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *op = original.new(type, args, kwargs);
    FiberObject *fiber = op == NULL ? NULL : fiber_here();
    if (fiber != NULL && pf_local_has_init(type) && begin_in(fiber, op) < 0) {
        Py_CLEAR(op);
    }
    return op;
}

/* ----------------------------------------------------------------- the change
 */

static const Slots ours = {get, set, make};

static int change(PyTypeObject *type, const Slots *from, const Slots *to);

static int
change_subclasses(PyTypeObject *type, const Slots *from, const Slots *to)
{
    PyObject *list = PyObject_CallMethod(
        (PyObject *)&PyType_Type, "__subclasses__", "O", (PyObject *)type);
    Py_ssize_t count = list == NULL ? 0 : PyList_GET_SIZE(list);
    int rc = list == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; i < count && rc == 0; i++) {
        rc = change((PyTypeObject *)PyList_GET_ITEM(list, i), from, to);
    }
    Py_XDECREF(list);
    return rc;
}

/* A class that has its own __getattribute__ in the slot keeps it: that one
 * calls the standard one by name. */
static int
change(PyTypeObject *type, const Slots *from, const Slots *to)
{
    if (type->tp_getattro == from->get) {
        type->tp_getattro = to->get;
    }
    if (type->tp_setattro == from->set) {
        type->tp_setattro = to->set;
    }
    if (type->tp_new == from->new) {
        type->tp_new = to->new;
    }
    PyType_Modified(type);
    return change_subclasses(type, from, to);
}

static void
change_wrapper(const char *name, void *function)
{
    PyObject *found = PyDict_GetItemString(standard->tp_dict, name);
    if (found != NULL && Py_IS_TYPE(found, &PyWrapperDescr_Type)) {
        ((PyWrapperDescrObject *)found)->d_wrapped = function;
    }
}

static int
change_all(const Slots *from, const Slots *to)
{
    change_wrapper("__getattribute__", (void *)to->get);
    change_wrapper("__setattr__", (void *)to->set);
    change_wrapper("__delattr__", (void *)to->set);
    in_place = to == &ours;
    return change(standard, from, to);
}

static int
find_standard(void)
{
    PyObject *type = pf_import_from("_thread", "_local");
    if (type == NULL) {
        return -1;
    }
    standard = (PyTypeObject *)type;
    original = (Slots){standard->tp_getattro, standard->tp_setattro,
                       standard->tp_new};
    if (look_at_one() < 0) {
        Py_CLEAR(standard);
        return -1;
    }
    return 0;
}

static PyObject *
local_patch(PyObject *module, PyObject *wanted)
{
    (void)module;
    bool on = wanted == Py_True;
    if (standard == NULL && find_standard() < 0) {
        return NULL;
    }
    if (on != in_place &&
        change_all(on ? &original : &ours, on ? &ours : &original) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* Returns the fiber of a run on whose behalf an import runs here, or NULL.
 * For a raw fiber that is the fiber of the run that has entered it, which goes
 * on only when the raw fiber comes back. */
static FiberObject *
importer(void)
{
    PfThread *t = pf_thread_current;
    FiberObject *fiber = t == NULL || t->scheduler == NULL ? NULL : CURRENT(t);
    while (fiber != NULL && !fiber->scheduled) {
        fiber = fiber->parent;
    }
    return fiber;
}

static PyObject *
fiber_ident(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    FiberObject *fiber = importer();
    if (fiber == NULL) {
        return PyLong_FromUnsignedLong(PyThread_get_thread_ident());
    }
    return PyLong_FromSsize_t(-(Py_ssize_t)((uintptr_t)fiber >> 1));
}

static PyMethodDef functions[] = {
    {"_local_patch", local_patch, METH_O,
     "_local_patch(wanted, /)\n--\n\n"
     "Whether each fiber has its own attributes in the standard local."},
    {"_fiber_ident", fiber_ident, METH_NOARGS,
     "_fiber_ident()\n--\n\n"
     "A number that identifies the fiber of a run, else get_ident()."},
    {NULL, NULL, 0, NULL},
};

int
pf_patch_local_init(PyObject *module)
{
    records = PyMem_Calloc(1, sizeof *records);
    if (records == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    pf_table_init(records);
    return PyModule_AddFunctions(module, functions);
}
