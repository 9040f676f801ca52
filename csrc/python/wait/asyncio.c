/* asyncio's event loops that run in fibers: see asyncio.h. */
#include "python/wait/asyncio.h"

#include "python/core/tstate.h"

/* An inner loop.  The record is not on a C stack, because a fiber that the
 * inner loop has switched to is inside of the loop, too, and sets the loop
 * aside when it waits.  The loop's own fiber is suspended then, and may even
 * continue and leave the loop before that wait ends. */
struct PfAsyncio {
    size_t users; /* references: the call that began the inner loop, and each
                     wait that has set it aside */
    bool over; /* the call has ended: the loop does not become active again */
    /* asyncio's functions: get(), set(loop), take(loop, None) which returns
     * the task, give(loop, task) */
    PyObject *get_loop, *set_loop, *take_task, *give_task;
    PyObject *outer; /* the running loop outside of it, or None */
    /* outside of it; while it is set aside, its own */
    PyObject *hooks[2];
    int origin_depth;
};

/* Clears the current task of `loop`.  Returns the task, or None. */
static PyObject *
take_task(const PfAsyncio *g, PyObject *loop)
{
    PyObject *args[] = {loop, Py_None};
    return loop == Py_None ? Py_NewRef(Py_None)
                           : PyObject_Vectorcall(g->take_task, args, 2, NULL);
}

