/* Guests: see guest.h. */
#include "python/fiber/guest.h"

#include "python/core/state.h"
#include "python/core/tstate.h"

/* On the C stack of the fiber that it runs in. */
struct PfGuest {
    /* asyncio's functions: get(), set(loop), take(loop, None) which returns the
     * task, give(loop, task) */
    PyObject *get_loop, *set_loop, *take_task, *give_task;
    PyObject *outer;    /* the running loop outside of it, or None */
    PyObject *hooks[2]; /* outside of it; its own while it is away */
};

/* The current task of `loop` is now none; returns the one that it was. */
static PyObject *
take_task(const PfGuest *g, PyObject *loop)
{
    PyObject *args[] = {loop, Py_None};
    return loop == Py_None ? Py_NewRef(Py_None)
                           : PyObject_Vectorcall(g->take_task, args, 2, NULL);
}

static int
give_task(const PfGuest *g, PyObject *loop, PyObject *task)
{
    PyObject *args[] = {loop, task};
    PyObject *done = task == Py_None
                         ? Py_NewRef(Py_None)
                         : PyObject_Vectorcall(g->give_task, args, 2, NULL);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

static int
set_loop(const PfGuest *g, PyObject *from, PyObject *to)
{
    PyObject *done =
        from == to ? Py_NewRef(Py_None) : PyObject_CallOneArg(g->set_loop, to);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* The task first and last: it is set only for the running loop. */
static int
set_aside(PfGuest *g, PfAway *away)
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
    PyObject *error = pf_take_exception();
    (void)give_task(g, away->loop, away->task);
    Py_CLEAR(away->task);
    Py_CLEAR(away->loop);
    pf_restore_exception(error);
    return -1;
}

static int
take_back(PfGuest *g, PfAway *away)
{
    return set_loop(g, g->outer, away->loop) < 0
               ? -1
               : give_task(g, away->loop, away->task);
}

static void
enter(PfThread *t, PfGuest *g)
{
    t->guest = g;
    pf_attend_to(t, PF_ATT_GUEST);
}

static PfGuest *
leave(PfThread *t)
{
    PfGuest *g = t->guest;
    t->guest = NULL;
    pf_attended(t, PF_ATT_GUEST);
    return g;
}

int
pf_guest_leave(PfThread *t, PfAway *away)
{
    away->guest = leave(t);
    pf_no_switch_begin(t, "while a loop of asyncio's is set aside");
    int rc = set_aside(away->guest, away);
    if (rc == 0) {
        pystate_swap_asyncgen_hooks(t->tstate, away->guest->hooks);
    }
    pf_no_switch_end(t);
    if (rc < 0) {
        enter(t, away->guest);
    }
    return rc;
}

void
pf_guest_return(PfThread *t, PfAway *away)
{
    PyObject *raised = pf_take_exception();
    pf_no_switch_begin(t, "while a loop of asyncio's continues");
    pystate_swap_asyncgen_hooks(t->tstate, away->guest->hooks);
    if (take_back(away->guest, away) < 0) {
        PyErr_WriteUnraisable(away->loop);
    }
    Py_CLEAR(away->task);
    Py_CLEAR(away->loop);
    pf_no_switch_end(t);
    enter(t, away->guest);
    if (raised != NULL) {
        pf_restore_exception(raised);
    }
}

/* --------------------------------------------------------------- being inside */

static int
guest_begin(PfThread *t, PfGuest *g, PyObject *functions)
{
    g->get_loop = PyTuple_GET_ITEM(functions, 0);
    g->set_loop = PyTuple_GET_ITEM(functions, 1);
    g->take_task = PyTuple_GET_ITEM(functions, 2);
    g->give_task = PyTuple_GET_ITEM(functions, 3);
    g->outer = PyObject_CallNoArgs(g->get_loop);
    if (g->outer == NULL) {
        return -1;
    }
    pystate_asyncgen_hooks(t->tstate, g->hooks);
    enter(t, g);
    return 0;
}

static void
guest_end(PfThread *t)
{
    PfGuest *g = leave(t);
    PyObject *raised = pf_take_exception();
    pf_no_switch_begin(t, "while a loop of asyncio's ends");
    Py_XDECREF(g->hooks[0]);
    Py_XDECREF(g->hooks[1]);
    Py_DECREF(g->outer);
    pf_no_switch_end(t);
    if (raised != NULL) {
        pf_restore_exception(raised);
    }
}

/* What is called inside of a guest is part of it. */
static PyObject *
mod_as_guest(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    if (nargs < 2 || !PyTuple_Check(args[0]) ||
        PyTuple_GET_SIZE(args[0]) != 4) {
        PyErr_SetString(PyExc_TypeError,
                        "_as_guest() takes four functions and a function");
        return NULL;
    }
    PfThread *t = pf_this_thread();
    PfGuest guest;
    bool begins = t != NULL && t->guest == NULL;
    if (t == NULL || (begins && guest_begin(t, &guest, args[0]) < 0)) {
        return NULL;
    }
    PyObject *result =
        PyObject_Vectorcall(args[1], args + 2, (size_t)nargs - 2, NULL);
    if (begins) {
        guest_end(t);
    }
    return result;
}

static PyMethodDef functions[] = {
    {"_as_guest", (PyCFunction)(void (*)(void))mod_as_guest, METH_FASTCALL,
     "_as_guest($module, functions, fn, /, *args)\n--\n\n"
     "Call fn(*args), which may set asyncio's running loop and current task:\n"
     "while it waits for fibers, they are set aside."},
    {NULL, NULL, 0, NULL},
};

int
pf_guest_init(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
