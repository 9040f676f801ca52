/* Every turn of a fiber: when it began, when it ended, what it had waited for.
 * From this come a timeline (pyfiber.debug.trace) and a profile (pyfiber.debug.Profiler).
 *
 * Nothing is paid while nobody looks: a recorder is the `pick` of a scheduler,
 * a function that pf_next calls if there is one.  It takes the tasks in the
 * usual order.  A scheduler under test has a `pick` of its own, and is not
 * recorded.
 *
 * A turn ends when the next one begins, or when the loop waits or ends.  What
 * a fiber waits for is still written in it when its next turn begins, so that
 * is read then, and nothing has to be kept of a fiber that has stopped: it may
 * be freed at any time.
 *
 * All of this happens under the GIL, or on the one thread that is recorded
 * without it (see recorded.h), and on_turn runs no Python code: between the
 * choice of a task and its turn nothing may change.  What is recorded keeps
 * names and types alive, never fibers.
 */
#include "python/watch/watch.h"

#include "python/core/arguments.h"
#include "python/core/state.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/fiber/fiber.h"
#include "python/fiber/hub.h"
#include "python/fiber/task.h"
#include "python/watch/recorded.h"

#include "engine/base/clock.h"

#include <string.h>

/* ------------------------------------------------- numbers of addresses */

typedef struct Entry {
    const void *key; /* NULL: free */
    uint32_t number;
} Entry;

/* Open addressing.  Numbers begin with 1; an entry with the number 0 is as good
 * as none. */
typedef struct Map {
    Entry *entries;
    size_t mask, count; /* the size is mask + 1, or 0 */
} Map;

static Entry *
map_place(const Map *map, const void *key)
{
    size_t at = ((uintptr_t)key >> 4) * (size_t)0x9E3779B97F4A7C15u;
    for (at ^= at >> 29;; at++) {
        Entry *entry = &map->entries[at & map->mask];
        if (entry->key == key || entry->key == NULL) {
            return entry;
        }
    }
}

static bool
map_rebuild(Map *map, size_t size)
{
    Map other = {PyMem_RawCalloc(size, sizeof(Entry)), size - 1, 0};
    if (other.entries == NULL) {
        return false;
    }
    for (size_t i = 0; map->entries != NULL && i <= map->mask; i++) {
        if (map->entries[i].number != 0) {
            *map_place(&other, map->entries[i].key) = map->entries[i];
            other.count++;
        }
    }
    PyMem_RawFree(map->entries);
    *map = other;
    return true;
}

static bool
map_grow(Map *map)
{
    return map_rebuild(map, map->entries == NULL ? 64 : 2 * (map->mask + 1));
}

/* The entry of `key`, new with the number 0; NULL: no memory. */
static Entry *
map_entry(Map *map, const void *key)
{
    if (2 * map->count >= map->mask && !map_grow(map)) {
        return NULL;
    }
    Entry *entry = map_place(map, key);
    if (entry->key == NULL) {
        map->count++;
        *entry = (Entry){key, 0};
    }
    return entry;
}

/* ------------------------------------------------------------ the recorder */

/* How a turn came about; the upper bits of Record.why. */
enum { WOKEN, TIMED_OUT, CANCELLED, FIRST };
#define WHY_BITS 14
#define MOST_REASONS ((1 << WHY_BITS) - 1)

#define FEW_NAMES 1024 /* to look for old ones among them is not worth it */

/* In the order of time.  Python reads them by struct.unpack("=qIHH"). */
typedef struct Record {
    int64_t when;  /* nanoseconds, monotonic */
    uint32_t task; /* who begins; 0: nobody, the loop waits or ends */
    uint16_t loop;
    uint16_t why; /* index of what it waited for, and how it came about */
} Record;
_Static_assert(sizeof(Record) == 16, "Python knows its layout");

typedef struct Row {
    uint64_t turns;
    int64_t cpu, real, longest; /* nanoseconds; longest: of `real` */
} Row;

typedef struct Moment {
    int64_t real, cpu; /* cpu: of the thread, if a profile is taken */
} Moment;

