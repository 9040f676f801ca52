/* Records every turn of a fiber: when it began, when it ended, what the fiber
 * had waited for.  A timeline (pyfiber.debug.trace) and a profile
 * (pyfiber.debug.Profiler) are made from that.
 *
 * Recording costs nothing while it is off: a recorder is the `pick` of a
 * scheduler, which pf_scheduler_next calls if it is set, and takes the tasks
 * in the usual order.  A scheduler under test has another `pick`, and is not
 * recorded.  (This long file is not split, because the timeline and the
 * profile share the clock readings at each turn.)
 *
 * A turn ends when the next one begins, or when the loop waits or ends.  What
 * a fiber waits for is read when its next turn begins, because it still says
 * so then.  So nothing is remembered of a fiber between its turns, and it may
 * be freed at any time.
 *
 * All of this happens under the GIL, or on the one thread that is recorded
 * without a GIL (see below).  on_turn runs no Python code, because nothing may
 * change between the choice of a task and its turn.  Records keep names and
 * types alive, never fibers. */
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

/* ------------------------------------------------ which threads are recorded */

/* With a GIL the turns of all threads are recorded.  Without one only a single
 * thread is recorded, which alone begins, ends and reads the record; the runs
 * of other threads are not affected. */

/* Without a GIL: the thread that is recorded, or NULL.  Shared, one word,
 * written behind pf_threads_lock. */
static PF_SHARED(PfThread *) recorded;

static bool
is_recorded(const SchedulerObject *s)
{
    return !PF_FREE_THREADED || s->thread == PF_SHARED_GET(&recorded);
}

/* Called with pf_threads_lock. */
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
    PfThread *owner = PF_SHARED_GET(&recorded);
    bool ours = owner == t || !still_lives(owner);
    if (ours) {
        PF_SHARED_SET(&recorded, t);
    }
    pf_mutex_unlock(&pf_threads_lock);
    return ours;
}

/* Without a GIL: makes this thread the one that is recorded.  0, or -1 with
 * FiberError if another thread is. */
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
    uint32_t number; /* from 1; 0: the entry counts as unused */
    PyObject *name;  /* of a task */
} Entry;

/* A hash table from addresses to numbers, with open addressing. */
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

/* Finds the entry of `key`, or adds one with the number 0; NULL: no memory. */
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

/* Why a turn began; the upper bits of Record.why. */
enum { WOKEN, TIMED_OUT, CANCELLED, FIRST };
#define WHY_BITS 14
#define MOST_REASONS ((1 << WHY_BITS) - 1)

/* The beginning of a turn.  Records are in the order of time.  Python reads
 * them by struct.unpack("=qIHH"). */
typedef struct Record {
    int64_t when;  /* nanoseconds, monotonic */
    uint32_t task; /* task that begins; 0: none, the loop waits or ends */
    uint16_t loop;
    uint16_t why; /* number of what it waited for, and why the turn began */
} Record;
_Static_assert(sizeof(Record) == 16, "Python knows its layout");

/* The present turn of a scheduler. */
typedef struct Turn {
    uint16_t loop;      /* the scheduler's number in the timeline, or 0 */
    uint32_t row;       /* the task's row in the profile, or 0 */
    int64_t began, cpu; /* clock readings at the beginning, for the profile */
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
    int64_t cpu, real, longest; /* nanoseconds; longest: by `real` */
} Row;

typedef struct Moment {
    int64_t real, cpu; /* cpu: of the thread, if a profile is taken */
} Moment;

typedef struct Recorder {
    PyObject_HEAD
    /* --- a timeline --- */
    Record *records;  /* a ring; NULL: this is a profile */
    PyObject **names; /* of each record's task; NULL: it has no task */
    size_t room;      /* records that fit into the ring */
    uint64_t written;
    Map tasks;          /* task -> number */
    uint32_t last_task; /* the highest number of a task */
    Map kinds;          /* what is waited for, a word or a type -> number */
    PyObject *reasons;  /* list: number - 1 -> that word or type */
    Map loops;          /* identifier of a thread -> number */
    PyObject *threads;  /* list: number - 1 -> that identifier */
    /* --- a profile --- */
    PyObject *rows_of; /* dict: name -> number of its row, from 1 */
    Row *rows;
    size_t row_room;
    /* --- both --- */
    uint64_t lost; /* turns for which there was no memory */
} Recorder;

