/* A grain's attributes: its name, state, frames, outcome; see grain.h. */
#include "python/core/facade.h"
#include "python/core/world.h"
#include "python/grain/grain.h"
#include "python/look/inspect.h"
#include "python/task/fiber.h"
#include "python/task/life.h"
#include "python/task/name.h"
#include "python/task/outcome.h"

/* Returns the outermost generator, or what the grain is made of: a new
 * reference, or NULL. */
static PyObject *
made_of(const GrainObject *g)
{
    PyObject *bottom = g->iterator;
    for (GrainCaller *c = g->callers; c != NULL; c = c->below) {
        bottom = c->iterator;
    }
    return Py_XNewRef(bottom);
}

PyObject *
pf_grain_name(GrainObject *g)
{
    bool stopped = pf_world_stop(pf_task_owner(PF_TASK(g)));
    PyObject *name = Py_XNewRef(g->name);
    PyObject *source = name == NULL ? made_of(g) : NULL;
    pf_world_start(stopped);
    if (name == NULL) { /* runs code, which may end the grain */
        name = source == NULL ? PyUnicode_FromString("grain")
                              : pf_name_after(source);
    }
    Py_XDECREF(source);
    return name;
}

PyObject *
pf_grain_name_of(PfTaskObject *task)
{
    return pf_grain_name((GrainObject *)(void *)task);
}

static const char *
state_name(const GrainObject *g)
{
    bool offered = g->core.state == PF_SUSPENDED && g->offered;
    return offered ? "ready" : pf_name_of_state(&g->core);
}

static PyObject *
get_state(PyObject *op, void *closure)
{
    (void)closure;
    return PyUnicode_FromString(state_name((GrainObject *)op));
}

static PyObject *
get_last_known_state(PyObject *op, void *closure)
{
    (void)closure;
    GrainObject *g = (GrainObject *)op;
    if (g->core.state == PF_NEW || g->core.state == PF_DONE) {
        return Py_NewRef(pf_facade.stopped);
    }
    bool sleeps = g->core.state == PF_PARKED ||
                  (g->core.state == PF_SUSPENDED && !g->offered &&
                   g->waits_for != PF_WAIT_NOTHING);
    return Py_NewRef(sleeps ? pf_facade.sleeping : pf_facade.ready);
}

static PyObject *
get_suspended_state(PyObject *op, void *closure)
{
    (void)closure;
    GrainObject *g = (GrainObject *)op;
    return pf_world_ref(pf_task_owner(PF_TASK(g)), &g->yielded);
}

static PyObject *
get_pool(PyObject *op, void *closure)
{
    (void)closure;
    GrainObject *g = (GrainObject *)op;
    return pf_world_ref(pf_task_owner(PF_TASK(g)), (PyObject **)&g->pool);
}

/* Appends the frames of a generator or coroutine and of what it awaits.
 * Returns 0, or -1 with an exception. */
static int
add_frames(PyObject *list, PyObject *iterator)
{
    static const char *const names[][2] = {{"gi_frame", "gi_yieldfrom"},
                                           {"cr_frame", "cr_await"}};
    PyObject *at = Py_NewRef(iterator);
    while (PyGen_CheckExact(at) || PyCoro_CheckExact(at)) {
        const char *const *name = names[PyCoro_CheckExact(at) ? 1 : 0];
        PyObject *frame = PyObject_GetAttrString(at, name[0]);
        PyObject *inner = PyObject_GetAttrString(at, name[1]);
        int rc = frame == NULL || inner == NULL ? -1 : 0;
        if (rc == 0 && frame != Py_None) {
            rc = PyList_Append(list, frame);
        }
        Py_XDECREF(frame);
        Py_DECREF(at);
        at = inner;
        if (rc < 0) {
            Py_XDECREF(inner);
            return -1;
        }
    }
    Py_DECREF(at);
    return 0;
}

/* Appends the grain's generators, innermost first. */
static int
add_iterators(PyObject *list, const GrainObject *g)
{
    int rc = g->iterator == NULL ? 0 : PyList_Append(list, g->iterator);
    for (GrainCaller *c = g->callers; rc == 0 && c != NULL; c = c->below) {
        rc = PyList_Append(list, c->iterator);
    }
    return rc;
}

