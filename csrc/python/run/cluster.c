/* A run on several threads: run(main, threads=N).
 *
 * Each member has a scheduler with a queue of its own, which no other thread
 * touches (Acar, Chargueraud, Rainey, "Scheduling parallel programs by work
 * stealing with private deques", 2013).  A member that runs out of fibers says
 * so (`hungry`); another one sees that where it polls anyway, and gives away
 * up to half of its fibers that have not begun, the oldest first.
 *
 * What is given is represented by a double: the fiber F stays where it was
 * spawned, parked and `lent`; G, made here and posted by call_soon's way, runs
 * its function.  G's end is posted back and ends F with the same outcome; a
 * cancellation of F is posted to G.
 *
 * The first member, on the thread that called run(), decides the end: others
 * publish by atomics that they are `empty` (no non-daemon fibers) or `stuck`
 * (nothing ready, nothing expected), which they take back before they run
 * anything.  `gifts` and `wakes` tell that something happened between two
 * looks.  Reports look at the fibers of other threads and count on the GIL, as
 * others do.
 */
#include "python/run/cluster.h"

#include "python/cancel/cancel.h"
#include "python/cancel/scope.h"
#include "python/core/import.h"
#include "python/core/tstate.h"
#include "python/fiber/inspect.h"
#include "python/fiber/lent.h"
#include "python/fiber/lifecycle.h"
#include "python/fiber/owner.h"
#include "python/fiber/switch.h"
#include "python/fiber/task.h"

#define MOST_THREADS 256
#define SECOND_LOOK INT64_C(5000000) /* ns between two looks at who is stuck */
#define LOOK INT64_C(1000000000)

typedef struct PfMember {
    SchedulerObject *scheduler; /* owned; written once, before `count` grows */
    PF_ATOMIC(uint8_t) hungry, empty, stuck;
} PfMember;

typedef struct PfCluster {
    PF_ATOMIC(size_t) count;  /* members that are there */
    PF_ATOMIC(size_t) hungry; /* of these, without work */
    PF_ATOMIC(size_t) gifts, wakes;
    PF_ATOMIC(uint8_t) over;
    size_t looked; /* `wakes` when all were found stuck; the first's alone */
    bool found_stuck;
    PfMember members[MOST_THREADS];
} PfCluster;

static bool
is_first(const SchedulerObject *s)
{
    return s->member == &s->cluster->members[0];
}

/* ------------------------------------------------------------------- giving */

/* Done-callback of the double: `pair` is F; on G's thread. */
static void
double_done(SchedulerObject *s, PyObject *one, PyObject *twin)
{
    FiberObject *f = (FiberObject *)one, *g = (FiberObject *)twin;
    if (!pf_is_away(f)) {
        return; /* it was abandoned */
    }
    if (f->core.state == PF_READY) {
        pf_queue_remove(&s->core.ready, &f->core);
    }
    f->lent = false;
    f->core.state = PF_PARKED;
    Py_CLEAR(f->rare->other);
    PyObject *value = Py_NewRef(g->value == NULL ? Py_None : g->value);
    if (g->outcome != PF_OUTCOME_OK) {
        pf_restore_exception(value);
        value = NULL;
    }
    pf_fiber_end(s->thread, f, value);
}