static int
give_task(const PfAsyncio *g, PyObject *loop, PyObject *task)
{
    PyObject *args[] = {loop, task};
    PyObject *done = task == Py_None
                         ? Py_NewRef(Py_None)
                         : PyObject_Vectorcall(g->give_task, args, 2, NULL);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

static int
set_loop(const PfAsyncio *g, PyObject *from, PyObject *to)
{
    PyObject *done =
        from == to ? Py_NewRef(Py_None) : PyObject_CallOneArg(g->set_loop, to);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* The task is cleared before the loop, and take_back() sets it after the loop,
 * because asyncio lets only the running loop have a current task. */
static int
set_aside(PfAsyncio *g, PfAway *away)
{
    away->loop = PyObject_CallNoArgs(g->get_loop);
    if (away->loop == NULL) {
        return -1;
    }
    away->task = take_task(g, away->loop);
    if (away->task == NULL) {
        Py_CLEAR(away->loop);
        return -1;
    }
    if (set_loop(g, away->loop, g->outer) == 0) {
        return 0;
    }
    PyObject *error = pystate_take_exception();
    (void)give_task(g, away->loop, away->task);
    Py_CLEAR(away->task);
    Py_CLEAR(away->loop);
    pystate_restore_exception(error);
    return -1;
}

static int
take_back(PfAsyncio *g, PfAway *away)
{
    return set_loop(g, g->outer, away->loop) < 0
               ? -1
               : give_task(g, away->loop, away->task);
}

/* Exchanges what the interpreter keeps for the thread and a loop sets. */
static void
swap_settings(const PfThread *t, PfAsyncio *g)
{
    pystate_swap_asyncgen_hooks(t->tstate, g->hooks);
    pystate_swap_origin_depth(t->tstate, &g->origin_depth);
}

static void
drop(PfThread *t, PfAsyncio *g)
{
    if (--g->users > 0) {
        return;
    }
    pf_thread_no_switch_begin(t, "while a loop of asyncio's ends");
    Py_XDECREF(g->hooks[0]);
    Py_XDECREF(g->hooks[1]);
    Py_XDECREF(g->outer);
    pf_thread_no_switch_end(t);
    PyMem_Free(g);
}

static void
enter(PfThread *t, PfAsyncio *g)
{
    *pf_asyncio_inside(t) = g;
    pf_thread_pend(t, PF_PENDING_ASYNCIO);
}

static PfAsyncio *
leave(PfThread *t)
{
    PfAsyncio *g = *pf_asyncio_inside(t);
    *pf_asyncio_inside(t) = NULL;
    pf_thread_unpend(t, PF_PENDING_ASYNCIO);
    return g;
}

int
pf_asyncio_leave(PfThread *t, PfAway *away)
{
    away->asyncio = leave(t);
    away->asyncio->users++;
    pf_thread_no_switch_begin(t, "while a loop of asyncio's is set aside");
    int rc = set_aside(away->asyncio, away);
    if (rc == 0) {
        swap_settings(t, away->asyncio);
    }
    pf_thread_no_switch_end(t);
    if (rc < 0) {
        away->asyncio->users--; /* not the last: the call has not ended */
        enter(t, away->asyncio);
    }
    return rc;
}

void
pf_asyncio_return(PfThread *t, PfAway *away)
{
    PfAsyncio *g = away->asyncio;
    PyObject *raised = pystate_take_exception();
    pf_thread_no_switch_begin(t, "while a loop of asyncio's continues");
    if (!g->over) {
        swap_settings(t, g);
        if (take_back(g, away) < 0) {
            PyErr_WriteUnraisable(away->loop);
        }
    }
    Py_CLEAR(away->task);
    Py_CLEAR(away->loop);
    pf_thread_no_switch_end(t);
    if (!g->over) {
        enter(t, g);
    }
    drop(t, g);
    pystate_restore_exception(raised);
}

/* --------------------------------------------------------------- being inside */

/* Makes a new inner loop active.  Returns NULL with an exception. */
static PfAsyncio *
inner_begin(PfThread *t, PyObject *functions)
{
    PfAsyncio *g = PyMem_Calloc(1, sizeof *g);
    if (g == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    g->users = 1;
    g->get_loop = PyTuple_GET_ITEM(functions, 0);
    g->set_loop = PyTuple_GET_ITEM(functions, 1);
    g->take_task = PyTuple_GET_ITEM(functions, 2);
    g->give_task = PyTuple_GET_ITEM(functions, 3);
    g->outer = PyObject_CallNoArgs(g->get_loop);
    if (g->outer == NULL) {
        drop(t, g);
        return NULL;
    }
    pystate_asyncgen_hooks(t->tstate, g->hooks);
    g->origin_depth = pystate_origin_depth(t->tstate);
    enter(t, g);
    return g;
}

static void
inner_end(PfThread *t, PfAsyncio *g)
{
    PyObject *raised = pystate_take_exception();
    if (*pf_asyncio_inside(t) == g) {
        (void)leave(t);
    } /* else a fiber that waits has set it aside */
    g->over = true;
    drop(t, g);
    pystate_restore_exception(raised);
}

/* A call inside of an inner loop belongs to that loop and begins no other. */
static PyObject *
mod_keep_state(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    if (nargs < 2 || !PyTuple_Check(args[0]) ||
        PyTuple_GET_SIZE(args[0]) != 4) {
        PyErr_SetString(
            PyExc_TypeError,
            "_keep_asyncio_state() takes four functions and a function");
        return NULL;
    }
    PfThread *t = pf_thread_this();
    PfAsyncio *asyncio = NULL;
    bool begins = t != NULL && *pf_asyncio_inside(t) == NULL;
    if (t == NULL || (begins && (asyncio = inner_begin(t, args[0])) == NULL)) {
        return NULL;
    }
    PyObject *result =
        PyObject_Vectorcall(args[1], args + 2, (size_t)nargs - 2, NULL);
    if (begins) {
        inner_end(t, asyncio);
    }
    return result;
}

static PyMethodDef functions[] = {
    {"_keep_asyncio_state", (PyCFunction)(void (*)(void))mod_keep_state,
     METH_FASTCALL,
     "_keep_asyncio_state($module, functions, fn, /, *args)\n--\n\n"
     "Call fn(*args), which may set asyncio's running loop and current task.\n"
     "While fn waits for fibers, both are set aside. `functions`: get(),\n"
     "set(loop), take(loop, None), which returns the task, and\n"
     "give(loop, task)."},
    {NULL, NULL, 0, NULL},
};

/* constant after import */
PfKeeps pf_asyncio_of_thread = {.size = sizeof(PfAsyncio *)};

const PfPart pf_asyncio_part = {
    .of_thread = &pf_asyncio_of_thread,
};

int
pf_asyncio_init(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
