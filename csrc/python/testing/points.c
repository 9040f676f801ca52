/* The type _Points: callbacks for the interpreter's events, and the table of
 * code objects with their points.  See points.h. */
#include "python/testing/points.h"

#include "python/core/arguments.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/testing/explorer.h"

#include <string.h>

/* In maps the place of a site: the place is no point, but a loop without points
 * that never ends must be left some time.  points.py knows the number. */
#define QUIET UINT32_MAX

/* Maps keys from `base` on (lines, or offsets of instructions) to numbers of
 * sites; 0: the place is no point. */
typedef struct Map {
    uint32_t base, count;
    uint32_t *sites;
} Map;

/* A code object of which the explorer has asked whether it has points. */
typedef struct Code {
    PyObject *code; /* owned; NULL: a free slot of the table */
    Map lines, offsets;
} Code; /* at least half of the slots are free */

typedef struct Site {
    uint32_t first, count; /* the range in `accesses` */
    bool hot;
} Site;

/* Which fibers (their numbers modulo 64, as bits) have read and written a name
 * in this run. */
typedef struct Name {
    uint64_t readers, writers;
    bool hot;
} Name;

struct PfPointsObject {
    PyObject_HEAD
    PyObject *classify; /* (code) -> (lines, offsets), or None */
    PyObject *disable; /* what a callback returns for a place without points */
    Code *codes;       /* a hash table with open addressing */
    uint32_t capacity, used;
    Code *last;
    Site *sites;
    uint32_t site_count, site_room;
    uint32_t *accesses; /* 2 * number of a name, plus 1 for a write */
    uint32_t access_count, access_room;
    Name *names;
    uint32_t name_count, name_room;
    uint32_t importing; /* fibers that are in an import */
    bool gil;
};

PyTypeObject *pf_points_type; /* constant after import */

/* Makes room for one more entry of an array.  Returns false without memory.
 */
static bool
grow(void *array, uint32_t count, uint32_t *room, size_t size)
{
    if (count < *room) {
        return true;
    }
    void **items = array;
    uint32_t larger = *room == 0 ? 64 : *room * 2;
    void *moved = PyMem_RawRealloc(*items, larger * size);
    if (moved == NULL) {
        PyErr_NoMemory();
        return false;
    }
    *items = moved;
    *room = larger;
    return true;
}

/* ---------------------------------------------------------------- the sites */

/* Adds an access of the site that is being added.  0, or -1. */
static int
add_access(PfPointsObject *p, unsigned long access)
{
    if (access / 2 >= UINT32_MAX / 4) {
        PyErr_SetString(PyExc_ValueError, "the number of a name is too large");
        return -1;
    }
    while (p->name_count <= access / 2) {
        if (!grow(&p->names, p->name_count, &p->name_room, sizeof(Name))) {
            return -1;
        }
        p->names[p->name_count++] = (Name){0, 0, false};
    }
    if (!grow(&p->accesses, p->access_count, &p->access_room,
              sizeof *p->accesses)) {
        return -1;
    }
    p->accesses[p->access_count++] = (uint32_t)access;
    return 0;
}

static PyObject *
points_add(PyObject *op, PyObject *accesses)
{
    PfPointsObject *p = (PfPointsObject *)op;
    if (!PyTuple_Check(accesses)) {
        PyErr_SetString(PyExc_TypeError, "the accesses must be a tuple");
        return NULL;
    }
    if (!grow(&p->sites, p->site_count, &p->site_room, sizeof(Site))) {
        return NULL;
    }
    Site site = {p->access_count, 0, false};
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(accesses); i++) {
        unsigned long access =
            PyLong_AsUnsignedLong(PyTuple_GET_ITEM(accesses, i));
        if (PyErr_Occurred() || add_access(p, access) < 0) {
            return NULL;
        }
        site.count++;
        site.hot |= p->names[access / 2].hot;
    }
    p->sites[p->site_count++] = site;
    return PyLong_FromUnsignedLong(p->site_count);
}

