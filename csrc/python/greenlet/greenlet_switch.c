/* A greenlet's switches, its first run and its end.
 *
 * A switch passes its value to the target if that is active, and starts a new
 * target with it.  If the target is dead, the switch goes to the next of its
 * ancestors that is not.  As in switch/switch.c, one value or one exception
 * travels in thread->transfer.
 *
 * This is one long file because a single rule, that of parents, decides where
 * a switch leads, what runs there first and where control goes at its end.
 */
#include "python/core/arguments.h"
#include "python/core/compiler.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/fiber/fiber_type.h"
#include "python/greenlet/greenlet.h"
#include "python/look/inspect.h"
#include "python/pack/pack.h"
#include "python/switch/home.h"
#include "python/switch/profiled.h"
#include "python/switch/switch.h"
#include "python/switch/tracing.h"
#include "python/switch/unwind.h"
#include "python/task/fiber.h"
#include "python/task/scheduler.h"
#include "python/wait/wait.h"

/* What a switch carries: a value, or a call's arguments, or an exception.  All
 * references are owned. */
typedef struct Cargo {
    PyObject *value; /* the argument, if there is only one */
    PyObject *args;  /* otherwise: a tuple, or NULL if there are none */
    PyObject *kwargs;
    PyObject *both; /* (args, kwargs), if neither is NULL */
    PyObject *exc;
} Cargo;

static void
cargo_drop(Cargo *cargo)
{
    Py_CLEAR(cargo->value);
    Py_CLEAR(cargo->args);
    Py_CLEAR(cargo->kwargs);
    Py_CLEAR(cargo->both);
    Py_CLEAR(cargo->exc);
}

/* Replaces the contents by the exception that is set. */
static void
cargo_take_exception(Cargo *cargo)
{
    PyObject *exc = pystate_take_exception();
    cargo_drop(cargo);
    cargo->exc = exc;
}

/* Takes the object that switch() returns, or raises, where the cargo arrives:
 * a new reference.  Allocates nothing and so cannot fail. */
static PyObject *
cargo_unpack(Cargo *cargo)
{
    PyObject **what = cargo->exc != NULL     ? &cargo->exc
                      : cargo->value != NULL ? &cargo->value
                      : cargo->both != NULL  ? &cargo->both
                      : cargo->args != NULL  ? &cargo->args
                                             : &cargo->kwargs;
    PyObject *value = *what;
    *what = NULL;
    return value != NULL ? value : PyTuple_New(0); /* a singleton */
}

/* ------------------------------------------------------------ the switch */

/* Takes what the switch to the running fiber has brought: returns the value, a
 * new reference, or NULL with the exception set.  Calls the trace function. */
static inline PyObject *
arrive(PfThread *t)
{
    PyObject *value = t->transfer;
    bool throwing = t->throwing;
    t->transfer = NULL;
    t->throwing = false;
    if (PF_UNLIKELY(pf_greenlet_thread(t)->trace != NULL) &&
        pf_greenlet_trace(t, throwing) < 0) {
        Py_DECREF(value);
        return NULL;
    }
    if (PF_UNLIKELY(throwing)) {
        pystate_restore_exception(value);
        return NULL;
    }
    return value;
}

/* Records the greenlet that the switch leaves, for the trace function.
 * Returns that of an earlier switch that was not reported, or NULL: the caller
 * drops it after the switch. */
static PyObject *
note_origin(PfThread *t, PyGreenlet *origin)
{
    PyObject *before = pf_greenlet_thread(t)->origin;
    pf_greenlet_thread(t)->origin = Py_XNewRef((PyObject *)origin);
    return before;
}

/* Carries the thread's tracing depth over to the target.  So the function of
 * sys.settrace() that switches to another greenlet is not called there.  If
 * `way` leads to the target through another fiber (see pf_home_way_to), that
 * one carries the depth on. */
static inline void
keep_tracing(PfThread *t, pf_fiber *way, FiberObject *to)
{
    pystate_keep_tracing(t->tstate, FIBER_OF(way)->saved);
    t->keeps_tracing = way != &to->fiber;
}

