/* Guests: see guest.h. */
#include "python/wait/guest.h"

#include "python/core/tstate.h"

/* Not on a C stack: a fiber that the guest has switched to runs inside of it,
 * too, and sets it aside when it waits.  The guest's own fiber is suspended
 * then, and may even continue and leave the guest before that wait ends. */
struct PfGuest {
    size_t
        users; /* the call that began it, and those that have set it aside */
    bool over; /* that call has ended: nobody enters it any more */
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
drop(PfThread *t, PfGuest *g)
{
    if (--g->users > 0) {
        return;
    }
    pf_no_switch_begin(t, "while a loop of asyncio's ends");
    Py_XDECREF(g->hooks[0]);
    Py_XDECREF(g->hooks[1]);
    Py_XDECREF(g->outer);
    pf_no_switch_end(t);
    PyMem_Free(g);
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
    away->guest->users++;
    pf_no_switch_begin(t, "while a loop of asyncio's is set aside");
    int rc = set_aside(away->guest, away);
    if (rc == 0) {
        pystate_swap_asyncgen_hooks(t->tstate, away->guest->hooks);
    }
    pf_no_switch_end(t);
    if (rc < 0) {
        away->guest->users--; /* not the last: it has not been left */
        enter(t, away->guest);
    }
    return rc;
}

void
pf_guest_return(PfThread *t, PfAway *away)
{
    PfGuest *g = away->guest;
    PyObject *raised = pf_take_exception();
    pf_no_switch_begin(t, "while a loop of asyncio's continues");
    if (!g->over) {
        pystate_swap_asyncgen_hooks(t->tstate, g->hooks);
        if (take_back(g, away) < 0) {
            PyErr_WriteUnraisable(away->loop);
        }
    }
    Py_CLEAR(away->task);
    Py_CLEAR(away->loop);
    pf_no_switch_end(t);
    if (!g->over) {
        enter(t, g);
    }
    drop(t, g);
    pf_restore_exception(raised);
}

/* --------------------------------------------------------------- being inside */

/* NULL with an exception. */
static PfGuest *
guest_begin(PfThread *t, PyObject *functions)
{
    PfGuest *g = PyMem_Calloc(1, sizeof *g);
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
    enter(t, g);
    return g;
}

static void
guest_end(PfThread *t, PfGuest *g)
{
    PyObject *raised = pf_take_exception();
    if (t->guest == g) {
        (void)leave(t);
    } /* else a fiber that waits has set it aside */
    g->over = true;
    drop(t, g);
    pf_restore_exception(raised);
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
    PfGuest *guest = NULL;
    bool begins = t != NULL && t->guest == NULL;
    if (t == NULL || (begins && (guest = guest_begin(t, args[0])) == NULL)) {
        return NULL;
    }
    PyObject *result =
        PyObject_Vectorcall(args[1], args + 2, (size_t)nargs - 2, NULL);
    if (begins) {
        guest_end(t, guest);
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