static PyObject *
tell_one(PyObject *one, PyObject *twin)
{
    FiberObject *f = (FiberObject *)one;
    ((FiberObject *)twin)->looked_at = true;
    if (pf_call_owner(SCHEDULER_OF(f->core.scheduler), double_done, one,
                      twin) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef tell_method = {"tell_one", tell_one, METH_O, NULL};

/* May it run elsewhere?  It has not begun, and is no special one. */
static bool
may_be_given(const FiberObject *f)
{
    return pf_is_fresh(&f->core) && pf_kind_of(&f->core) == &pf_fiber_ops &&
           !f->daemon && !f->lent && !f->under_cancel && !f->permit &&
           !f->tracked && f->stack_size == 0 && f->rare == NULL &&
           f->scheduled;
}

/* A double that will run the function of `f`, which keeps it: NULL with an
 * exception. */
static FiberObject *
make_double(FiberObject *f)
{
    FiberObject *g = pf_fiber_alloc(f->thread);
    PyObject *name = pf_fiber_name(f), *target = Py_XNewRef(f->target);
    PyObject *tell = PyCFunction_New(&tell_method, (PyObject *)f);
    if (target == NULL) {
        target = PyObject_GetAttr((PyObject *)f, pf.s_run);
    }
    if (g == NULL || name == NULL || target == NULL || tell == NULL ||
        pf_task_add_callback(PF_TASK(g), tell) < 0 ||
        pf_rare_of(f) == NULL) {
        Py_XDECREF(target);
        Py_XDECREF(name);
        Py_CLEAR(g);
    } else {
        g->target = target;
        g->name = name;
        g->args = Py_XNewRef(f->args);
        g->kwargs = Py_XNewRef(f->kwargs);
        g->context = Py_XNewRef(f->context);
        g->lent = true;
    }
    Py_XDECREF(tell);
    return g;
}

/* It has been posted: the one is away. */
static void
mark_away(FiberObject *f, FiberObject *g)
{
    PyObject *target = f->target, *args = f->args, *kwargs = f->kwargs;
    PyObject *context = f->context;
    if (f->name == NULL) {
        f->name = Py_NewRef(g->name);
    }
    f->target = f->args = f->context = NULL;
    f->waiting_on = Py_NewRef((PyObject *)g);
    f->rare->other = (FiberObject *)Py_NewRef((PyObject *)g);
    f->lent = true;
    f->core.wake = PF_WAKE_NONE;
    f->core.state = PF_PARKED;
    Py_XDECREF(context);
    Py_XDECREF(kwargs);
    Py_XDECREF(args);
    Py_XDECREF(target);
}

static bool
give(SchedulerObject *s, FiberObject *f, SchedulerObject *to)
{
    FiberObject *g = make_double(f);
    if (g == NULL || !pf_is_fresh(&f->core)) { /* that may have run code */
        PyErr_Clear();
        Py_XDECREF(g);
        return false;
    }
    pf_fetch_add(&s->cluster->gifts, 1);
    if (pf_fiber_start_soon(to, g) < 0) {
        PyErr_Clear(); /* it is over there */
        Py_DECREF(g);
        return false;
    }
    pf_queue_remove(&s->core.ready, &f->core);
    mark_away(f, g);
    Py_DECREF(g);
    return true;
}

/* The oldest that may be given, but not the one that begins next; a new
 * reference, or NULL. */
static FiberObject *
choose(SchedulerObject *s)
{
    pf_task *task = s->core.ready.head;
    if (task != NULL && s->core.ready.count > 1 && s->core.ahead != 0) {
        task = task->next;
    }
    for (; task != NULL; task = task->next) {
        if (pf_is_fresh(task) &&
            may_be_given((FiberObject *)(void *)pf_object_of(task))) {
            return (FiberObject *)Py_NewRef((PyObject *)pf_object_of(task));
        }
    }
    return NULL;
}

/* Who says that it is hungry does not any more; NULL: nobody does. */
static PfMember *
take_hungry(SchedulerObject *s)
{
    PfCluster *c = s->cluster;
    size_t count = pf_load(&c->count);
    for (size_t i = 0; i < count; i++) {
        PfMember *m = &c->members[i];
        if (m != s->member && pf_take(&m->hungry) != 0) {
            pf_fetch_sub(&c->hungry, 1);
            return m;
        }
    }
    return NULL;
}

/* The scheduler polls: see pf_probe_fn. */
static void
share(pf_scheduler *core, void *data)
{
    (void)data;
    SchedulerObject *s = SCHEDULER_OF(core);
    PfCluster *c = s->cluster;
    if (c == NULL || pf_load_relaxed(&c->hungry) == 0 || s->ending ||
        core->ready.count < 2) {
        return;
    }
    FiberObject *f;
    PfMember *m = NULL;
    pf_no_switch_begin(s->thread, "while fibers are given away");
    size_t most = core->ready.count / 2;
    while (most-- > 0 && (f = choose(s)) != NULL) {
        if (m == NULL && (m = take_hungry(s)) == NULL) {
            most = 0;
        } else if (!give(s, f, m->scheduler)) {
            most = 0;
        }
        Py_DECREF(f);
    }
    pf_no_switch_end(s->thread);
}

static void
spawned(SchedulerObject *s)
{
    if (pf_load_relaxed(&s->cluster->hungry) != 0) {
        s->core.until_poll = 1;
    }
}

/* ------------------------------------------------------------- cancellation */

static void
cancel_double(SchedulerObject *s, PyObject *twin, PyObject *why)
{
    (void)s;
    pf_cancel_now((FiberObject *)twin, why);
}

static void
woken(FiberObject *f)
{
    f->core.state = PF_PARKED;
    f->core.wake = PF_WAKE_NONE;
    PyObject *source = pf_fiber_cancel_source(f), *why = NULL;
    if (source != NULL) {
        why = PyObject_TypeCheck(source, pf_scope_type)
                  ? ((ScopeObject *)source)->why
                  : pf_rare((FiberObject *)source)->cancel;
    }
    FiberObject *g = f->rare->other;
    if (pf_call_owner(SCHEDULER_OF(g->core.scheduler), cancel_double,
                      (PyObject *)g, why) < 0) {
        PyErr_WriteUnraisable((PyObject *)f);
    }
}

static bool
together(SchedulerObject *a, SchedulerObject *b)
{
    return a->cluster == b->cluster;
}

static const PfLentOps ops = {woken, together, spawned};

/* --------------------------------------------------------- the members' state */

static void
look_again(SchedulerObject *s, PyObject *target, PyObject *argument)
{
    (void)target;
    (void)argument;
    pf_wake_hub(s);
}

static bool
expects(SchedulerObject *s)
{
    return pf_scheduler_expects(&s->core) || pf_load(&s->coming) != 0;
}

/* Everybody but the first, whose own state it knows. */
static bool
all_stuck(PfCluster *c)
{
    size_t count = pf_load(&c->count);
    for (size_t i = 1; i < count; i++) {
        PfMember *m = &c->members[i];
        if (pf_load(&m->stuck) == 0 || expects(m->scheduler)) {
            return false;
        }
    }
    return true;
}

static int64_t
first_is_idle(SchedulerObject *s)
{
    PfCluster *c = s->cluster;
    size_t wakes = pf_load(&c->wakes);
    if (expects(s)) {
        c->found_stuck = false;
        return PF_NEVER;
    }
    if (!all_stuck(c)) {
        c->found_stuck = false;
        return LOOK;
    }
    if (c->found_stuck && c->looked == wakes) {
        c->found_stuck = false;
        return pf_wait_for_help(s);
    }
    c->found_stuck = true;
    c->looked = wakes;
    return SECOND_LOOK;
}

int64_t
pf_cluster_idle(SchedulerObject *s)
{
    PfMember *m = s->member;
    /* Not while a gift is on its way here. */
    if (!s->ending && pf_load(&m->hungry) == 0 && pf_load(&s->coming) == 0) {
        pf_fetch_add(&s->cluster->hungry, 1);
        pf_store(&m->hungry, 1);
    }
    if (is_first(s)) {
        return first_is_idle(s);
    }
    pf_store(&m->empty, pf_unfinished_foreground(s) <= 1); /* the keeper */
    pf_store(&m->stuck, !expects(s));
    if (pf_load(&m->empty) || pf_load(&m->stuck)) {
        (void)pf_call_owner(s->cluster->members[0].scheduler, look_again, NULL,
                            NULL);
        PyErr_Clear(); /* no memory: it looks by itself, later */
    }
    return PF_NEVER;
}

void
pf_cluster_awake(SchedulerObject *s)
{
    if (s->cluster == NULL) {
        return;
    }
    if (pf_take(&s->member->hungry) != 0) {
        pf_fetch_sub(&s->cluster->hungry, 1);
    }
    if (is_first(s)) {
        return;
    }
    pf_fetch_add(&s->cluster->wakes, 1);
    pf_store(&s->member->empty, 0);
    pf_store(&s->member->stuck, 0);
}

void
pf_cluster_left(SchedulerObject *s)
{
    if (s->cluster == NULL) {
        return;
    }
    pf_cluster_awake(s);
    if (!is_first(s)) {
        pf_store(&s->member->empty, 1);
        pf_store(&s->member->stuck, 1);
        PyObject *pending = pf_take_exception();
        (void)pf_call_owner(s->cluster->members[0].scheduler, look_again, NULL,
                            NULL);
        PyErr_Clear();
        if (pending != NULL) {
            pf_restore_exception(pending);
        }
    }
}

/* A gift between two members that both were seen empty has changed `gifts`. */
bool
pf_cluster_works(SchedulerObject *s)
{
    PfCluster *c = s->cluster;
    if (c == NULL || !is_first(s)) {
        return false;
    }
    size_t gifts = pf_load(&c->gifts), count = pf_load(&c->count);
    for (size_t i = 1; i < count; i++) {
        if (!pf_load(&c->members[i].empty)) {
            return true;
        }
    }
    return gifts != pf_load(&c->gifts);
}

void
pf_cluster_cancel(SchedulerObject *s)
{
    PfCluster *c = s->cluster;
    if (c == NULL || !is_first(s)) {
        return;
    }
    size_t count = pf_load(&c->count);
    for (size_t i = 1; i < count; i++) {
        PyObject *done = PyObject_CallMethod(
            (PyObject *)c->members[i].scheduler, "stop", NULL);
        if (done == NULL) {
            PyErr_WriteUnraisable((PyObject *)s);
        }
        Py_XDECREF(done);
    }
}

PyObject *
pf_cluster_fibers(SchedulerObject *s, PyObject *list)
{
    size_t count = s->cluster == NULL ? 0 : pf_load(&s->cluster->count);
    for (size_t i = 0; list != NULL && i < count; i++) {
        SchedulerObject *other = s->cluster->members[i].scheduler;
        PyObject *more = other == s ? NULL : pf_scheduler_fibers(other);
        Py_ssize_t end = PyList_GET_SIZE(list);
        if (other != s && (more == NULL ||
                           PyList_SetSlice(list, end, end, more) < 0)) {
            Py_CLEAR(list);
        }
        Py_XDECREF(more);
    }
    return list;
}

/* ----------------------------------------------------------- begin and end */

int
pf_cluster_threads(PyObject *value, Py_ssize_t *threads)
{
    if (!PyLong_Check(value) || PyBool_Check(value)) {
        PyErr_Format(PyExc_TypeError, "threads must be an int, not '%.200s'",
                     Py_TYPE(value)->tp_name);
        return -1;
    }
    *threads = PyLong_AsSsize_t(value);
    if ((*threads == -1 && PyErr_Occurred()) || *threads < 1 ||
        *threads > MOST_THREADS) {
        PyErr_Format(PyExc_ValueError, "threads must be from 1 to %d, not %R",
                     MOST_THREADS, value);
        return -1;
    }
    return 0;
}

static void
join(SchedulerObject *s, PfCluster *c)
{
    size_t place = pf_load(&c->count);
    c->members[place].scheduler = (SchedulerObject *)Py_NewRef((PyObject *)s);
    s->cluster = c;
    s->member = &c->members[place];
    s->core.probe = share;
    pf_store(&c->count, place + 1);
}

/* _join_cluster(first, own): own becomes a member; False: it is over. */
static PyObject *
mod_join(PyObject *module, PyObject *args)
{
    (void)module;
    SchedulerObject *first, *own;
    if (!PyArg_ParseTuple(args, "O!O!", pf_scheduler_type, &first,
                          pf_scheduler_type, &own)) {
        return NULL;
    }
    PfCluster *c = first->cluster;
    if (c == NULL || pf_load(&c->over)) {
        Py_RETURN_FALSE;
    }
    pf_store(&own->watched.limit, pf_load(&first->watched.limit));
    join(own, c);
    pf_store(&own->member->hungry, 1); /* what comes waits in its inbox */
    pf_fetch_add(&c->hungry, 1);
    Py_RETURN_TRUE;
}

static void
disband(PfCluster *c)
{
    size_t count = pf_load(&c->count);
    for (size_t i = 0; i < count; i++) {
        SchedulerObject *s = c->members[i].scheduler;
        s->core.probe = NULL;
        s->cluster = NULL;
        s->member = NULL;
        Py_DECREF(s);
    }
    PyMem_RawFree(c);
}

/* After the second Ctrl-C nobody waits for the members; what they use stays. */
PyObject *
pf_cluster_run(SchedulerObject *s, FiberObject *main, Py_ssize_t threads,
               int64_t watchdog)
{
    (void)watchdog;
    PfCluster *c = PyMem_RawCalloc(1, sizeof *c);
    if (c == NULL) {
        Py_DECREF(main);
        return PyErr_NoMemory();
    }
    join(s, c);
    PyObject *begin = pf_import_from("pyfiber._cluster", "begin");
    PyObject *how = s->on_unhandled == NULL ? pf.s_log : s->on_unhandled;
    PyObject *end = begin == NULL ? NULL
                                  : PyObject_CallFunction(begin, "OnO", s,
                                                          threads, how);
    Py_XDECREF(begin);
    PyObject *result = NULL;
    if (end == NULL) {
        Py_DECREF(main);
    } else {
        result = pf_run_main(s, main);
    }
    pf_store(&c->over, 1);
    PyObject *raised = result == NULL ? pf_take_exception() : NULL;
    pf_cluster_cancel(s);
    bool wait = s->interrupts < 2;
    PyObject *ended =
        end == NULL ? NULL : PyObject_CallFunction(end, "i", (int)wait);
    Py_XDECREF(end);
    if (wait) {
        disband(c);
    }
    if (ended == NULL && raised == NULL) {
        Py_CLEAR(result);
    } else if (raised != NULL) {
        PyErr_Clear();
        pf_restore_exception(raised);
    }
    Py_XDECREF(ended);
    return result;
}

static PyMethodDef functions[] = {
    {"_join_cluster", mod_join, METH_VARARGS,
     "_join_cluster(first, own, /)\n--\n\n"
     "A scheduler takes part in the run of another; False if that is over."},
    {NULL, NULL, 0, NULL},
};

int
pf_cluster_init(PyObject *module)
{
    pf_lent_ops = &ops;
    return PyModule_AddFunctions(module, functions);
}
