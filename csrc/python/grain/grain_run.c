/* The life of a runner fiber, and what the loop asks of a scheduler's grains:
 * see grain.h.
 */
#include "python/grain/grain.h"
#include "python/grain/loop.h"
#include "python/switch/pending.h"
#include "python/switch/switch.h"

/* -------------------------------------------------------- the life of a runner */

static bool
is_idle_runner(FiberObject *fiber)
{
    return pf_grain_is_runner(fiber) &&
           pf_grains_at(SCHEDULER_OF(fiber->core.scheduler))->runner == fiber;
}

/* Has the runner been cancelled within a step, got a permit there, or is it
 * dying?  Then it ends, and does not pass that on to the next grain. */
static inline bool
is_spent(const FiberObject *runner)
{
    return runner->under_cancel || runner->permit || runner->dying;
}

/* Switches to the next fiber.  Returns true when there is another turn to
 * take. */
static bool
next_turn(PfThread *t, SchedulerObject *s, FiberObject *self)
{
    PfGrains *grains = pf_grains_at(s);
    if (PF_UNLIKELY(t->pending != 0) && !is_spent(self) &&
        pf_pending_run(t) < 0) {
        PyErr_WriteUnraisable((PyObject *)self); /* no step to raise it in */
    }
    if (PF_UNLIKELY(is_spent(self) || self->scope != NULL ||
                    grains->runner != NULL)) {
        return false;
    }
    grains->runner = self;
    self->core.state = PF_PARKED;
    pf_fiber *next = pf_scheduler_next(&s->core);
    if (next != &self->fiber) {
        if (next != s->core.hub) {
            pf_grains_poke(s);
        }
        pf_fiber_switch_with(&t->engine, next, pf_switch_on);
    }
    self->core.state = PF_RUNNING;
    if (grains->runner == self) {
        grains->runner = NULL;
    }
    return t->transfer == NULL && grains->turn != NULL;
}

static PyObject *
runner_main(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    PfThread *t = pf_thread_this();
    FiberObject *self = CURRENT(t);
    SchedulerObject *s =
        pf_grain_is_runner(self) ? SCHEDULER_OF(self->core.scheduler) : NULL;
    if (s == NULL || pf_grains_at(s)->turn == NULL) {
        PyErr_SetString(pf.fiber_error, "only the scheduler runs this");
        return NULL;
    }
    do {
        pf_task *core = pf_grains_at(s)->turn;
        pf_grains_at(s)->turn = NULL;
        pf_task_kind(core)->turn(t, core);
    } while (next_turn(t, s, self));
    if (t->transfer != NULL) { /* the runner is being unwound */
        return pf_switch_landed(t);
    }
    Py_RETURN_NONE;
}

PyMethodDef pf_grain_runner_method = {
    "grains", runner_main, METH_NOARGS,
    "The main function of the fibers that step a scheduler's grains."};

/* ------------------------------------------------ what else the loop asks */

static void
cancel_all(SchedulerObject *s, PyObject *why)
{
    GrainObject *g = pf_grains_at(s)->live;
    for (; g != NULL; g = g->next) {
        if (pf_grain_is_top(g)) {
            pf_grain_cancel_now(g, why);
        }
    }
}

static GrainObject *
find_leftover(PfGrains *grains)
{
    GrainObject *g = grains->live;
    while (g != NULL && g->core.state == PF_RUNNING) {
        g = g->next;
    }
    return g;
}

static void
unbind_pools(PfGrains *grains)
{
    if (grains->pools == NULL) {
        return;
    }
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(grains->pools); i++) {
        GrainPoolObject *pool =
            (GrainPoolObject *)PyList_GET_ITEM(grains->pools, i);
        pf_grain_pool_bind(pool, NULL);
        pool->turn.scheduler = NULL;
        pool->turn.state = PF_NEW;
    }
    /* Emptying a list needs no memory, so this cannot fail. */
    (void)PyList_SetSlice(grains->pools, 0, PY_SSIZE_T_MAX, NULL);
}

/* Closes one grain that is left at the end of a run; if there is none, unbinds
 * the pools.  The ready queue is empty.  Returns false if there was none. */
static bool
abandon(SchedulerObject *s)
{
    PfGrains *grains = pf_grains_at(s);
    GrainObject *g = find_leftover(grains);
    if (g == NULL) {
        unbind_pools(grains);
        return false;
    }
    Py_INCREF(g);
    pf_grain_abandon(s->thread, g);
    Py_DECREF(g);
    return true;
}

static bool
are_left(const SchedulerObject *s)
{
    return pf_grains_at(s)->live != NULL;
}

/* Appends the waiting grains, for the report of a deadlock. */
static int
list_waiting(SchedulerObject *s, PyObject *list)
{
    GrainObject *g = pf_grains_at(s)->live;
    for (; g != NULL; g = g->next) {
        if (g->core.state != PF_RUNNING &&
            PyList_Append(list, (PyObject *)g) < 0) {
            return -1;
        }
    }
    return 0;
}

static int
traverse(SchedulerObject *s, visitproc visit, void *arg)
{
    PfGrains *grains = pf_grains_at(s);
    Py_VISIT(grains->pools);
    for (GrainObject *g = grains->live; g != NULL; g = g->next) {
        Py_VISIT(g);
    }
    return 0;
}

static void
free_grains(SchedulerObject *s)
{
    PfGrains *grains = pf_grains_at(s);
    unbind_pools(grains);
    Py_CLEAR(grains->pools);
    Py_CLEAR(grains->asker);
}

/* ------------------------------------------------------------------- threads */

/* Closes the grains of the thread's schedulers.  Code that runs then may drop
 * schedulers, too. */
static void
at_exit(PfThread *t)
{
    SchedulerObject *s = t->schedulers;
    while (s != NULL) {
        if (!pystate_try_incref(
                (PyObject *)s)) { /* another thread is deallocating it */
            s = s->next;
            continue;
        }
        bool some = abandon(s);
        SchedulerObject *next = some ? t->schedulers : s->next;
        Py_DECREF(s);
        s = next;
    }
}

static void
thread_lost(PfThread *t)
{
    for (SchedulerObject *s = t->schedulers; s != NULL; s = s->next) {
        pf_grains_forget_waits(s);
    }
}

/* constant after import */
PfKeeps pf_grains_of_scheduler = {.size = sizeof(PfGrains)};

const PfPart pf_grains_part = {
    .of_scheduler = &pf_grains_of_scheduler,
    .hooks = {.await = pf_until_await},
    .thread_lost = thread_lost,
    .at_exit = at_exit,
    .poke = pf_grains_poke,
    .ask_again = pf_grains_ask_again,
    .cancel_all = cancel_all,
    .abandon = abandon,
    .are_left = are_left,
    .list = list_waiting,
    .is_idle = is_idle_runner,
    .traverse = traverse,
    .free = free_grains,
};
