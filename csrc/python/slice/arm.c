/* Arming: how the next event of a fiber's Python code calls pf_slice_over().
 * See slice.h.
 *
 * From 3.12 on pyfiber is a tool of sys.monitoring, with events that are set on
 * one code object alone: that of the thread's innermost call. Code that nobody
 * has armed runs at full speed. On 3.11 the thread gets a trace function, which
 * removes itself at its first event; a thread that has a trace function, of a
 * debugger say, is left alone there.
 */
#include "python/slice/slice.h"

#include "python/core/arguments.h"
#include "python/core/tstate.h"

#include <string.h>

#ifdef _MSC_VER
#pragma warning(disable : 4702) /* one half is unreachable in each version */
#endif

static const char *const event_names[] = {
    "JUMP",     "BRANCH_LEFT", "BRANCH_RIGHT", "BRANCH",
    "PY_START", "PY_RESUME",   "PY_RETURN",    "PY_YIELD",
};
/* The ids that pyfiber may use: those that no kind of tool has by convention. A
 * debugger, a profiler or coverage that begins later finds its own id free. */
static const int tools[] = {4, 3};

/* What pf_arm_begin() sets, and pf_arm_end() clears. */
/* shared, behind the GIL: sys.monitoring; NULL on 3.11 */
static PyObject *monitoring;
/* shared, behind the GIL: its set_local_events() and free_tool_id() */
static PyObject *set_local, *free_tool;
/* shared, behind the GIL: pyfiber's tool id; all its events; no events */
static PyObject *tool, *events, *nothing;
static PyObject *on_event; /* constant after import */

/* ------------------------------------------------------------- what happens */

/* Disarms the scheduler that this event was armed for, and returns it; NULL:
 * the event means nothing to this thread. `code` is NULL on 3.11. */
static SchedulerObject *
take_armed(const PfThread *t, PyObject *code)
{
    SchedulerObject *s = t == NULL ? NULL : t->scheduler;
    PfSlice *slice = s == NULL ? NULL : pf_slice_of(s);
    if (slice == NULL || slice->armed == NULL ||
        (code != NULL && slice->armed != code)) {
        return NULL;
    }
    /* If the fiber has been left meanwhile, this one is within its slice. */
    bool meant = slice->armed_at == s->core.switches;
    pf_arm_clear(s);
    return meant ? s : NULL;
}

