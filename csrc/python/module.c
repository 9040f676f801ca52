/* The extension module pyfiber._engine: its initialization, which calls that
 * of every room of csrc/python, and functions that belong to no single
 * room. */
#include "python/cancel/cancel.h"
#include "python/capi/capi.h"
#include "python/core/arguments.h"
#include "python/core/facade.h"
#include "python/core/import.h"
#include "python/core/parts.h"
#include "python/core/state.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/fiber/fiber_type.h"
#include "python/fiber/root.h"
#include "python/grain/loop.h"
#include "python/greenlet/greenlet.h"
#include "python/io/io.h"
#include "python/look/calls.h"
#include "python/look/inspect.h"
#include "python/pack/pack.h"
#include "python/patch/lot.h"
#include "python/patch/patch.h"
#include "python/patch/stay.h"
#include "python/queue/channel.h"
#include "python/queue/queue.h"
#include "python/run/help.h"
#include "python/run/run.h"
#include "python/run/team.h"
#include "python/run/wakeup.h"
#include "python/slice/slice.h"
#include "python/switch/overflow.h"
#include "python/switch/pending.h"
#include "python/switch/switch.h"
#include "python/sync/sync.h"
#include "python/task/call.h"
#include "python/task/cancelling.h"
#include "python/task/deadline.h"
#include "python/task/explore.h"
#include "python/switch/tracing.h"
#include "python/task/fiber.h"
#include "python/task/scheduler.h"
#include "python/task/unhandled.h"
#include "python/testing/testing.h"
#include "python/threads/threads.h"
#include "python/virtual/virtual.h"
#include "python/wait/asyncio.h"
#include "python/wait/remote.h"
#include "python/wait/wait.h"
#include "python/watch/watch.h"

#include <errno.h>
#include <stdlib.h>

/* --------------------------------------------------------------------- raw */

static PyObject *
mod_current(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    PfThread *t = pf_thread_this();
    return t == NULL ? NULL : Py_NewRef((PyObject *)CURRENT(t));
}

/* --------------------------------------------------------------- scheduled */

static PyObject *
mod_run(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
        PyObject *kwnames)
{
    (void)module;
    return pf_run(args, nargs, kwnames);
}

/* Returns a new fiber for the arguments of spawn() or spawn_now(), as `name`
 * says; NULL with an exception. */
static FiberObject *
fiber_to_spawn(PfThread *t, const char *name, PyObject *const *args,
               Py_ssize_t nargs, PyObject *kwnames)
{
    return t == NULL || pf_scheduler_active(t, name) == NULL
               ? NULL
               : pf_call_fiber(name, args, nargs, kwnames);
}

/* _check_function(who, fn): the check that spawn() makes of its function, for
 * Python code that takes functions to call in fibers. */
static PyObject *
mod_check_function(PyObject *module, PyObject *args)
{
    (void)module;
    const char *who;
    PyObject *fn;
    return !PyArg_ParseTuple(args, "sO:_check_function", &who, &fn) ||
                   pf_call_check(who, fn) < 0
               ? NULL
               : Py_NewRef(fn);
}

static PyObject *
mod_spawn_now(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
              PyObject *kwnames)
{
    (void)module;
    PfThread *t = pf_thread_this();
    FiberObject *fiber =
        fiber_to_spawn(t, "spawn_now()", args, nargs, kwnames);
    if (fiber != NULL && ((t->pending != 0 && pf_pending_run(t) < 0) ||
                          pf_fiber_enlist(t->scheduler, fiber) < 0 ||
                          pf_wait_run_now(t, fiber) < 0)) {
        Py_CLEAR(fiber);
    }
    return (PyObject *)fiber;
}

static PyObject *
mod_spawn(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
          PyObject *kwnames)
{
    (void)module;
    PfThread *t = pf_thread_this();
    FiberObject *fiber = fiber_to_spawn(t, "spawn()", args, nargs, kwnames);
    if (fiber != NULL && (pf_fiber_start(t->scheduler, fiber) < 0 ||
                          pf_explore_preempt() < 0)) {
        Py_CLEAR(fiber);
    }
    return (PyObject *)fiber;
}

