/* The watchdog: a thread that notices when a scheduler's loop does not run.
 *
 * The watchdog works without the GIL, because a C function may hold that.
 * Every now and then it looks at each thread with a run: the loop runs if its
 * counters have changed, or while it sleeps.  A loop that does not run is
 * reported in one of two ways:
 *
 *   1. A Python thread, the reporter, which waits in _watchdog_next(), gets a
 *      report.  With the GIL it can format the fiber's name and stack properly.
 *   2. If the reporter does not take the report within a second, no thread gets
 *      the GIL, or the logging of an earlier report does not end.  Then the
 *      blocked thread itself is interrupted and writes its fiber's name and
 *      stack to stderr, as the handler for stack overflows does.
 *
 * The C functions that the blocked thread is in are found by an interruption in
 * both cases: see engine/base/interrupt.h.
 *
 * With pf_threads_lock held, thread->scheduler may be followed: a scheduler
 * takes that lock once before it is freed.  Another thread writes the
 * scheduler's counters at any time; here it only matters whether they change.
 */
#include "python/watch/watch.h"

#include "python/core/arguments.h"
#include "python/core/objlock.h"
#include "python/core/state.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/run/help.h"
#include "python/run/run.h"
#include "python/switch/overflow.h"
#include "python/task/scheduler.h"

#include "engine/base/clock.h"
#include "engine/base/interrupt.h"

#include <stdio.h>
#include <string.h>

#ifdef _WIN32
#include <io.h>
#define write_error(text, size) _write(2, text, (unsigned)(size))
#else
#include <unistd.h>
#define write_error(text, size) write(STDERR_FILENO, text, size)
#endif

#define MILLISECOND INT64_C(1000000)
#define SECOND (1000 * MILLISECOND)
/* Between two looks the watchdog pauses for a quarter of the shortest limit,
 * but not shorter or longer than this. */
#define SHORTEST_PAUSE (5 * MILLISECOND)
#define LONGEST_PAUSE SECOND
#define DEBUG_LIMIT (100 * MILLISECOND)
#define REPORTER_PATIENCE SECOND
#define INTERRUPT_PATIENCE (100 * MILLISECOND)
#define MOST_PLACES 64 /* addresses taken from a C stack */
#define MOST_SHOWN 8   /* of these, in a report */

typedef struct Report {
    unsigned long thread; /* Python identifier */
    int64_t since;        /* nanoseconds that the loop has not run */
    uint64_t progress;    /* progress_of(), unchanged for so long */
    bool over;            /* the loop runs again */
    bool lacks_gil;       /* the loop waits for the GIL itself */
    bool debug;           /* report only a call that blocks */
    char native[1024];    /* C functions, innermost first */
} Report;

enum {
    WAKE,  /* to the watchdog's thread: look again, or stop */
    GONE,  /* from the watchdog's thread: it ends */
    READY, /* to the reporter: `report` is filled */
    TAKEN, /* from the reporter: `report` has been copied */
    BEGUN, /* from the reporter: its first _watchdog_next() */
    LOCKS,
};

/* Made for each start.  The watchdog's thread, its reporter and the callers
 * that wait for these two keep using the same object, because another watchdog
 * may have been started before they have ended.  For the same reason the
 * object is never freed.  The locks are binary semaphores, so a thread
 * releases one only after it has seen that it is taken. */
typedef struct Watchdog {
    PyThread_type_lock locks[LOCKS];
    PF_ATOMIC(uint8_t) stop;
    PF_ATOMIC(uint8_t) nudged;  /* WAKE is released */
    PF_ATOMIC(uint8_t) full;    /* `report` waits for the reporter */
    PF_ATOMIC(uint8_t) awaited; /* the reporter waits; else it is busy */
    PF_ATOMIC(uint8_t) came;    /* BEGUN is released */
    Report report;              /* the reporter's while `full` */
} Watchdog;

#define CAPSULE_NAME "pyfiber watchdog"