typedef struct Recorder {
    PyObject_HEAD
    /* --- a timeline --- */
    Record *records; /* a ring; NULL: this is a profile */
    size_t room;
    uint64_t written;
    Map tasks;         /* by task */
    PyObject *names;   /* by a task's number - 1 */
    Py_ssize_t most;   /* of those, before forget_names() */
    Map kinds;         /* of waits, by word or type */
    PyObject *reasons; /* those, by number - 1 */
    Map loops;         /* by the thread's identifier */
    PyObject *threads; /* their identifiers, by number - 1 */
    /* --- a profile --- */
    PyObject *rows_of; /* dict: a name's row */
    Row *rows;
    size_t row_room;
    /* --- */
    uint64_t lost; /* turns without memory for them */
} Recorder;

/* At work; at most one of each; under the GIL. Shared, one word each. */
static Recorder *timeline, *profile;

/* The number of `key`, for which `list` then has `object`; 0: no memory. */
static uint32_t
number_of(Map *map, PyObject *list, const void *key, PyObject *object,
          bool renew)
{
    Entry *entry = map_entry(map, key);
    if (entry == NULL) {
        return 0;
    }
    if (entry->number == 0 || renew) {
        if (PyList_Append(list, object) < 0) {
            PyErr_Clear();
            return 0;
        }
        entry->number = (uint32_t)PyList_GET_SIZE(list);
    }
    return entry->number;
}

/* A str, no subclass, or a type: as far as it can be had, and dropped, without
 * running code; borrowed. */
static PyObject *
name_of(PfTaskObject *task)
{
    FiberObject *fiber = pf_fiber_or_null(task);
    PyObject *name = task->name;
    if (name == NULL && fiber != NULL && fiber->target != NULL) {
        PyObject *target = fiber->target;
        if (PyMethod_Check(target)) {
            target = PyMethod_GET_FUNCTION(target);
        }
        name = PyFunction_Check(target)
                   ? ((PyFunctionObject *)target)->func_qualname
                   : (PyObject *)Py_TYPE(target);
    }
    return name != NULL && (PyUnicode_CheckExact(name) || PyType_Check(name))
               ? name
               : (PyObject *)Py_TYPE(task);
}

/* ---------------------------------------------------------------- a timeline */

static void
write_record(Recorder *r, Record record)
{
    r->records[r->written % r->room] = record;
    r->written++;
}

static uint16_t
loop_number(Recorder *r, SchedulerObject *s)
{
    unsigned long thread = pystate_thread(s->thread->tstate);
    PyObject *ident = PyLong_FromUnsignedLong(thread);
    if (ident == NULL) {
        PyErr_Clear();
        return 0;
    }
    const void *key = (const void *)(uintptr_t)thread;
    uint32_t number = number_of(&r->loops, r->threads, key, ident, false);
    Py_DECREF(ident);
    return number > UINT16_MAX ? 0 : (uint16_t)number;
}

/* What it has waited for until now, as a word or a type; NULL: nothing. */
static PyObject *
reason_of(FiberObject *fiber)
{
    if (fiber == NULL || !fiber->entered || fiber->waiting_on == NULL) {
        return NULL;
    }
    PyObject *what = fiber->waiting_on;
    return PyUnicode_Check(what) ? what : (PyObject *)Py_TYPE(what);
}

static unsigned
how_it_came(const pf_task *task, bool first)
{
    switch (task->wake) {
    case PF_WAKE_TIMEOUT:
        return TIMED_OUT;
    case PF_WAKE_CANCEL:
        return CANCELLED;
    default:
        return first ? FIRST : WOKEN;
    }
}

static size_t
records_of(const Recorder *r)
{
    return r->written < r->room ? (size_t)r->written : r->room;
}

/* New numbers for the tasks in the records, in the order of the old ones, by
 * the old ones, 0 for others; NULL: no memory. */