static PyObject *
none_or_error(int rc)
{
    return rc < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *
mod_yield_now(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    PfThread *t = pf_thread_this();
    if (t == NULL || pf_scheduler_active(t, "yield_now()") == NULL) {
        return NULL;
    }
    return none_or_error(pf_wait_yield(t));
}

static PyObject *
mod_sleep(PyObject *module, PyObject *seconds)
{
    (void)module;
    PfThread *t = pf_thread_this();
    int64_t ns;
    if (t == NULL ||
        pf_arguments_seconds(seconds, "sleep()'s argument", &ns) < 0) {
        return NULL;
    }
    if (ns < 0) {
        PyErr_SetString(PyExc_ValueError, "sleep length must not be negative");
        return NULL;
    }
    pf_scheduler *s = pf_scheduler_active(t, "sleep()");
    if (s == NULL) {
        return NULL;
    }
    if (ns == 0) {
        return none_or_error(pf_wait_yield(t));
    }
    return none_or_error(
        pf_wait_sleep_until(t, pf_timers_later(pf_scheduler_now(s), ns)));
}

static PyObject *
mod_sleep_until(PyObject *module, PyObject *when)
{
    (void)module;
    PfThread *t = pf_thread_this();
    int64_t ns;
    if (t == NULL ||
        pf_arguments_seconds(when, "sleep_until()'s argument", &ns) < 0 ||
        pf_scheduler_active(t, "sleep_until()") == NULL) {
        return NULL;
    }
    return none_or_error(pf_wait_sleep_until(t, ns));
}

static PyObject *
mod_now(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    PfThread *t = pf_thread_current;
    int64_t now = t == NULL || t->scheduler == NULL
                      ? pf_clock_monotonic()
                      : pf_scheduler_now(&t->scheduler->core);
    return PyFloat_FromDouble((double)now / 1e9);
}

static PyObject *
mod_current_scheduler(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    PfThread *t = pf_thread_this();
    if (t == NULL || pf_scheduler_active(t, "current_scheduler()") == NULL) {
        return NULL;
    }
    return Py_NewRef((PyObject *)t->scheduler);
}

static PyObject *
mod_check_cancelled(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    PfThread *t = pf_thread_this();
    if (t == NULL || pf_scheduler_active(t, "check_cancelled()") == NULL) {
        return NULL;
    }
    return none_or_error(pf_cancelling_check(CURRENT(t)));
}

static PyObject *
mod_park(PyObject *module, PyObject *args, PyObject *kwargs)
{
    (void)module;
    static char *names[] = {"timeout", NULL};
    PyObject *timeout = Py_None;
    PfThread *t = pf_thread_this();
    int64_t deadline;
    if (t == NULL ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "|O:park", names,
                                     &timeout) ||
        pf_deadline(timeout, &deadline) < 0 ||
        pf_scheduler_active(t, "park()") == NULL) {
        return NULL;
    }
    return pf_wait_park(t, deadline);
}

/* ------------------------------------------------------------- stacks, facts */

static int
check_stack_size(Py_ssize_t size)
{
    if (size >= (Py_ssize_t)pystate_min_stack()) {
        return 0;
    }
    PyErr_Format(PyExc_ValueError,
                 "a stack must have at least %zu bytes, not %zd",
                 pystate_min_stack(), size);
    return -1;
}

static PyObject *
mod_stack_size(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    size_t before = pf_load_relaxed(&pf_fiber_default_stack_size);
    if (nargs > 1) {
        PyErr_Format(PyExc_TypeError,
                     "stack_size() takes at most 1 argument (%zd given)",
                     nargs);
        return NULL;
    }
    if (nargs == 1 && args[0] != Py_None) {
        Py_ssize_t size = PyNumber_AsSsize_t(args[0], PyExc_OverflowError);
        if ((size == -1 && PyErr_Occurred()) || check_stack_size(size) < 0) {
            return NULL;
        }
        pf_store(&pf_fiber_default_stack_size, (size_t)size);
    }
    return PyLong_FromSize_t(before);
}

/* Reads PYFIBER_STACK_SIZE: a number of bytes, or with the suffix K or M of
 * KiB or MiB.  Returns 0, or -1 with ValueError. */
