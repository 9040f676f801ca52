/* The watchdog: a thread that notices when a scheduler's loop does not run.
 *
 * It needs no GIL to notice, since a function in C may hold that.  It looks at
 * each thread with a run every now and then: the loop runs if its counters have
 * changed, or while it sleeps.  What it finds goes two ways:
 *
 *   1. A Python thread, the reporter, which waits in _watchdog_next(), gets a
 *      report: with the GIL it can tell the fiber's name and stack properly.
 *   2. If the reporter does not come within a second, nobody gets the GIL, or
 *      the logging of an earlier report does not end.  Then the blocked thread
 *      itself is interrupted and writes its fiber's name and stack to stderr,
 *      as the handler for stack overflows does.
 *
 * In both cases the names of the C functions that it is in come from an
 * interruption, too: see engine/base/interrupt.h.
 *
 * Whoever holds pf_threads_lock may follow thread->scheduler: a scheduler takes
 * that lock once before it is freed.  Its counters are words that another
 * thread writes; here they only have to change.
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
/* Between two looks: a quarter of the shortest limit, within these. */
#define SHORTEST_PAUSE (5 * MILLISECOND)
#define LONGEST_PAUSE SECOND
#define DEBUG_LIMIT (100 * MILLISECOND)
#define REPORTER_PATIENCE SECOND
#define INTERRUPT_PATIENCE (100 * MILLISECOND)
#define MOST_PLACES 64
#define MOST_TOLD 8 /* of these */

typedef struct Report {
    unsigned long thread; /* its Python identifier */
    int64_t since;        /* how long, in nanoseconds */
    uint64_t progress;    /* as it has been for so long */
    bool over;            /* the loop runs again */
    bool lacks_gil;       /* it waits for the GIL itself */
    bool debug;           /* only a call that blocks is worth telling */
    char native[1024];    /* C functions, innermost first */
} Report;

enum {
    WAKE,  /* to the thread: something has changed */
    GONE,  /* from the thread: it ends */
    READY, /* to the reporter: `report` is there */
    TAKEN, /* from the reporter: it has it */
    BEGUN, /* from the reporter: it has come once */
    LOCKS,
};

/* One for each start, which its thread, its reporter and who waits for them
 * keep to: another one may have been started before they have gone.  It is
 * never freed.  The locks are binary semaphores: who releases one has seen it
 * taken. */
typedef struct Watchdog {
    PyThread_type_lock locks[LOCKS];
    PF_ATOMIC(uint8_t) stop;
    PF_ATOMIC(uint8_t) nudged;  /* `wake` is released */
    PF_ATOMIC(uint8_t) full;    /* `report` waits for the reporter */
    PF_ATOMIC(uint8_t) awaited; /* ... which waits for one; else it is busy */
    PF_ATOMIC(uint8_t) came;    /* `begun` is released */
    Report report;              /* belongs to whom `full` says */
} Watchdog;

#define CAPSULE_NAME "pyfiber watchdog"

/* shared, behind its own mutex: who watches, and the signal, which is there as long
 * as somebody does.  To nudge, one may look without.  NULL: none runs. */
static struct {
    PF_OBJECT_MUTEX
    PF_SHARED(Watchdog *) dog;
} kennel;
/* shared, one word; of runs without one of their own; 0: none */
static PF_ATOMIC(int64_t) general_limit;

/* ------------------------------------------------------------------ the look */

/* What it has seen of a loop, under pf_threads_lock. */
typedef struct Watched {
    uint64_t progress;
    int64_t since; /* so long it has been like this; 0: never looked at */
    int64_t told;  /* the next report is due after so long; 0: none yet */
    bool asleep;
} Watched;

/* constant after import */
static PfKeeps of_scheduler = {.size = sizeof(Watched)};

static Watched *
watched_of(const SchedulerObject *s)
{
    return pf_scheduler_keeps(s, &of_scheduler);
}

static uint64_t
glance(const uint64_t *word)
{
    return *(const volatile uint64_t *)word;
}

/* Only grows, and does so with whatever the loop does. */
static uint64_t
progress_of(const SchedulerObject *s)
{
    const pf_scheduler *core = &s->core;
    return glance(&core->switches) + glance(&core->waits) +
           glance(&core->messages) + glance(&core->timeouts) +
           glance(&core->events);
}

static bool
sleeps(SchedulerObject *s)
{
    return pf_load(&s->core.sleeping) && !pf_load(&s->lacks_gil);
}

/* Zero: nobody wants to know.  A limit that somebody has named comes before
 * that for debugging. */