static bool
accesses_hot(const PfPointsObject *p, const Site *site)
{
    for (uint32_t i = 0; i < site->count; i++) {
        if (p->names[p->accesses[site->first + i] / 2].hot) {
            return true;
        }
    }
    return false;
}

static void
heat(PfPointsObject *p, Name *name)
{
    name->hot = true;
    for (uint32_t i = 0; i < p->site_count; i++) {
        p->sites[i].hot |= accesses_hot(p, &p->sites[i]);
    }
}

/* The fiber makes the site's accesses next. */
static void
learn(PfPointsObject *p, const Site *site, uint32_t fiber)
{
    uint64_t bit = UINT64_C(1) << (fiber % 64);
    for (uint32_t i = 0; i < site->count; i++) {
        uint32_t access = p->accesses[site->first + i];
        Name *name = &p->names[access / 2];
        if (access % 2 != 0) {
            name->writers |= bit;
        } else {
            name->readers |= bit;
        }
        uint64_t all = name->readers | name->writers;
        if (!name->hot && name->writers != 0 && (all & (all - 1)) != 0) {
            heat(p, name);
        }
    }
}

bool
pf_points_conflict(const PfPointsObject *p, uint32_t one, uint32_t other)
{
    if (one == 0 || other == 0) {
        return false;
    }
    const Site *site = &p->sites[one - 1], *writer = &p->sites[other - 1];
    for (uint32_t i = 0; i < writer->count; i++) {
        uint32_t access = p->accesses[writer->first + i];
        for (uint32_t j = 0; access % 2 != 0 && j < site->count; j++) {
            if (p->accesses[site->first + j] / 2 == access / 2) {
                return true;
            }
        }
    }
    return false;
}

void
pf_points_begin(PfPointsObject *p)
{
    for (uint32_t i = 0; i < p->name_count; i++) {
        p->names[i].readers = p->names[i].writers = 0;
    }
    p->importing = 0;
}

/* ----------------------------------------------------------- the code objects */

static void
free_code(Code *code)
{
    PyMem_RawFree(code->lines.sites);
    PyMem_RawFree(code->offsets.sites);
    Py_CLEAR(code->code);
}

/* The slot of `code`, or the empty one where it belongs. */
static Code *
slot_of(Code *codes, uint32_t capacity, const PyObject *code)
{
    uint32_t i = (uint32_t)pf_testing_random_mix((uint64_t)(uintptr_t)code);
    while (codes[i & (capacity - 1)].code != NULL &&
           codes[i & (capacity - 1)].code != code) {
        i++;
    }
    return &codes[i & (capacity - 1)];
}

/* Moves the table into one of this capacity.  0, or -1 without memory. */
static int
rebuild(PfPointsObject *p, uint32_t capacity)
{
    Code *codes = PyMem_RawCalloc(capacity, sizeof(Code));
    if (codes == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (uint32_t i = 0; i < p->capacity; i++) {
        if (p->codes[i].code != NULL) {
            *slot_of(codes, capacity, p->codes[i].code) = p->codes[i];
        }
    }
    PyMem_RawFree(p->codes);
    p->codes = codes;
    p->capacity = capacity;
    p->last = NULL;
    return 0;
}

/* Reads ((key, site), ...) into a map.  0, or -1 with an exception. */
static int
read_map(const PfPointsObject *p, PyObject *items, Map *map)
{
    uint32_t least = UINT32_MAX, most = 0;
    Py_ssize_t n = PyTuple_GET_SIZE(items);
    for (Py_ssize_t i = 0; i < n; i++) {
        unsigned int key, site;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(items, i), "II", &key, &site)) {
            return -1;
        }
        if (key >= UINT32_MAX / 8 || site == 0 ||
            (site > p->site_count && site != QUIET)) {
            PyErr_SetString(PyExc_ValueError, "there is no such site");
            return -1;
        }
        least = key < least ? key : least;
        most = key > most ? key : most;
    }
    if (n == 0) {
        return 0;
    }
    map->base = least;
    map->count = most - least + 1;
    map->sites = PyMem_RawCalloc(map->count, sizeof *map->sites);
    if (map->sites == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        unsigned int key, site;
        (void)PyArg_ParseTuple(PyTuple_GET_ITEM(items, i), "II", &key, &site);
        map->sites[key - least] = site;
    }
    return 0;
}

