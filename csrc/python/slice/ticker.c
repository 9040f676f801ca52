/* The ticker: a thread that finds fibers which have run longer than their
 * slice. See slice.h.
 *
 * The ticker looks without the GIL. A fiber is over its slice if its scheduler
 * has not switched for as long as a slice, and another fiber could run. Then the
 * ticker takes the GIL, which the fiber gives up at its next chance, and arms the
 * fiber's thread.
 *
 * Between two looks the ticker sleeps for a quarter of the shortest slice, so a
 * fiber runs for at most 1.25 slices before it is found. After CALM looks that
 * found no such fiber the ticker sleeps for a whole slice, until it finds one
 * (a slice that is longer than LONGEST_PAUSE is cut into equal sleeps):
 * a program whose fibers all give way pays for a quarter of the looks, and its
 * first fiber that does not is found after at most two slices.
 *
 * While no loop runs the ticker sleeps until a loop wakes it. A loop that goes
 * on after a sleep does so if the ticker sleeps that deeply, which it does only
 * after MOST_IDLE looks in vain; so a loop that sleeps and goes on all the time
 * seldom pays for that.
 *
 * CPython forces a thread to give up the GIL after the interval of
 * sys.setswitchinterval(), 5 ms by default. During runs with time slices the
 * interval is at most a quarter of the shortest slice.
 */
#include "python/slice/slice.h"

#include "python/core/arguments.h"
#include "python/core/state.h"
#include "python/core/tstate.h"
#include "python/run/help.h"
#include "python/threads/threads.h"

#include "engine/base/clock.h"
#include "engine/base/interrupt.h"

#define MOST_IDLE 40
#define CALM 8
/* Nanoseconds. A slice that is made shorter in a run is seen after a pause. */
#define SHORTEST_PAUSE INT64_C(25000)
#define LONGEST_PAUSE INT64_C(10000000)

enum {
    WAKE, /* to the thread: look, or end */
    GONE, /* from the thread: it ends */
    LOCKS,
};

/* One for each thread that is started, and never freed, because the thread may
 * be in the middle of its end. A thread releases a lock only after it has seen
 * that it is taken. */
typedef struct Ticker {
    PyThread_type_lock locks[LOCKS];
    PyInterpreterState *interpreter;
    PF_ATOMIC(uint8_t) stop;
    PF_ATOMIC(uint8_t) nudged; /* WAKE is released */
    PF_ATOMIC(uint8_t) asleep; /* a loop that goes on has to nudge it */
} Ticker;

/* shared, behind the GIL: the one that runs, or NULL */
static Ticker *ticker;
/* shared, behind the GIL: how many schedulers are watched */
static size_t opened;
/* shared, behind the GIL: the interval that the program had set, and the one
 * that pyfiber has set instead; 0: none */
static double interval, interval_ours;
/* shared, behind the GIL: the slice for which the interval is short enough */
static int64_t interval_fits = PF_NEVER;

/* constant after import: functions of sys, in whose place virtual threads put
 * others */
static PyObject *get_interval, *set_interval;

/* -------------------------------------------------------- the switch interval */

/* Calls sys.getswitchinterval() or, with seconds, sys.setswitchinterval().
 * Returns the interval; -1.0 after a failure, with an exception. */
static double
switch_interval(double seconds)
{
    if (seconds < 0.0) {
        PyObject *found = PyObject_CallNoArgs(get_interval);
        seconds = found == NULL ? -1.0 : PyFloat_AsDouble(found);
        Py_XDECREF(found);
        return seconds;
    }
    PyObject *done = PyObject_CallFunction(set_interval, "d", seconds);
    Py_XDECREF(done);
    return done == NULL ? -1.0 : seconds;
}

/* Lowers the interval to a quarter of the slice: 0 or -1. */
static int
lower_interval(int64_t slice)
{
    if (slice >= interval_fits) {
        return 0;
    }
    double wanted = (double)slice / 4e9;
    double now = switch_interval(-1.0);
    if (now < 0.0) {
        return -1;
    }
    interval_fits = slice;
    if (now <= wanted) {
        return 0;
    }
    if (interval_ours == 0.0) {
        interval = now;
    }
    if (switch_interval(wanted) < 0.0) {
        return -1;
    }
    interval_ours = switch_interval(-1.0); /* rounded to microseconds */
    return interval_ours < 0.0 ? -1 : 0;
}