/* shared, behind its own mutex: the watchdog that runs, or NULL.  The mutex
 * also guards the signal handler, which is installed while one runs.  nudge()
 * reads the pointer without the mutex. */
static struct {
    PF_OBJECT_MUTEX
    PF_SHARED(Watchdog *) watchdog;
} active;
/* shared, one word; nanoseconds, for runs without a separate limit; 0: none */
static PF_ATOMIC(int64_t) general_limit;

/* ------------------------------------------------------------------ the look */

/* What the watchdog has seen of a loop; guarded by pf_threads_lock. */
typedef struct Watched {
    uint64_t progress;
    int64_t since; /* when it was first seen like this; 0: never looked at */
    int64_t next_report; /* due after so many ns; 0: none was made yet */
    bool asleep;
} Watched;

/* constant after import */
static PfKeeps of_scheduler = {.size = sizeof(Watched)};

static Watched *
watched_of(const SchedulerObject *s)
{
    return pf_scheduler_keeps(s, &of_scheduler);
}

/* Reads a counter that another thread may be writing. */
static uint64_t
read_racy(const uint64_t *word)
{
    return *(const volatile uint64_t *)word;
}

/* A number that grows with whatever the loop does. */
static uint64_t
progress_of(const SchedulerObject *s)
{
    const pf_scheduler *core = &s->core;
    return read_racy(&core->switches) + read_racy(&core->waits) +
           read_racy(&core->messages) + read_racy(&core->timeouts) +
           read_racy(&core->events);
}

static bool
sleeps(SchedulerObject *s)
{
    return pf_load(&s->core.sleeping) && !pf_load(&s->lacks_gil);
}

/* The limit for a run, in nanoseconds; 0: it is not watched.  A limit that was
 * set takes precedence over the one for debugging, for which *debug is true. */
static int64_t
limit_of(SchedulerObject *s, bool *debug)
{
    int64_t own = pf_load(&s->watch_limit);
    int64_t named = own > 0 ? own : pf_load(&general_limit);
    *debug = named == 0 && own == PF_WATCH_BLOCKING;
    return *debug ? DEBUG_LIMIT : named;
}

/* How many nanoseconds has the loop certainly not run?  Counts from the first
 * look that found it as it is now. */
static int64_t
stuck_for(SchedulerObject *s, int64_t now)
{
    Watched *w = watched_of(s);
    uint64_t progress = progress_of(s);
    bool asleep = sleeps(s);
    if (w->since == 0 || progress != w->progress || asleep || w->asleep) {
        w->progress = progress;
        w->since = now;
    }
    w->asleep = asleep;
    return now - w->since;
}

static SchedulerObject *
scheduler_of(PfThread *t)
{
    return *(SchedulerObject *volatile *)&t->scheduler;
}

/* ------------------------------------------------------- what it is stuck in */

typedef struct View {
    PfThread *thread;
    void *places[MOST_PLACES];
    size_t count;
    bool write; /* write the fiber's name and stack to stderr */
} View;

/* Runs in a signal handler on the blocked thread. */
static void
look_around(void *data)
{
    View *view = data;
    view->count = pf_interrupt_native_stack(view->places, MOST_PLACES);
    if (view->write) {
        pf_overflow_print_fiber();
    }
}

/* Writes the names of the C functions that Python code has called to `text`,
 * as one line, innermost first.  The interpreter's own functions end it. */
static void
describe(const View *view, char *text, size_t size)
{
    size_t length = 0;
    text[0] = '\0';
    for (size_t i = 0; i < view->count && i < MOST_SHOWN; i++) {
        char name[160];
        size_t n =
            pf_interrupt_native_name(view->places[i], name, sizeof name);
        if (strncmp(name, "_PyEval_", 8) == 0 || length + n + 4 >= size) {
            break;
        }
        if (i != 0 && name[n - 1] != ')') {
            continue; /* without a name: only the innermost one is shown */
        }
        length += (size_t)snprintf(text + length, size - length, "%s%s",
                                   i == 0 ? "" : " < ", name);
    }
}

