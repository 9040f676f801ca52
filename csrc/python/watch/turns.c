/* Every turn of a fiber: when it began, when it ended, what it had waited for.
 * From this come a timeline (pyfiber.debug.trace) and a profile (pyfiber.debug.Profiler).
 *
 * Nothing is paid while nobody looks: a recorder is the `pick` of a scheduler,
 * a function that pf_scheduler_next calls if there is one.  It takes the tasks in the
 * usual order.  A scheduler under test has a `pick` of its own, and is not
 * recorded.  (One file, though a long one: timeline and profile take the same
 * moments.)
 *
 * A turn ends when the next one begins, or when the loop waits or ends.  What
 * a fiber waits for is still written in it when its next turn begins, so that
 * is read then, and nothing has to be kept of a fiber that has stopped: it may
 * be freed at any time.
 *
 * All of this happens under the GIL, or on the one thread that is recorded
 * without it (see below), and on_turn runs no Python code: between the
 * choice of a task and its turn nothing may change.  What is recorded keeps
 * names and types alive, never fibers.
 */
#include "python/watch/watch.h"

#include "python/core/arguments.h"
#include "python/core/objlock.h"
#include "python/core/state.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/task/fiber.h"
#include "python/task/scheduler.h"
#include "python/task/task.h"

#include "engine/base/clock.h"

#include <string.h>

/* ------------------------------------------------------ whose it is */

/* With a GIL the turns of all threads are recorded.  Without one a record is
 * made on one thread, which alone begins, ends and reads it, and the runs of the
 * others know nothing of it. */

/* Without a GIL; NULL: nobody's.  Shared, written behind pf_threads_lock, and
 * one word. */
static PF_SHARED(PfThread *) recorded;

static bool
is_recorded(const SchedulerObject *s)
{
    return !PF_FREE_THREADED || s->thread == PF_SHARED_GET(&recorded);
}

/* Under pf_threads_lock. */
static bool
still_lives(const PfThread *thread)
{
    const PfThread *t = pf_threads;
    while (t != NULL && t != thread) {
        t = t->next;
    }
    return t != NULL;
}

static bool
claim_for(PfThread *t)
{
    pf_mutex_lock(&pf_threads_lock);
    PfThread *whose = PF_SHARED_GET(&recorded);
    bool ours = whose == t || !still_lives(whose);
    if (ours) {
        PF_SHARED_SET(&recorded, t);
    }
    pf_mutex_unlock(&pf_threads_lock);
    return ours;
}

/* Recorded is what this thread runs: 0, or -1 with FiberError. */
static int
claim_record(void)
{
    PfThread *t = PF_FREE_THREADED ? pf_thread_this() : NULL;
    if (!PF_FREE_THREADED || (t != NULL && claim_for(t))) {
        return 0;
    }
    if (t != NULL) {
        PyErr_SetString(pf.fiber_error,
                        "another thread records its turns: without a GIL only "
                        "one thread's can be recorded, and only there");
    }
    return -1;
}

/* ------------------------------------------------- numbers of addresses */

typedef struct Entry {
    const void *key; /* NULL: free */
    uint32_t number;
    PyObject *name; /* of a task */
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
        *entry = (Entry){key, 0, NULL};
    }
    return entry;
}

/* ------------------------------------------------------------ the recorder */

/* How a turn came about; the upper bits of Record.why. */
enum { WOKEN, TIMED_OUT, CANCELLED, FIRST };
#define WHY_BITS 14
#define MOST_REASONS ((1 << WHY_BITS) - 1)

/* In the order of time.  Python reads them by struct.unpack("=qIHH"). */
typedef struct Record {
    int64_t when;  /* nanoseconds, monotonic */
    uint32_t task; /* who begins; 0: nobody, the loop waits or ends */
    uint16_t loop;
    uint16_t why; /* index of what it waited for, and how it came about */
} Record;
_Static_assert(sizeof(Record) == 16, "Python knows its layout");

/* The present turn of a scheduler. */
typedef struct Turn {
    uint16_t loop;      /* the scheduler's number in the timeline, or 0 */
    uint32_t row;       /* its row in the profile, or 0 */
    int64_t began, cpu; /* for that */
} Turn;

/* constant after import */
static PfKeeps of_scheduler = {.size = sizeof(Turn)};