/* Asks for the points of a code object that is not in the table.  0, or -1
 * with an exception. */
static int
classify(PfPointsObject *p, PfThread *t, Code *new)
{
    pf_thread_no_switch_begin(t, "while its code is looked at");
    PyObject *found = PyObject_CallOneArg(p->classify, new->code);
    pf_thread_no_switch_end(t);
    int rc = found == NULL ? -1 : 0;
    PyObject *lines, *offsets;
    if (found != NULL && found != Py_None) {
        rc = PyArg_ParseTuple(found, "O!O!", &PyTuple_Type, &lines,
                              &PyTuple_Type, &offsets) &&
                     read_map(p, lines, &new->lines) == 0 &&
                     read_map(p, offsets, &new->offsets) == 0
                 ? 0
                 : -1;
    }
    Py_XDECREF(found);
    return rc;
}

/* The code object's entry.  NULL with an exception. */
static Code *
code_of(PfPointsObject *p, PfThread *t, PyObject *op)
{
    if (p->last != NULL && p->last->code == op) {
        return p->last;
    }
    if (p->used * 2 >= p->capacity &&
        rebuild(p, p->capacity == 0 ? 64 : p->capacity * 2) < 0) {
        return NULL;
    }
    Code *slot = slot_of(p->codes, p->capacity, op);
    if (slot->code == NULL) {
        Code new = {Py_NewRef(op), {0, 0, NULL}, {0, 0, NULL}};
        if (classify(p, t, &new) < 0) {
            free_code(&new);
            return NULL;
        }
        slot = slot_of(p->codes, p->capacity, op); /* code has run */
        if (slot->code != NULL) {
            free_code(&new);
        } else {
            *slot = new;
            p->used++;
        }
    }
    p->last = slot;
    return slot;
}

static inline bool
has_points(const Code *code)
{
    return code != NULL && (code->lines.count | code->offsets.count) != 0;
}

static inline uint32_t
site_at(const Map *map, uint32_t key)
{
    uint32_t i = key - map->base;
    return i < map->count ? map->sites[i] : 0;
}

/* ---------------------------------------------------------------- the events */

/* The explorer of the run on this thread, if it uses these points. */
static inline ExplorerObject *
explorer_here(const PfPointsObject *p)
{
    const PfThread *t = pf_thread_current;
    ExplorerObject *x =
        t == NULL || t->scheduler == NULL ? NULL : t->scheduler->explorer;
    return x != NULL && x->points == (PyObject *)p ? x : NULL;
}

/* Is the running fiber in an import? */
static bool
imports(const PfPointsObject *p, ExplorerObject *x)
{
    if (PF_LIKELY(p->importing == 0)) {
        return false;
    }
    const uint32_t *depth = pf_explorer_imports(x);
    return depth != NULL && *depth != 0;
}

/* The running fiber passes a point.  0, or -1 with an exception. */
static int
pass(PfPointsObject *p, ExplorerObject *x, uint32_t number)
{
    if (imports(p, x)) {
        return 0;
    }
    if (number == QUIET) {
        return pf_explorer_pass_quietly(x);
    }
    const Site *site = &p->sites[number - 1];
    if (x->scheduler->core.ready.head != NULL) {
        learn(p, site, x->running);
    }
    return pf_explorer_pass(x, number, site->hot);
}

/* Does the running fiber run code with points? */
static bool
runs_included(const PfPointsObject *p)
{
    PyFrameObject *frame = PyEval_GetFrame(); /* borrowed */
    if (frame == NULL || p->capacity == 0) {
        return false;
    }
    PyCodeObject *code = PyFrame_GetCode(frame);
    bool included =
        has_points(slot_of(p->codes, p->capacity, (PyObject *)code));
    Py_DECREF(code);
    return included;
}

