/* The type _Explorer: configures a run under test, starts it, and returns what
 * happened.  choices.c makes the choices meanwhile. */
#include "python/testing/explorer.h"

#include "python/cancel/cancel.h"
#include "python/core/arguments.h"
#include "python/core/state.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/run/run.h"
#include "python/switch/unwind.h"
#include "python/task/explore.h"
#include "python/task/fiber.h"
#include "python/task/scheduler.h"
#include "python/testing/points.h"
#include "python/testing/testing.h"

#include <string.h>

static void
free_choices(Choices *choices)
{
    PyMem_RawFree(choices->items);
    memset(choices, 0, sizeof *choices);
}

/* ------------------------------------------------------------------ one run */

/* Draws the ticks, up to `length`, at which PCT lowers a priority, and the
 * random strategy switches. */
static void
draw_change_points(ExplorerObject *x, uint64_t length)
{
    for (uint32_t i = 0; i + 1 < x->depth; i++) {
        uint32_t n = length < UINT32_MAX ? (uint32_t)length : UINT32_MAX;
        x->change_at[i] =
            1 + pf_testing_random_below(&x->random, n > 0 ? n : 1);
    }
}

static void
start_over(ExplorerObject *x)
{
    x->made.count = 0;
    x->lost = x->over = x->diverged = false;
    x->steps = x->events = x->hash = x->tie_passed = 0;
    x->passed = x->stretch = x->places = x->hot_places = 0;
    x->ticks = x->wakeups = 0;
    x->switched = x->before = 0;
    x->at_point = false;
    x->forced = x->in_a_row = x->tie_rest = 0;
    x->fault_places = x->faulty = 0;
    x->drawn = NOT_DRAWN;
    x->lowest = UINT32_C(0x7FFFFFFF);
    x->last = NULL;
    pf_pct_known_reset(&x->known);
    if (x->points != NULL) {
        pf_points_begin((PfPointsObject *)x->points);
    }
    Py_CLEAR(x->injected);
}

static int
install(ExplorerObject *x, PyObject *clock)
{
    SchedulerObject *s = x->scheduler;
    pf_store(&s->time_slice, 0); /* choices decide who runs, and no clock */
    if (pf_run_may_run(s) < 0) {
        return -1;
    }
    if (x->installed || s->explorer != NULL) {
        PyErr_SetString(pf.fiber_error, "the explorer is in use");
        return -1;
    }
    if (clock != Py_None && pf_vclock_install(s, clock) < 0) {
        return -1;
    }
    x->installed = true;
    pf_fetch_add(&pf_explore_runs, 1);
    s->explorer = x;
    s->core.pick = pf_explorer_pick;
    s->core.pick_data = x;
    s->core.probe = pf_explorer_probe;
    s->core.pop_due = pf_explorer_pop_due;
    s->core.until_poll = 1;
    s->core.passed = s->core.ahead = 0;
    return 0;
}

static void
uninstall(ExplorerObject *x)
{
    SchedulerObject *s = x->scheduler;
    s->core.pick = NULL;
    s->core.pick_data = NULL;
    s->core.probe = NULL;
    s->core.pop_due = NULL;
    s->core.until_poll = PF_POLL_EVERY;
    s->explorer = NULL;
    x->installed = false;
    pf_fetch_sub(&pf_explore_runs, 1);
    pf_vclock_remove(s);
}

#if PF_TRACES_POINTS
static int
begin_tracing(const ExplorerObject *x)
{
    return x->points == NULL
               ? 0
               : pf_line_trace_begin((PfPointsObject *)x->points);
}

static void
end_tracing(const ExplorerObject *x)
{
    if (x->points != NULL) {
        PyObject *raised = pystate_take_exception();
        pf_line_trace_end();
        pystate_restore_exception(raised);
    }
}
#else
static int
begin_tracing(const ExplorerObject *x)
{
    (void)x;
    return 0;
}

static void
end_tracing(const ExplorerObject *x)
{
    (void)x;
}
#endif

static PyObject *
explorer_run(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    ExplorerObject *x = (ExplorerObject *)op;
    if (nargs < 2) {
        PyErr_SetString(PyExc_TypeError, "run() needs a clock and a function");
        return NULL;
    }
    if (install(x, args[0]) < 0) {
        return NULL;
    }
    start_over(x);
    Py_XSETREF(x->failures, PyList_New(0));
    PyObject *run = NULL, *result = NULL;
    if (x->failures != NULL) {
        run = PyObject_GetAttrString((PyObject *)x->scheduler, "run");
    }
    if (run != NULL && begin_tracing(x) == 0) {
        result = PyObject_Vectorcall(run, args + 1, (size_t)(nargs - 1), NULL);
        end_tracing(x);
    }
    Py_XDECREF(run);
    uninstall(x);
    if (result != NULL && x->lost) {
        Py_CLEAR(result);
        PyErr_NoMemory();
    }
    return result;
}

