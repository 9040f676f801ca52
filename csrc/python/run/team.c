/* A run on several threads: run(main, threads=N).
 *
 * Each member has a scheduler with a private queue, which no other thread
 * touches (Acar, Chargueraud, Rainey, "Scheduling parallel programs by work
 * stealing with private deques", 2013).  A member that runs out of fibers sets
 * `hungry`.  Another member sees that where it polls anyway, and gives away
 * fibers that have not begun, the oldest first: an equal share to each hungry
 * member, and one share it keeps.  A fiber that is not given away stays in its
 * queue, so one that blocks its thread, instead of waiting, blocks those behind
 * it as well.  Equal shares also mean that with as many fibers as members no
 * member gets two while another has none.
 *
 * A fiber F that is given away is represented by a proxy G.  F stays on the
 * thread where it was spawned, parked and `migrated`.  G is made there, too,
 * posted to the receiver as by call_soon_threadsafe(), and runs the function of
 * F.  The end of G is posted back and ends F with the same outcome; a
 * cancellation of F is posted to G.
 *
 * The first member, on the thread that called run(), decides when the run ends.
 * The others publish in atomics that they are `empty` (no non-daemon fibers) or
 * `stuck` (nothing ready, nothing expected), and clear these before they run
 * anything.  The counters `gifts` and `wakes` show that something happened
 * between two looks at the members.
 *
 * How `hungry` changes:
 *   SATED -> HUNGRY     by the member, when it idles and no fiber is `coming`
 *   HUNGRY -> PROMISED  by a giver, which becomes the only one for this member
 *   PROMISED -> SATED   by that giver, after it has posted.  Until then the
 *                       member cannot become hungry again; afterwards the gift
 *                       is counted in `coming`, or has arrived
 *   PROMISED -> HUNGRY  by that giver, if it had nothing to give after all
 *   HUNGRY -> SATED     by the member, when it wakes for another reason
 *
 * Why no wake-up is lost, whatever the order of events:
 * - A member gets hungry just after a giver has looked: the giver polls again
 *   within 61 switches; or its queue is empty by then, and it idles itself.
 * - A gift is posted while the member goes to sleep: the loop checks the inbox
 *   once more after it has said that it sleeps (pf_scheduler_wait).
 * - A gift is posted after the first member has seen the receiver `empty`: F
 *   keeps its giver from being empty, and ends only after the receiver has
 *   woken and so has cleared `empty`.  If the first member sees the giver empty
 *   after that, `gifts` has changed since it looked at the receiver.
 * - A gift cannot be posted: F is still in the giver's queue.
 * - A child for a group of another thread is posted (cancel/group_remote.c): it
 *   counts in `coming` until that thread has cleared `empty`.
 *
 * The other threads are started when the first member has something to give
 * away for the first time.
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

/* Nanoseconds until the first member looks at the others again: after it has
 * found all of them stuck, and in other cases. */
#define SECOND_LOOK INT64_C(5000000)
#define LOOK INT64_C(1000000000)

/* ------------------------------------------------------------------- hunger */

void
pf_team_get_hungry(PfMember *m)
{
    pf_fetch_add(&m->scheduler->team->hungry, 1);
    pf_store(&m->hungry, HUNGRY);
}

/* Replaces HUNGRY by `now`.  Returns false if the member was not hungry, or
 * another thread was faster. */
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

/* `f` is about to end, so its proxy represents it no longer: it leaves the
 * ready queue, if a cancellation has put it there, and drops the proxy. */
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

/* The proxy has ended: end the fiber with the same outcome, on its thread. */
static void
proxy_done(SchedulerObject *s, PyObject *fiber, PyObject *proxy)
{
    FiberObject *f = (FiberObject *)fiber, *g = (FiberObject *)proxy;
    if (!pf_migrate_is_away(f)) {
        return; /* the run has abandoned the fiber meanwhile */
    }
    pf_team_come_back(s, f);
    PyObject *value = Py_NewRef(g->value == NULL ? Py_None : g->value);
    if (g->outcome != PF_OUTCOME_OK) {
        pystate_restore_exception(value);
        value = NULL;
    }
    pf_switch_end(s->thread, f, value);
}

