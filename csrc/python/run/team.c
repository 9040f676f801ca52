/* A run on several threads: run(main, threads=N).
 *
 * Each member has a scheduler with a queue of its own, which no other thread
 * touches (Acar, Chargueraud, Rainey, "Scheduling parallel programs by work
 * stealing with private deques", 2013).  A member that runs out of fibers says
 * so (`hungry`); another one sees that where it polls anyway, and gives away
 * fibers that have not begun, the oldest first: an equal share to each that is
 * hungry, and keeps one for itself.  What is in a queue stays there: a fiber
 * that blocks its thread, instead of waiting, blocks those behind it as well.
 * So with as many fibers as members none gets two while another has none.
 *
 * What is given is represented by a proxy: the fiber F stays where it was
 * spawned, parked and `migrated`; G, made here and posted by call_soon's way, runs
 * its function.  G's end is posted back and ends F with the same outcome; a
 * cancellation of F is posted to G.
 *
 * The first member, on the thread that called run(), decides the end: others
 * publish by atomics that they are `empty` (no non-daemon fibers) or `stuck`
 * (nothing ready, nothing expected), which they take back before they run
 * anything.  `gifts` and `wakes` tell that something happened between two
 * looks.
 *
 * How `hungry` changes, and why no word is lost:
 *   0 -> 1  by the member, when it idles and no gift is `coming` here
 *   1 -> 2  by a giver, which thereby is the only one
 *   2 -> 0  by that giver, when it has posted: until then the member cannot
 *           ask again, and afterwards what comes is counted in `coming`, or
 *           has arrived
 *   2 -> 1  by that giver, when it has nothing to give after all
 *   1 -> 0  by the member, when it wakes for another reason
 * - The member says 1 just after a giver has looked: that polls again within 61
 *   switches, or its queue is empty then, and it idles itself.
 * - The gift is posted while the member goes to sleep: the inbox has its own
 *   second look (pf_scheduler_wait).
 * - The gift is posted after the first has seen `empty`: F, which keeps its
 *   giver from being empty, ends only after the receiver has woken, and so has
 *   taken `empty` back; what was seen before is told by `gifts`.
 * - It could not be posted: F is still in its queue.
 *
 * - A child for a group of another thread comes (cancel/group_remote.c): it is
 *   counted in `coming` until that thread has taken `empty` back.
 *
 * The others are started when there is something to give for the first time.
 */
#include "python/fiber/fiber_type.h"
#include "python/run/members.h"

#include "python/cancel/cancel.h"
#include "python/cancel/scope.h"
#include "python/core/import.h"
#include "python/core/objlock.h"
#include "python/core/state.h"
#include "python/core/tstate.h"
#include "python/look/inspect.h"
#include "python/switch/switch.h"
#include "python/task/life.h"
#include "python/task/migrate.h"
#include "python/task/name.h"
#include "python/task/post.h"
#include "python/task/task.h"
#include "python/wait/wait.h"

#define SECOND_LOOK INT64_C(5000000) /* ns between two looks at who is stuck */
#define LOOK INT64_C(1000000000)

/* ------------------------------------------------------------------- hunger */

void
pf_team_get_hungry(PfMember *m)
{
    pf_fetch_add(&m->scheduler->team->hungry, 1);
    pf_store(&m->hungry, HUNGRY);
}

/* False: it was not, or somebody else was faster. */
static bool
no_longer_hungry(PfMember *m, uint8_t now)
{
    uint8_t expected = HUNGRY;
    while (expected == HUNGRY) {
        if (pf_cas_weak(&m->hungry, &expected, now)) {
            pf_fetch_sub(&m->scheduler->team->hungry, 1);
            return true;
        }
    }
    return false;
}

/* ------------------------------------------------------------------- giving */

/* It is away no more, and about to end. */
void
pf_team_come_back(SchedulerObject *s, FiberObject *f)
{
    if (f->core.state == PF_READY) {
        pf_queue_remove(&s->core.ready, &f->core);
    }
    f->migrated = false;
    f->core.state = PF_PARKED;
    Py_CLEAR(f->rare->other);
}

/* The double has ended: so does the one, on its own thread. */
static void
proxy_done(SchedulerObject *s, PyObject *one, PyObject *twin)
{
    FiberObject *f = (FiberObject *)one, *g = (FiberObject *)twin;
    if (!pf_migrate_is_away(f)) {
        return; /* it was abandoned */
    }
    pf_team_come_back(s, f);
    PyObject *value = Py_NewRef(g->value == NULL ? Py_None : g->value);
    if (g->outcome != PF_OUTCOME_OK) {
        pystate_restore_exception(value);
        value = NULL;
    }
    pf_switch_end(s->thread, f, value);
}

