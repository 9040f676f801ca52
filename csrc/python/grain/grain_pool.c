/* The native half of GrainPool: its members and, with a policy, which of them
 * runs next.
 *
 * A pool with the round-robin policy leaves its grains to the scheduler's
 * queue.  A pool with another policy keeps its ready grains in a dict, and its
 * `turn` is the one entry for them in that queue.  In its turn, the pool makes
 * as many steps as there were ready grains, which treats grains and fibers
 * alike.  The policy chooses the grain of each step.
 */
#include "python/core/arguments.h"
#include "python/core/facade.h"
#include "python/core/state.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/grain/grain.h"
#include "python/task/fiber.h"
#include "python/task/scheduler.h"

#include <structmember.h>

/* ------------------------------------------------------------------- the policy */

/* Reports a policy's exception.  The pool goes on without the policy's
 * advice. */
static void
policy_failed(GrainPoolObject *pool)
{
    PyObject *exc = pystate_take_exception();
    PyObject *logged = PyObject_CallFunctionObjArgs(
        pf_facade.policy_failed, (PyObject *)pool, exc, NULL);
    if (logged == NULL) {
        PyErr_WriteUnraisable((PyObject *)pool);
    }
    Py_XDECREF(logged);
    Py_DECREF(exc);
}

/* Reports an exception if the policy's method has raised one.  Steals the
 * result.  The caller has a reference to the pool. */
static void
check_policy(GrainPoolObject *pool, PyObject *result)
{
    if (result == NULL) {
        policy_failed(pool);
    }
    Py_XDECREF(result);
}

/* Calls add() or remove() of the policy.  The policy may take the grain out of
 * the pool, and the grain's reference to the pool may be the last one. */
static void
notify_policy(GrainPoolObject *pool, const char *method, GrainObject *g)
{
    Py_INCREF(pool);
    check_policy(pool, PyObject_CallMethod(pool->policy, method, "O", g));
    Py_DECREF(pool);
}

static void
report_time(GrainPoolObject *pool, GrainObject *g, int64_t ns)
{
    check_policy(pool, PyObject_CallMethod(pool->policy, "ran", "Od", g,
                                           (double)ns / 1e9));
}

/* Asks the policy for a ready grain of this pool.  The reference is borrowed
 * from `ready`. */
static GrainObject *
policys_choice(GrainPoolObject *pool)
{
    PyObject *chosen = PyObject_CallMethod(pool->policy, "take", NULL);
    if (chosen == NULL) {
        return NULL;
    }
    int known = PyObject_TypeCheck(chosen, pf_grain_type)
                    ? PyDict_Contains(pool->ready, chosen)
                    : 0;
    if (known == 0) {
        PyErr_Format(pf.fiber_error,
                     "take() of the policy returned %R, which is not a ready "
                     "grain of its pool",
                     chosen);
    }
    Py_DECREF(chosen);
    return known > 0 ? (GrainObject *)chosen : NULL;
}

static GrainObject *
first_ready(GrainPoolObject *pool)
{
    Py_ssize_t at = 0;
    PyObject *key = NULL, *value;
    PyDict_Next(pool->ready, &at, &key, &value);
    return (GrainObject *)key;
}

/* Takes the grain out of pool->ready or pool->members. */
static void
take_out(PyObject *dict, GrainObject *g)
{
    if (PyDict_DelItem(dict, (PyObject *)g) < 0) {
        PyErr_Clear(); /* the grain was not in the dict */
    }
}

/* Takes the grain for the next step out of `ready`; a new reference, or
 * NULL. */
static GrainObject *
take(GrainPoolObject *pool)
{
    GrainObject *g = policys_choice(pool);
    bool failed = g == NULL;
    if (failed) {
        policy_failed(pool);
        g = first_ready(pool);
        if (g == NULL) {
            return NULL;
        }
    }
    Py_INCREF(g);
    g->offered = false;
    take_out(pool->ready, g);
    if (failed) {
        notify_policy(pool, "remove", g);
    }
    return g;
}