/* Switches to `to` by `way`, with `value` (stolen).  No code runs before the
 * switch, so the caller's checks still hold. */
static inline PyObject *
go_by(PfThread *t, FiberObject *to, pf_fiber *way, PyObject *value,
      bool throwing)
{
    t->transfer = value;
    t->throwing = throwing;
    keep_tracing(t, way, to);
    pf_switch_leave_for(t, to, way);
    return arrive(t);
}

/* Switches to `to`, which may be the running fiber itself, with `value`
 * (stolen). */
static PyObject *
go_untraced(PfThread *t, FiberObject *to, PyObject *value, bool throwing)
{
    if (to == CURRENT(t)) {
        t->transfer = value;
        t->throwing = throwing;
        return arrive(t);
    }
    pf_fiber *way = pf_home_way_to(t, to);
    if (way == NULL) {
        Py_DECREF(value);
        return NULL;
    }
    return go_by(t, to, way, value, throwing);
}

/* The same, and prepares the call of the trace function if there is one. */
static PyObject *
go(PfThread *t, FiberObject *to, PyObject *value, bool throwing)
{
    PyObject *before = NULL;
    if (pf_greenlet_thread(t)->trace != NULL) {
        before = note_origin(t, GREENLET_OF(CURRENT(t)));
    }
    value = go_untraced(t, to, value, throwing);
    Py_XDECREF(before);
    return value;
}

/* -------------------------------------------------------------- the target */

/* `ours` and `theirs` are the main greenlets of this thread and of the target;
 * `theirs` may be NULL. */
static int
refuse_thread(PyGreenlet *ours, PyGreenlet *theirs)
{
    if (theirs == NULL) {
        PyErr_SetString(pf_greenlet.error,
                        "cannot switch to a garbage collected greenlet");
    } else if (IMPL(theirs)->thread_gone) {
        PyErr_SetString(pf_greenlet.error,
                        "cannot switch to a different thread "
                        "(which happens to have exited)");
    } else {
        PyErr_Format(pf_greenlet.error,
                     "Cannot switch to a different thread\n"
                     "\tCurrent:  %R\n\tExpected: %R",
                     ours, theirs);
    }
    return -1;
}

/* Returns 0 if the greenlet belongs to this thread, else -1 with
 * greenlet.error. */
static int
check_thread(PfThread *t, PyGreenlet *g)
{
    PyGreenlet *ours = GREENLET_OF(t->root);
    if (ours == NULL && (ours = pf_greenlet_view(t, t->root)) == NULL) {
        return -1;
    }
    PyGreenlet *theirs = pf_greenlet_main_in_lineage(g);
    int rc = ours == theirs ? 0 : refuse_thread(ours, theirs);
    Py_XDECREF(theirs);
    return rc;
}

/* Returns the fiber of an active greenlet, or NULL with greenlet.error if the
 * fiber cannot be entered now: a view may show a fiber of a scheduler. */
static FiberObject *
admit(PfThread *t, PyGreenlet *g)
{
    FiberObject *fiber = IMPL(g)->fiber;
    const char *why;
    if (fiber == CURRENT(t)) {
        return fiber;
    }
    if (fiber->core.state != PF_SUSPENDED) {
        why = fiber->is_hub
                  ? "cannot switch to a greenlet that runs a scheduler's "
                    "loop: it goes on when the loop has nothing else to run"
                  : "cannot switch to a fiber that waits in its scheduler: "
                    "use unpark(), cancel() or join()";
    } else if (fiber->core.scheduler != NULL &&
               (t->scheduler == NULL ||
                fiber->core.scheduler != &t->scheduler->core)) {
        why = "cannot switch to a fiber of a scheduler that is not running";
    } else {
        return fiber;
    }
    PyErr_SetString(pf_greenlet.error, why);
    return NULL;
}

/* Returns a new fiber with a stack, for the caller to run a greenlet in, or
 * NULL with an exception. */