int
pf_points_operation(const PfPointsObject *p, ExplorerObject *x)
{
    return imports(p, x) || !runs_included(p) ? 0
                                              : pf_explorer_pass(x, 0, true);
}

int
pf_points_pass(PfPointsObject *p, PyObject *op, uint32_t key, bool is_line)
{
    ExplorerObject *x = explorer_here(p);
    if (x == NULL) {
        return 0; /* no DISABLE: a run may come here later */
    }
    Code *code = code_of(p, x->scheduler->thread, op);
    if (code == NULL) {
        return -1;
    }
    uint32_t site = site_at(is_line ? &code->lines : &code->offsets, key);
    return site == 0 ? PF_NO_POINT : pass(p, x, site);
}

bool
pf_points_has_offsets(PfPointsObject *p, PyObject *op)
{
    ExplorerObject *x = explorer_here(p);
    Code *code = x == NULL ? NULL : code_of(p, x->scheduler->thread, op);
    PyErr_Clear(); /* the next event reports it */
    return code != NULL && code->offsets.count > 0;
}

bool
pf_points_gil(const PfPointsObject *p)
{
    return p->gil;
}

/* Handles an event of arguments (code, key, ...).  The event is disabled if the
 * place is no point, except for a function's beginning in code with points:
 * where no tool watches RESUME, CPython 3.13.0 reports no LINE event if a
 * function's body begins on the line of its `def`. */
static PyObject *
event(PyObject *op, PyObject *const *args, Py_ssize_t nargs, bool is_line,
      bool may_disable)
{
    PfPointsObject *p = (PfPointsObject *)op;
    if (nargs < 2) {
        PyErr_SetString(PyExc_TypeError, "an event has a code and a place");
        return NULL;
    }
    unsigned long key = PyLong_AsUnsignedLong(args[1]);
    if (key == (unsigned long)-1 && PyErr_Occurred()) {
        return NULL;
    }
    int rc = pf_points_pass(p, args[0], (uint32_t)key, is_line);
    bool disable = rc == PF_NO_POINT && (may_disable || !has_points(p->last));
    return rc < 0 ? NULL : Py_NewRef(disable ? p->disable : Py_None);
}

static PyObject *
points_line(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    return event(op, args, nargs, true, true);
}

static PyObject *
points_place(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    return event(op, args, nargs, false, true);
}

static PyObject *
points_enters(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    return event(op, args, nargs, false, false);
}

/* Counts the running fiber as one that imports while it calls args[0] with the
 * rest.  The fiber may wait meanwhile, and others run. */
PyObject *
pf_points_importing(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    if (nargs < 1) {
        PyErr_SetString(PyExc_TypeError, "_importing() needs a function");
        return NULL;
    }
    const PfThread *t = pf_thread_current;
    ExplorerObject *x =
        t == NULL || t->scheduler == NULL ? NULL : t->scheduler->explorer;
    PfPointsObject *p = x == NULL ? NULL : (PfPointsObject *)x->points;
    uint32_t *depth = p == NULL ? NULL : pf_explorer_imports(x);
    if (depth != NULL) {
        ++*depth;
        p->importing++;
    }
    PyObject *result =
        PyObject_Vectorcall(args[0], args + 1, (size_t)(nargs - 1), NULL);
    if (depth != NULL && t->scheduler != NULL && t->scheduler->explorer == x) {
        depth = pf_explorer_imports(x); /* the table may have moved */
        if (depth != NULL && *depth > 0) {
            --*depth;
            p->importing--;
        }
    }
    return result;
}

/* ------------------------------------------------------------------ the type */