static int64_t
limit_of(SchedulerObject *s, bool *debug)
{
    int64_t own = pf_load(&s->watch_limit);
    int64_t named = own > 0 ? own : pf_load(&general_limit);
    *debug = named == 0 && own == PF_WATCH_BLOCKING;
    return *debug ? DEBUG_LIMIT : named;
}

/* For how long has the loop certainly not run?  Counted from the first look
 * that found it as it is now. */
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
    bool tell; /* write what the interpreter was running */
} View;

/* In a signal handler on the blocked thread. */
static void
look_around(void *data)
{
    View *view = data;
    view->count = pf_interrupt_native_stack(view->places, MOST_PLACES);
    if (view->tell) {
        pf_overflow_tell_fiber();
    }
}

/* The functions that Python code has called, as one line. */
static void
describe(const View *view, char *text, size_t size)
{
    size_t length = 0;
    text[0] = '\0';
    for (size_t i = 0; i < view->count && i < MOST_TOLD; i++) {
        char name[160];
        size_t n =
            pf_interrupt_native_name(view->places[i], name, sizeof name);
        if (strncmp(name, "_PyEval_", 8) == 0 || length + n + 4 >= size) {
            break;
        }
        if (i != 0 && name[n - 1] != ')') {
            continue; /* without a name: only the innermost is worth it */
        }
        length += (size_t)snprintf(text + length, size - length, "%s%s",
                                   i == 0 ? "" : " < ", name);
    }
}

/* -------------------------------------------------------------------- telling */

static bool
acquire(PyThread_type_lock lock, int64_t ns)
{
    return PyThread_acquire_lock_timed(lock, ns / 1000, 0) == PY_LOCK_ACQUIRED;
}

/* The reporter has taken it in time. */
static bool
hand_over(Watchdog *self, const Report *report, int64_t patience)
{
    if (pf_load(&self->full)) {
        return false; /* it has not come for the last one */
    }
    (void)acquire(self->locks[TAKEN], 0); /* of the last one, which was late */
    self->report = *report;
    pf_store(&self->full, 1);
    PyThread_release_lock(self->locks[READY]);
    return acquire(self->locks[TAKEN], patience);
}

/* If the reporter is busy, it may also be waiting for the GIL in the middle of
 * its work. */
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

/* Under pf_threads_lock.  The reporter has been waited for, and meanwhile the
 * run, or the thread, may have ended. */
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

static void
tell_without_gil(Watchdog *self, const Report *report, View *view)
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
        view->tell = true;
        (void)pf_interrupt(view->thread->native, look_around, view,
                           INTERRUPT_PATIENCE);
    }
    pf_mutex_unlock(&pf_threads_lock);
}

/* ------------------------------------------------------------------ the thread */

/* Under pf_threads_lock: is there something to tell of this thread? */
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
        w->since = w->told = 0; /* nobody looks: what was seen gets old */
        return false;
    }
    *shortest = limit < *shortest ? limit : *shortest;
    int64_t last = now - w->since;
    int64_t stuck = stuck_for(s, now);
    bool over = stuck == 0 && w->told != 0;
    if (!over && stuck < (w->told == 0 ? limit : w->told)) {
        return false;
    }
    /* Again when it has lasted twice as long; to debug, at every limit: it may
     * have computed until now, and block next. */
    w->told = over ? 0 : debug ? stuck + limit : 2 * stuck;
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
tell_of(Watchdog *self, Report *report, View *view)
{
    if (report->over || report->debug) {
        (void)hand_over(self, report, REPORTER_PATIENCE);
        return;
    }
    describe(view, report->native, sizeof report->native);
    if (!hand_over(self, report, REPORTER_PATIENCE) && !pf_load(&self->stop)) {
        tell_without_gil(self, report, view);
    }
}

/* One look at all; returns how long to wait for the next one. */
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
        tell_of(self, &report, &view);
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
    pf_interrupt_refuse_signals();
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
    return PF_SHARED_GET(&kennel.dog);
}

/* There is a new limit, or the end: look now. */
static void
nudge(Watchdog *self)
{
    if (self != NULL && !pf_fetch_or(&self->nudged, 1)) {
        PyThread_release_lock(self->locks[WAKE]);
    }
}

/* Of one that nobody else has seen. */
static void
free_watchdog(Watchdog *self)
{
    for (int i = 0; i < LOCKS && self->locks[i] != NULL; i++) {
        PyThread_release_lock(self->locks[i]);
        PyThread_free_lock(self->locks[i]);
    }
    PyMem_RawFree(self);
}