/* _slice_event(code, ...): the callback for all events of sys.monitoring. */
static PyObject *
event(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    PfThread *t = pf_thread_current;
    if (nargs > 0 && take_armed(t, args[0]) != NULL && pf_slice_over(t) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* The trace function on 3.11. A return without a value is the way of an
 * exception, which is put aside meanwhile: the next event is early enough. */
static int
traced(PyObject *object, PyFrameObject *frame, int what, PyObject *arg)
{
    (void)object;
    (void)frame;
    if (what == PyTrace_EXCEPTION || (what == PyTrace_RETURN && arg == NULL)) {
        return 0;
    }
    PfThread *t = pf_thread_current;
    if (t == NULL) {
        return 0;
    }
    SchedulerObject *s = take_armed(t, NULL);
    pystate_trace_no_more(t->tstate, traced);
    return s == NULL ? 0 : pf_slice_over(t);
}

/* -------------------------------------------------------------------- arming */

/* Sets the local events of a code object, which runs no code. A failure, for
 * lack of memory, means that nothing is armed. */
static bool
set_events(PyObject *code, PyObject *wanted)
{
    PyObject *args[] = {tool, code, wanted};
    PyObject *error = pystate_take_exception();
    PyObject *done = PyObject_Vectorcall(set_local, args, 3, NULL);
    bool set = done != NULL;
    Py_XDECREF(done);
    PyErr_Clear();
    pystate_restore_exception(error);
    return set;
}

/* Remembers what is armed now (stolen; NULL: nothing). Returns what was armed
 * before, disarmed, for the caller to drop as its last step: that may run
 * code. */
static PyObject *
exchange(SchedulerObject *s, PyObject *armed)
{
    PfSlice *slice = pf_slice_of(s);
    PyObject *before = slice->armed;
    slice->armed = armed;
    slice->armed_at = s->core.switches;
    if (before != NULL && PF_HAS_MONITORING && before != armed) {
        (void)set_events(before, nothing);
    } else if (before != NULL && !PF_HAS_MONITORING) {
        pystate_trace_opcodes(before, false);
    }
    return before;
}

void
pf_arm_clear(SchedulerObject *s)
{
    Py_XDECREF(exchange(s, NULL));
}

void
pf_arm_code(SchedulerObject *s, PyCodeObject *code)
{
    PyObject *armed = NULL;
    if (PF_HAS_MONITORING && set_events((PyObject *)code, events)) {
        armed = Py_NewRef((PyObject *)code);
    }
    Py_XDECREF(exchange(s, armed));
}

/* The code of the innermost call that is not pyfiber's own; or NULL. */
static PyCodeObject *
code_to_arm(PyThreadState *ts)
{
    PyFrameHead *end, *f = pystate_running_frames(ts, &end);
    for (; f != NULL && f != end; f = f->previous) {
        PyCodeObject *code = pystate_frame_code(f);
        if (code != NULL && !pf_entry_is_own(code)) {
            return code;
        }
    }
    return NULL;
}

void
pf_arm_thread(PfThread *t, SchedulerObject *s)
{
    if (PF_HAS_MONITORING) {
        PyCodeObject *code =
            code_to_arm(t->tstate); /* the frame has a reference */
        if (code != NULL) {
            pf_arm_code(s, code);
        }
        return;
    }
    const PfSlice *slice = pf_slice_of(s);
    if (slice->armed == NULL || slice->armed_at != s->core.switches) {
        Py_XDECREF(exchange(s, pystate_trace_next(t->tstate, traced)));
    }
}

/* ------------------------------------------------- the tool of sys.monitoring */

static PyObject *
call(const char *name, PyObject *one, PyObject *two, PyObject *three)
{
    PyObject *function = PyObject_GetAttrString(monitoring, name);
    PyObject *result =
        function == NULL
            ? NULL
            : PyObject_CallFunctionObjArgs(function, one, two, three, NULL);
    Py_XDECREF(function);
    return result;
}

/* Claims a number that no other tool uses: 0 or -1. */
static int
claim_tool(void)
{
    PyObject *name = PyUnicode_FromString("pyfiber time slices");
    for (size_t i = 0; name != NULL && i < Py_ARRAY_LENGTH(tools); i++) {
        Py_XSETREF(tool, PyLong_FromLong(tools[i]));
        PyObject *done =
            tool == NULL ? NULL : call("use_tool_id", tool, name, NULL);
        if (done != NULL) {
            Py_DECREF(done);
            Py_DECREF(name);
            return 0;
        }
        if (!PyErr_ExceptionMatches(PyExc_ValueError)) {
            break;
        }
        PyErr_Clear();
    }
    Py_XDECREF(name);
    Py_CLEAR(tool);
    if (!PyErr_Occurred()) {
        PyErr_SetString(PyExc_RuntimeError,
                        "a time slice needs the tool id 3 or 4 of "
                        "sys.monitoring, and other tools use both");
    }
    return -1;
}

/* Registers the callback for all events, and returns their sum in *sum: 0 or
 * -1. Versions lack some of the names. */
static int
register_events(long *sum)
{
    PyObject *known = PyObject_GetAttrString(monitoring, "events");
    bool halves =
        known != NULL && PyObject_HasAttrString(known, "BRANCH_LEFT");
    int rc = known == NULL ? -1 : 0;
    for (size_t i = 0; rc == 0 && i < Py_ARRAY_LENGTH(event_names); i++) {
        if ((halves && strcmp(event_names[i], "BRANCH") == 0) ||
            !PyObject_HasAttrString(known, event_names[i])) {
            continue;
        }
        PyObject *number = PyObject_GetAttrString(known, event_names[i]);
        PyObject *before =
            number == NULL ? NULL
                           : call("register_callback", tool, number, on_event);
        if (before == NULL) {
            rc = -1;
        } else {
            *sum |= PyLong_AsLong(number);
        }
        Py_XDECREF(before);
        Py_XDECREF(number);
    }
    Py_XDECREF(known);
    return rc;
}

int
pf_arm_begin(void)
{
    if (!PF_HAS_MONITORING || events != NULL) {
        return 0;
    }
    long sum = 0;
    monitoring = Py_XNewRef(PySys_GetObject("monitoring"));
    set_local = monitoring == NULL
                    ? NULL
                    : PyObject_GetAttrString(monitoring, "set_local_events");
    free_tool = monitoring == NULL
                    ? NULL
                    : PyObject_GetAttrString(monitoring, "free_tool_id");
    nothing = PyLong_FromLong(0);
    if (set_local == NULL || free_tool == NULL || nothing == NULL ||
        claim_tool() < 0 || register_events(&sum) < 0) {
        return -1; /* the caller calls pf_arm_end() */
    }
    events = PyLong_FromLong(sum);
    return events == NULL ? -1 : 0;
}

void
pf_arm_end(void)
{
    if (!PF_HAS_MONITORING) {
        return;
    }
    /* The callbacks stay, but no code has events of this tool any more. */
    if (tool != NULL) {
        PyObject *freed = PyObject_CallOneArg(free_tool, tool);
        if (freed == NULL) {
            PyErr_WriteUnraisable(NULL);
        }
        Py_XDECREF(freed);
    }
    Py_CLEAR(monitoring);
    Py_CLEAR(set_local);
    Py_CLEAR(free_tool);
    Py_CLEAR(tool);
    Py_CLEAR(events);
    Py_CLEAR(nothing);
}

static PyMethodDef functions[] = {
    {"_slice_event", PF_FAST(event), METH_FASTCALL,
     "_slice_event(code, /, *args)\n--\n\n"
     "The callback of sys.monitoring for time slices."},
    {NULL, NULL, 0, NULL},
};

int
pf_arm_init(PyObject *module)
{
    if (PyModule_AddFunctions(module, functions) < 0) {
        return -1;
    }
    on_event = PyObject_GetAttrString(module, "_slice_event");
    return on_event == NULL ? -1 : 0;
}