static FiberObject *
make_stack(PfThread *t)
{
    FiberObject *fiber = pf_fiber_alloc(t);
    if (fiber == NULL) {
        return NULL;
    }
    pf_task_set_kind(&fiber->core, &pf_greenlet_ops);
    if (pf_switch_give_stack_fresh(t, fiber) < 0) {
        Py_DECREF(fiber);
        return NULL;
    }
    return fiber;
}

/* Returns true if this thread may start the new greenlet `g`, which another
 * thread has made.  The check is that of check_thread(), done while the other
 * threads are stopped. */
static bool
is_our_new(PfThread *t, PyGreenlet *g)
{
    while (g != NULL && !IMPL(g)->started) {
        g = IMPL(g)->parent;
    }
    return g != NULL && pf_greenlet_main(g) == GREENLET_OF(t->root);
}

/* Gives a new greenlet its stack and the call it begins with.  User code may
 * run here (to compute `run`, or because of the collector) and start the
 * greenlet first, as may another thread without a GIL.  Returns 0; 1: that has
 * happened, so the caller must look at the greenlet again; -1: exception. */
static int
start(PfThread *t, PyGreenlet *g, Cargo *cargo)
{
    bool plain = Py_TYPE(g) == &PfGreenlet_Type && IMPL(g)->run != NULL &&
                 !pf_world_moves(IMPL(g)->thread);
    PyObject *run = plain ? Py_NewRef(IMPL(g)->run)
                          : PyObject_GetAttr((PyObject *)g, pf_greenlet.s_run);
    if (run == NULL) {
        /* The attribute is gone if another thread has started the greenlet. */
        bool began = PF_FREE_THREADED && IMPL(g)->started &&
                     PyErr_ExceptionMatches(PyExc_AttributeError);
        if (began) {
            PyErr_Clear();
        }
        return began ? 1 : -1;
    }
    if (cargo->value != NULL) {
        cargo->args = PyTuple_Pack(1, cargo->value);
        if (cargo->args == NULL) {
            Py_DECREF(run);
            return -1;
        }
    }
    FiberObject *fiber = make_stack(t);
    int rc = fiber == NULL || check_thread(t, g) < 0 ? -1 : 0;
    bool stopped = rc == 0 && pf_greenlet_stop_world(g);
    if (rc == 0 && (IMPL(g)->started || (stopped && !is_our_new(t, g)))) {
        rc = 1;
    }
    if (rc != 0) {
        pf_world_start(stopped);
        if (fiber != NULL) {
            pf_switch_take_stack(fiber);
            Py_DECREF(fiber);
        }
        Py_DECREF(run);
        if (cargo->value != NULL) {
            Py_CLEAR(cargo->args);
        }
        return rc;
    }
    fiber->view = (PyObject *)g;
    fiber->target = run;
    fiber->args = cargo->args;
    fiber->kwargs = cargo->kwargs;
    cargo->args = cargo->kwargs = NULL;
    fiber->context = IMPL(g)->context;
    IMPL(g)->context = NULL;
    IMPL(g)->fiber = fiber;
    IMPL(g)->started = true;
    IMPL(g)->thread = t;
    IMPL(g)->main = (PyGreenlet *)Py_NewRef((PyObject *)GREENLET_OF(t->root));
    pf_world_start(stopped);
    return 0;
}

/* Prepares `g`, which is active or new, as the target of a switch.  Returns 1:
 * `g` can be entered; 0: look again; -1: exception. */
static int
prepare_target(PfThread *t, PyGreenlet *g, Cargo *cargo)
{
    if (pf_greenlet_active(g)) {
        return admit(t, g) == NULL ? -1 : 1;
    }
    int rc = start(t, g, cargo);
    return rc < 0 ? -1 : rc == 0;
}

/* Returns the greenlet that a switch to `g` leads to, ready to be entered: a
 * new reference, to be passed to fiber_to_enter() at once, or NULL with an
 * exception. */