/* --------------------------------------------------------------------- turns */

static void
want_turn(GrainPoolObject *pool)
{
    if (pool->turn.state != PF_READY) {
        pf_scheduler_make_ready(&pool->scheduler->core, &pool->turn);
    }
}

/* A grain that is in no queue is ready: offers it to the policy. */
void
pf_grain_pool_add(GrainPoolObject *pool, GrainObject *g)
{
    if (PyDict_SetItem(pool->ready, (PyObject *)g, Py_None) < 0) {
        PyErr_Clear(); /* no memory: try again at the grain's next turn */
        pf_scheduler_make_ready(g->core.scheduler, &g->core);
        return;
    }
    g->core.state = PF_SUSPENDED;
    g->offered = true;
    want_turn(pool);
    notify_policy(pool, "add", g);
}

static void
look_around(pf_scheduler *s)
{
    if (--s->until_poll == 0 || pf_inbox_pending(&s->inbox)) {
        pf_scheduler_poll(s);
    }
}

static void
one_step(PfThread *t, GrainPoolObject *pool)
{
    GrainObject *g = take(pool);
    if (g == NULL) {
        return;
    }
    if (g->pool != pool || g->core.state != PF_SUSPENDED || g->offered) {
        Py_DECREF(g); /* the policy has moved it elsewhere */
        return;
    }
    pf_scheduler *s = &pool->scheduler->core;
    int64_t start = pf_scheduler_now(s);
    pf_grain_step(t, g);
    if (g->core.state == PF_READY && g->pool == pool) {
        g->on_hold = true; /* until it leaves the pool or is added */
    }
    if (pool->scheduler != NULL) {
        report_time(pool, g, pf_scheduler_now(s) - start);
        if (g->on_hold) {
            g->on_hold = false;
            pf_grain_pool_add(pool, g);
        }
        look_around(s);
    }
    Py_DECREF(g);
}

/* The pool's turn.  Queues the next turn before the first step, since a step
 * that blocks must not hold up the other grains. */
static void
pool_turn(PfThread *t, pf_task *task)
{
    GrainPoolObject *pool = pf_grain_pool_of(task);
    Py_ssize_t ready = PyDict_GET_SIZE(pool->ready);
    Py_INCREF(pool);
    pool->turn.state = PF_PARKED;
    if (ready > 1) {
        want_turn(pool);
    }
    while (ready-- > 0 && pool->scheduler != NULL &&
           PyDict_GET_SIZE(pool->ready) > 0) {
        one_step(t, pool);
    }
    if (pool->scheduler != NULL && PyDict_GET_SIZE(pool->ready) > 0) {
        want_turn(pool);
    }
    Py_DECREF(pool);
}

/* No `posted`: no other thread posts to a pool. */
static const PfTaskOps pool_ops = {
    .core = {.first = pf_grains_first},
    .turn = pool_turn,
    .no_turn = pf_grain_turn_failed,
};

/* ------------------------------------------------------------------ membership */

/* Claims the grain for the pool.  Without a GIL two threads may do this at
 * once, or one of them may start the grain: see claim() in grain_cancel.c. */
static bool
claim(GrainPoolObject *pool, GrainObject *g)
{
    if (!PF_FREE_THREADED) {
        return true;
    }
    if (!pf_claim_pointer(&g->pool, pool)) {
        return false;
    }
    bool free = pf_claimed_pointer(&g->core.scheduler) == NULL;
    if (!free) {
        pf_unclaim_pointer(&g->pool);
    }
    return free;
}

int
pf_grain_pool_enter(GrainPoolObject *pool, GrainObject *g)
{
    if (!claim(pool, g)) {
        PyErr_SetString(pf.fiber_error,
                        "the grain is being queued or started by another "
                        "thread");
        return -1;
    }
    Py_INCREF(pool);
    if (PyDict_SetItem(pool->members, (PyObject *)g, Py_None) < 0) {
        if (PF_FREE_THREADED) {
            pf_unclaim_pointer(&g->pool);
        }
        Py_DECREF(pool); /* the caller has another reference */
        return -1;
    }
    g->pool = pool;
    return 0;
}