/* Done-callback of the proxy, on its thread: posts the end to the fiber. */
static PyObject *
post_end(PyObject *fiber, PyObject *proxy)
{
    FiberObject *f = (FiberObject *)fiber;
    ((FiberObject *)proxy)->looked_at = true;
    if (pf_post_call(SCHEDULER_OF(f->core.scheduler), proxy_done, fiber,
                     proxy) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef post_end_method = {"post_end", post_end, METH_O, NULL};

/* Only one thread at a time may use a context.  So without a GIL a fiber whose
 * context is shared has to stay. */
static bool
has_own_context(const FiberObject *f)
{
    return !PF_FREE_THREADED || f->context == NULL ||
           Py_REFCNT(f->context) == 1;
}

/* May another member run it?  Only a fiber that has not begun and about which
 * nothing is special. */
static bool
may_be_given(const FiberObject *f)
{
    return has_own_context(f) && pf_task_is_fresh(&f->core) &&
           pf_task_kind(&f->core) == &pf_fiber_ops && !f->daemon &&
           !f->migrated && !f->under_cancel && !f->permit && !f->tracked &&
           f->stack_size == 0 && f->rare == NULL && f->scheduled;
}

/* Makes the proxy of `f`: a new fiber that will run the same function.  `f`
 * stays as it is, so that it can run here if the proxy cannot be posted.  A
 * new reference, or NULL with an exception. */
static FiberObject *
make_proxy(FiberObject *f)
{
    FiberObject *g = pf_fiber_alloc(f->thread);
    PyObject *name = pf_name_of(f), *target = Py_XNewRef(f->target);
    PyObject *on_end = PyCFunction_New(&post_end_method, (PyObject *)f);
    if (target == NULL) {
        target = PyObject_GetAttr((PyObject *)f, pf.s_run);
    }
    if (g == NULL || name == NULL || target == NULL || on_end == NULL ||
        pf_task_add_callback(PF_TASK(g), on_end) < 0 ||
        pf_fiber_rare_of(f) == NULL) {
        Py_XDECREF(target);
        Py_XDECREF(name);
        Py_CLEAR(g);
    } else {
        pf_fiber_show_args(f); /* both fibers refer to the tuple now */
        g->target = target;
        g->name = name;
        g->args = Py_XNewRef(f->args);
        g->kwargs = Py_XNewRef(f->kwargs);
        g->context = Py_XNewRef(f->context);
        g->migrated = true;
    }
    Py_XDECREF(on_end);
    return g;
}

/* The proxy has been posted: `f` parks, `migrated`, and gives up what the
 * proxy runs. */
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

/* Posts `g` to the member, which is PROMISED to this thread.  Returns false,
 * without an exception, if that fails. */
static bool
post_to_hungry(PfMember *m, FiberObject *g)
{
    pf_fetch_add(&m->scheduler->team->gifts, 1);
    int rc = pf_run_start_soon(m->scheduler, g);
    if (rc < 0) {
        PyErr_Clear(); /* the member's scheduler is closed, or no memory */
    }
    return rc == 0;
}

/* A function that is given twice in a row probably runs on several threads at
 * once: then references to it are no longer counted, where the interpreter
 * allows that (pystate_share_function). */
static void
share_function(SchedulerObject *s, FiberObject *g)
{
    if (g != NULL && s->member->given == g->target) {
        pystate_share_function(g->target);
    } else if (g != NULL) {
        s->member->given = g->target;
    }
}

/* Gives `f` to the member.  Returns false, without an exception, if it stays
 * here. */
static bool
give(SchedulerObject *s, FiberObject *f, PfMember *m)
{
    FiberObject *g = make_proxy(f);
    share_function(s, g);
    /* Making the proxy may have run code that has begun `f`. */
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

/* How many fibers of the queue are looked at.  The limit keeps this short if
 * many have begun, which are never given away. */
#define LOOK_AT 64

/* Returns the oldest fiber that may be given away, except the next one if that
 * was put in front of the queue; a new reference, or NULL.  Adds to *count,
 * unless it is NULL, how many such fibers there are. */
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

/* Finds another member that is hungry, and promises it a gift; or NULL. */
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

/* Gives up to `most` fibers to the member; false if there were fewer. */
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
        /* Undo the promise.  If the member has woken meanwhile, it may get a
         * gift although it has work. */
        pf_team_get_hungry(m);
    }
    return more;
}

/* How many of `fresh` fibers each hungry member gets.  This member keeps a
 * share, too; a single fresh fiber it gives away if other ready fibers keep it
 * busy. */
static size_t
share_of_each(SchedulerObject *s, size_t fresh, size_t hungry)
{
    size_t share = fresh / (hungry + 1);
    return share == 0 && fresh > 0 && s->core.ready.count > 1 ? 1 : share;
}

/* Would another member take work?  Also true before the other threads have
 * been started; then only the first member asks. */
static bool
wanted(const PfTeam *c)
{
    return pf_load_relaxed(&c->hungry) != 0 || !c->begun;
}

/* The scheduler's `probe` (pf_probe_fn): gives fibers away when it polls. */
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

/* PfMigrateOps.spawned: has the loop poll, and so share, at the next switch if
 * another member wants work. */
static void
spawned(SchedulerObject *s)
{
    if (wanted(s->team)) {
        s->core.until_poll = 1;
    }
}

/* ------------------------------------------------------------- cancellation */

static void
cancel_proxy(SchedulerObject *s, PyObject *proxy, PyObject *why)
{
    (void)s;
    pf_cancel_now((FiberObject *)proxy, why);
}

/* PfMigrateOps.woken: a fiber that is away was cancelled.  Park it again, and
 * cancel the proxy for the same reason. */
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

/* -------------------------------------------------------- the members' state */

/* On the first member's thread: its loop looks at the members again. */
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

/* Are all members but the first, which is the caller, stuck? */
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

/* pf_team_idle for the first member.  All members are stuck only if two looks
 * find them so and no member has woken in between (`wakes`). */
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
    /* While a fiber is coming, this member will have work. */
    if (!s->ending && pf_load(&m->hungry) == SATED &&
        pf_load(&s->coming) == 0) {
        pf_team_get_hungry(m);
    }
    if (pf_team_is_first(s)) {
        return first_is_idle(s);
    }
    /* The main fiber of this member, which only keeps its run going, does not
     * count. */
    pf_store(&m->empty, pf_scheduler_foreground(s) <= 1);
    pf_store(&m->stuck, !expects(s));
    /* If nothing has run since it answered the first member, which knows this
     * then, it does not wake that again. */
    bool known = m->said_stuck == s->core.switches + 1;
    m->said_stuck = 0;
    if (!known && (pf_load(&m->empty) || pf_load(&m->stuck))) {
        (void)pf_post_call(s->team->members[0].scheduler, look_again, NULL,
                           NULL);
        PyErr_Clear(); /* no memory: the first member looks by itself, later */
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

/* Looks at one member after the other.  If a fiber was given meanwhile from
 * one not yet looked at to one already seen empty, `gifts` has changed. */
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