/* The active recorders, or NULL; under the GIL.  Shared, one word each. */
static Recorder *timeline, *profile;

/* Returns the number of `key`; if that is new, appends `object` to `list`.  0:
 * no memory. */
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

/* Returns the task's name, an exact str, or a type: what can be had, and be
 * dropped, without running code.  Borrowed. */
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

/* Overwriting a name runs no code, because it is a string, or keep_type()
 * holds a reference to the type. */
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

/* What the fiber has waited for until now, a word or a type; NULL: nothing.
 * Borrowed. */
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

/* Dropping the last reference to a type may run code.  So `reasons`, which
 * lives as long as the recorder, gets a reference, too.  Returns false without
 * memory. */
static bool
keep_type(Recorder *r, PyObject *name)
{
    return PyUnicode_CheckExact(name) ||
           number_of(&r->kinds, r->reasons, name, name) != 0;
}

/* Returns the task's number; 0: no memory.  A new task may have the address of
 * one that is gone.  For a fiber `first`, for a grain another name shows that.
 */
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
    /* At its first turn a fiber has no stack yet. */
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

/* Makes room for one more row after `count`.  Returns false without memory. */
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

/* Returns the number of the name's row, from 1; 0: no memory. */
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

/* type.__name__, without running code; a new reference, or NULL. */
static PyObject *
name_of_type(PyTypeObject *type)
{
    const char *dot = strrchr(type->tp_name, '.');
    bool whole = dot == NULL || PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE);
    return PyUnicode_FromString(whole ? type->tp_name : dot + 1);
}

/* Returns the number of the task's row; 0: no memory.  The key is a plain
 * string, compared without running code, because fibers with equal names may
 * have different name objects. */
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

/* Reads each clock once for both the end of a turn and the beginning of the
 * next, because reading the thread's CPU time is a system call. */
static Moment
this_moment(void)
{
    return (Moment){
        .real = pf_clock_monotonic(),
        .cpu = profile != NULL ? pf_clock_thread_time() : 0,
    };
}

/* The present turn ends in the profile, because the loop waits or ends, or the
 * next turn begins. */
static void
end_turn(SchedulerObject *s, Moment now)
{
    if (turn_of(s)->row != 0 && profile != NULL) {
        charge(profile, turn_of(s), now);
    }
    turn_of(s)->row = 0;
}

/* The loop waits or ends: no turn follows. */
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

/* The scheduler's `pick`. */
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

/* Calls `act` for every scheduler; without a GIL, for this thread's. */
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

/* Undoes claim_record if no recorder is active. */
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

/* Activates a recorder, or with NULL ends one.  The turns in which this
 * happens are recorded in part: from here on, or up to here. */
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
            turn_of(s)->row = 0; /* only its thread can read its CPU time */
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

/* The count is taken before memory is allocated, which may run code that
 * writes more records. */
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
        PyErr_SetString(PyExc_ValueError,
                        "`room` is negative, or more than memory can hold");
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

/* (traverse does not visit `names` and the names of tasks, so a type in a
 * cycle with a recorder is never collected.) */
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
    {"start", recorder_start, METH_NOARGS,
     "start($self, /)\n--\n\nBegin to record."},
    {"stop", recorder_stop, METH_NOARGS,
     "stop($self, /)\n--\n\nEnd the record. Return False if it was not "
     "active."},
    {"timeline", recorder_timeline, METH_NOARGS,
     "timeline($self, /)\n--\n\n"
     "Records as bytes, oldest first; the name of each; reasons; threads;\n"
     "how many records were lost."},
    {"profile", recorder_profile, METH_NOARGS,
     "profile($self, /)\n--\n\n"
     "A tuple for each name: name, turns, and in nanoseconds CPU time, real\n"
     "time, longest turn."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot type_slots[] = {
    {Py_tp_new, recorder_new},
    {Py_tp_dealloc, recorder_dealloc},
    {Py_tp_traverse, recorder_traverse},
    {Py_tp_clear, recorder_clear},
    {Py_tp_methods, methods},
    {Py_tp_doc, "_Turns(room)\n--\n\n"
                "Record turns: a timeline of the last `room` records, or, if\n"
                "`room` is 0, a profile."},
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
    Py_XDECREF(type); /* the module holds a reference */
    return type == NULL ? -1 : 0;
}