static int
stack_size_from_environment(void)
{
    const char *text = getenv("PYFIBER_STACK_SIZE");
    if (text == NULL || *text == '\0') {
        return 0;
    }
    char *end;
    errno = 0;
    long long size = strtoll(text, &end, 10);
    long long unit = 1;
    if (*end == 'K' || *end == 'k') {
        unit = 1024;
        end++;
    } else if (*end == 'M' || *end == 'm') {
        unit = 1024 * 1024;
        end++;
    }
    if (end == text || *end != '\0' || errno != 0 ||
        size > PY_SSIZE_T_MAX / unit) {
        PyErr_Format(PyExc_ValueError,
                     "PYFIBER_STACK_SIZE must be a number of bytes (or end in "
                     "K or M), not '%.100s'",
                     text);
        return -1;
    }
    size = size < 0 ? size : size * unit;
    if (size < (long long)pystate_min_stack()) {
        PyErr_Format(PyExc_ValueError,
                     "PYFIBER_STACK_SIZE must be at least %zu bytes, not "
                     "'%.100s'",
                     pystate_min_stack(), text);
        return -1;
    }
    pf_store(&pf_fiber_default_stack_size, (size_t)size);
    return 0;
}

static PyObject *
pool_stats(const PfThread *t, pf_stack_pool *pool)
{
    pf_stack_stats st;
    pf_pack_stats packed;
    pf_stack_pool_stats(pool, &st);
    pf_pack_stats_get(&t->engine, pool, &packed);
    return Py_BuildValue(
        "{s:n,s:n,s:n,s:n,s:n,s:K,s:K,s:n,s:n,s:n,s:K,s:K}", "stack_size",
        (Py_ssize_t)st.stack_size, "mapped", (Py_ssize_t)st.mapped, "slots",
        (Py_ssize_t)st.slots, "live", (Py_ssize_t)st.live, "peak",
        (Py_ssize_t)st.peak, "acquired", (unsigned long long)st.acquired,
        "trims", (unsigned long long)st.trims, "wanted",
        (Py_ssize_t)packed.slots, "packed", (Py_ssize_t)packed.packed,
        "packed_bytes", (Py_ssize_t)packed.packed_bytes, "packings",
        (unsigned long long)packed.packings, "unpackings",
        (unsigned long long)packed.unpackings);
}