/* Restores the interval, unless the program has set another one meanwhile. */
static void
restore_interval(void)
{
    if (interval_ours != 0.0 && switch_interval(-1.0) == interval_ours) {
        /* sys.setswitchinterval() rounds down to microseconds. */
        (void)switch_interval(interval + 5e-7);
    }
    interval_ours = 0.0;
    interval_fits = PF_NEVER;
    if (PyErr_Occurred()) {
        PyErr_WriteUnraisable(NULL);
    }
}

/* ------------------------------------------------------------------- the looks */

static SchedulerObject *
scheduler_of(PfThread *t)
{
    return *(SchedulerObject *volatile *)&t->scheduler;
}

/* Is a fiber of this thread over its slice? Lowers *shortest to the slice, and
 * clears *idle unless the loop sleeps. Called with pf_threads_lock. */
static bool
is_over(PfThread *t, int64_t now, int64_t *shortest, bool *idle)
{
    SchedulerObject *s = scheduler_of(t);
    int64_t slice = s == NULL ? 0 : pf_load_relaxed(&s->time_slice);
    if (slice == 0 || !pf_slice_of(s)->open) {
        return false;
    }
    PfSlice *own = pf_slice_of(s);
    uint64_t progress = *(volatile uint64_t *)&s->core.switches;
    bool asleep = pf_load(&s->core.sleeping) && !pf_load(&s->lacks_gil);
    *shortest = slice < *shortest ? slice : *shortest;
    *idle = *idle && asleep;
    if (asleep || progress != own->progress) {
        own->progress = progress;
        own->since = now;
        return false;
    }
    return now - own->since >= slice && pf_slice_others(s);
}

/* Returns a thread whose fiber is over its slice, or NULL. */
static PfThread *
find_over(int64_t *shortest, bool *idle)
{
    int64_t now = pf_clock_monotonic();
    PfThread *found = NULL;
    pf_mutex_lock(&pf_threads_lock);
    for (PfThread *t = pf_threads; t != NULL; t = t->next) {
        if (is_over(t, now, shortest, idle) && found == NULL) {
            found = t;
        }
    }
    pf_mutex_unlock(&pf_threads_lock);
    return found;
}

/* Arms every thread whose fiber is over its slice. With the GIL held none of
 * them goes on, and none ends. */
static void
arm_all(PyThreadState *ts)
{
    int64_t shortest = PF_NEVER;
    bool idle = true;
    PfThread *t;
    PyEval_RestoreThread(ts);
    while ((t = find_over(&shortest, &idle)) != NULL) {
        SchedulerObject *s = t->scheduler;
        pf_slice_of(s)->since = pf_clock_monotonic();
        if (pf_slice_may(t, s)) {
            pf_arm_thread(t, s);
        }
    }
    if (lower_interval(shortest) < 0) { /* a slice was made shorter */
        PyErr_WriteUnraisable(NULL);
    }
    (void)PyEval_SaveThread();
}

static void
nudge(Ticker *self)
{
    if (!pf_fetch_or(&self->nudged, 1)) {
        PyThread_release_lock(self->locks[WAKE]);
    }
}

/* Sleeps for so many nanoseconds, or until somebody nudges. */
static void
nap(Ticker *self, int64_t length)
{
    int64_t microseconds = length == PF_NEVER ? -1 : length / 1000;
    if (PyThread_acquire_lock_timed(self->locks[WAKE], microseconds, 0) ==
        PY_LOCK_ACQUIRED) {
        (void)pf_take(&self->nudged);
    }
}

/* Sleeps until a loop goes on, unless one has before it could see the flag. */
static void
sleep_deeply(Ticker *self)
{
    int64_t shortest = PF_NEVER;
    bool idle = true;
    pf_store(&self->asleep, 1);
    if (find_over(&shortest, &idle) == NULL && idle && !pf_load(&self->stop)) {
        nap(self, PF_NEVER);
    }
    pf_store(&self->asleep, 0);
}

static void
tick_until_stopped(Ticker *self, PyThreadState *ts)
{
    int in_vain = 0, calm = CALM;
    while (!pf_load(&self->stop)) {
        int64_t shortest = PF_NEVER;
        bool idle = true;
        bool over = find_over(&shortest, &idle) != NULL;
        if (over) {
            arm_all(ts);
        }
        calm = over ? 0 : calm < CALM ? calm + 1 : CALM;
        in_vain = idle ? in_vain + 1 : 0;
        if (in_vain > MOST_IDLE) {
            in_vain = 0;
            sleep_deeply(self);
            continue;
        }
        int64_t pause =
            shortest / (calm < CALM ? 4 : shortest / LONGEST_PAUSE + 1);
        nap(self, pause < SHORTEST_PAUSE  ? SHORTEST_PAUSE
                  : pause > LONGEST_PAUSE ? LONGEST_PAUSE
                                          : pause);
    }
}