/* Takes the grain out of `ready`.  Returns true if the policy has to be
 * notified. */
static bool
not_ready(GrainPoolObject *pool, GrainObject *g)
{
    if (!g->offered) {
        return false;
    }
    g->offered = false;
    take_out(pool->ready, g);
    return true;
}

void
pf_grain_pool_forget(GrainObject *g)
{
    GrainPoolObject *pool = g->pool;
    if (pool != NULL && not_ready(pool, g)) {
        notify_policy(pool, "remove", g);
    }
}

/* Reports an exception if the pool's Python half has raised one.  Steals the
 * answer. */
static void
check_pool(GrainPoolObject *pool, PyObject *answer)
{
    if (answer == NULL) {
        PyErr_WriteUnraisable((PyObject *)pool);
    }
    Py_XDECREF(answer);
}

/* A member has left, perhaps the last one.  Keeps an exception that is set. */
static void
one_less(GrainPoolObject *pool, GrainObject *g)
{
    PyObject *pending = pystate_take_exception();
    take_out(pool->members, g);
    if (PyDict_GET_SIZE(pool->members) == 0) {
        check_pool(pool,
                   PyObject_CallMethod((PyObject *)pool, "_emptied", NULL));
    }
    pystate_restore_exception(pending);
}

/* Takes the grain out of its pool and its scheduler, if any.  Does all of that
 * before it calls other code, because that code may act on the same grain. */
void
pf_grain_pool_leave(GrainObject *g)
{
    GrainPoolObject *pool = g->pool;
    if (pool == NULL) {
        return;
    }
    bool was_ready = not_ready(pool, g);
    g->pool = NULL;
    if (g->core.scheduler != NULL) {
        pf_grain_detach(g);
    }
    if (was_ready) {
        notify_policy(pool, "remove", g);
    }
    one_less(pool, g);
    Py_DECREF(pool);
}

/* The grain has ended: reports a failure, and takes the grain out of the
 * pool. */
void
pf_grain_pool_ended(GrainPoolObject *pool, GrainObject *g)
{
    if (g->outcome == PF_OUTCOME_FAILED) {
        check_pool(pool, PyObject_CallMethod((PyObject *)pool, "_grain_failed",
                                             "O", g));
    }
    one_less(pool, g);
}

/* --------------------------------------------------------- for the Python half */

static int
check_grain(PyObject *object)
{
    if (PyObject_TypeCheck(object, pf_grain_type)) {
        return 0;
    }
    PyErr_Format(PyExc_TypeError, "expected a Grain, not '%.200s'",
                 Py_TYPE(object)->tp_name);
    return -1;
}

static int
refuse_entry(GrainObject *g)
{
    const char *why = NULL;
    if (g->core.state == PF_DONE) {
        why = "the grain has finished: make a new one";
    } else if (g->pool != NULL) {
        why = "the grain is queued already";
    } else if (g->core.scheduler != NULL) {
        why = "the grain was started without a pool and stays so";
    } else if (g->core.state == PF_RUNNING) {
        why = "the grain is leaving its pool: queue it when its step is over";
    }
    if (why != NULL) {
        PyErr_SetString(pf.fiber_error, why);
    }
    return why == NULL ? 0 : -1;
}

/* Gives a member of a started pool to the pool's scheduler. */
static int
admit(SchedulerObject *s, GrainObject *g)
{
    return s->thread == pf_thread_current ? pf_grain_attach(s, g)
                                          : pf_grain_post_attach(s, g);
}

/* Returns a new reference to the pool's scheduler, or NULL.  The run may be
 * ending on another thread. */
static SchedulerObject *
scheduler_of(GrainPoolObject *pool)
{
    PF_LOCK(pool);
    SchedulerObject *s = pool->scheduler;
    if (s != NULL && !pystate_try_incref((PyObject *)s)) {
        s = NULL;
    }
    PF_UNLOCK(pool);
    return s;
}