static PyObject *
mod_stack_stats(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    PfThread *t = pf_thread_this();
    PyObject *list = t == NULL ? NULL : PyList_New(0);
    for (unsigned i = 0; list != NULL && i < t->engine.pool_count; i++) {
        PyObject *stats = pool_stats(t, t->engine.pools[i]);
        if (stats == NULL || PyList_Append(list, stats) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(stats);
    }
    return list;
}

static PyObject *
mod_trim_stacks(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    PfThread *t = pf_thread_this();
    if (t == NULL) {
        return NULL;
    }
    size_t freed = 0;
    for (unsigned i = 0; i < t->engine.pool_count; i++) {
        freed += pf_stack_pool_trim(t->engine.pools[i]);
    }
    return PyLong_FromSize_t(freed);
}

static PyObject *
mod_facts(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    const char *refused = pf_pack_refused_here();
    size_t slots =
        refused != NULL ? 0 : pf_load_relaxed(&pf_pack_default_slots);
    return Py_BuildValue(
        "{s:s,s:n,s:n,s:s,s:n,s:n,s:z,s:n,s:O,s:s}", "backend",
        PF_CONTEXT_BACKEND, "stack_size",
        (Py_ssize_t)pf_load_relaxed(&pf_fiber_default_stack_size),
        "min_stack_size", (Py_ssize_t)pystate_min_stack(), "guard",
        pf_stack_guard_name(pf_stack_guard_kind()), "page_size",
        (Py_ssize_t)pf_stack_page_size(), "slots", (Py_ssize_t)slots,
        "slots_refused", refused, "fiber_bytes",
        (Py_ssize_t)sizeof(FiberObject), "collects_suspended_cycles",
        PF_TRAVERSES_FRAMES ? Py_True : Py_False, "built_for", PY_VERSION);
}

/* _set_stall_limit(seconds): a run warns after this time in which nothing has
 * happened and only another thread could wake a fiber; 0: never. */
static PyObject *
mod_set_stall_limit(PyObject *module, PyObject *seconds)
{
    (void)module;
    int64_t ns;
    if (pf_arguments_seconds(seconds, "the limit", &ns) < 0) {
        return NULL;
    }
    if (ns < 0) {
        PyErr_SetString(PyExc_ValueError, "the limit must not be negative");
        return NULL;
    }
    pf_store(&pf_run_stall_limit, ns);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(current_doc, "current()\n--\n\nReturn the running fiber.");
PyDoc_STRVAR(mod_run_doc,
             "run(fn, /, *args, on_unhandled='log', watchdog=None, threads=1, "
             "debug=False, time_slice=None, **kwargs)\n\
--\n\n\
Run fn(*args, **kwargs) in a fiber, and every fiber it spawns, on this thread.\n\
\n\
Returns fn's result when it and every non-daemon fiber are done. If fn raises,\n\
the others are cancelled and joined, then the exception is raised. Ctrl-C\n\
cancels everything, waits for it and raises KeyboardInterrupt; a second one\n\
does not wait. DeadlockError when every fiber waits and nothing can wake one.\n\
FiberError inside of a run.\n\
\n\
`on_unhandled` says what happens to the failure of a fiber if no code looks at\n\
it (by result() or outcome, say) before the fiber's last reference is dropped or\n\
the run ends. \"log\": the failure is logged with its traceback under the logger\n\
\"pyfiber\". \"raise\": it ends the run, which raises an ExceptionGroup of all\n\
such failures, main's own first. A function is called as\n\
function(fiber, exception) and must not switch or wait; if it raises, its\n\
exception and the failure are logged. TypeError or ValueError for anything else.\n\
\n\
`watchdog`: a number of seconds; a fiber that keeps the loop from running for\n\
longer is reported, see pyfiber.debug.watchdog(). ValueError unless it is\n\
positive and finite.\n\
\n\
`threads`: the number of schedulers, on this thread and on others, that share\n\
the fibers that have not begun. None: as many as this process may use\n\
processors. TypeError unless it is an int or None, ValueError unless it is from\n\
1 to 256. If a thread cannot be started, the run ends with that error.\n\
\n\
`debug`: each place where a fiber blocks its thread for longer than a tenth of a\n\
second is logged once, as a warning with the stack. True by default in Python's\n\
development mode (python -X dev), unless PYFIBER_WATCHDOG is 0. A limit for the\n\
watchdog has precedence.\n\
\n\
`time_slice`: a number of seconds. A fiber that computes for longer, while\n\
another one could run, is switched away from, as threads are; see\n\
no_preemption(). None: what PYFIBER_TIME_SLICE says in the environment, or no\n\
slices. ValueError for less than 0.0001 (0.1 ms), or together with `threads`;\n\
NotImplementedError on builds without a GIL.");
PyDoc_STRVAR(mod_spawn_doc, "spawn(fn, /, *args, **kwargs)\n--\n\n\
Start fn(*args, **kwargs) in a new fiber of the running scheduler.\n\
\n\
The fiber runs when its turn comes, or when another fiber waits for it.\n\
FiberError outside of a run.");
PyDoc_STRVAR(spawn_now_doc, "spawn_now(fn, /, *args, **kwargs)\n--\n\n\
Like spawn(), but the new fiber runs first; returns when it waits or ends.\n\
\n\
The caller then continues before all others. A tree of calls that is spawned in\n\
this way needs only a few warm stacks, while spawn() has as many fibers in\n\
progress as there are calls; but if a fiber does nothing else, the others never\n\
run. What fn raises is the new fiber's failure. Not a cancellation point.\n\
FiberError outside of a run, and where no switch is allowed (in a\n\
done-callback, say).");
PyDoc_STRVAR(yield_doc, "yield_now()\n--\n\n\
Go to the back of the queue of ready fibers; a cancellation point.");
PyDoc_STRVAR(sleep_doc, "sleep(seconds, /)\n--\n\n\
Wait at least `seconds`; sleep(0) is yield_now(). A cancellation point.\n\
\n\
ValueError for a negative number or NaN.");
PyDoc_STRVAR(sleep_until_doc, "sleep_until(when, /)\n--\n\n\
Wait until now() is at least `when`; yield_now() if it is already.");
PyDoc_STRVAR(now_doc, "now()\n--\n\n\
Return the scheduler's clock in seconds; monotonic, with an arbitrary beginning.");
PyDoc_STRVAR(current_scheduler_doc, "current_scheduler()\n--\n\n\
Return the Scheduler whose run the caller is in, in a fiber or a callback.\n\
\n\
FiberError outside of a run; other threads use a Portal to call into a run.");
PyDoc_STRVAR(check_doc, "check_cancelled()\n--\n\n\
Raise Cancelled if the running fiber is cancelled; otherwise do nothing.");
PyDoc_STRVAR(park_doc, "park(timeout=None)\n--\n\n\
Wait for unpark(); return its value.\n\
\n\
Returns at once if unpark() was called before. TimeoutError after `timeout`\n\
seconds. A cancellation point.");
PyDoc_STRVAR(stack_size_doc, "stack_size(size=None, /)\n--\n\n\
Return, or set, the stack size in bytes of fibers that ask for no other size.\n\
\n\
With an argument, sets the size for fibers that start from now on, and returns\n\
the previous size, as threading.stack_size() does. ValueError if it is too small\n\
to run Python.");
PyDoc_STRVAR(stats_doc, "stack_stats()\n--\n\n\
Return a list with a dict for each stack size in use on this thread.\n\
\n\
stack_size and mapped are in bytes; slots, live and peak are numbers of stacks;\n\
acquired and trims are counts so far. If fibers share stacks, wanted is the\n\
number of stacks that they share at present (0: none), packed the number of\n\
fibers whose stacks are packed, packed_bytes the size of these; packings and\n\
unpackings are counts so far on this thread.");
PyDoc_STRVAR(trim_doc, "trim_stacks()\n--\n\n\
Give the memory of this thread's unused stacks back; return its size in bytes.");

static PyMethodDef functions[] = {
    {"current", mod_current, METH_NOARGS, current_doc},
    PF_METHOD("run", mod_run, mod_run_doc),
    PF_METHOD("spawn", mod_spawn, mod_spawn_doc),
    PF_METHOD("spawn_now", mod_spawn_now, spawn_now_doc),
    {"_check_function", mod_check_function, METH_VARARGS,
     "_check_function(who, fn, /)\n--\n\n"
     "Return fn; TypeError, which names `who`, if a fiber cannot run it."},
    {"yield_now", mod_yield_now, METH_NOARGS, yield_doc},
    {"sleep", mod_sleep, METH_O, sleep_doc},
    {"sleep_until", mod_sleep_until, METH_O, sleep_until_doc},
    {"now", mod_now, METH_NOARGS, now_doc},
    {"current_scheduler", mod_current_scheduler, METH_NOARGS,
     current_scheduler_doc},
    {"check_cancelled", mod_check_cancelled, METH_NOARGS, check_doc},
    {"park", PF_FAST(mod_park), METH_VARARGS | METH_KEYWORDS, park_doc},
    {"stack_size", PF_FAST(mod_stack_size), METH_FASTCALL, stack_size_doc},
    {"stack_stats", mod_stack_stats, METH_NOARGS, stats_doc},
    {"trim_stacks", mod_trim_stacks, METH_NOARGS, trim_doc},
    {"_facts", mod_facts, METH_NOARGS,
     "_facts()\n--\n\nWhat info() reports of the engine, as a dict."},
    {"_set_stall_limit", mod_set_stall_limit, METH_O,
     "_set_stall_limit(seconds, /)\n--\n\n"
     "Set the time without events after which a run warns that only another\n"
     "thread could wake a fiber; 0: never."},
    {"_greenlet_api", pf_greenlet_api, METH_NOARGS,
     "The names of pyfiber.greenlet, as a dict."},
    {"_has_unknown_threads", pf_help_unknown_threads, METH_NOARGS,
     "_has_unknown_threads()\n--\n\n"
     "True if there may be a thread that Python does not know."},
    {"_on_sigint", pf_signals_on_sigint, METH_VARARGS,
     "The SIGINT handler while run() runs."},
    {NULL, NULL, 0, NULL},
};

/* --------------------------------------------------------------------- set-up */

/* The module's state is in global variables, so only one interpreter can use
 * it.  (From 3.12 on CPython checks this itself, by the slot below.) */
static int
refuse_subinterpreters(void)
{
    if (PyInterpreterState_Get() == PyInterpreterState_Main()) {
        return 0;
    }
    PyErr_SetString(PyExc_ImportError,
                    "pyfiber does not support subinterpreters");
    return -1;
}

static int
make_types(PyObject *module)
{
    pf_task_fiber_type = pf_arguments_add_type(module, &pf_fiber_spec, NULL);
    pf_scheduler_type = pf_run_add_scheduler_type(module);
    PyTypeObject *latch = pf_arguments_add_type(module, &pf_latch_spec, NULL);
    Py_XDECREF(latch); /* the module holds it */
    if (pf_task_fiber_type == NULL || pf_scheduler_type == NULL ||
        latch == NULL) {
        return -1;
    }
    pf_fiber_type_ready(pf_task_fiber_type);
    return 0;
}

/* The default stack size in bytes of address space.  With 1 MiB every
 * recursion that ends in RecursionError on the main thread, at the default
 * limit, does so on a fiber; only sorted(key=) ends earlier (see
 * docs/stacks.md for the measurements).  A parked fiber costs its one touched
 * page and 2 KiB of page tables.  256 KiB would save 1.5 KiB of page tables
 * and end map() recursions at a third of the depth; 2 MiB and more would cost
 * a page of page tables each. On Windows there is no reserve to open when the
 * stack runs out.  So 3.12 and 3.13 may count no more C recursion than the
 * stack can certainly hold, and the 3,000 levels of the main thread need 8
 * MiB. */
#ifdef _WIN32
#define DEFAULT_STACK_SIZE (8 * 1024 * 1024)
#else
#define DEFAULT_STACK_SIZE (1024 * 1024)
#endif

static int
add_primitives(PyObject *module)
{
    return pf_lock_init(module) < 0 || pf_semaphore_init(module) < 0 ||
                   pf_event_init(module) < 0 ||
                   pf_condition_init(module) < 0 ||
                   pf_queue_init(module) < 0 || pf_channel_init(module) < 0 ||
                   pf_select_init(module) < 0 || pf_local_init(module) < 0 ||
                   pf_generator_init(module) < 0
               ? -1
               : 0;
}

/* The parts of all rooms, in the order in which they are called:
 *
 * - When a thread ends, its schedulers are closed and with them the fibers of
 *   their runs, then raw fibers are unwound and greenlets dropped.  The thread's
 *   locals go last, because all of these may use them.
 * - When the interpreter exits, raw fibers are ended first, then grains.  After
 *   that it is certain which failures nobody has looked at.
 * - When the process was forked, the child gets its own pipe for signals, and
 *   its schedulers their own descriptors.  Only then the workers' jobs fail,
 *   because that wakes fibers, and by the inherited descriptors it would wake
 *   the parent's loop.
 */
static const PfPart *const parts[] = {
    &pf_wakeup_part,   &pf_runs_part,      &pf_worker_part,
    &pf_root_part,     &pf_grains_part,    &pf_unhandled_part,
    &pf_cancel_part,   &pf_greenlets_part, &pf_root_locals_part,
    &pf_io_part,       &pf_inmemory_part,  &pf_lot_part,
    &pf_stay_part,     &pf_virtual_part,   &pf_asyncio_part,
    &pf_watchdog_part, &pf_team_part,      &pf_testing_part,
    &pf_turns_part,    &pf_slice_part,     NULL,
};

static int
engine_exec(PyObject *module)
{
    pf_parts_set(parts);
    pf_store(&pf_fiber_default_stack_size, DEFAULT_STACK_SIZE);
    if (refuse_subinterpreters() < 0 || pystate_lookup() < 0 ||
        stack_size_from_environment() < 0 || pf_state_init(module) < 0 ||
        pf_facade_init(module) < 0 || pf_pack_init() < 0 ||
        make_types(module) < 0 || pf_import_init(module) < 0 ||
        pf_remote_init(module) < 0 || pf_cancel_init(module) < 0 ||
        pf_worker_init(module) < 0 || pf_portal_init(module) < 0 ||
        pf_threads_unbroken_init(module) < 0 || pf_hooked_init(module) < 0 ||
        pf_io_init(module) < 0 || pf_asyncio_init(module) < 0 ||
        pf_inspect_init(module) < 0 || pf_calls_init(module) < 0 ||
        pf_grain_module_init(module) < 0 ||
        pf_thread_module_init(module) < 0 || pf_testing_init(module) < 0 ||
        pf_overflow_python_init() < 0 || pf_tracing_init() < 0 ||
        pf_capi_init(module) < 0 || pf_patch_init(module) < 0 ||
        pf_virtual_init(module) < 0 || pf_watchdog_init(module) < 0 ||
        pf_turns_init(module) < 0 || pf_team_run_init(module) < 0 ||
        pf_slice_init(module) < 0 || add_primitives(module) < 0) {
        return -1;
    }
    pf_greenlet_module_init();
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, engine_exec},
#ifdef Py_mod_multiple_interpreters
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
#endif
#ifdef Py_mod_gil /* 3.13 and later: the module does not need the GIL */
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

PyDoc_STRVAR(module_doc,
             "The native part of pyfiber. Import pyfiber instead.");

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "pyfiber._engine", .m_doc = module_doc,
    .m_size = 0,           .m_methods = functions,      .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__engine(void)
{
    return PyModuleDef_Init(&definition);
}
