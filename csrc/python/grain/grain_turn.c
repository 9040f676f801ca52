/* Gives turns to a scheduler's runners, and asks the grains' predicates, in
 * the turns of the asker: see grain.h.
 */
#include "python/core/facade.h"
#include "python/fiber/fiber_type.h"
#include "python/grain/grain.h"
#include "python/switch/home.h"

/* --------------------------------------------------------------- the runners */

static const PfTaskOps asker_ops;

int
pf_grains_begin(SchedulerObject *s)
{
    PfGrains *grains = pf_grains_at(s);
    if (grains->asker != NULL) {
        return 0;
    }
    PyObject *pools = PyList_New(0);
    GrainPoolObject *asker =
        (GrainPoolObject *)PyObject_CallNoArgs((PyObject *)pf_grain_pool_type);
    bool made = pools != NULL && asker != NULL;
    if (!made || grains->asker != NULL) { /* made by code the collector ran */
        Py_XDECREF(pools);
        Py_XDECREF(asker);
        return made ? 0 : -1;
    }
    asker->turn.state = PF_PARKED;
    pf_task_set_kind(&asker->turn, &asker_ops);
    asker->turn.scheduler = &s->core;
    grains->pools = pools;
    grains->asker = asker;
    s->pokes = true;
    return 0;
}

/* Makes a runner: a fiber of the scheduler that does not belong to the run, so
 * nothing waits for it or counts it. */
static FiberObject *
new_runner(SchedulerObject *s)
{
    FiberObject *fiber = pf_fiber_new(pf_grain.runner_main, NULL, 0, NULL);
    if (fiber == NULL || pf_switch_give_stack_fresh(s->thread, fiber) < 0) {
        Py_XDECREF(fiber);
        return NULL;
    }
    pf_task_set_kind(&fiber->core, &pf_grain_runner_ops);
    fiber->scheduled = true;
    fiber->daemon = true;
    fiber->core.scheduler = &s->core;
    fiber->core.state = PF_PARKED;
    Py_INCREF(s);
    return fiber;
}

/* There is no memory for a stack: the run ends with that error. */
void
pf_grain_turn_failed(SchedulerObject *s, pf_task *task)
{
    task->state = PF_PARKED;
    pf_scheduler_fail(s, pystate_take_exception());
    pf_scheduler_wake_hub(s);
}

/* Makes a runner for the turn of `core`.  Returns NULL if another entry is to
 * run next: there is no memory, or code that ran meanwhile has ended that
 * turn. */
static FiberObject *
runner_for(SchedulerObject *s, pf_task *core)
{
    PyObject *task = Py_NewRef((PyObject *)pf_task_object(core));
    pf_thread_no_switch_begin(s->thread, "inside the scheduler");
    FiberObject *runner = new_runner(s);
    if (core->state != PF_READY || core->scheduler != &s->core) {
        PyErr_Clear();
        pf_grains_at(s)->runner = runner;
        runner = NULL;
    } else if (runner == NULL) {
        pf_task_kind(core)->no_turn(s, core);
    }
    Py_DECREF(task);
    pf_thread_no_switch_end(s->thread);
    return runner;
}

/* Hands the turn to the runner, which is no longer parked then, like every
 * task that leaves the ready queue.  Where the runner continues, code may run
 * before the turn, because an object dies; a cancellation by that code must
 * not wake the runner. */
static pf_fiber *
give_turn(SchedulerObject *s, FiberObject *runner, pf_task *core)
{
    runner->core.state = PF_READY;
    pf_grains_at(s)->runner = NULL;
    pf_grains_at(s)->turn = core;
    return pf_home_sure_way_to(s->thread, runner);
}

/* Not inline, so that the common case saves no registers. */
static PF_NEVER_INLINE pf_fiber *
first_with_new_runner(SchedulerObject *s, pf_task *core)
{
    FiberObject *runner = runner_for(s, core);
    return runner == NULL ? NULL : give_turn(s, runner, core);
}

/* Gives its turn to an entry without a stack.  Returns the fiber to switch to:
 * the idle runner, which may be the caller, or a new one.  NULL: take the next
 * entry. */
pf_fiber *
pf_grains_first(pf_scheduler *scheduler, pf_task *core)
{
    SchedulerObject *s = SCHEDULER_OF(scheduler);
    FiberObject *runner = pf_grains_at(s)->runner;
    return PF_LIKELY(runner != NULL && runner->core.state == PF_PARKED)
               ? give_turn(s, runner, core)
               : first_with_new_runner(s, core);
}

GrainObject *
pf_grain_current(PfThread *t)
{
    FiberObject *self = CURRENT(t);
    bool stepping = pf_grain_is_runner(self) && self->args != NULL;
    return stepping ? (GrainObject *)self->args : NULL;
}

/* ------------------------------------------------------------------ predicates */

/* Returns a number that changes whenever a predicate's result may have
 * changed. */
static uint64_t
activity(SchedulerObject *s)
{
    pf_scheduler *c = &s->core;
    return c->switches + c->messages + c->timeouts + c->waits;
}