static PyGreenlet *
route(PfThread *t, PyGreenlet *g, Cargo *cargo)
{
    PyGreenlet *at = (PyGreenlet *)Py_NewRef((PyObject *)g);
    int rc = 0;
    while (rc == 0 && at != NULL && check_thread(t, at) == 0) {
        if (pf_greenlet_active(at) || !IMPL(at)->started) {
            rc = prepare_target(t, at, cargo);
        } else {
            Py_SETREF(at, (PyGreenlet *)pf_greenlet_parent(at));
        }
    }
    if (at == NULL) {
        refuse_thread(NULL, NULL);
    }
    if (rc <= 0) {
        Py_CLEAR(at);
    }
    return at;
}

/* Returns the fiber of the greenlet (stolen) that is entered next.  The stolen
 * reference may be the last one: then the thread holds it until the greenlet
 * is left. */
static FiberObject *
fiber_to_enter(PyGreenlet *g)
{
    FiberObject *fiber = IMPL(g)->fiber;
    if (Py_REFCNT(g) == 1) {
        fiber->held = true;
    } else {
        Py_DECREF(g);
    }
    return fiber;
}

/* Switches to `g`, or where a switch to it leads, with the contents of the
 * cargo, which is empty afterwards. */
static PyObject *
send_cargo(PfThread *t, PyGreenlet *g, Cargo *cargo)
{
    PyGreenlet *target = NULL;
    if ((t->pending == 0 || pf_greenlet_run_pending(t) == 0) &&
        pf_greenlet_current(t) != NULL) {
        target = route(t, g, cargo);
    }
    if (target == NULL) {
        cargo_drop(cargo);
        return NULL;
    }
    FiberObject *to = fiber_to_enter(target);
    bool throwing = cargo->exc != NULL;
    if (to->core.state == PF_NEW && !throwing) {
        Py_XDECREF(cargo->value); /* start() has put it into the arguments */
        Py_XDECREF(cargo->both);
        return go(t, to, Py_NewRef(Py_None), false);
    }
    PyObject *value = cargo_unpack(cargo);
    cargo_drop(cargo);
    return go(t, to, value, throwing);
}

/* ------------------------------------------------------------ switch, throw */

/* Brings a cargo of `args` and `kwargs`, each of which may be NULL, into the
 * form that struct Cargo describes.  Returns 0, or -1 with an exception and an
 * empty cargo. */
static int
cargo_pack(Cargo *cargo)
{
    Py_ssize_t n = cargo->args == NULL ? 0 : PyTuple_GET_SIZE(cargo->args);
    if (cargo->kwargs != NULL && PyDict_GET_SIZE(cargo->kwargs) == 0) {
        Py_CLEAR(cargo->kwargs);
    }
    if (n == 0) {
        Py_CLEAR(cargo->args);
    } else if (cargo->kwargs != NULL) {
        cargo->both = PyTuple_Pack(2, cargo->args, cargo->kwargs);
        if (cargo->both == NULL) {
            cargo_drop(cargo);
            return -1;
        }
    } else if (n == 1) {
        cargo->value = Py_NewRef(PyTuple_GET_ITEM(cargo->args, 0));
        Py_CLEAR(cargo->args);
    }
    return 0;
}

PyObject *
pf_greenlet_switch(PyGreenlet *g, PyObject *args, PyObject *kwargs)
{
    PfThread *t = pf_thread_this();
    Cargo cargo = {.args = Py_XNewRef(args), .kwargs = Py_XNewRef(kwargs)};
    if (t == NULL || cargo_pack(&cargo) < 0) {
        cargo_drop(&cargo);
        return NULL;
    }
    return send_cargo(t, g, &cargo);
}