void
pf_grain_pool_bind(GrainPoolObject *pool, SchedulerObject *s)
{
    PF_LOCK(pool);
    pool->scheduler = s;
    PF_UNLOCK(pool);
}

static PyObject *
pool_enter(PyObject *op, PyObject *object)
{
    GrainPoolObject *pool = (GrainPoolObject *)op;
    GrainObject *g = (GrainObject *)object;
    if (pf_thread_this() == NULL || check_grain(object) < 0 ||
        refuse_entry(g) < 0 || pf_grain_prepare(g) < 0 ||
        refuse_entry(g) < 0 || pf_grain_pool_enter(pool, g) < 0) {
        return NULL;
    }
    SchedulerObject *s = scheduler_of(pool);
    int rc = s == NULL ? 0 : admit(s, g);
    if (rc < 0) {
        pf_grain_pool_leave(g);
    }
    Py_XDECREF(s);
    return rc < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *
pool_leave(PyObject *op, PyObject *object)
{
    GrainObject *g = (GrainObject *)object;
    if (check_grain(object) < 0) {
        return NULL;
    }
    if (g->pool != (GrainPoolObject *)op || g->core.state == PF_DONE) {
        PyErr_Format(pf.fiber_error, "%R is not in this pool", object);
        return NULL;
    }
    if (g->core.scheduler == NULL) {
        pf_grain_pool_leave(g);
    } else if (!pf_grain_is_here(g)) {
        return pf_grain_post_leave(g) < 0 ? NULL : Py_NewRef(Py_None);
    } else if (g->core.state == PF_RUNNING) {
        g->leaves = true;
    } else {
        pf_grain_leave(g);
    }
    Py_RETURN_NONE;
}

static PyObject *
pool_grains(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    return PyDict_Keys(((GrainPoolObject *)op)->members);
}

static Py_ssize_t
pool_length(PyObject *op)
{
    return PyDict_GET_SIZE(((GrainPoolObject *)op)->members);
}

static int
pool_contains(PyObject *op, PyObject *object)
{
    return PyObject_TypeCheck(object, pf_grain_type) &&
           ((GrainObject *)object)->pool == (GrainPoolObject *)op;
}

static int
pool_bool(PyObject *op)
{
    (void)op;
    return 1; /* also without grains */
}

static int
admit_all(GrainPoolObject *pool)
{
    PyObject *all = PyDict_Keys(pool->members);
    int rc = all == NULL ? -1 : 0;
    for (Py_ssize_t i = 0; rc == 0 && i < PyList_GET_SIZE(all); i++) {
        GrainObject *g = (GrainObject *)PyList_GET_ITEM(all, i);
        if (g->pool == pool && g->core.scheduler == NULL) {
            rc = pf_grain_attach(pool->scheduler, g);
        }
    }
    Py_XDECREF(all);
    return rc;
}

static PyObject *
pool_bind(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    GrainPoolObject *pool = (GrainPoolObject *)op;
    PfThread *t = pf_thread_this();
    if (t == NULL || pf_scheduler_active(t, "starting a pool") == NULL) {
        return NULL;
    }
    int rc = pf_grains_begin(t->scheduler);
    if (rc == 0 && pool->scheduler != NULL) {
        PyErr_SetString(pf.fiber_error, "the pool has been started already");
        return NULL;
    }
    if (rc < 0 || PyList_Append(pf_grains_at(t->scheduler)->pools, op) < 0) {
        return NULL;
    }
    pool->turn.scheduler = &t->scheduler->core;
    pool->turn.state = PF_PARKED;
    pf_grain_pool_bind(pool, t->scheduler);
    return admit_all(pool) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *
get_bound(PyObject *op, void *closure)
{
    (void)closure;
    return PyBool_FromLong(((GrainPoolObject *)op)->scheduler != NULL);
}

static PyObject *
get_policy(PyObject *op, void *closure)
{
    (void)closure;
    PyObject *policy = ((GrainPoolObject *)op)->policy;
    return Py_NewRef(policy == NULL ? Py_None : policy);
}

/* ------------------------------------------------------------------ the type */

static PyObject *
pool_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args;
    (void)kwargs;
    GrainPoolObject *pool = (GrainPoolObject *)type->tp_alloc(type, 0);
    if (pool == NULL) {
        return NULL;
    }
    pf_task_set_kind(&pool->turn, &pool_ops);
    pool->ready = PyDict_New();
    pool->members = PyDict_New();
    if (pool->ready == NULL || pool->members == NULL) {
        Py_CLEAR(pool);
    }
    return (PyObject *)pool;
}

/* GrainPoolBase(policy=None): None means first in, first out, in the
 * scheduler's own queue. */
static int
pool_init(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"policy", NULL};
    GrainPoolObject *pool = (GrainPoolObject *)op;
    PyObject *policy = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:GrainPoolBase", names,
                                     &policy)) {
        return -1;
    }
    if (PyDict_GET_SIZE(pool->members) > 0 || pool->scheduler != NULL) {
        PyErr_SetString(pf.fiber_error,
                        "the pool is in use: its policy cannot be changed");
        return -1;
    }
    Py_XSETREF(pool->policy, policy == Py_None ? NULL : Py_NewRef(policy));
    return 0;
}