/* ------------------------------------------------------------------- scripts */

static int
read_choice(PyObject *item, Choice *choice)
{
    return PyArg_ParseTuple(item, "III", &choice->kind, &choice->count,
                            &choice->taken)
               ? 0
               : -1;
}

static int
read_script(PyObject *script, Choices *read)
{
    if (script == Py_None) {
        return 0;
    }
    PyObject *items = PySequence_Tuple(script);
    int rc = items == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; rc == 0 && i < PyTuple_GET_SIZE(items); i++) {
        Choice choice;
        rc = read_choice(PyTuple_GET_ITEM(items, i), &choice);
        if (rc == 0 && !pf_choices_append(read, choice)) {
            PyErr_NoMemory();
            rc = -1;
        }
    }
    Py_XDECREF(items);
    return rc;
}

/* Checks the values: 0, or -1 with an exception.  To be called after all
 * conversions of arguments, because these may run code that begins a run. */
static int
may_configure(ExplorerObject *x, int strategy, unsigned depth,
              uint64_t max_steps, unsigned faults)
{
    if (x->installed) {
        PyErr_SetString(pf.fiber_error,
                        "a run of this explorer is in progress: call "
                        "configure() before it or after it");
    } else if (strategy < 0 || strategy >= STRATEGY_COUNT) {
        PyErr_Format(PyExc_ValueError,
                     "there is no strategy %d: use a number from 0 to %d",
                     strategy, STRATEGY_COUNT - 1);
    } else if (depth < 1 || depth > MAX_DEPTH) {
        PyErr_Format(PyExc_ValueError, "depth must be from 1 to %d, not %u",
                     MAX_DEPTH, depth);
    } else if (faults > MAX_FAULTS) {
        PyErr_Format(PyExc_ValueError, "faults must be at most %d, not %u",
                     MAX_FAULTS, faults);
    } else if (max_steps == 0) {
        PyErr_SetString(PyExc_ValueError,
                        "max_steps must be at least 1, not 0");
    } else {
        return pf_run_may_run(x->scheduler);
    }
    return -1;
}

/* Copies the branch that next_branch() has found.  0, or -1. */
static int
read_branch(const ExplorerObject *x, Choices *read)
{
    for (size_t i = 0; i < x->branch.count; i++) {
        if (!pf_choices_append(read, x->branch.items[i])) {
            PyErr_NoMemory();
            return -1;
        }
    }
    return 0;
}

static PyObject *
explorer_configure(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {
        "strategy", "seed",   "depth",     "length", "script",       "lenient",
        "preempt",  "unfair", "max_steps", "inject", "trace",        "hot",
        "bound",    "branch", "directed",  "faults", "fault_places", NULL};
    ExplorerObject *x = (ExplorerObject *)op;
    int strategy = 0, lenient = 0, preempt = 0, unfair = 0, hot = 0;
    int branch = 0, directed = 0;
    unsigned int depth = 1, bound = UINT32_MAX, faults = 0;
    unsigned long long seed = 0, length = 0, event = 0, places = 0;
    unsigned long long max_steps = UINT32_MAX;
    PyObject *script = Py_None, *trace = Py_None;
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "|$iKIKOpppKKOpIppIK:configure", names, &strategy,
            &seed, &depth, &length, &script, &lenient, &preempt, &unfair,
            &max_steps, &event, &trace, &hot, &bound, &branch, &directed,
            &faults, &places)) {
        return NULL;
    }
    Choices read = {0};
    if ((branch ? read_branch(x, &read) : read_script(script, &read)) < 0 ||
        may_configure(x, strategy, depth, max_steps, faults) < 0) {
        free_choices(&read);
        return NULL;
    }
    free_choices(&x->script);
    x->script = read;
    x->strategy = (Strategy)strategy;
    x->random = pf_testing_random_mix(seed + UINT64_C(0x632BE59BD9B4E019));
    x->depth = depth;
    x->lenient = lenient;
    x->preempt = preempt;
    x->unfair = unfair;
    x->max_steps = max_steps;
    x->inject = event;
    x->hot = hot;
    x->directed = directed;
    x->bound = bound;
    x->faults = faults;
    x->usual_places = places;
    Py_XSETREF(x->trace, trace == Py_None ? NULL : Py_NewRef(trace));
    draw_change_points(x, length);
    Py_RETURN_NONE;
}