/* switch() in all cases but the most common one. */
static PyObject *
switch_slowly(PyGreenlet *g, PyObject *const *args, Py_ssize_t nargs,
              PyObject *kwnames)
{
    PfThread *t = pf_thread_this();
    if (t == NULL) {
        return NULL;
    }
    Cargo cargo = {0};
    if (kwnames == NULL && nargs <= 1) {
        cargo.value = nargs == 0 ? NULL : Py_NewRef(args[0]);
        return send_cargo(t, g, &cargo);
    }
    if (pf_arguments_pack(args, nargs, kwnames, &cargo.args, &cargo.kwargs) <
        0) {
        return NULL;
    }
    return cargo_pack(&cargo) < 0 ? NULL : send_cargo(t, g, &cargo);
}

PyObject *
pf_greenlet_switch_method(PyObject *op, PyObject *const *args,
                          Py_ssize_t nargs, PyObject *kwnames)
{
    PyGreenlet *g = (PyGreenlet *)op;
    PfThread *t = pf_thread_current;
    if (PF_FREE_THREADED && IMPL(g)->thread != t) {
        return switch_slowly(g, args, nargs, kwnames);
    }
    FiberObject *fiber = IMPL(g)->fiber;
    if (PF_UNLIKELY(t == NULL || fiber == NULL || t->pending != 0 ||
                    pf_greenlet_thread(t)->trace != NULL || kwnames != NULL ||
                    nargs > 1 || !pf_task_is_suspended(&fiber->core) ||
                    fiber->thread != t || fiber->core.scheduler != NULL)) {
        return switch_slowly(g, args, nargs, kwnames);
    }
    return go_by(t, fiber, &fiber->fiber,
                 nargs == 0 ? PyTuple_New(0) : Py_NewRef(args[0]), false);
}

/* Replaces the traceback of `exc` by `tb`, which may be NULL, and returns
 * `exc`.  As in the package greenlet, an earlier traceback is dropped: that of
 * an instance that is thrown again and again would grow. */
static PyObject *
with_traceback(PyObject *exc, PyObject *tb)
{
    PyException_SetTraceback(exc, tb != NULL ? tb : Py_None);
    return exc;
}

/* Returns the exception that throw(type, value, traceback) raises: a new
 * reference, or NULL with TypeError. */
static PyObject *
make_exception(PyObject *type, PyObject *value, PyObject *tb)
{
    if (tb == Py_None) {
        tb = NULL;
    }
    if (tb != NULL && !PyTraceBack_Check(tb)) {
        PyErr_SetString(PyExc_TypeError,
                        "throw() third argument must be a traceback object");
        return NULL;
    }
    if (PyExceptionClass_Check(type)) {
        PyErr_Restore(Py_NewRef(type), Py_XNewRef(value), Py_XNewRef(tb));
        PyObject *exc = pystate_take_exception();
        return exc == value ? with_traceback(exc, tb) : exc;
    }
    if (!PyExceptionInstance_Check(type)) {
        PyErr_Format(PyExc_TypeError,
                     "exceptions must be classes, or instances, not %s",
                     Py_TYPE(type)->tp_name);
        return NULL;
    }
    if (value != NULL && value != Py_None) {
        PyErr_SetString(PyExc_TypeError,
                        "instance exception may not have a separate value");
        return NULL;
    }
    return with_traceback(Py_NewRef(type), tb);
}

PyObject *
pf_greenlet_throw(PyGreenlet *g, PyObject *type, PyObject *value, PyObject *tb)
{
    PfThread *t = pf_thread_this();
    PyObject *exc = t == NULL ? NULL : make_exception(type, value, tb);
    if (exc == NULL) {
        return NULL;
    }
    bool dead = pf_greenlet_is_dead(g);
    Cargo cargo = {0};
    if (dead && PyObject_TypeCheck(exc, (PyTypeObject *)pf_greenlet.exit)) {
        cargo.value = exc;
    } else {
        cargo.exc = exc;
    }
    return send_cargo(t, g, &cargo);
}

PyObject *
pf_greenlet_throw_method(PyObject *op, PyObject *args)
{
    PyObject *type = pf_greenlet.exit, *value = NULL, *tb = NULL;
    if (!PyArg_ParseTuple(args, "|OOO:throw", &type, &value, &tb)) {
        return NULL;
    }
    return pf_greenlet_throw((PyGreenlet *)op, type, value, tb);
}