static int
pool_traverse(PyObject *op, visitproc visit, void *arg)
{
    GrainPoolObject *pool = (GrainPoolObject *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(pool->policy);
    Py_VISIT(pool->ready);
    Py_VISIT(pool->members);
    return 0;
}

/* Keeps the dicts, as grains that are closed later read them. */
static int
pool_clear(PyObject *op)
{
    GrainPoolObject *pool = (GrainPoolObject *)op;
    if (pool->scheduler == NULL) {
        PyDict_Clear(pool->ready);
        PyDict_Clear(pool->members);
    }
    return 0;
}

static void
pool_dealloc(PyObject *op)
{
    GrainPoolObject *pool = (GrainPoolObject *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    if (pool->weakrefs != NULL) {
        PyObject_ClearWeakRefs(op);
    }
    Py_CLEAR(pool->policy);
    Py_CLEAR(pool->ready);
    Py_CLEAR(pool->members);
    type->tp_free(op);
    Py_DECREF(type);
}

static PyMethodDef pool_methods[] = {
    {"_enter", pool_enter, METH_O, "Add a grain."},
    {"_leave", pool_leave, METH_O, "Remove a grain."},
    {"_grains", pool_grains, METH_NOARGS,
     "Return a list of the grains that have not ended."},
    {"_bind", pool_bind, METH_NOARGS,
     "Let the grains run on the scheduler of this thread from now on."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef pool_getset[] = {
    {"_bound", get_bound, NULL, "Whether it has a scheduler.", NULL},
    {"_policy", get_policy, NULL, "The policy; None: round robin.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef pool_members[] = {
    PF_WEAKREFS(GrainPoolObject),
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot pool_slots[] = {
    {Py_tp_doc, (void *)"The base class of GrainPool."},
    {Py_tp_new, pool_new},
    {Py_tp_init, pool_init},
    {Py_tp_dealloc, pool_dealloc},
    {Py_tp_traverse, pool_traverse},
    {Py_tp_clear, pool_clear},
    {Py_tp_methods, pool_methods},
    {Py_tp_getset, pool_getset},
    {Py_tp_members, pool_members},
    {Py_sq_length, (void *)pool_length},
    {Py_sq_contains, (void *)pool_contains},
    {Py_nb_bool, (void *)pool_bool},
    {0, NULL},
};

PyType_Spec pf_grain_pool_spec = {
    .name = "pyfiber._engine.GrainPoolBase",
    .basicsize = sizeof(GrainPoolObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .slots = pool_slots,
};
