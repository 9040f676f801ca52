/* Points on 3.11, where a trace function reports lines and instructions, and a
 * profile function reports calls of C functions.
 *
 * A thread has one trace function, and a debugger or coverage may have set it.
 * So a run puts a chain in front: a trace function whose object knows what to
 * call next.  If a tool sets another trace function meanwhile, from C as
 * coverage does, or by sys.settrace() as debuggers do, that takes the place of
 * the next one.  Fibers for which threading.settrace() has made a separate
 * trace function (switch/tracing.h) have separate chains. */
#include "python/testing/points.h"

#if PF_TRACES_POINTS

#include "python/core/arguments.h"
#include "python/core/thread.h"
#include "python/testing/explorer.h"

typedef struct Chain {
    PyObject_HEAD
    PyObject *points;
    Py_tracefunc next; /* what the tool has set, or NULL */
    PyObject *object;
    /* The place of the last instruction; the frame is only compared. */
    const PyFrameObject *frame;
    int offset;
} Chain;

PyTypeObject *pf_line_trace_type; /* constant after import */

static int trace(PyObject *op, PyFrameObject *frame, int what, PyObject *arg);

/* Set the thread's functions, as PyEval_SetTrace() does, but call no audit
 * hook: while one runs, the interpreter refuses the call of another thread,
 * which may explore as well. */
static void
set_trace(PyThreadState *ts, Py_tracefunc function, PyObject *object)
{
    PyTracing tracing = {function, pystate_profile_function(ts),
                         Py_XNewRef(object), pystate_profile_object(ts)};
    pystate_exchange_tracing(ts, &tracing);
    Py_XDECREF(tracing.trace_object);
}

static void
set_profile(PyThreadState *ts, Py_tracefunc function, PyObject *object)
{
    PyTracing tracing = {pystate_trace_function(ts), function,
                         pystate_trace_object(ts), Py_XNewRef(object)};
    pystate_exchange_tracing(ts, &tracing);
    Py_XDECREF(tracing.profile_object);
}

/* A chain before a function; a new reference.  NULL with MemoryError. */
static Chain *
chain_new(PyObject *points, Py_tracefunc next, PyObject *object)
{
    Chain *chain = PyObject_GC_New(Chain, pf_line_trace_type);
    if (chain != NULL) {
        chain->points = Py_NewRef(points);
        chain->next = next;
        chain->object = Py_XNewRef(object);
        chain->frame = NULL;
        chain->offset = 0;
        PyObject_GC_Track(chain);
    }
    return chain;
}

/* A tool has set a trace function in place of the chain: puts the chain before
 * it again. */
static void
put_before(Chain *chain, PyThreadState *ts)
{
    PyObject *before = chain->object;
    chain->next = pystate_trace_function(ts);
    chain->object = Py_XNewRef(pystate_trace_object(ts));
    set_trace(ts, trace, (PyObject *)chain);
    Py_XDECREF(before);
}

static int
pass_frame(const Chain *chain, PyFrameObject *frame, bool is_line)
{
    PyCodeObject *code = PyFrame_GetCode(frame);
    int key = is_line ? PyFrame_GetLineNumber(frame) : PyFrame_GetLasti(frame);
    int rc = pf_points_pass((PfPointsObject *)chain->points, (PyObject *)code,
                            (uint32_t)key, is_line);
    Py_DECREF(code);
    return rc < 0 ? -1 : 0;
}

/* A function begins or continues. */
static int
enter(const Chain *chain, PyFrameObject *frame)
{
    PyCodeObject *code = PyFrame_GetCode(frame);
    int rc = 0;
    if (pf_points_has_offsets((PfPointsObject *)chain->points,
                              (PyObject *)code)) {
        rc = PyObject_SetAttrString((PyObject *)frame, "f_trace_opcodes",
                                    Py_True);
    }
    Py_DECREF(code);
    return rc < 0 ? -1 : pass_frame(chain, frame, false);
}

/* An instruction comes.  With switch="gil" the points are targets of jumps
 * backward; with "access" every instruction may be one. */
static int
step(Chain *chain, PyFrameObject *frame)
{
    int offset = PyFrame_GetLasti(frame);
    bool back = chain->frame == frame && offset < chain->offset;
    chain->frame = frame;
    chain->offset = offset;
    return back || !pf_points_gil((PfPointsObject *)chain->points)
               ? pass_frame(chain, frame, false)
               : 0;
}

static int
ours(Chain *chain, PyFrameObject *frame, int what)
{
    switch (what) {
    case PyTrace_CALL:
        return enter(chain, frame);
    case PyTrace_LINE:
        return pass_frame(chain, frame, true);
    case PyTrace_OPCODE:
        return step(chain, frame);
    default:
        return 0;
    }
}