static uint32_t *
renumber(const Recorder *r)
{
    size_t count = (size_t)PyList_GET_SIZE(r->names);
    uint32_t *numbers = PyMem_RawCalloc(count + 1, sizeof *numbers);
    if (numbers == NULL) {
        return NULL;
    }
    for (size_t i = 0; i < records_of(r); i++) {
        numbers[r->records[i].task] = 1;
    }
    numbers[0] = 0;
    uint32_t last = 0;
    for (size_t i = 1; i <= count; i++) {
        numbers[i] = numbers[i] == 0 ? 0 : ++last;
    }
    return numbers;
}

/* Keep those that have a new number. */
static void
shorten(PyObject *names, const uint32_t *numbers)
{
    Py_ssize_t kept = 0, count = PyList_GET_SIZE(names);
    for (Py_ssize_t i = 0; i < count; i++) {
        if (numbers[i + 1] != 0) {
            PyObject *name = PyList_GET_ITEM(names, i);
            PyList_SET_ITEM(names, i, PyList_GET_ITEM(names, kept));
            PyList_SET_ITEM(names, kept, name);
            kept++;
        }
    }
    if (PyList_SetSlice(names, kept, count, NULL) < 0) {
        PyErr_Clear(); /* they stay until the next time */
    }
}

/* A timeline may be on for days, with new fibers all the time: forget those
 * that are in no record any more.  What their names are runs no code when it
 * goes, see keep_type().  Once in so many new ones that it costs each little. */
static void
forget_names(Recorder *r)
{
    uint32_t *numbers = renumber(r);
    if (numbers != NULL) {
        for (size_t i = 0; i < records_of(r); i++) {
            r->records[i].task = numbers[r->records[i].task];
        }
        for (size_t i = 0; r->tasks.entries != NULL && i <= r->tasks.mask;
             i++) {
            Entry *entry = &r->tasks.entries[i];
            entry->number = numbers[entry->number];
        }
        if (r->tasks.entries != NULL) {
            (void)map_rebuild(&r->tasks, r->tasks.mask + 1);
        }
        shorten(r->names, numbers);
        PyMem_RawFree(numbers);
    }
    Py_ssize_t count = PyList_GET_SIZE(r->names);
    r->most = count + count / 2 + (Py_ssize_t)(r->room / 16) + FEW_NAMES;
}

/* The last reference to a type may run code when it goes, so the reasons,
 * which are never forgotten, have one, too. */
static bool
keep_type(Recorder *r, PyObject *name)
{
    return PyUnicode_CheckExact(name) ||
           number_of(&r->kinds, r->reasons, name, name, false) != 0;
}

/* 0: no memory. */
static uint32_t
task_number(Recorder *r, pf_task *task, bool first)
{
    PyObject *name = name_of(pf_object_of(task));
    if (PyList_GET_SIZE(r->names) >= r->most) {
        forget_names(r);
    }
    if (!keep_type(r, name)) {
        return 0;
    }
    uint32_t number = number_of(&r->tasks, r->names, task, name, first);
    /* A grain may have the address of one that is gone; the name tells. */
    if (number != 0 && pf_fiber_or_null(pf_object_of(task)) == NULL &&
        PyList_GET_ITEM(r->names, number - 1) != name) {
        number = number_of(&r->tasks, r->names, task, name, true);
    }
    return number;
}

static void
note_begin(Recorder *r, SchedulerObject *s, pf_task *task, int64_t now)
{
    FiberObject *fiber = pf_fiber_or_null(pf_object_of(task));
    /* A fiber gets its stack after this, so a first turn shows. */
    bool first = fiber != NULL && fiber->fiber.stack == NULL;
    uint32_t number = task_number(r, task, first);
    PyObject *reason = reason_of(fiber);
    uint32_t kind = 0;
    if (reason != NULL) {
        kind = number_of(&r->kinds, r->reasons, reason, reason, false);
        kind = kind > MOST_REASONS ? 0 : kind;
    }
    if (number == 0) {
        r->lost++;
        return;
    }
    unsigned how = how_it_came(task, first);
    write_record(r, (Record){now, number, s->turn.loop,
                             (uint16_t)(how << WHY_BITS | kind)});
}

/* ----------------------------------------------------------------- a profile */