/* ----------------------------------------------------------------- reporting */

static bool
acquire(PyThread_type_lock lock, int64_t ns)
{
    return PyThread_acquire_lock_timed(lock, ns / 1000, 0) == PY_LOCK_ACQUIRED;
}

/* Gives the report to the reporter.  Returns false if that has not taken it
 * within `patience` nanoseconds. */
static bool
hand_over(Watchdog *self, const Report *report, int64_t patience)
{
    if (pf_load(&self->full)) {
        return false; /* the reporter has not taken the last report yet */
    }
    /* If the last report was taken late, TAKEN is still released. */
    (void)acquire(self->locks[TAKEN], 0);
    self->report = *report;
    pf_store(&self->full, 1);
    PyThread_release_lock(self->locks[READY]);
    return acquire(self->locks[TAKEN], patience);
}

/* Why the reporter cannot report this.  If it is busy, it may be logging, or
 * be waiting for the GIL in the middle of its work. */
static const char *
why_not_in_python(Watchdog *self, const Report *report)
{
    if (report->lacks_gil) {
        return ", because another thread holds the GIL and does not let it go";
    }
    if (pf_load(&self->awaited)) {
        return ", and no thread can tell more, because its fiber is in a C "
               "function that holds the GIL";
    }
    return ", and no thread can tell more, because an earlier report is still "
           "being logged, or its fiber is in a C function that holds the GIL";
}

/* Called with pf_threads_lock.  The run, or the thread, may have ended while
 * the watchdog waited for the reporter. */
static bool
is_stuck_still(const PfThread *thread, const Report *report)
{
    PfThread *t = pf_threads;
    while (t != NULL && t != thread) {
        t = t->next;
    }
    SchedulerObject *s = t == NULL ? NULL : scheduler_of(t);
    return s != NULL && progress_of(s) == report->progress && !sleeps(s);
}