/* Finds the script for the next run of a depth-first search: the last run's
 * choices up to the last one that has an untried possibility, and that
 * possibility.  Other runs may come first: configure(branch=True) uses it. */
static PyObject *
explorer_next_branch(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    ExplorerObject *x = (ExplorerObject *)op;
    Choices *made = &x->made;
    size_t n = made->count;
    while (n > 0 && made->items[n - 1].taken + 1 >= made->items[n - 1].count) {
        n--;
    }
    x->branch.count = 0;
    for (size_t i = 0; i < n; i++) {
        if (!pf_choices_append(&x->branch, made->items[i])) {
            return PyErr_NoMemory();
        }
    }
    if (n > 0) {
        x->branch.items[n - 1].taken++;
    }
    return PyBool_FromLong(n > 0);
}

/* --------------------------------------------------------------- what it saw */

static PyObject *
choice_tuple(Choice choice)
{
    return Py_BuildValue("III", choice.kind, choice.count, choice.taken);
}

static PyObject *
explorer_choices(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    ExplorerObject *x = (ExplorerObject *)op;
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < x->made.count; i++) {
        PyObject *item = choice_tuple(x->made.items[i]);
        if (item == NULL || PyList_Append(list, item) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(item);
    }
    return list;
}

/* (index, wanted, found), or None.  If the run ended before the script did, it
 * diverged at its end, and found is None. */
static PyObject *
explorer_divergence(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    ExplorerObject *x = (ExplorerObject *)op;
    if (x->diverged) {
        return Py_BuildValue("nNN", (Py_ssize_t)x->diverged_at,
                             choice_tuple(x->wanted), choice_tuple(x->found));
    }
    if (x->made.count < x->script.count && !x->lenient) {
        return Py_BuildValue("nNO", (Py_ssize_t)x->made.count,
                             choice_tuple(x->script.items[x->made.count]),
                             Py_None);
    }
    Py_RETURN_NONE;
}

/* Lists the fibers with an unhandled failure.  From now on these count as
 * handled, because the caller reports them. */
static PyObject *
explorer_unseen(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    ExplorerObject *x = (ExplorerObject *)op;
    PyObject *list = PyList_New(0);
    Py_ssize_t n = x->failures == NULL ? 0 : PyList_GET_SIZE(x->failures);
    for (Py_ssize_t i = 0; list != NULL && i < n; i++) {
        FiberObject *fiber = (FiberObject *)PyList_GET_ITEM(x->failures, i);
        if (fiber->looked_at) {
            continue;
        }
        fiber->looked_at = true;
        if (PyList_Append(list, (PyObject *)fiber) < 0) {
            Py_CLEAR(list);
        }
    }
    Py_CLEAR(x->failures);
    return list;
}

static PyObject *
get_injected(PyObject *op, void *closure)
{
    (void)closure;
    ExplorerObject *x = (ExplorerObject *)op;
    PyObject *fiber = Py_XNewRef(x->injected);
    if (fiber == NULL) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("NO", fiber,
                         x->injected_waiting ? Py_True : Py_False);
}

static PyObject *
get_count(PyObject *op, void *field)
{
    const char *at = (const char *)op + (uintptr_t)field;
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return PyLong_FromUnsignedLongLong(value);
}

static PyObject *
get_choice_count(PyObject *op, void *closure)
{
    (void)closure;
    return PyLong_FromSize_t(((ExplorerObject *)op)->made.count);
}

/* --------------------------------------------------------------- the type */

static PyObject *
explorer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"scheduler", "on_limit", "is_own", "points", NULL};
    PyObject *scheduler, *on_limit, *is_own, *points = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OO|O!:_Explorer", names,
                                     pf_scheduler_type, &scheduler, &on_limit,
                                     &is_own, pf_points_type, &points)) {
        return NULL;
    }
    ExplorerObject *x = (ExplorerObject *)type->tp_alloc(type, 0);
    if (x != NULL) {
        x->scheduler = (SchedulerObject *)Py_NewRef(scheduler);
        x->on_limit = Py_NewRef(on_limit);
        x->is_own = Py_NewRef(is_own);
        x->points = Py_XNewRef(points);
        x->depth = 1;
        x->max_steps = x->bound = UINT32_MAX;
    }
    return (PyObject *)x;
}