/* Room for one more. */
static bool
have_row(Recorder *r, size_t count)
{
    if (count < r->row_room) {
        return true;
    }
    size_t room = r->row_room == 0 ? 64 : 2 * r->row_room;
    Row *rows = PyMem_RawRealloc(r->rows, room * sizeof(Row));
    if (rows == NULL) {
        return false;
    }
    memset(rows + r->row_room, 0, (room - r->row_room) * sizeof(Row));
    r->rows = rows;
    r->row_room = room;
    return true;
}

/* The number of a name's row, from 1; 0: no memory. */
static uint32_t
row_number(Recorder *r, PyObject *name)
{
    PyObject *number = PyDict_GetItemWithError(r->rows_of, name);
    if (number != NULL) {
        return (uint32_t)PyLong_AsUnsignedLong(number);
    }
    size_t count = (size_t)PyDict_GET_SIZE(r->rows_of);
    number = have_row(r, count) ? PyLong_FromSize_t(count + 1) : NULL;
    bool done =
        number != NULL && PyDict_SetItem(r->rows_of, name, number) == 0;
    Py_XDECREF(number);
    return done ? (uint32_t)(count + 1) : 0;
}

/* As type.__name__ has it. */
static PyObject *
name_of_type(PyTypeObject *type)
{
    const char *dot = strrchr(type->tp_name, '.');
    bool whole = dot == NULL || PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE);
    return PyUnicode_FromString(whole ? type->tp_name : dot + 1);
}

/* Keys are plain strings, which are compared without running code: the names
 * of many fibers may be equal and yet different objects. */
static uint32_t
row_of(Recorder *r, pf_task *task)
{
    PyObject *name = name_of(pf_object_of(task));
    PyObject *text = PyType_Check(name) ? name_of_type((PyTypeObject *)name)
                                        : Py_NewRef(name);
    uint32_t number = text == NULL ? 0 : row_number(r, text);
    Py_XDECREF(text);
    if (number == 0) {
        PyErr_Clear();
    }
    return number;
}

static void
charge(Recorder *r, const PfTurn *turn, Moment now)
{
    Row *row = &r->rows[turn->row - 1];
    int64_t real = now.real - turn->began;
    row->turns++;
    row->cpu += now.cpu - turn->cpu;
    row->real += real;
    row->longest = real > row->longest ? real : row->longest;
}

/* ------------------------------------------------------------------- the hooks */

/* Each clock is read once for the end of one turn and the beginning of the
 * next; the thread's own is a system call. */
static Moment
this_moment(void)
{
    return (Moment){
        .real = pf_monotonic(),
        .cpu = profile != NULL ? pf_thread_time() : 0,
    };
}

/* The loop waits or ends, or the next turn begins. */
static void
end_turn(SchedulerObject *s, Moment now)
{
    if (s->turn.row != 0 && profile != NULL) {
        charge(profile, &s->turn, now);
    }
    s->turn.row = 0;
}

static void
on_turn_ends(SchedulerObject *s)
{
    Moment now = this_moment();
    end_turn(s, now);
    if (timeline != NULL && s->turn.on) {
        write_record(timeline, (Record){now.real, 0, s->turn.loop, 0});
    }
    s->turn.on = false;
}

static void
begin_turn(SchedulerObject *s, pf_task *task, Moment now)
{
    s->turn.on = true;
    if (timeline != NULL) {
        if (s->turn.loop == 0) {
            s->turn.loop = loop_number(timeline, s);
        }
        note_begin(timeline, s, task, now.real);
    }
    if (profile != NULL) {
        s->turn.row = row_of(profile, task);
        if (s->turn.row == 0) {
            profile->lost++;
            return;
        }
        s->turn.began = now.real;
        s->turn.cpu = now.cpu;
    }
}

static pf_task *
on_turn(pf_scheduler *core, void *data)
{
    (void)data;
    SchedulerObject *s = SCHEDULER_OF(core);
    pf_task *task = pf_queue_pop(&core->ready);
    if (task == pf_hub_task(core)) {
        on_turn_ends(s);
        return task;
    }
    Moment now = this_moment();
    end_turn(s, now);
    begin_turn(s, task, now);
    return task;
}