static Turn *
turn_of(const SchedulerObject *s)
{
    return pf_scheduler_keeps(s, &of_scheduler);
}

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
    Record *records;  /* a ring; NULL: this is a profile */
    PyObject **names; /* of the task of each record; NULL: the loop's */
    size_t room;
    uint64_t written;
    Map tasks;          /* by task */
    uint32_t last_task; /* its number */
    Map kinds;          /* of waits, by word or type */
    PyObject *reasons;  /* those, by number - 1 */
    Map loops;          /* by the thread's identifier */
    PyObject *threads;  /* their identifiers, by number - 1 */
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
number_of(Map *map, PyObject *list, const void *key, PyObject *object)
{
    Entry *entry = map_entry(map, key);
    if (entry == NULL) {
        return 0;
    }
    if (entry->number == 0) {
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
    FiberObject *fiber = pf_task_fiber(task);
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

/* No code runs when a name goes: it is a string, or keep_type() has it. */
static void
write_record(Recorder *r, Record record, PyObject *name)
{
    size_t at = (size_t)(r->written++ % r->room);
    r->records[at] = record;
    Py_XSETREF(r->names[at], Py_XNewRef(name));
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
    uint32_t number = number_of(&r->loops, r->threads, key, ident);
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

/* The last reference to a type may run code when it goes, so the reasons, which
 * are kept as long as the recorder, have one, too. */
static bool
keep_type(Recorder *r, PyObject *name)
{
    return PyUnicode_CheckExact(name) ||
           number_of(&r->kinds, r->reasons, name, name) != 0;
}

/* 0: no memory.  A fiber may have the address of one that is gone, which `first`
 * tells; of a grain the name tells. */
static uint32_t
task_number(Recorder *r, pf_task *task, PyObject *name, bool first)
{
    Entry *entry = keep_type(r, name) ? map_entry(&r->tasks, task) : NULL;
    if (entry == NULL) {
        return 0;
    }
    bool fiber = pf_task_fiber(pf_task_object(task)) != NULL;
    if (entry->number == 0 || first || (!fiber && entry->name != name)) {
        entry->number = ++r->last_task;
        Py_XSETREF(entry->name, Py_NewRef(name));
    }
    return entry->number;
}

static void
note_begin(Recorder *r, SchedulerObject *s, pf_task *task, int64_t now)
{
    FiberObject *fiber = pf_task_fiber(pf_task_object(task));
    /* A fiber gets its stack after this, so a first turn shows. */
    bool first = fiber != NULL && fiber->fiber.stack == NULL;
    PyObject *name = name_of(pf_task_object(task));
    uint32_t number = task_number(r, task, name, first);
    PyObject *reason = reason_of(fiber);
    uint32_t kind = 0;
    if (reason != NULL) {
        kind = number_of(&r->kinds, r->reasons, reason, reason);
        kind = kind > MOST_REASONS ? 0 : kind;
    }
    if (number == 0) {
        r->lost++;
        return;
    }
    unsigned how = how_it_came(task, first);
    write_record(r,
                 (Record){now, number, turn_of(s)->loop,
                          (uint16_t)(how << WHY_BITS | kind)},
                 name);
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
    PyObject *name = name_of(pf_task_object(task));
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
charge(Recorder *r, const Turn *turn, Moment now)
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
        .real = pf_clock_monotonic(),
        .cpu = profile != NULL ? pf_clock_thread_time() : 0,
    };
}

/* The loop waits or ends, or the next turn begins. */
static void
end_turn(SchedulerObject *s, Moment now)
{
    if (turn_of(s)->row != 0 && profile != NULL) {
        charge(profile, turn_of(s), now);
    }
    turn_of(s)->row = 0;
}

static void
on_turn_ends(SchedulerObject *s)
{
    Moment now = this_moment();
    end_turn(s, now);
    if (timeline != NULL && s->in_turn_record) {
        write_record(timeline, (Record){now.real, 0, turn_of(s)->loop, 0},
                     NULL);
    }
    s->in_turn_record = false;
}

static void
begin_turn(SchedulerObject *s, pf_task *task, Moment now)
{
    s->in_turn_record = true;
    if (timeline != NULL) {
        if (turn_of(s)->loop == 0) {
            turn_of(s)->loop = loop_number(timeline, s);
        }
        note_begin(timeline, s, task, now.real);
    }
    if (profile != NULL) {
        turn_of(s)->row = row_of(profile, task);
        if (turn_of(s)->row == 0) {
            profile->lost++;
            return;
        }
        turn_of(s)->began = now.real;
        turn_of(s)->cpu = now.cpu;
    }
}

static pf_task *
on_turn(pf_scheduler *core, void *data)
{
    (void)data;
    SchedulerObject *s = SCHEDULER_OF(core);
    pf_task *task = pf_queue_pop(&core->ready);
    if (task == pf_scheduler_hub_task(core)) {
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
    if (s->core.pick == NULL && is_recorded(s)) {
        s->core.pick = on_turn;
        *turn_of(s) = (Turn){0};
        s->in_turn_record = false;
    }
}

static void
uninstall(SchedulerObject *s)
{
    if (s->core.pick == on_turn) {
        s->core.pick = NULL;
        *turn_of(s) = (Turn){0};
        s->in_turn_record = false;
    }
}

static void
for_each_scheduler(void (*act)(SchedulerObject *s))
{
    pf_mutex_lock(&pf_threads_lock);
    for (PfThread *t = pf_threads; t != NULL; t = t->next) {
        bool ours = !PF_FREE_THREADED || t == pf_thread_current;
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
        PF_SHARED_SET(&recorded, NULL);
    }
}

static const PfTurnOps ops = {.begin_run = install, .end = on_turn_ends};

/* --------------------------------------------------------------- from Python */

static void
forget_loop(SchedulerObject *s)
{
    turn_of(s)->loop = 0;
    turn_of(s)->row = 0;
}

/* A call that begins or ends a record ends turns as well: their first or last
 * part is not recorded. */
static void
set_active(Recorder **active, Recorder *r)
{
    for_each_scheduler(forget_loop);
    *active = r;
    bool any = timeline != NULL || profile != NULL;
    pf_scheduler_turns_on = any;
    for_each_scheduler(any ? install : uninstall);
}

static PyObject *
recorder_start(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    Recorder *r = (Recorder *)op;
    Recorder **active = r->records != NULL ? &timeline : &profile;
    if (claim_record() < 0) {
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
    if (s->core.pick == on_turn && s->in_turn_record) {
        if (s->thread != pf_thread_current) {
            turn_of(s)->row = 0; /* only a thread itself can read its time */
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
    if (claim_record() < 0) {
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

/* The records from the oldest on, as bytes; the name of each; reasons; threads;
 * how many records are gone.  (More may be written while memory is found.) */
static PyObject *
recorder_timeline(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    Recorder *r = (Recorder *)op;
    if (claim_record() < 0) {
        return NULL;
    }
    end_claim();
    Py_ssize_t count =
        (Py_ssize_t)(r->written < r->room ? r->written : r->room);
    PyObject *names = PyList_New(count);
    PyObject *bytes =
        PyBytes_FromStringAndSize(NULL, count * (Py_ssize_t)sizeof(Record));
    if (names == NULL || bytes == NULL) {
        Py_XDECREF(names);
        Py_XDECREF(bytes);
        return NULL;
    }
    uint64_t first = r->written - (uint64_t)count;
    char *to = PyBytes_AS_STRING(bytes);
    for (Py_ssize_t i = 0; i < count; i++, to += sizeof(Record)) {
        size_t at = (size_t)((first + (uint64_t)i) % r->room);
        PyObject *name = r->names[at] != NULL ? r->names[at] : Py_None;
        memcpy(to, &r->records[at], sizeof(Record));
        PyList_SET_ITEM(names, i, Py_NewRef(name));
    }
    return Py_BuildValue("(NNOOK)", bytes, names, r->reasons, r->threads,
                         (unsigned long long)(first + r->lost));
}

/* For each name: turns, and nanoseconds: cpu, real, longest. */
static PyObject *
recorder_profile(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    Recorder *r = (Recorder *)op;
    if (claim_record() < 0) {
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
    r->reasons = PyList_New(0);
    r->threads = PyList_New(0);
    r->rows_of = PyDict_New();
    r->room = (size_t)room;
    if (room != 0) {
        r->records = PyMem_RawCalloc(r->room, sizeof(Record));
        r->names = PyMem_RawCalloc(r->room, sizeof(PyObject *));
    }
    if (r->reasons == NULL || r->threads == NULL || r->rows_of == NULL ||
        (room != 0 && (r->records == NULL || r->names == NULL))) {
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
    Py_VISIT(r->reasons);
    Py_VISIT(r->threads);
    Py_VISIT(r->rows_of);
    return 0;
}

/* (Types that are in a cycle with a recorder live on with it.) */
static int
recorder_clear(PyObject *op)
{
    Recorder *r = (Recorder *)op;
    for (size_t i = 0; r->names != NULL && i < r->room; i++) {
        Py_CLEAR(r->names[i]);
    }
    for (size_t i = 0; r->tasks.entries != NULL && i <= r->tasks.mask; i++) {
        Py_CLEAR(r->tasks.entries[i].name);
    }
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
    PyMem_RawFree(r->names);
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

const PfPart pf_turns_part = {
    .of_scheduler = &of_scheduler,
    .hooks = {.turns = &ops},
};

int
pf_turns_init(PyObject *module)
{
    PyTypeObject *type = pf_arguments_add_type(module, &spec, NULL);
    Py_XDECREF(type); /* the module has it */
    return type == NULL ? -1 : 0;
}