/* ---------------------------------------------------------- running, ending */

/* Calls the greenlet's function.  `kwargs` shares its memory with
 * `waiting_on`, so it is taken before the function can wait. */
static PyObject *
call_run(FiberObject *self)
{
    PyObject *kwargs = self->kwargs;
    self->kwargs = NULL;
    self->entered = true;
    if (self->args == NULL && kwargs == NULL) {
        return pf_switch_call(self->target);
    }
    if (self->args == NULL) {
        self->args = PyTuple_New(0);
    }
    PyObject *result = self->args == NULL
                           ? NULL
                           : PyObject_Call(self->target, self->args, kwargs);
    Py_XDECREF(kwargs);
    return result;
}

/* Does the first steps of a new greenlet: takes what the switch brought, drops
 * `run`, which fiber->target replaces, and calls the function. */
static PyObject *
first_act(PfThread *t, FiberObject *self, PyGreenlet *g)
{
    PyObject *sent = t->transfer;
    bool throwing = t->throwing;
    t->transfer = NULL;
    t->throwing = false;
    PyObject *origin = pf_greenlet_thread(t)->origin;
    pf_greenlet_thread(t)->origin = NULL;
    Py_CLEAR(IMPL(g)->run); /* may run code, and switch */
    Py_XSETREF(pf_greenlet_thread(t)->origin, origin);
    if (pf_greenlet_thread(t)->trace != NULL &&
        pf_greenlet_trace(t, throwing) < 0) {
        Py_DECREF(sent);
        return NULL;
    }
    if (throwing) {
        pystate_restore_exception(sent);
        return NULL;
    }
    Py_DECREF(sent);
    pf_tracing_begin(t, self);
    return call_run(self);
}

/* Turns the outcome of the call into what the parent gets.  The call's
 * references are dropped here, because code that runs because of that may
 * still switch. */
static void
pack_outcome(PfThread *t, FiberObject *self, PyObject *result, Cargo *cargo)
{
    result = pf_switch_leave_nothing(t, self, result);
    PyObject *exc = result == NULL ? pystate_take_exception() : NULL;
    Py_CLEAR(self->args);
    PyObject *kwargs = self->kwargs;
    self->kwargs = NULL;
    Py_XDECREF(kwargs);
    Py_CLEAR(self->target);
    Py_CLEAR(self->value); /* the value of a permit that was not used */
    if (exc != NULL &&
        PyObject_TypeCheck(exc, (PyTypeObject *)pf_greenlet.exit)) {
        result = exc;
        exc = NULL;
    }
    cargo->value = result;
    cargo->exc = exc;
}

/* Returns the fiber that accepts any result: the hub of the run on this
 * thread, or else the thread's root. */
static FiberObject *
last_resort(PfThread *t)
{
    return t->scheduler != NULL ? FIBER_OF(t->scheduler->core.hub) : t->root;
}

/* Returns the fiber that gets the result of this greenlet: its killer if there
 * is one, or else that of the first ancestor that can take the result.  The
 * ancestor where the search ended is stored in *ancestor: a new reference, or
 * NULL.  The caller drops it later, because no code may run from here on. */
static FiberObject *
heir(PfThread *t, PyGreenlet *g, Cargo *cargo, PyObject **ancestor)
{
    if (IMPL(g)->killer != NULL) {
        return IMPL(g)->killer;
    }
    PyGreenlet *p = (PyGreenlet *)Py_XNewRef((PyObject *)IMPL(g)->parent);
    PyGreenlet *found = NULL;
    while (p != NULL && (found = route(t, p, cargo)) == NULL) {
        cargo_take_exception(cargo);
        Py_SETREF(p, (PyGreenlet *)pf_greenlet_parent(p));
    }
    *ancestor = (PyObject *)p;
    return found != NULL ? fiber_to_enter(found) : last_resort(t);
}