static void
install(SchedulerObject *s)
{
    if (s->core.pick == NULL && pf_is_recorded(s)) {
        s->core.pick = on_turn;
        s->turn = (PfTurn){.on = false};
    }
}

static void
uninstall(SchedulerObject *s)
{
    if (s->core.pick == on_turn) {
        s->core.pick = NULL;
        s->turn = (PfTurn){.on = false};
    }
}

static void
for_each_scheduler(void (*act)(SchedulerObject *s))
{
    pf_mutex_lock(&pf_threads_lock);
    for (PfThread *t = pf_threads; t != NULL; t = t->next) {
        bool ours = !PF_FREE_THREADED || t == pf_tls_thread;
        SchedulerObject *s = ours ? t->schedulers : NULL;
        for (; s != NULL; s = s->next) {
            act(s);
        }
    }
    pf_mutex_unlock(&pf_threads_lock);
}

/* Nothing is recorded any more, or not yet. */
static void
end_claim(void)
{
    if (timeline == NULL && profile == NULL) {
        pf_unclaim_record();
    }
}

static const PfTurnOps ops = {.begin_run = install, .end = on_turn_ends};

/* --------------------------------------------------------------- from Python */

static void
forget_loop(SchedulerObject *s)
{
    s->turn.loop = 0;
    s->turn.row = 0;
}

/* A call that begins or ends a record ends turns as well: their first or last
 * part is not recorded. */
static void
set_active(Recorder **active, Recorder *r)
{
    for_each_scheduler(forget_loop);
    *active = r;
    bool any = timeline != NULL || profile != NULL;
    pf_turns_on = any;
    for_each_scheduler(any ? install : uninstall);
}

static PyObject *
recorder_start(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    Recorder *r = (Recorder *)op;
    Recorder **active = r->records != NULL ? &timeline : &profile;
    if (pf_claim_record() < 0) {
        return NULL;
    }
    if (*active != NULL) {
        PyErr_SetString(pf.fiber_error, r->records != NULL
                                            ? "a timeline is recorded already"
                                            : "a profile is taken already");
        return NULL;
    }
    Py_INCREF(r);
    set_active(active, r);
    Py_RETURN_NONE;
}

static void
end_each(SchedulerObject *s)
{
    if (s->core.pick == on_turn && s->turn.on) {
        if (s->thread != pf_tls_thread) {
            s->turn.row = 0; /* only a thread itself can read its time */
        }
        on_turn_ends(s);
    }
}

static PyObject *
recorder_stop(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    Recorder *r = (Recorder *)op;
    Recorder **active = r->records != NULL ? &timeline : &profile;
    if (pf_claim_record() < 0) {
        return NULL;
    }
    if (*active != r) {
        end_claim();
        Py_RETURN_FALSE;
    }
    for_each_scheduler(end_each);
    set_active(active, NULL);
    end_claim();
    Py_DECREF(r);
    Py_RETURN_TRUE;
}

/* The records from the oldest on, as bytes; names; reasons; threads; how many
 * records are gone. */
static PyObject *
recorder_timeline(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    Recorder *r = (Recorder *)op;
    if (pf_claim_record() < 0) {
        return NULL;
    }
    end_claim();
    size_t count = records_of(r);
    size_t first = r->written < r->room ? 0 : (size_t)(r->written % r->room);
    PyObject *bytes =
        PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(count * sizeof(Record)));
    if (bytes == NULL) {
        return NULL;
    }
    char *to = PyBytes_AS_STRING(bytes);
    size_t older = count - first;
    if (count != 0) {
        memcpy(to, r->records + first, older * sizeof(Record));
        memcpy(to + older * sizeof(Record), r->records,
               first * sizeof(Record));
    }
    return Py_BuildValue("(NOOOK)", bytes, r->names, r->reasons, r->threads,
                         (unsigned long long)(r->written - count + r->lost));
}