static PyObject *
points_codes(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    PfPointsObject *p = (PfPointsObject *)op;
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list != NULL && i < p->capacity; i++) {
        PyObject *code = p->codes[i].code;
        if (code != NULL && PyList_Append(list, code) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static PyObject *
points_forget(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    PfPointsObject *p = (PfPointsObject *)op;
    for (uint32_t i = 0; i < p->capacity; i++) {
        PyObject *code = p->codes[i].code;
        if (code != NULL && Py_REFCNT(code) == 1) {
            free_code(&p->codes[i]);
            p->used--;
        }
    }
    /* Entries must not lie behind a gap. */
    return p->capacity != 0 && rebuild(p, p->capacity) < 0
               ? NULL
               : Py_NewRef(Py_None);
}

static PyObject *
points_hot(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    PfPointsObject *p = (PfPointsObject *)op;
    PyObject *list = PyList_New(0);
    for (uint32_t i = 0; list != NULL && i < p->name_count; i++) {
        PyObject *number = p->names[i].hot ? PyLong_FromUnsignedLong(i) : NULL;
        if (p->names[i].hot &&
            (number == NULL || PyList_Append(list, number) < 0)) {
            Py_CLEAR(list);
        }
        Py_XDECREF(number);
    }
    return list;
}

static PyObject *
points_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"classify", "disable", "gil", NULL};
    PyObject *classify, *disable;
    int gil;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOp:_Points", names,
                                     &classify, &disable, &gil)) {
        return NULL;
    }
    PfPointsObject *p = (PfPointsObject *)type->tp_alloc(type, 0);
    if (p != NULL) {
        p->classify = Py_NewRef(classify);
        p->disable = Py_NewRef(disable);
        p->gil = gil;
    }
    return (PyObject *)p;
}

static int
points_traverse(PyObject *op, visitproc visit, void *arg)
{
    PfPointsObject *p = (PfPointsObject *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(p->classify);
    Py_VISIT(p->disable);
    for (uint32_t i = 0; i < p->capacity; i++) {
        Py_VISIT(p->codes[i].code);
    }
    return 0;
}

/* The callbacks need everything, so nothing is cleared: `classify` refers back
 * only to what holds this object, and drops that at the end of the runs. */
static void
points_dealloc(PyObject *op)
{
    PfPointsObject *p = (PfPointsObject *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    for (uint32_t i = 0; i < p->capacity; i++) {
        free_code(&p->codes[i]);
    }
    PyMem_RawFree(p->codes);
    PyMem_RawFree(p->sites);
    PyMem_RawFree(p->accesses);
    PyMem_RawFree(p->names);
    Py_XDECREF(p->classify);
    Py_XDECREF(p->disable);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMethodDef points_methods[] = {
    {"add", points_add, METH_O,
     "Add a site that makes these accesses: a tuple of 2 * number of a name,\n"
     "plus 1 for a write. Return the site's number."},
    {"line", PF_FAST(points_line), METH_FASTCALL,
     "Callback of (code, line): a line begins."},
    {"place", PF_FAST(points_place), METH_FASTCALL,
     "Callback of (code, offset, ...): an instruction, or a jump."},
    {"enters", PF_FAST(points_enters), METH_FASTCALL,
     "Callback of (code, offset, ...): a function begins or continues, or a\n"
     "C function has returned."},
    {"codes", points_codes, METH_NOARGS,
     "All code objects that were classified."},
    {"forget", points_forget, METH_NOARGS,
     "Forget code objects to which nothing else refers."},
    {"hot", points_hot, METH_NOARGS, "The numbers of the hot names."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot points_slots[] = {
    {Py_tp_doc, (void *)"Where a run under test may interrupt a fiber; see\n"
                        "pyfiber.testing.points."},
    {Py_tp_new, points_new},
    {Py_tp_dealloc, points_dealloc},
    {Py_tp_traverse, points_traverse},
    {Py_tp_methods, points_methods},
    {0, NULL},
};

PyType_Spec pf_points_spec = {
    .name = "pyfiber._engine._Points",
    .basicsize = sizeof(PfPointsObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = points_slots,
};