static bool
asker_sleeps(const PfGrains *grains)
{
    return grains->sleepers.head != NULL &&
           grains->asker->turn.state == PF_PARKED;
}

/* Something is about to run: the predicates will be asked afterwards. */
void
pf_grains_poke(SchedulerObject *s)
{
    if (asker_sleeps(pf_grains_at(s))) {
        pf_scheduler_make_ready(&s->core, &pf_grains_at(s)->asker->turn);
    }
}

/* Called when the loop has nothing to run.  Returns true if the predicates
 * must be asked first. */
bool
pf_grains_ask_again(SchedulerObject *s)
{
    if (!asker_sleeps(pf_grains_at(s)) ||
        pf_grains_at(s)->asked_at == activity(s)) {
        return false;
    }
    pf_scheduler_make_ready(&s->core, &pf_grains_at(s)->asker->turn);
    return true;
}

/* Calls the predicate in the grain's context.  The grain may run meanwhile, if
 * the predicate lets others run. */
static PyObject *
answer_of(PfThread *t, GrainObject *g, PyObject *predicate)
{
    FiberObject *self = CURRENT(t);
    PyObject *context = Py_XNewRef(g->context);
    self->args = Py_NewRef((PyObject *)g);
    pystate_swap_context(t->tstate, &context);
    PyObject *answer = PyObject_CallNoArgs(predicate);
    pystate_swap_context(t->tstate, &context);
    if (g->context == NULL) { /* the predicate may have set one */
        g->context = Py_XNewRef(context);
    }
    Py_XDECREF(context);
    Py_CLEAR(self->args);
    return answer;
}

/* Returns 1 if the grain continues, 0 if it goes on sleeping, and -1 with an
 * exception. */
static int
says_yes(PyObject *answer)
{
    if (answer == pf_facade.sleeping) {
        return 0;
    }
    return answer == pf_facade.ready || answer == pf_facade.stopped
               ? 1
               : PyObject_IsTrue(answer);
}

static void
ask(PfThread *t, GrainObject *g)
{
    PyObject *predicate = Py_NewRef(g->yielded);
    PyObject *answer = answer_of(t, g, predicate);
    int yes = answer == NULL ? -1 : says_yes(answer);
    if (yes < 0) {
        Py_XSETREF(answer, pystate_take_exception());
    } else if (answer == pf_facade.ready) {
        Py_SETREF(answer, Py_NewRef(Py_None));
    }
    /* The grain may no longer wait, because it was cancelled meanwhile, or may
     * wait for something else. */
    bool waits = g->core.state == PF_PARKED &&
                 g->waits_for == PF_WAIT_ANSWER && g->yielded == predicate;
    if (yes != 0 && waits) {
        g->value = Py_NewRef(answer);
        g->throws |= yes < 0;
        pf_scheduler_wake(g->core.scheduler, &g->core, PF_WAKE_NORMAL);
    }
    Py_DECREF(answer);
    Py_DECREF(predicate);
}

/* Asks each grain in the queue once.  Grains that begin to wait meanwhile
 * queue behind and are not asked. */
static void
ask_each(PfThread *t, PfGrains *grains)
{
    for (size_t n = grains->asking; n > 0 && grains->sleepers.head != NULL;
         n--) {
        PfNode *node = grains->sleepers.head;
        GrainObject *g = pf_grain_of(&node->waiter->task->core);
        pf_waitq_remove(node);
        if (g->core.state != PF_PARKED) { /* woken, has not run yet */
            grains->asking--;
            continue;
        }
        pf_waitq_push(&grains->sleepers, node);
        Py_INCREF(g);
        ask(t, g);
        Py_DECREF(g);
    }
}

/* The asker's turn: asks if anything but the asker itself has run since.  Then
 * it queues behind the others, or sleeps until the loop wakes it. */
static void
askers_turn(PfThread *t, pf_task *task)
{
    SchedulerObject *s = SCHEDULER_OF(task->scheduler);
    PfGrains *grains = pf_grains_at(s);
    bool something_ran = activity(s) - grains->asked_at > 1;
    grains->asker->turn.state = PF_RUNNING;
    if (something_ran) {
        ask_each(t, grains);
    }
    grains->asked_at = activity(s);
    if (something_ran && grains->sleepers.head != NULL) {
        pf_scheduler_make_ready(&s->core, &grains->asker->turn);
    } else {
        grains->asker->turn.state = PF_PARKED;
    }
}

/* No `posted`: no other thread posts to the asker. */
static const PfTaskOps asker_ops = {
    .core = {.first = pf_grains_first},
    .turn = askers_turn,
    .no_turn = pf_grain_turn_failed,
};

/* ------------------------------------------------ what kind of task a runner is */

const PfTaskOps pf_grain_runner_ops = {
    .core = PF_FIBER_CORE_OPS(pf_switch_run, pf_switch_reap),
    .serves = true,
    PF_FIBER_OPS,
};