/* Its locks are taken. */
static Watchdog *
new_watchdog(void)
{
    Watchdog *self = PyMem_RawCalloc(1, sizeof *self);
    for (int i = 0; self != NULL && i < LOCKS; i++) {
        self->locks[i] = PyThread_allocate_lock();
        if (self->locks[i] == NULL) {
            free_watchdog(self);
            return NULL;
        }
        PyThread_acquire_lock(self->locks[i], WAIT_LOCK);
    }
    return self;
}

/* Not in the middle of an interruption, by one that is about to end.  With the
 * kennel's mutex: the threads' lock is taken inside it, never around it. */
static void
leave_signal_alone(void)
{
    pf_mutex_lock(&pf_threads_lock);
    pf_interrupt_uninstall();
    pf_mutex_unlock(&pf_threads_lock);
}

static bool
begin_to_watch(Watchdog *self)
{
    (void)pf_interrupt_install(); /* without it C functions are not told */
    if (PyThread_start_new_thread(watch_thread, self) !=
        PYTHREAD_INVALID_THREAD_ID) {
        return true;
    }
    leave_signal_alone();
    return false;
}

/* False if another one was started meanwhile, by code that ran to make the
 * capsule or by another thread, or if the system refuses. */
static bool
settle_in(Watchdog *self, bool *refused)
{
    PF_LOCK(&kennel);
    bool vacant = running() == NULL;
    bool begun = vacant && begin_to_watch(self);
    if (begun) {
        PF_SHARED_SET(&kennel.dog, self);
    }
    PF_UNLOCK(&kennel);
    *refused = vacant && !begun;
    return begun;
}

static Watchdog *
turn_out(void)
{
    PF_LOCK(&kennel);
    Watchdog *self = running();
    PF_SHARED_SET(&kennel.dog, NULL);
    PF_UNLOCK(&kennel);
    return self;
}

/* Unless another one has been started meanwhile. */
static void
shut_kennel(void)
{
    PF_LOCK(&kennel);
    if (running() == NULL) {
        leave_signal_alone();
    }
    PF_UNLOCK(&kennel);
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
    if (capsule != NULL && settle_in(self, &refused)) {
        return capsule;
    }
    free_watchdog(self);
    Py_XDECREF(capsule);
    if (refused) {
        PyErr_SetString(PyExc_RuntimeError, "can't start new thread");
    }
    return capsule == NULL || refused ? NULL : Py_NewRef(Py_None);
}

/* The reporter is there, or will not be needed. */
static void
let_begin(Watchdog *self)
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
    Watchdog *self = turn_out();
    if (self == NULL) {
        Py_RETURN_FALSE;
    }
    pf_store(&self->stop, 1);
    nudge(self);
    let_begin(self);
    Py_BEGIN_ALLOW_THREADS;
    PyThread_acquire_lock(self->locks[GONE], WAIT_LOCK);
    Py_END_ALLOW_THREADS;
    shut_kennel();
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
    let_begin(self);
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
    /* Names of functions and files may be any bytes, or cut. */
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

/* Until the new reporter is there, or the watchdog has been stopped.  Not by
 * a lock of Python: in a patched program others would run meanwhile, be it in
 * the middle of os.fork(). */
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

/* Nanoseconds; 0: none. */
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

/* The child has neither the thread nor the reporter; what they held is lost. */
static int
after_fork(PfThread *t)
{
    (void)t;
    memset(&kennel, 0, sizeof kennel);
    pf_help_after_fork();
    pf_interrupt_uninstall();
    return 0;
}

/* At import, if Python is in its development mode. */
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
     "Every run() is one with debug=True, unless it says otherwise."},
    {"_watchdog_start", watchdog_start, METH_NOARGS,
     "_watchdog_start()\n--\n\n"
     "Start its thread, for which the object stands; None: there is one."},
    {"_watchdog_stop", watchdog_stop, METH_NOARGS,
     "_watchdog_stop()\n--\n\nEnd its thread; False: there is none."},
    {"_watchdog_next", watchdog_next, METH_O,
     "_watchdog_next(started, /)\n--\n\n"
     "Wait for a report: thread, seconds, whether it is over, whether the\n"
     "loop waits for the GIL, whether only calls that block matter, C\n"
     "functions. None: the watchdog ends."},
    {"_watchdog_await", watchdog_await, METH_O,
     "_watchdog_await(started, /)\n--\n\n"
     "Wait for its first _watchdog_next(), once, or its end."},
    {"_watchdog_limit", watchdog_limit, METH_O,
     "_watchdog_limit(seconds, /)\n--\n\n"
     "Set the limit of runs that have none of their own; the one before."},
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