/* Returns the frames, outermost first.  Runs no code. */
static PyObject *
list_frames(GrainObject *g)
{
    PyObject *frames = PyList_New(0);
    PyObject *iterators = frames == NULL ? NULL : PyList_New(0);
    int rc = iterators == NULL ? -1 : add_iterators(iterators, g);
    for (Py_ssize_t i = rc < 0 ? 0 : PyList_GET_SIZE(iterators);
         rc == 0 && i-- > 0;) {
        rc = add_frames(frames, PyList_GET_ITEM(iterators, i));
    }
    Py_XDECREF(iterators);
    if (rc < 0) {
        Py_CLEAR(frames);
    }
    return frames;
}

/* Replaces each frame by (code, line) and reverses the list.  Returns 0 or
 * -1. */
static int
make_calls(PyObject *frames)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(frames); i++) {
        PyFrameObject *frame = (PyFrameObject *)PyList_GET_ITEM(frames, i);
        PyObject *call = Py_BuildValue("Ni", PyFrame_GetCode(frame),
                                       PyFrame_GetLineNumber(frame));
        if (call == NULL || PyList_SetItem(frames, i, call) < 0) {
            return -1;
        }
    }
    return PyList_Reverse(frames);
}

/* Returns the frames, outermost first.  If another thread may continue the
 * grain, it returns (code, line) for each instead, innermost first. */
static PyObject *
grain_frames(GrainObject *g)
{
    bool stopped = pf_world_stop(pf_task_owner(PF_TASK(g)));
    PyObject *frames = list_frames(g);
    if (stopped && frames != NULL && make_calls(frames) < 0) {
        Py_CLEAR(frames);
    }
    pf_world_start(stopped);
    return frames;
}

static PyObject *
get_frame(PyObject *op, void *closure)
{
    (void)closure;
    GrainObject *g = (GrainObject *)op;
    if (g->core.scheduler != NULL &&
        pf_world_moves(pf_task_owner(PF_TASK(g)))) {
        PyErr_SetString(pf.fiber_error,
                        "the grain belongs to another thread, and without a "
                        "GIL that may go on at any time: use stack() instead "
                        "of frame");
        return NULL;
    }
    PyObject *frames = list_frames(g);
    if (frames == NULL) {
        return NULL;
    }
    Py_ssize_t n = PyList_GET_SIZE(frames);
    PyObject *last = n == 0 ? Py_None : PyList_GET_ITEM(frames, n - 1);
    Py_INCREF(last);
    Py_DECREF(frames);
    return last;
}

PyObject *
pf_grain_stack(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    PyObject *frames = grain_frames((GrainObject *)op);
    if (frames == NULL) {
        return NULL;
    }
    PyObject *stack = PyObject_CallOneArg(pf_facade.stack_summary, frames);
    Py_DECREF(frames);
    return stack;
}

PyObject *
pf_grain_repr(PyObject *op)
{
    PyObject *name = pf_grain_name((GrainObject *)op);
    if (name == NULL) {
        return NULL;
    }
    PyObject *repr =
        PyUnicode_FromFormat("<%s %R %s at %p>", Py_TYPE(op)->tp_name, name,
                             state_name((GrainObject *)op), op);
    Py_DECREF(name);
    return repr;
}

PyGetSetDef pf_grain_getset[] = {
    {"name", pf_task_get_name, pf_task_set_name,
     "The name, for reports; by default that of the generator.", NULL},
    {"state", get_state, NULL,
     "'new', 'ready', 'running', 'parked' or 'done', as a fiber's.", NULL},
    {"last_known_state", get_last_known_state, NULL,
     "READY, SLEEPING (the grain waits for something) or STOPPED (it has not\n"
     "been started, or has ended).",
     NULL},
    {"suspended_state", get_suspended_state, NULL,
     "What the grain has yielded last; None before, and when it has ended.",
     NULL},
    {"waiting_on", get_suspended_state, NULL,
     "suspended_state, under the name that fibers have for it.", NULL},
    {"outcome", pf_task_get_outcome, NULL,
     "Ok(value), Failed(exception) or CancelledOutcome(reason) once the\n"
     "grain has ended; None before.",
     NULL},
    {"frame", get_frame, NULL,
     "The frame of the innermost generator; None if there is none.\n"
     "FiberError for another thread's grain, without a GIL: see stack().",
     NULL},
    {"pool", get_pool, NULL, "The GrainPool the grain is queued in, or None.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