/* For each name: turns, and nanoseconds: cpu, real, longest. */
static PyObject *
recorder_profile(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    Recorder *r = (Recorder *)op;
    if (pf_claim_record() < 0) {
        return NULL;
    }
    end_claim();
    PyObject *names = PyDict_Keys(r->rows_of); /* in the rows' order */
    PyObject *list = names == NULL ? NULL : PyList_New(0);
    for (Py_ssize_t i = 0; list != NULL && i < PyList_GET_SIZE(names); i++) {
        const Row *row = &r->rows[i];
        PyObject *each =
            Py_BuildValue("(OKLLL)", PyList_GET_ITEM(names, i),
                          (unsigned long long)row->turns, (long long)row->cpu,
                          (long long)row->real, (long long)row->longest);
        if (each == NULL || PyList_Append(list, each) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(each);
    }
    Py_XDECREF(names);
    return list;
}

/* ----------------------------------------------------------------- the type */

static PyObject *
recorder_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"room", NULL};
    Py_ssize_t room;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "n:_Turns", names, &room)) {
        return NULL;
    }
    if (room < 0 || (size_t)room > PY_SSIZE_T_MAX / sizeof(Record)) {
        PyErr_SetString(PyExc_ValueError, "no such number of records");
        return NULL;
    }
    Recorder *r = (Recorder *)type->tp_alloc(type, 0);
    if (r == NULL) {
        return NULL;
    }
    r->names = PyList_New(0);
    r->reasons = PyList_New(0);
    r->threads = PyList_New(0);
    r->rows_of = PyDict_New();
    r->most = FEW_NAMES;
    r->room = (size_t)room;
    if (room != 0) {
        r->records = PyMem_RawCalloc((size_t)room, sizeof(Record));
    }
    if (r->names == NULL || r->reasons == NULL || r->threads == NULL ||
        r->rows_of == NULL || (room != 0 && r->records == NULL)) {
        PyErr_NoMemory();
        Py_CLEAR(r);
    }
    return (PyObject *)r;
}

static int
recorder_traverse(PyObject *op, visitproc visit, void *arg)
{
    Recorder *r = (Recorder *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(r->names);
    Py_VISIT(r->reasons);
    Py_VISIT(r->threads);
    Py_VISIT(r->rows_of);
    return 0;
}

static int
recorder_clear(PyObject *op)
{
    Recorder *r = (Recorder *)op;
    Py_CLEAR(r->names);
    Py_CLEAR(r->reasons);
    Py_CLEAR(r->threads);
    Py_CLEAR(r->rows_of);
    return 0;
}

static void
recorder_dealloc(PyObject *op)
{
    Recorder *r = (Recorder *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    (void)recorder_clear(op);
    PyMem_RawFree(r->records);
    PyMem_RawFree(r->rows);
    PyMem_RawFree(r->tasks.entries);
    PyMem_RawFree(r->kinds.entries);
    PyMem_RawFree(r->loops.entries);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMethodDef methods[] = {
    {"start", recorder_start, METH_NOARGS, "start($self, /)\n--\n\nBegin."},
    {"stop", recorder_stop, METH_NOARGS,
     "stop($self, /)\n--\n\nEnd; False: it had not begun, or has ended."},
    {"timeline", recorder_timeline, METH_NOARGS,
     "timeline($self, /)\n--\n\n"
     "Records, names, reasons, threads, number of lost ones."},
    {"profile", recorder_profile, METH_NOARGS,
     "profile($self, /)\n--\n\nA tuple for each name: turns, cpu, real, "
     "longest "
     "turn."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot type_slots[] = {
    {Py_tp_new, recorder_new},
    {Py_tp_dealloc, recorder_dealloc},
    {Py_tp_traverse, recorder_traverse},
    {Py_tp_clear, recorder_clear},
    {Py_tp_methods, methods},
    {Py_tp_doc, "_Turns(room)\n--\n\n"
                "Records turns: the last `room` of them, or 0: a profile."},
    {0, NULL},
};

static PyType_Spec spec = {
    .name = "pyfiber._engine._Turns",
    .basicsize = sizeof(Recorder),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = type_slots,
};

int
pf_turns_init(PyObject *module)
{
    PyTypeObject *type = pf_add_type(module, &spec, NULL);
    Py_XDECREF(type); /* the module has it */
    pf_turn_ops = &ops;
    return type == NULL ? -1 : 0;
}