static int
trace(PyObject *op, PyFrameObject *frame, int what, PyObject *arg)
{
    Chain *chain = (Chain *)Py_NewRef(op);
    int rc = ours(chain, frame, what);
    if (rc == 0 && chain->next != NULL) {
        PyObject *object = Py_XNewRef(chain->object);
        rc = chain->next(object, frame, what, arg);
        PyThreadState *ts = PyThreadState_Get();
        if (pystate_trace_function(ts) != trace) {
            put_before(chain, ts);
        }
        Py_XDECREF(object);
    }
    Py_DECREF(chain);
    return rc;
}

static int
profile(PyObject *op, PyFrameObject *frame, int what, PyObject *arg)
{
    Chain *chain = (Chain *)Py_NewRef(op);
    int rc = what == PyTrace_C_RETURN ? pass_frame(chain, frame, false) : 0;
    if (rc == 0 && chain->next != NULL) {
        rc = chain->next(chain->object, frame, what, arg);
    }
    Py_DECREF(chain);
    return rc;
}

/* ------------------------------------------------------------------ one run */

int
pf_line_trace_begin(PfPointsObject *points)
{
    PyThreadState *ts = PyThreadState_Get();
    if (pystate_trace_function(ts) != trace) {
        Chain *chain =
            chain_new((PyObject *)points, pystate_trace_function(ts),
                      pystate_trace_object(ts));
        if (chain == NULL) {
            return -1;
        }
        set_trace(ts, trace, (PyObject *)chain);
        Py_DECREF(chain);
    }
    if (pf_points_gil(points) && pystate_profile_function(ts) != profile) {
        Chain *chain =
            chain_new((PyObject *)points, pystate_profile_function(ts),
                      pystate_profile_object(ts));
        if (chain == NULL) {
            pf_line_trace_end();
            return -1;
        }
        set_profile(ts, profile, (PyObject *)chain);
        Py_DECREF(chain);
    }
    return 0;
}

void
pf_line_trace_end(void)
{
    PyThreadState *ts = PyThreadState_Get();
    if (pystate_trace_function(ts) == trace) {
        Chain *chain = (Chain *)Py_NewRef(pystate_trace_object(ts));
        set_trace(ts, chain->next, chain->object);
        Py_DECREF(chain);
    }
    if (pystate_profile_function(ts) == profile) {
        Chain *chain = (Chain *)Py_NewRef(pystate_profile_object(ts));
        set_profile(ts, chain->next, chain->object);
        Py_DECREF(chain);
    }
}

/* The points of the run on this thread, or NULL. */
static PyObject *
points_here(void)
{
    const PfThread *t = pf_thread_current;
    const ExplorerObject *x =
        t == NULL || t->scheduler == NULL ? NULL : t->scheduler->explorer;
    return x == NULL ? NULL : x->points;
}

/* Called when sys.settrace() has set a trace function on this thread. */
PyObject *
pf_line_trace_replaced(PyObject *module, PyObject *ignored)
{
    (void)module, (void)ignored;
    PyThreadState *ts = PyThreadState_Get();
    PyObject *points = points_here();
    if (points != NULL && pystate_trace_function(ts) != trace) {
        Chain *chain = chain_new(points, NULL, NULL);
        if (chain == NULL) {
            return NULL;
        }
        put_before(chain, ts);
        Py_DECREF(chain);
    }
    Py_RETURN_NONE;
}

/* The running fiber has got its own trace function. */
int
pf_line_trace_own(void)
{
    PyObject *points = points_here();
    return points == NULL ? 0 : pf_line_trace_begin((PfPointsObject *)points);
}

PyObject *
pf_line_trace_object(PyObject *module, PyObject *ignored)
{
    (void)module, (void)ignored;
    PyThreadState *ts = PyThreadState_Get();
    PyObject *object = pystate_trace_object(ts);
    if (pystate_trace_function(ts) == trace) {
        object = ((Chain *)object)->object;
    }
    return Py_NewRef(object == NULL ? Py_None : object);
}

/* ----------------------------------------------------------------- the type */

static int
chain_traverse(PyObject *op, visitproc visit, void *arg)
{
    Chain *chain = (Chain *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(chain->points);
    Py_VISIT(chain->object);
    return 0;
}

static int
chain_clear(PyObject *op)
{
    Chain *chain = (Chain *)op;
    chain->next = NULL;
    Py_CLEAR(chain->object);
    return 0;
}

static void
chain_dealloc(PyObject *op)
{
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    chain_clear(op);
    Py_CLEAR(((Chain *)op)->points);
    PyObject_GC_Del(op);
    Py_DECREF(type);
}

static PyType_Slot chain_slots[] = {
    {Py_tp_doc,
     (void *)"The trace function of a run, and a tool's behind it."},
    {Py_tp_dealloc, chain_dealloc},
    {Py_tp_traverse, chain_traverse},
    {Py_tp_clear, chain_clear},
    {0, NULL},
};

PyType_Spec pf_line_trace_spec = {
    .name = "pyfiber._engine._LineTrace",
    .basicsize = sizeof(Chain),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = chain_slots,
};

#endif