/* The body of a greenlet's fiber.  Returns the fiber to enter next. */
static pf_fiber *
greenlet_run(pf_thread *thread, pf_fiber *fiber)
{
    PfThread *t = (PfThread *)thread;
    FiberObject *self = FIBER_OF(fiber);
    PyGreenlet *g = GREENLET_OF(self);
    Cargo cargo = {0};
    PyObject *result = first_act(t, self, g);
    pf_tracing_end(t, self);
    pystate_drop_handled(self->saved);
    pack_outcome(t, self, result, &cargo);
    FiberObject *next = heir(t, g, &cargo, &self->value);

    /* From here on no code may run that could leave this stack, or end `next`.
     * So the fiber keeps the objects that may run code as they are dropped. */
    if (pf_greenlet_thread(t)->trace != NULL) {
        self->args = note_origin(t, g);
    }
    t->throwing = cargo.exc != NULL;
    if (next->core.state == PF_NEW && !t->throwing) {
        t->transfer = Py_NewRef(Py_None);
        Py_XDECREF(cargo.value);
    } else {
        t->transfer = cargo_unpack(&cargo);
    }
    /* greenlet_reap() drops one reference to the greenlet.  `held` and
     * `dropped` each say that there is one to drop already. */
    if (!self->held && !self->dropped) {
        Py_INCREF(g);
    } else if (self->held && self->dropped) {
        Py_DECREF(g);
    }
    self->held = false;
    self->dropped = false;
    self->outcome = PF_OUTCOME_OK;
    IMPL(g)->fiber = NULL; /* the reference goes to greenlet_reap */
    pf_fiber_unlink(self);
    pystate_finish(t->tstate, self->saved);
    pf_fiber *way = pf_home_sure_way_to(t, next);
    keep_tracing(t, way, next);
    next->core.state = PF_RUNNING;
    return way;
}

/* What a switch has just brought to the running fiber, or is about to take
 * from it, and the fiber's state: set aside while code runs because an object
 * dies, which may switch. */
typedef struct SwitchState {
    PyObject *exc, *transfer, *origin;
    bool throwing;
    uint8_t state;
} SwitchState;

static SwitchState
set_switch_aside(PfThread *t)
{
    SwitchState saved = {pystate_take_exception(), t->transfer,
                         pf_greenlet_thread(t)->origin, t->throwing,
                         CURRENT(t)->core.state};
    t->transfer = pf_greenlet_thread(t)->origin = NULL;
    t->throwing = false;
    return saved;
}

static void
restore_switch(PfThread *t, SwitchState *saved)
{
    /* Drop the origin of a switch that was not reported.  The code that this
     * runs may leave another one. */
    while (pf_greenlet_thread(t)->origin != NULL) {
        Py_CLEAR(pf_greenlet_thread(t)->origin);
    }
    CURRENT(t)->core.state = saved->state;
    t->transfer = saved->transfer;
    t->throwing = saved->throwing;
    pf_greenlet_thread(t)->origin = saved->origin;
    pystate_restore_exception(saved->exc);
}

/* Clears up behind a greenlet's fiber that has been left, because it has ended
 * or because the thread held the last reference to the greenlet. */
static void
greenlet_reap(pf_thread *thread, pf_fiber *left)
{
    PfThread *t = (PfThread *)thread;
    FiberObject *fiber = FIBER_OF(left);
    SwitchState saved = set_switch_aside(t);
    PyGreenlet *g = GREENLET_OF(fiber);
    if (PF_UNLIKELY(t->left_profiled != NULL) && pf_profiled_land(t)) {
        restore_switch(t, &saved);
        return;
    }
    if (fiber->core.state == PF_DONE) {
        fiber->stack_size = 0; /* `saved` went with the stack */
        fiber->view = NULL;
        PyObject *context = IMPL(g)->context;
        IMPL(g)->context = fiber->context;
        fiber->context = NULL;
        Py_XDECREF(context);
        Py_XSETREF(fiber->value, Py_NewRef(Py_None));
        Py_CLEAR(fiber->args);
        Py_DECREF(fiber);
    } else {
        fiber->held = false;
    }
    Py_DECREF(g);
    restore_switch(t, &saved);
}