static int
explorer_traverse(PyObject *op, visitproc visit, void *arg)
{
    ExplorerObject *x = (ExplorerObject *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(x->scheduler);
    Py_VISIT(x->trace);
    Py_VISIT(x->on_limit);
    Py_VISIT(x->is_own);
    Py_VISIT(x->points);
    Py_VISIT(x->failures);
    Py_VISIT(x->injected);
    return 0;
}

/* `scheduler` is not cleared, because the methods rely on it, and it does not
 * refer back.  (A run in progress keeps the explorer alive.) */
static int
explorer_clear(PyObject *op)
{
    ExplorerObject *x = (ExplorerObject *)op;
    Py_CLEAR(x->trace);
    Py_CLEAR(x->failures);
    Py_CLEAR(x->injected);
    return 0;
}

static void
explorer_dealloc(PyObject *op)
{
    ExplorerObject *x = (ExplorerObject *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    explorer_clear(op);
    Py_CLEAR(x->on_limit);
    Py_CLEAR(x->is_own);
    Py_CLEAR(x->points);
    Py_CLEAR(x->scheduler);
    free_choices(&x->made);
    free_choices(&x->script);
    free_choices(&x->branch);
    pf_pct_known_free(&x->known);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMethodDef explorer_methods[] = {
    {"configure", PF_FAST(explorer_configure), METH_VARARGS | METH_KEYWORDS,
     "Set how the next runs choose; each argument that is left out gets its\n"
     "default."},
    {"run", PF_FAST(explorer_run), METH_FASTCALL,
     "run(clock, fn, *args): Scheduler.run(fn, *args) under this explorer."},
    {"choices", explorer_choices, METH_NOARGS,
     "The choices of the last run, a list of tuples: (kind, count, taken)."},
    {"next_branch", explorer_next_branch, METH_NOARGS,
     "After a run of a depth-first search: find the script of its next run,\n"
     "for configure(branch=True). Return False if none is left."},
    {"divergence", explorer_divergence, METH_NOARGS,
     "Where the script first did not fit: (index, wanted, found), or None."},
    {"unseen", explorer_unseen, METH_NOARGS,
     "The fibers whose failure nobody looked at; once."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef explorer_getset[] = {
    {"steps", get_count, NULL, "How many times the last run chose a fiber.",
     (void *)offsetof(ExplorerObject, steps)},
    {"events", get_count, NULL,
     "How many places for an injected cancellation the last run had.",
     (void *)offsetof(ExplorerObject, events)},
    {"ticks", get_count, NULL,
     "How many places for a switch the last run had: points where another\n"
     "fiber could run, and for PCT steps.",
     (void *)offsetof(ExplorerObject, ticks)},
    {"passed", get_count, NULL, "How many points the last run has passed.",
     (void *)offsetof(ExplorerObject, passed)},
    {"places", get_count, NULL,
     "At how many of these another fiber could run.",
     (void *)offsetof(ExplorerObject, places)},
    {"hot_places", get_count, NULL, "How many of these places were hot.",
     (void *)offsetof(ExplorerObject, hot_places)},
    {"fault_places", get_count, NULL,
     "How many places for a fault of the network the last run had.",
     (void *)offsetof(ExplorerObject, fault_places)},
    {"fingerprint", get_count, NULL,
     "A hash of the last run, equal for equal runs.",
     (void *)offsetof(ExplorerObject, hash)},
    {"choice_count", get_choice_count, NULL, "len(choices()).", NULL},
    {"injected", get_injected, NULL,
     "(fiber that was cancelled, whether it waited), or None.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot explorer_slots[] = {
    {Py_tp_doc,
     (void *)"Makes the choices of a run under test; see pyfiber.testing."},
    {Py_tp_new, explorer_new},
    {Py_tp_dealloc, explorer_dealloc},
    {Py_tp_traverse, explorer_traverse},
    {Py_tp_clear, explorer_clear},
    {Py_tp_methods, explorer_methods},
    {Py_tp_getset, explorer_getset},
    {0, NULL},
};

static PyType_Spec pf_explorer_spec = {
    .name = "pyfiber._engine._Explorer",
    .basicsize = sizeof(ExplorerObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = explorer_slots,
};

/* --------------------------------------------------------- module functions */

static PyObject *
choose(PyObject *number, PfChoiceKind kind)
{
    PfThread *t = pf_thread_this();
    unsigned long n = PyLong_AsUnsignedLong(number);
    if (t == NULL || (n == (unsigned long)-1 && PyErr_Occurred())) {
        return NULL;
    }
    if (n < 1 || n > UINT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "there is nothing to choose from");
        return NULL;
    }
    uint32_t taken = t->scheduler == NULL
                         ? 0
                         : pf_explore_choose(t->scheduler, (uint32_t)n, kind);
    return PyLong_FromUnsignedLong(taken);
}

static PyObject *
mod_choose(PyObject *module, PyObject *number)
{
    (void)module;
    return choose(number, PF_CHOOSE_USER);
}

static PyObject *
mod_fault(PyObject *module, PyObject *number)
{
    (void)module;
    return choose(number, PF_CHOOSE_FAULT);
}

/* The fiber's own thread calls this.  The fiber has not ended, and does not
 * run. */
static void
stop_fiber(PfThread *t, FiberObject *fiber)
{
    if (fiber->fiber.stack != NULL) {
        pf_unwind_silently(t, fiber);
    } else {
        pf_cancel_now(fiber, NULL); /* ends before it begins */
    }
}

static PyObject *
mod_stop_fiber(PyObject *module, PyObject *op)
{
    (void)module;
    PfThread *t = pf_thread_this();
    if (t == NULL) {
        return NULL;
    }
    if (!PyObject_TypeCheck(op, pf_task_fiber_type)) {
        PyErr_SetString(PyExc_TypeError, "_stop_fiber() takes a fiber");
        return NULL;
    }
    FiberObject *fiber = (FiberObject *)op;
    if (fiber->thread != t || !fiber->scheduled || fiber == CURRENT(t)) {
        PyErr_SetString(pf.fiber_error,
                        "_stop_fiber() takes a fiber of this thread's run "
                        "that waits or is ready");
        return NULL;
    }
    if (fiber->core.state != PF_DONE) {
        stop_fiber(t, fiber);
    }
    Py_RETURN_NONE;
}

static PyObject *
mod_preempt(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    return pf_explore_preempt() < 0 ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef functions[] = {
    {"_choose", mod_choose, METH_O,
     "Choose a number from 0 to n-1; outside of a test it is 0."},
    {"_fault", mod_fault, METH_O,
     "_fault(n): as _choose(n), among no fault, which is 0, and faults."},
    {"_stop_fiber", mod_stop_fiber, METH_O,
     "_stop_fiber(fiber): unwind it with FiberExit, now; it cannot wait\n"
     "any more, and what it raises is not reported."},
    {"_preempt", mod_preempt, METH_NOARGS,
     "Let a run with preempt=True switch here."},
    {"_importing", PF_FAST(pf_points_importing), METH_FASTCALL,
     "_importing(fn, *args): call fn(*args), in which a run switches only\n"
     "where the fiber waits."},
#if PF_TRACES_POINTS
    {"_trace_replaced", pf_line_trace_replaced, METH_NOARGS,
     "sys.settrace() was called: put a run's trace function in front again."},
    {"_trace_object", pf_line_trace_object, METH_NOARGS,
     "What sys.gettrace() returns outside of a run."},
#endif
    {NULL, NULL, 0, NULL},
};

PyTypeObject *pf_explorer_clock_type; /* constant after import */

const PfPart pf_testing_part = {
    .of_scheduler = &pf_vclock_of_scheduler,
    .hooks = {.explorer = &pf_explorer},
    .traverse = pf_vclock_traverse,
    .free = pf_vclock_remove,
};

int
pf_testing_init(PyObject *module)
{
    pf_explorer_clock_type =
        pf_arguments_add_type(module, &pf_vclock_spec, NULL);
    pf_points_type = pf_arguments_add_type(module, &pf_points_spec, NULL);
#if PF_TRACES_POINTS
    pf_line_trace_type =
        pf_arguments_add_type(module, &pf_line_trace_spec, NULL);
    if (pf_line_trace_type == NULL) {
        return -1;
    }
#endif
    PyTypeObject *explorer =
        pf_arguments_add_type(module, &pf_explorer_spec, NULL);
    Py_XDECREF(explorer); /* the module holds a reference */
    return pf_explorer_clock_type == NULL || pf_points_type == NULL ||
                   explorer == NULL
               ? -1
               : PyModule_AddFunctions(module, functions);
}