static void
ticker_thread(void *started)
{
    Ticker *self = started;
    pf_help_thread_begins();
    PyThreadState *ts = PyThreadState_New(self->interpreter);
    if (ts != NULL) { /* else no fiber is preempted */
        PyEval_RestoreThread(ts);
        pf_worker_only_watches();
        (void)PyEval_SaveThread();
        tick_until_stopped(self, ts);
        PyEval_RestoreThread(ts);
        PyThreadState_Clear(ts);
        PyThreadState_DeleteCurrent();
    }
    pf_help_thread_ends();
    PyThread_release_lock(self->locks[GONE]);
}

void
pf_ticker_poke(void)
{
    if (ticker != NULL && pf_load_relaxed(&ticker->asleep)) {
        nudge(ticker);
    }
}

/* ------------------------------------------------------------ start and end */

static int
start(void)
{
    Ticker *self = PyMem_RawCalloc(1, sizeof *self);
    if (self == NULL || !pf_help_locks_make(self->locks, LOCKS)) {
        PyMem_RawFree(self);
        PyErr_NoMemory();
        return -1;
    }
    self->interpreter = PyInterpreterState_Get();
    pf_interrupt_refuse_signals();
    bool begun = PyThread_start_new_thread(ticker_thread, self) !=
                 PYTHREAD_INVALID_THREAD_ID;
    pf_interrupt_accept_signals();
    if (!begun) {
        pf_help_locks_free(self->locks, LOCKS);
        PyMem_RawFree(self);
        PyErr_SetString(PyExc_RuntimeError,
                        "can't start the thread that a time slice needs");
        return -1;
    }
    ticker = self;
    return 0;
}

/* Waits until the thread touches nothing any more. The system's thread ends a
 * moment later. */
static void
stop(void)
{
    Ticker *self = ticker;
    ticker = NULL;
    pf_store(&self->stop, 1);
    nudge(self);
    Py_BEGIN_ALLOW_THREADS;
    PyThread_acquire_lock(self->locks[GONE], WAIT_LOCK);
    Py_END_ALLOW_THREADS;
}

/* Counts a scheduler as watched at once, because the rest may run code. */
int
pf_ticker_open(SchedulerObject *s)
{
    PfSlice *slice = pf_slice_of(s);
    opened++;
    slice->open = true;
    slice->since = pf_clock_monotonic();
    if (pf_entry_load() == 0 && pf_arm_begin() == 0 &&
        lower_interval(pf_load_relaxed(&s->time_slice)) == 0 &&
        (ticker != NULL || start() == 0)) {
        return 0;
    }
    PyObject *error = pystate_take_exception();
    pf_ticker_close(s);
    pystate_restore_exception(error);
    return -1;
}

void
pf_ticker_close(SchedulerObject *s)
{
    pf_slice_of(s)->open = false;
    pf_arm_clear(s);
    if (--opened != 0) {
        return;
    }
    PyObject *error = pystate_take_exception();
    pf_ticker_stop();
    if (opened == 0) { /* else another thread has begun such a run meanwhile */
        restore_interval();
        pf_arm_end();
    }
    pystate_restore_exception(error);
}

void
pf_ticker_stop(void)
{
    if (ticker != NULL) {
        stop();
    }
}

/* The child has no ticker, and only the schedulers of this thread. If one of
 * these has slices, the child gets a ticker. */
int
pf_ticker_after_fork(const PfThread *t)
{
    opened = 0;
    for (SchedulerObject *s = t == NULL ? NULL : t->schedulers; s != NULL;
         s = s->next) {
        opened += pf_slice_of(s)->open;
    }
    if (ticker == NULL) {
        return 0;
    }
    ticker = NULL;
    if (opened != 0) {
        return start();
    }
    restore_interval();
    pf_arm_end();
    return 0;
}

int
pf_ticker_init(void)
{
    get_interval = Py_XNewRef(PySys_GetObject("getswitchinterval"));
    set_interval = Py_XNewRef(PySys_GetObject("setswitchinterval"));
    if (get_interval == NULL || set_interval == NULL) {
        PyErr_SetString(PyExc_ImportError, "sys has no switch interval");
        return -1;
    }
    return 0;
}