/* Done-callback of the proxy, on its thread. */
static PyObject *
tell_one(PyObject *one, PyObject *twin)
{
    FiberObject *f = (FiberObject *)one;
    ((FiberObject *)twin)->looked_at = true;
    if (pf_post_call(SCHEDULER_OF(f->core.scheduler), proxy_done, one, twin) <
        0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef tell_method = {"tell_one", tell_one, METH_O, NULL};

/* A context that others have as well may be used by one thread at a time. */
static bool
has_own_context(const FiberObject *f)
{
    return !PF_FREE_THREADED || f->context == NULL ||
           Py_REFCNT(f->context) == 1;
}

/* May it run elsewhere?  It has not begun, and is no special one. */
static bool
may_be_given(const FiberObject *f)
{
    return has_own_context(f) && pf_task_is_fresh(&f->core) &&
           pf_task_kind(&f->core) == &pf_fiber_ops && !f->daemon &&
           !f->migrated && !f->under_cancel && !f->permit && !f->tracked &&
           f->stack_size == 0 && f->rare == NULL && f->scheduled;
}

/* A double that will run the function of `f`, which keeps it: NULL with an
 * exception. */
static FiberObject *
make_proxy(FiberObject *f)
{
    FiberObject *g = pf_fiber_alloc(f->thread);
    PyObject *name = pf_name_of(f), *target = Py_XNewRef(f->target);
    PyObject *tell = PyCFunction_New(&tell_method, (PyObject *)f);
    if (target == NULL) {
        target = PyObject_GetAttr((PyObject *)f, pf.s_run);
    }
    if (g == NULL || name == NULL || target == NULL || tell == NULL ||
        pf_task_add_callback(PF_TASK(g), tell) < 0 ||
        pf_fiber_rare_of(f) == NULL) {
        Py_XDECREF(target);
        Py_XDECREF(name);
        Py_CLEAR(g);
    } else {
        pf_fiber_show_args(f); /* both have them */
        g->target = target;
        g->name = name;
        g->args = Py_XNewRef(f->args);
        g->kwargs = Py_XNewRef(f->kwargs);
        g->context = Py_XNewRef(f->context);
        g->migrated = true;
    }
    Py_XDECREF(tell);
    return g;
}

/* It has been posted: the one is away. */
static void
mark_away(FiberObject *f, FiberObject *g)
{
    pf_fiber_own_target(f);
    PyObject *target = f->target, *args = f->args, *kwargs = f->kwargs;
    PyObject *context = f->context;
    if (f->name == NULL) {
        f->name = Py_NewRef(g->name);
    }
    f->target = f->args = f->context = NULL;
    f->waiting_on = Py_NewRef((PyObject *)g);
    f->rare->other = (FiberObject *)Py_NewRef((PyObject *)g);
    f->migrated = true;
    f->core.wake = PF_WAKE_NONE;
    f->core.state = PF_PARKED;
    Py_XDECREF(context);
    Py_XDECREF(kwargs);
    Py_XDECREF(args);
    Py_XDECREF(target);
}

/* The post of `g` to the member, whom nobody else gives anything meanwhile. */
static bool
post_to_hungry(PfMember *m, FiberObject *g)
{
    pf_fetch_add(&m->scheduler->team->gifts, 1);
    int rc = pf_run_start_soon(m->scheduler, g);
    if (rc < 0) {
        PyErr_Clear(); /* it is over there */
    }
    return rc == 0;
}

/* A function that is given again and again is run here and there at once. */
static void
share_function(SchedulerObject *s, FiberObject *g)
{
    if (g != NULL && s->member->given == g->target) {
        pystate_share_function(g->target);
    } else if (g != NULL) {
        s->member->given = g->target;
    }
}

static bool
give(SchedulerObject *s, FiberObject *f, PfMember *m)
{
    FiberObject *g = make_proxy(f);
    share_function(s, g);
    /* To make it may have run code. */
    if (g == NULL || !pf_task_is_fresh(&f->core) || !post_to_hungry(m, g)) {
        PyErr_Clear();
        Py_XDECREF(g);
        return false;
    }
    pf_queue_remove(&s->core.ready, &f->core);
    mark_away(f, g);
    Py_DECREF(g);
    return true;
}

/* Fibers of the queue that are looked at: those that have begun could be many,
 * and stay. */
#define LOOK_AT 64

/* The oldest that may be given, but not the one that begins next, as a new
 * reference, or NULL; and how many there are (`count` may be NULL). */
static FiberObject *
choose(SchedulerObject *s, size_t *count)
{
    pf_task *task = s->core.ready.head;
    FiberObject *oldest = NULL;
    if (task != NULL && s->core.ready.count > 1 && s->core.ahead != 0) {
        task = task->next;
    }
    for (int i = 0; i < LOOK_AT && task != NULL; i++, task = task->next) {
        if (!pf_task_is_fresh(task)) {
            continue;
        }
        FiberObject *f = (FiberObject *)(void *)pf_task_object(task);
        if (!may_be_given(f)) {
            continue;
        }
        if (oldest == NULL) {
            oldest = (FiberObject *)Py_NewRef((PyObject *)f);
        }
        if (count == NULL) {
            break;
        }
        ++*count;
    }
    return oldest;
}

/* Another member that is hungry, to whom a gift is promised now, or NULL. */
static PfMember *
take_hungry(SchedulerObject *s)
{
    size_t count = pf_load(&s->team->count);
    for (size_t i = 0; i < count; i++) {
        PfMember *m = &s->team->members[i];
        if (m != s->member && no_longer_hungry(m, PROMISED)) {
            return m;
        }
    }
    return NULL;
}

/* Up to so many fibers; false: there were fewer. */
static bool
give_share(SchedulerObject *s, PfMember *m, size_t most)
{
    size_t given = 0;
    bool more = true;
    while (more && given < most) {
        FiberObject *f = choose(s, NULL);
        more = f != NULL && give(s, f, m);
        given += more;
        Py_XDECREF(f);
    }
    if (given > 0) {
        pf_store(&m->hungry, SATED);
    } else {
        pf_team_get_hungry(
            m); /* as it was; who has woken meanwhile gets a gift early */
    }
    return more;
}

/* One is kept, unless others that are ready keep this thread busy. */
static size_t
share_of_each(SchedulerObject *s, size_t fresh, size_t hungry)
{
    size_t share = fresh / (hungry + 1);
    return share == 0 && fresh > 0 && s->core.ready.count > 1 ? 1 : share;
}

/* Would somebody take work?  Before the others are there (only the first asks
 * then), they would. */
static bool
wanted(const PfTeam *c)
{
    return pf_load_relaxed(&c->hungry) != 0 || !c->begun;
}

/* The scheduler polls: see pf_probe_fn. */
static void
share(pf_scheduler *core, void *data)
{
    (void)data;
    SchedulerObject *s = SCHEDULER_OF(core);
    PfTeam *c = s->team;
    size_t fresh = 0;
    if (c == NULL || !wanted(c) || s->ending || core->ready.count < 2) {
        return;
    }
    FiberObject *oldest = choose(s, &fresh);
    if (oldest == NULL) {
        return;
    }
    pf_thread_no_switch_begin(s->thread, "while fibers are given away");
    Py_DECREF(oldest);
    if (!c->begun && pf_team_is_first(s)) {
        pf_team_begin(s);
    }
    size_t most = share_of_each(s, fresh, pf_load_relaxed(&c->hungry));
    PfMember *m;
    while (most > 0 && (m = take_hungry(s)) != NULL) {
        most = give_share(s, m, most) ? most : 0;
    }
    pf_thread_no_switch_end(s->thread);
}

static void
spawned(SchedulerObject *s)
{
    if (wanted(s->team)) {
        s->core.until_poll = 1;
    }
}

/* ------------------------------------------------------------- cancellation */

static void
cancel_proxy(SchedulerObject *s, PyObject *twin, PyObject *why)
{
    (void)s;
    pf_cancel_now((FiberObject *)twin, why);
}

static void
woken(FiberObject *f)
{
    f->core.state = PF_PARKED;
    f->core.wake = PF_WAKE_NONE;
    PyObject *source = pf_scope_source_of(f), *why = NULL;
    if (source != NULL) {
        why = PyObject_TypeCheck(source, pf_scope_type)
                  ? ((ScopeObject *)source)->why
                  : pf_fiber_rare((FiberObject *)source)->cancel;
    }
    FiberObject *g = f->rare->other;
    if (pf_post_call(SCHEDULER_OF(g->core.scheduler), cancel_proxy,
                     (PyObject *)g, why) < 0) {
        PyErr_WriteUnraisable((PyObject *)f);
    }
}

static bool
together(SchedulerObject *a, SchedulerObject *b)
{
    return a->team == b->team;
}

static const PfMigrateOps ops = {woken, together, spawned, pf_team_awake};

/* --------------------------------------------------------- the members' state */

static void
look_again(SchedulerObject *s, PyObject *target, PyObject *argument)
{
    (void)target;
    (void)argument;
    pf_scheduler_wake_hub(s);
}

static bool
expects(SchedulerObject *s)
{
    return pf_scheduler_expects(&s->core) || pf_load(&s->coming) != 0;
}

/* Everybody but the first, whose own state it knows. */
static bool
all_stuck(PfTeam *c)
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
    PfTeam *c = s->team;
    size_t wakes = pf_load(&c->wakes);
    if (expects(s)) {
        c->found_stuck = false;
        return PF_NEVER;
    }
    if (!all_stuck(c)) {
        c->found_stuck = false;
        return LOOK;
    }
    if (c->found_stuck && c->looked == wakes && wakes == pf_load(&c->wakes) &&
        !expects(s)) {
        c->found_stuck = false;
        return pf_team_confirm(s) ? pf_run_wait_for_help(s) : LOOK;
    }
    c->found_stuck = true;
    c->looked = wakes;
    return SECOND_LOOK;
}

int64_t
pf_team_idle(SchedulerObject *s)
{
    PfMember *m = s->member;
    /* Not while a gift is on its way here. */
    if (!s->ending && pf_load(&m->hungry) == SATED &&
        pf_load(&s->coming) == 0) {
        pf_team_get_hungry(m);
    }
    if (pf_team_is_first(s)) {
        return first_is_idle(s);
    }
    pf_store(&m->empty, pf_scheduler_foreground(s) <= 1); /* the keeper */
    pf_store(&m->stuck, !expects(s));
    /* The first has just heard it. */
    bool known = m->said_stuck == s->core.switches + 1;
    m->said_stuck = 0;
    if (!known && (pf_load(&m->empty) || pf_load(&m->stuck))) {
        (void)pf_post_call(s->team->members[0].scheduler, look_again, NULL,
                           NULL);
        PyErr_Clear(); /* no memory: it looks by itself, later */
    }
    return PF_NEVER;
}

void
pf_team_awake(SchedulerObject *s)
{
    if (s->team == NULL) {
        return;
    }
    (void)no_longer_hungry(s->member, SATED);
    if (pf_team_is_first(s)) {
        return;
    }
    pf_fetch_add(&s->team->wakes, 1);
    pf_store(&s->member->empty, 0);
    pf_store(&s->member->stuck, 0);
}

void
pf_team_left(SchedulerObject *s)
{
    if (s->team == NULL) {
        return;
    }
    pf_team_awake(s);
    if (!pf_team_is_first(s)) {
        pf_store(&s->member->empty, 1);
        pf_store(&s->member->stuck, 1);
        PyObject *pending = pystate_take_exception();
        (void)pf_post_call(s->team->members[0].scheduler, look_again, NULL,
                           NULL);
        PyErr_Clear();
        pystate_restore_exception(pending);
    }
}

/* A gift between two members that both were seen empty has changed `gifts`. */
bool
pf_team_works(SchedulerObject *s)
{
    PfTeam *c = s->team;
    if (c == NULL || !pf_team_is_first(s)) {
        return false;
    }
    size_t gifts = pf_load(&c->gifts), count = pf_load(&c->count);
    for (size_t i = 1; i < count; i++) {
        if (!pf_load(&c->members[i].empty) ||
            pf_load(&c->members[i].scheduler->coming) != 0) {
            return true;
        }
    }
    return gifts != pf_load(&c->gifts) || pf_load(&s->coming) != 0;
}

void
pf_team_cancel(SchedulerObject *s)
{
    PfTeam *c = s->team;
    if (c == NULL || !pf_team_is_first(s)) {
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

void
pf_team_join(SchedulerObject *s, PfTeam *c)
{
    pf_mutex_lock(&c->joining);
    size_t place = pf_load(&c->count);
    c->members[place].scheduler = (SchedulerObject *)Py_NewRef((PyObject *)s);
    s->team = c;
    s->member = &c->members[place];
    s->core.probe = share;
    pf_store(&c->count, place + 1);
    pf_mutex_unlock(&c->joining);
}

const PfPart pf_team_part = {
    .hooks = {.migrate = &ops},
};