/* ------------------------------------------------------------------ unwinding */

/* Returns true if `g` is `ancestor` or one of its descendants. */
static bool
descends_from(const PyGreenlet *g, const PyGreenlet *ancestor)
{
    while (g != NULL && g != ancestor) {
        g = IMPL(g)->parent;
    }
    return g != NULL;
}

/* Makes `parent` (stolen) the parent of `g` again, unless code has made it a
 * descendant of `g` meanwhile. */
static void
give_back_parent(PyGreenlet *g, PyGreenlet *parent)
{
    if (descends_from(parent, g)) {
        Py_XDECREF(parent);
    } else {
        Py_XSETREF(IMPL(g)->parent, parent);
    }
}

/* Returns a new GreenletExit, or NULL with an exception. */
static PyObject *
make_exit(PfThread *t)
{
    return pf_greenlet_current(t) == NULL
               ? NULL
               : PyObject_CallFunction(
                     pf_greenlet.exit, "s",
                     "Killing the greenlet because all references have "
                     "vanished.");
}

/* Throws GreenletExit into `g` and returns what comes back, or NULL with an
 * exception.  To create the exception may run code that switches to the
 * greenlet, so that it has ended: then the exception is returned.  As in the
 * package greenlet, the running greenlet is the parent of `g` meanwhile,
 * unless that would make a cycle. */
static PyObject *
throw_exit(PfThread *t, PyGreenlet *g)
{
    pf_unwind_renew_context(IMPL(g)->fiber);
    PyObject *exit = make_exit(t);
    if (exit == NULL || !pf_greenlet_active(g)) {
        return exit;
    }
    FiberObject *to = IMPL(g)->fiber, *self = CURRENT(t);
    if (to->is_hub) {
        Py_DECREF(exit);
        return (PyObject *)admit(t, g); /* NULL: this raises the error */
    }
    pf_unwind_forget_schedule(to); /* if the fiber waits in a scheduler */
    PyGreenlet *parent = (PyGreenlet *)Py_XNewRef((PyObject *)IMPL(g)->parent);
    bool below = descends_from(GREENLET_OF(self), g);
    if (!below) {
        Py_XSETREF(IMPL(g)->parent, (PyGreenlet *)Py_NewRef(self->view));
    }
    if (below || t->no_switch > 0) {
        IMPL(g)->killer = self;
    }
    PyObject *result = go(t, to, exit, true);
    if (IMPL(g)->killer == self) {
        IMPL(g)->killer = NULL;
    }
    give_back_parent(g, parent);
    return result;
}

void
pf_greenlet_kill(PfThread *t, PyGreenlet *g)
{
    SwitchState saved = set_switch_aside(t);
    PyObject *result = throw_exit(t, g);
    if (result == NULL) {
        PyErr_WriteUnraisable((PyObject *)g);
    }
    Py_XDECREF(result);
    restore_switch(t, &saved);
}

/* Ends a greenlet by GreenletExit, because the run in which it waits is over.
 */
static void
greenlet_unwind(PfThread *t, FiberObject *fiber)
{
    PyGreenlet *g = GREENLET_OF(fiber);
    if (!pf_world_hold((PyObject *)g)) {
        /* The greenlet is dying on another thread, which will post it to this
         * one: see pf_pending_leave. */
        pf_unwind_forget_schedule(fiber);
        fiber->core.state = PF_SUSPENDED;
        return;
    }
    pf_thread_no_switch_begin(t, "while a waiting greenlet is unwound");
    pf_greenlet_kill(t, g);
    pf_thread_no_switch_end(t);
    Py_DECREF(g);
}

const PfTaskOps pf_greenlet_ops = {
    .core = PF_FIBER_CORE_OPS(greenlet_run, greenlet_reap),
    .unwind = greenlet_unwind,
    .is_part = true,
    PF_FIBER_OPS,
};
