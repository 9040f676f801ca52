/* The function run(): separates its options from the arguments of the main
 * function, and makes a scheduler for this one run.  loop.c and team_run.c run
 * it. */
#include "python/run/run.h"

#include "python/core/import.h"
#include "python/core/state.h"
#include "python/run/team.h"
#include "python/task/call.h"
#include "python/task/outcome.h"
#include "python/task/unhandled.h"

#include <string.h>

bool pf_run_debugs; /* constant after import */

/* The options of run(); its other keywords go to the main function. */
typedef struct RunOptions {
    PyObject *on_unhandled; /* a new reference, or NULL */
    int64_t watchdog;       /* limit in nanoseconds; 0: the process's limit;
                         or PF_WATCH_BLOCKING */
    bool debug;
    Py_ssize_t threads; /* schedulers that share the work */
    int64_t time_slice; /* nanoseconds; -1: not given */
} RunOptions;

/* Runs `main` on a scheduler that exists only for this run.  Steals `main` and
 * the references in the options. */
static PyObject *
run_alone(FiberObject *main, RunOptions *options)
{
    SchedulerObject *s =
        (SchedulerObject *)PyObject_CallNoArgs((PyObject *)pf_scheduler_type);
    if (s == NULL) {
        Py_XDECREF(options->on_unhandled);
        Py_DECREF(main);
        return NULL;
    }
    s->on_unhandled = options->on_unhandled;
    pf_store(&s->time_slice, options->time_slice);
    pf_store(&s->watch_limit, options->watchdog);
    PyObject *result =
        options->threads > 1
            ? pf_team_run(s, main, options->threads, options->watchdog)
            : pf_run_main(s, main);
    PyObject *raised = result == NULL ? pystate_take_exception() : NULL;
    pf_run_close_now(s);
    pf_unhandled_close_quietly(s);
    pystate_restore_exception(raised);
    Py_DECREF(s);
    return result;
}

static bool
is(PyObject *name, PyObject *own)
{
    return PyUnicode_Compare(name, own) == 0;
}

static bool
is_debug(PyObject *name)
{
    return PyUnicode_CompareWithASCIIString(name, "debug") == 0;
}

static bool
is_time_slice(PyObject *name)
{
    return PyUnicode_CompareWithASCIIString(name, "time_slice") == 0;
}

static bool
is_own(PyObject *name)
{
    return is(name, pf.s_on_unhandled) || is(name, pf.s_watchdog) ||
           PyUnicode_CompareWithASCIIString(name, "threads") == 0 ||
           is_debug(name) || is_time_slice(name);
}

/* Starts the watchdog's two threads, unless they run, by the function `how` of
 * pyfiber._watchdog.  0, or -1 with an exception. */
static int
start_watchdog(const char *how)
{
    PyObject *start = pf_import_from("pyfiber._watchdog", how);
    PyObject *done = start == NULL ? NULL : PyObject_CallNoArgs(start);
    Py_XDECREF(start);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

int
pf_run_debug(SchedulerObject *s)
{
    if (!pf_run_debugs || pf_load(&s->watch_limit) != 0) {
        return 0;
    }
    pf_store(&s->watch_limit, PF_WATCH_BLOCKING);
    return start_watchdog("start_for_debugging");
}

static int
take_option(RunOptions *options, PyObject *name, PyObject *value)
{
    if (is(name, pf.s_on_unhandled)) {
        options->on_unhandled = pf_unhandled_option(value);
        return options->on_unhandled == NULL ? -1 : 0;
    }
    if (is_debug(name)) {
        int debug = PyObject_IsTrue(value);
        options->debug = debug > 0;
        return debug < 0 ? -1 : 0;
    }
    if (is_time_slice(name)) {
        return pf_scheduler_time_slice(value, &options->time_slice);
    }
    if (!is(name, pf.s_watchdog)) {
        return pf_team_threads(value, &options->threads);
    }
    return value != Py_None &&
                   (pf_scheduler_watch_limit(value, &options->watchdog) < 0 ||
                    start_watchdog("start") < 0)
               ? -1
               : 0;
}

/* Reads the options.  Returns how many of the keywords are options, or -1 with
 * an exception if the value of one is wrong. */
static Py_ssize_t
take_options(RunOptions *options, PyObject *const *values, PyObject *kwnames)
{
    Py_ssize_t own = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(kwnames); i++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, i);
        if (is_own(name)) {
            own++;
            if (take_option(options, name, values[i]) < 0) {
                return -1;
            }
        }
    }
    return own;
}

/* Makes the main fiber from the arguments that are no options (`own` of the
 * keywords are).  NULL with an exception. */
static FiberObject *
main_without(Py_ssize_t own, PyObject *const *args, Py_ssize_t nargs,
             PyObject *kwnames)
{
    Py_ssize_t count = PyTuple_GET_SIZE(kwnames), kept = 0;
    FiberObject *main = NULL;
    PyObject *names = PyTuple_New(count - own);
    PyObject **fewer = PyMem_New(PyObject *, (size_t)(nargs + count));
    if (names == NULL || fewer == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    memcpy(fewer, args, (size_t)nargs * sizeof *args);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, i);
        if (!is_own(name)) {
            fewer[nargs + kept] = args[nargs + i];
            PyTuple_SET_ITEM(names, kept++, Py_NewRef(name));
        }
    }
    main = pf_call_fiber("run()", fewer, nargs, kept == 0 ? NULL : names);
done:
    PyMem_Free(fewer);
    Py_XDECREF(names);
    return main;
}

PyObject *
pf_run(PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PfThread *t = pf_thread_this();
    if (t == NULL) {
        return NULL;
    }
    if (t->scheduler != NULL && !pf_run_may_nest(t)) {
        PyErr_SetString(pf.fiber_error,
                        "run() inside of a run: use spawn() and result()");
        return NULL;
    }
    RunOptions options = {
        .debug = pf_run_debugs,
        .time_slice = -1,
    };
    FiberObject *main = NULL;
    Py_ssize_t own =
        kwnames == NULL ? 0 : take_options(&options, args + nargs, kwnames);
    if (own == 0) {
        main = pf_call_fiber("run()", args, nargs, kwnames);
    } else if (own > 0) {
        main = main_without(own, args, nargs, kwnames);
    }
    if (main != NULL && options.threads > 1 && options.time_slice > 0) {
        PyErr_SetString(
            PyExc_ValueError,
            "run(threads=) and time_slice exclude each other: with "
            "a GIL only one of the threads computes at a time");
        Py_CLEAR(main);
    }
    if (options.time_slice < 0) {
        options.time_slice =
            options.threads > 1 ? 0 : pf_scheduler_default_slice;
    }
    if (main != NULL && options.debug && options.watchdog == 0) {
        options.watchdog = PF_WATCH_BLOCKING;
        if (start_watchdog("start_for_debugging") < 0) {
            Py_CLEAR(main);
        }
    }
    if (main == NULL) {
        Py_XDECREF(options.on_unhandled);
        return NULL;
    }
    return run_alone(main, &options);
}