/* Writes the report to stderr, then has the blocked thread write its fiber. */
static void
report_without_gil(Watchdog *self, const Report *report, View *view)
{
    pf_mutex_lock(&pf_threads_lock);
    bool stuck = is_stuck_still(view->thread, report);
    pf_mutex_unlock(&pf_threads_lock);
    if (!stuck) {
        return;
    }
    char text[1400];
    bool in_c = !report->lacks_gil && report->native[0] != '\0';
    int n = snprintf(
        text, sizeof text,
        "pyfiber: the loop of thread %lu has not run for %.1f s%s\n%s%s%s",
        report->thread, (double)report->since / 1e9,
        why_not_in_python(self, report), in_c ? "in C: " : "",
        in_c ? report->native : "", in_c ? "\n" : "");
    int64_t written = write_error(
        text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
    (void)written;
    if (report->lacks_gil) {
        return;
    }
    pf_mutex_lock(&pf_threads_lock);
    if (is_stuck_still(view->thread, report)) {
        view->write = true;
        (void)pf_interrupt(view->thread->native, look_around, view,
                           INTERRUPT_PATIENCE);
    }
    pf_mutex_unlock(&pf_threads_lock);
}

/* ------------------------------------------------------------------ the thread */

/* Called with pf_threads_lock: is a report on this thread due?  Fills in
 * *report if so, and lowers *shortest to the limit of its run. */
static bool
look_at(PfThread *t, int64_t now, int64_t *shortest, Report *report)
{
    SchedulerObject *s = scheduler_of(t);
    if (s == NULL) {
        return false;
    }
    Watched *w = watched_of(s);
    bool debug;
    int64_t limit = limit_of(s, &debug);
    if (limit == 0) {
        w->since = w->next_report = 0; /* nobody looks: forget what was seen */
        return false;
    }
    *shortest = limit < *shortest ? limit : *shortest;
    int64_t last = now - w->since;
    int64_t stuck = stuck_for(s, now);
    bool over = stuck == 0 && w->next_report != 0;
    if (!over && stuck < (w->next_report == 0 ? limit : w->next_report)) {
        return false;
    }
    /* Report again when the time has doubled; for debugging, at every limit,
     * because the fiber may have computed until now and block next. */
    w->next_report = over ? 0 : debug ? stuck + limit : 2 * stuck;
    *report = (Report){
        .thread = pystate_thread(t->tstate),
        .since = over ? last : stuck,
        .progress = w->progress,
        .over = over,
        .lacks_gil = pf_load(&s->lacks_gil) != 0,
        .debug = debug,
    };
    return true;
}

static void
deliver(Watchdog *self, Report *report, View *view)
{
    if (report->over || report->debug) {
        (void)hand_over(self, report, REPORTER_PATIENCE);
        return;
    }
    describe(view, report->native, sizeof report->native);
    if (!hand_over(self, report, REPORTER_PATIENCE) && !pf_load(&self->stop)) {
        report_without_gil(self, report, view);
    }
}

/* Looks at all threads until one needs a report.  Returns how many nanoseconds
 * to wait before the next look. */
static int64_t
look(Watchdog *self)
{
    int64_t general = pf_load(&general_limit);
    int64_t shortest = 4 * LONGEST_PAUSE;
    if (general != 0 && general < shortest) {
        shortest = general;
    }
    Report report;
    View view = {.thread = NULL};
    int64_t now = pf_clock_monotonic();
    pf_mutex_lock(&pf_threads_lock);
    for (PfThread *t = pf_threads; t != NULL && view.thread == NULL;
         t = t->next) {
        if (look_at(t, now, &shortest, &report)) {
            view.thread = t;
            if (!report.over && !report.lacks_gil && !report.debug) {
                (void)pf_interrupt(t->native, look_around, &view,
                                   INTERRUPT_PATIENCE);
            }
        }
    }
    pf_mutex_unlock(&pf_threads_lock);
    if (view.thread != NULL) {
        deliver(self, &report, &view);
        return 0;
    }
    int64_t pause = shortest / 4;
    return pause < SHORTEST_PAUSE ? SHORTEST_PAUSE : pause;
}

static void
watch_thread(void *started)
{
    Watchdog *self = started;
    pf_help_thread_begins();
    while (!pf_load(&self->stop)) {
        int64_t pause = look(self);
        if (pause != 0 && acquire(self->locks[WAKE], pause)) {
            (void)pf_take(&self->nudged);
        }
    }
    pf_help_thread_ends();
    PyThread_release_lock(self->locks[GONE]);
}

/* ----------------------------------------------------------------- from Python */

static Watchdog *
running(void)
{
    return PF_SHARED_GET(&active.watchdog);
}

/* Makes the watchdog look now, because of a new limit, a new run or a stop.
 * `self` may be NULL. */
static void
nudge(Watchdog *self)
{
    if (self != NULL && !pf_fetch_or(&self->nudged, 1)) {
        PyThread_release_lock(self->locks[WAKE]);
    }
}

/* Frees a watchdog that no other thread has seen. */
static void
free_watchdog(Watchdog *self)
{
    pf_help_locks_free(self->locks, LOCKS);
    PyMem_RawFree(self);
}

/* NULL: no memory. */
static Watchdog *
new_watchdog(void)
{
    Watchdog *self = PyMem_RawCalloc(1, sizeof *self);
    if (self != NULL && !pf_help_locks_make(self->locks, LOCKS)) {
        PyMem_RawFree(self);
        return NULL;
    }
    return self;
}

/* Uninstalls the signal handler.  pf_threads_lock excludes an interruption by
 * a watchdog that is about to end.  Called with the mutex of `active`, inside
 * of which pf_threads_lock is taken, never the other way round. */
static void
uninstall_signal(void)
{
    pf_mutex_lock(&pf_threads_lock);
    pf_interrupt_uninstall();
    pf_mutex_unlock(&pf_threads_lock);
}

static bool
begin_to_watch(Watchdog *self)
{
    (void)pf_interrupt_install(); /* if it fails, reports lack C functions */
    pf_interrupt_refuse_signals();
    bool begun = PyThread_start_new_thread(watch_thread, self) !=
                 PYTHREAD_INVALID_THREAD_ID;
    pf_interrupt_accept_signals();
    if (begun) {
        return true;
    }
    uninstall_signal();
    return false;
}

/* Starts the watchdog's thread and makes it the active one.  Returns false if
 * another watchdog was started meanwhile, by code that ran to make the capsule
 * or by another thread; or if the system refused a thread (*refused). */
static bool
activate(Watchdog *self, bool *refused)
{
    PF_LOCK(&active);
    bool vacant = running() == NULL;
    bool begun = vacant && begin_to_watch(self);
    if (begun) {
        PF_SHARED_SET(&active.watchdog, self);
    }
    PF_UNLOCK(&active);
    *refused = vacant && !begun;
    return begun;
}

/* Returns the active watchdog, which is active no longer, or NULL. */
static Watchdog *
deactivate(void)
{
    PF_LOCK(&active);
    Watchdog *self = running();
    PF_SHARED_SET(&active.watchdog, NULL);
    PF_UNLOCK(&active);
    return self;
}

/* Uninstalls the signal handler, unless another watchdog was started
 * meanwhile. */
static void
uninstall_unused_signal(void)
{
    PF_LOCK(&active);
    if (running() == NULL) {
        uninstall_signal();
    }
    PF_UNLOCK(&active);
}

static PyObject *
watchdog_start(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    if (running() != NULL) {
        nudge(running());
        Py_RETURN_NONE;
    }
    Watchdog *self = new_watchdog();
    if (self == NULL) {
        return PyErr_NoMemory();
    }
    PyObject *capsule = PyCapsule_New(self, CAPSULE_NAME, NULL);
    bool refused = false;
    if (capsule != NULL && activate(self, &refused)) {
        return capsule;
    }
    free_watchdog(self);
    Py_XDECREF(capsule);
    if (refused) {
        PyErr_SetString(PyExc_RuntimeError, "can't start new thread");
    }
    return capsule == NULL || refused ? NULL : Py_NewRef(Py_None);
}

/* Releases the thread that waits for the reporter in _watchdog_await: the
 * reporter has come, or the watchdog is being stopped. */
static void
end_await(Watchdog *self)
{
    if (!pf_fetch_or(&self->came, 1)) {
        PyThread_release_lock(self->locks[BEGUN]);
    }
}

static PyObject *
watchdog_stop(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    Watchdog *self = deactivate();
    if (self == NULL) {
        Py_RETURN_FALSE;
    }
    pf_store(&self->stop, 1);
    nudge(self);
    end_await(self);
    Py_BEGIN_ALLOW_THREADS;
    PyThread_acquire_lock(self->locks[GONE], WAIT_LOCK);
    Py_END_ALLOW_THREADS;
    uninstall_unused_signal();
    if (!pf_load(&self->full)) {
        PyThread_release_lock(self->locks[READY]);
    }
    Py_RETURN_TRUE;
}

static Watchdog *
watchdog_of(PyObject *capsule)
{
    return PyCapsule_GetPointer(capsule, CAPSULE_NAME);
}

/* The reporter waits here for the next report. */
static PyObject *
watchdog_next(PyObject *module, PyObject *capsule)
{
    (void)module;
    Watchdog *self = watchdog_of(capsule);
    if (self == NULL) {
        return NULL;
    }
    end_await(self);
    if (pf_load(&self->stop) && !pf_load(&self->full)) {
        Py_RETURN_NONE;
    }
    pf_store(&self->awaited, 1);
    Py_BEGIN_ALLOW_THREADS;
    PyThread_acquire_lock(self->locks[READY], WAIT_LOCK);
    Py_END_ALLOW_THREADS;
    pf_store(&self->awaited, 0);
    if (!pf_load(&self->full)) {
        Py_RETURN_NONE;
    }
    Report report = self->report;
    pf_store(&self->full, 0);
    PyThread_release_lock(self->locks[TAKEN]);
    /* Names of functions and files may be any bytes, or cut off. */
    PyObject *native = PyUnicode_DecodeUTF8(
        report.native, (Py_ssize_t)strlen(report.native), "replace");
    return native == NULL
               ? NULL
               : Py_BuildValue("(kdOOON)", report.thread,
                               (double)report.since / 1e9,
                               report.over ? Py_True : Py_False,
                               report.lacks_gil ? Py_True : Py_False,
                               report.debug ? Py_True : Py_False, native);
}

/* Waits until the new reporter has come, or the watchdog has been stopped.  A
 * lock of Python would not do: in a patched program other fibers would run
 * meanwhile, perhaps in the middle of os.fork(). */
static PyObject *
watchdog_await(PyObject *module, PyObject *capsule)
{
    (void)module;
    Watchdog *self = watchdog_of(capsule);
    if (self == NULL) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS;
    PyThread_acquire_lock(self->locks[BEGUN], WAIT_LOCK);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

static PyObject *
watchdog_limit(PyObject *module, PyObject *seconds)
{
    (void)module;
    int64_t ns = 0;
    if (seconds != Py_None && pf_scheduler_watch_limit(seconds, &ns) < 0) {
        return NULL;
    }
    int64_t before = pf_load(&general_limit);
    pf_store(&general_limit, ns);
    nudge(running());
    return before == 0 ? Py_NewRef(Py_None)
                       : PyFloat_FromDouble((double)before / 1e9);
}

/* The child has neither the watchdog's thread nor the reporter.  The object
 * that they used, with its locks, stays as it was. */
static int
after_fork(PfThread *t)
{
    (void)t;
    memset(&active, 0, sizeof active);
    pf_help_after_fork();
    pf_interrupt_uninstall();
    return 0;
}

/* Called at import if Python is in its development mode. */
static PyObject *
watchdog_debug(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    pf_run_debugs = true;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"_watchdog_debug", watchdog_debug, METH_NOARGS,
     "_watchdog_debug()\n--\n\n"
     "Make debug=True the default of run()."},
    {"_watchdog_start", watchdog_start, METH_NOARGS,
     "_watchdog_start()\n--\n\n"
     "Start the watchdog's thread. Return an object for the other functions,\n"
     "or None if a watchdog runs already."},
    {"_watchdog_stop", watchdog_stop, METH_NOARGS,
     "_watchdog_stop()\n--\n\n"
     "End the watchdog's thread. Return False if none runs."},
    {"_watchdog_next", watchdog_next, METH_O,
     "_watchdog_next(started, /)\n--\n\n"
     "Wait for a report: thread, seconds, whether the loop runs again,\n"
     "whether it waits for the GIL, whether only calls that block matter, C\n"
     "functions. None: the watchdog ends."},
    {"_watchdog_await", watchdog_await, METH_O,
     "_watchdog_await(started, /)\n--\n\n"
     "Wait until _watchdog_next() is called for the first time, or the\n"
     "watchdog ends. To be called once."},
    {"_watchdog_limit", watchdog_limit, METH_O,
     "_watchdog_limit(seconds, /)\n--\n\n"
     "Set the limit, in seconds or None, of runs that have no separate one.\n"
     "Return the limit from before."},
    {NULL, NULL, 0, NULL},
};

int
pf_watchdog_init(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}

static void
run_begins(SchedulerObject *s)
{
    (void)s;
    nudge(running());
}

const PfPart pf_watchdog_part = {
    .of_scheduler = &of_scheduler,
    .after_fork = after_fork,
    .run_begins = run_begins,
};
