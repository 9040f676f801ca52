/* Makes every choice of a run under test, records it, and can repeat it.
 * explorer.c configures this, pct.c stores the fibers' priorities.
 *
 * A run has choice points: places where more than one thing could come next.
 * The strategy answers each with a number from 0 to count - 1, where 0 is
 * always what happens outside of a test.  The list of answers is the schedule.
 * Another run with this list as its script is the same, step by step, if the
 * program depends on nothing else.
 */
#include "python/testing/testing.h"

#include "python/cancel/cancel.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/switch/switch.h"
#include "python/task/explore.h"
#include "python/task/fiber.h"
#include "python/task/scheduler.h"
#include "python/testing/explorer.h"
#include "python/testing/points.h"

/* Adds a fact to the fingerprint of the run. */
static void
note(ExplorerObject *x, uint64_t fact)
{
    x->hash =
        pf_testing_random_mix(x->hash ^ fact) + UINT64_C(0x9E3779B97F4A7C15);
}

/* --------------------------------------------------------------- the record */

bool
pf_choices_append(Choices *choices, Choice choice)
{
    if (choices->count == choices->capacity) {
        size_t capacity = choices->capacity == 0 ? 64 : choices->capacity * 2;
        Choice *items =
            PyMem_RawRealloc(choices->items, capacity * sizeof(Choice));
        if (items == NULL) {
            return false;
        }
        choices->items = items;
        choices->capacity = capacity;
    }
    choices->items[choices->count++] = choice;
    return true;
}

static void
diverge(ExplorerObject *x, size_t at, Choice wanted, Choice found)
{
    if (!x->diverged && !x->lenient) {
        x->diverged = true;
        x->diverged_at = at;
        x->wanted = wanted;
        x->found = found;
    }
}

/* Returns the script's answer at this choice point; past its end the
 * strategy's, found.taken.  If the answer does not fit, the run has diverged,
 * and an answer that is not possible becomes 0. */
static uint32_t
scripted(ExplorerObject *x, Choice found)
{
    size_t at = x->made.count;
    if (at >= x->script.count) {
        return found.taken;
    }
    Choice wanted = x->script.items[at];
    bool same = wanted.count == 0 ||
                (wanted.count == found.count && wanted.kind == found.kind);
    if (!same || wanted.taken >= found.count) {
        diverge(x, at, wanted, found);
    }
    return wanted.taken < found.count ? wanted.taken : 0;
}

static int call_trace(ExplorerObject *x, int what, PyObject *task,
                      uint32_t number, uint32_t count, uint32_t taken);

/* Makes and records one choice; every choice comes here.  found.taken is what
 * the strategy proposes. */
static uint32_t
record(ExplorerObject *x, Choice found)
{
    found.taken = scripted(x, found);
    if (!pf_choices_append(&x->made, found)) {
        x->lost = true;
    }
    note(x, ((uint64_t)found.kind << 56) ^ ((uint64_t)found.count << 28) ^
                found.taken);
    return found.taken;
}

static uint32_t
decide(ExplorerObject *x, uint32_t count, PfChoiceKind kind, uint32_t taken)
{
    taken = record(x, (Choice){count, taken, (uint32_t)kind});
    if (x->trace != NULL && kind != PF_CHOOSE_READY &&
        kind != PF_CHOOSE_FAULT) {
        call_trace(x, TRACE_CHOICE, NULL, (uint32_t)kind, count, taken);
    }
    return taken;
}

static uint32_t
propose(ExplorerObject *x, uint32_t count)
{
    switch (x->strategy) {
    case STRATEGY_RANDOM:
        return pf_testing_random_below(&x->random, count);
    case STRATEGY_PCT: /* mostly what happens outside of a test */
        return pf_testing_random_below(&x->random, 4) == 0
                   ? pf_testing_random_below(&x->random, count)
                   : 0;
    default:
        return 0;
    }
}

/* Draws how many faults the run has, if its strategy draws at all, and at
 * which places. */
static void
draw_faults(ExplorerObject *x)
{
    uint64_t places = x->usual_places < UINT32_MAX ? x->usual_places : 0;
    x->drawn = x->strategy == STRATEGY_FIFO
                   ? 0
                   : pf_testing_random_below(&x->random, x->faults + 1);
    for (uint32_t i = 0; i < x->drawn; i++) {
        x->fault_at[i] = pf_testing_random_below(
            &x->random, places > 0 ? (uint32_t)places : 1);
    }
}

/* Proposes a fault only at the places that were drawn: a fault at every second
 * place would end most programs before they have done anything. */
static uint32_t
propose_fault(ExplorerObject *x, uint32_t count)
{
    uint64_t place = x->fault_places++;
    if (x->drawn == NOT_DRAWN) {
        draw_faults(x);
    }
    for (uint32_t i = 0; i < x->drawn; i++) {
        if (x->fault_at[i] == place && count > 1) {
            return 1 + pf_testing_random_below(&x->random, count - 1);
        }
    }
    return 0;
}

/* A place where no fault may happen any more is recorded as well, so that the
 * number of a choice does not depend on the faults before it. */
static uint32_t
choose_fault(ExplorerObject *x, uint32_t count)
{
    if (x->faulty >= x->faults) {
        x->lost |=
            !pf_choices_append(&x->made, (Choice){0, 0, PF_CHOOSE_FAULT});
        return 0;
    }
    uint32_t taken =
        decide(x, count, PF_CHOOSE_FAULT, propose_fault(x, count));
    x->faulty += taken != 0;
    return taken;
}

uint32_t
pf_explorer_choose(SchedulerObject *s, uint32_t n, PfChoiceKind kind)
{
    ExplorerObject *x = s->explorer;
    bool unfair = kind == PF_CHOOSE_WAITER || kind == PF_CHOOSE_SELECT;
    if (n < 2 || x->over || (unfair && !x->unfair)) {
        return 0;
    }
    return kind == PF_CHOOSE_FAULT ? choose_fault(x, n)
                                   : decide(x, n, kind, propose(x, n));
}

/* ---------------------------------------------------------- calls to Python */

/* Calls the trace callback.  The running fiber is being left, so no code that
 * runs here may wait.  A failure ends the run: -1. */
static int
call_trace(ExplorerObject *x, int what, PyObject *task, uint32_t number,
           uint32_t count, uint32_t taken)
{
    SchedulerObject *s = x->scheduler;
    pf_thread_no_switch_begin(s->thread, "while a schedule is traced");
    PyObject *done = PyObject_CallFunction(x->trace, "iOIII", what,
                                           task == NULL ? Py_None : task,
                                           number, count, taken);
    pf_thread_no_switch_end(s->thread);
    if (done == NULL) {
        pf_scheduler_fail(s, pystate_take_exception());
        pf_scheduler_wake_hub(s);
        return -1;
    }
    Py_DECREF(done);
    return 0;
}

/* Too many steps: ends the run at once, without cancelling its fibers first,
 * because a fiber in an endless loop might ignore that for ever. */
static void
limit_passed(ExplorerObject *x)
{
    SchedulerObject *s = x->scheduler;
    x->over = true;
    pf_thread_no_switch_begin(s->thread, "while a livelock is reported");
    PyObject *exc = PyObject_CallNoArgs(x->on_limit);
    pf_thread_no_switch_end(s->thread);
    pf_scheduler_fail(s, exc != NULL ? exc : pystate_take_exception());
    s->interrupts = 2;
    pf_scheduler_wake_hub(s);
}

/* Does the fiber run only pyfiber's own code?  Such a helper is cancelled
 * together with what it helps, so no cancellation of it alone is injected. */
static bool
is_own(ExplorerObject *x, FiberObject *fiber)
{
    PyObject *pending = pystate_take_exception();
    pf_thread_no_switch_begin(x->scheduler->thread,
                              "while a wait is looked at");
    PyObject *answer = PyObject_CallOneArg(x->is_own, (PyObject *)fiber);
    pf_thread_no_switch_end(x->scheduler->thread);
    if (answer == NULL) {
        PyErr_WriteUnraisable((PyObject *)fiber);
    }
    bool yes = answer == Py_True;
    Py_XDECREF(answer);
    pystate_restore_exception(pending);
    return yes;
}

/* A place for an injected cancellation: cancels the fiber if it is the event
 * that the test has asked for. */
static void
inject(ExplorerObject *x, PfTaskObject *task, bool waiting)
{
    FiberObject *fiber = pf_task_fiber(task);
    if (x->inject == 0 || fiber == NULL || !fiber->scheduled ||
        is_own(x, fiber) || ++x->events != x->inject) {
        return;
    }
    PfThread *t = x->scheduler->thread;
    pf_thread_no_switch_begin(t, "while a cancellation is injected");
    PyObject *reason = pf_cancel_text("injected by the test");
    PyObject *why = pf_cancel_why(reason, Py_None);
    x->injected = Py_NewRef((PyObject *)task);
    x->injected_waiting = waiting;
    pf_cancel_now(fiber, why);
    Py_XDECREF(why);
    Py_DECREF(reason);
    pf_thread_no_switch_end(t);
}

static bool
explorer_failed(SchedulerObject *s, PyObject *op)
{
    PyObject *list = s->explorer->failures;
    if (list == NULL || s->on_unhandled != NULL) {
        return false;
    }
    if (PyList_Append(list, op) < 0) {
        PyErr_Clear(); /* no memory: the failure is reported as usual */
        return false;
    }
    return true;
}

/* ------------------------------------------------------- which fiber is next */

static PfKnown *
known(ExplorerObject *x, pf_task *core)
{
    bool fresh;
    PfKnown *k = pf_pct_known_find(&x->known, core, &fresh);
    if (k == NULL) {
        x->lost = true;
    } else if (fresh) {
        k->priority = (uint32_t)(pf_testing_random_next(&x->random) >> 32) |
                      UINT32_C(0x80000000);
    }
    return k;
}

/* Returns the fiber's number, from 0.  A fiber gets its number at its first
 * turn, so that it does not depend on which fibers a strategy has looked at. */
static uint32_t
number_of(ExplorerObject *x, pf_task *core)
{
    PfKnown *k = known(x, core);
    if (k == NULL) {
        return 0;
    }
    if (k->number == 0) {
        k->number = ++x->known.numbered;
    }
    return k->number - 1;
}

/* Finds the ready fiber of the highest priority, and its place in the queue,
 * the hub not counted.  NULL: no memory. */
static PfKnown *
foremost(ExplorerObject *x, const pf_scheduler *core, uint32_t *place)
{
    PfKnown *best = NULL;
    uint32_t best_number = 0, i = 0;
    /* An addition may move the table, so add all entries before keeping
     * pointers to any. */
    for (pf_task *f = core->ready.head; f != NULL; f = f->next) {
        if (known(x, f) == NULL) {
            *place = 0;
            return NULL;
        }
    }
    for (pf_task *f = core->ready.head; f != NULL; f = f->next) {
        if (f == pf_scheduler_hub_task(core)) {
            continue;
        }
        PfKnown *k = known(x, f);
        if (best == NULL || k->priority > best->priority) {
            best = k;
            best_number = i;
        }
        i++;
    }
    *place = best_number;
    return best;
}

static bool
is_change_point(const ExplorerObject *x)
{
    for (uint32_t i = 0; i + 1 < x->depth; i++) {
        if (x->change_at[i] == x->ticks) {
            return true;
        }
    }
    return false;
}

/* PCT: is this step a change point, or does the fiber spin?  Then it gets the
 * lowest priority. */
static bool
must_give_way(ExplorerObject *x, const pf_task *task)
{
    x->in_a_row = task == x->last ? x->in_a_row + 1 : 0;
    x->last = task;
    x->ticks++;
    if (x->in_a_row >= PATIENCE) {
        x->in_a_row = 0;
        return true;
    }
    return is_change_point(x);
}

static uint32_t
pct_place(ExplorerObject *x, const pf_scheduler *core)
{
    uint32_t place;
    PfKnown *best = foremost(x, core, &place);
    if (best != NULL && must_give_way(x, best->task)) {
        best->priority = --x->lowest;
        foremost(x, core, &place);
    }
    return place;
}

static uint32_t
choose_ready(ExplorerObject *x, const pf_scheduler *core, uint32_t count)
{
    if (x->forced != 0) {
        uint32_t place = x->forced - 1;
        x->forced = 0;
        return place < count ? place : 0;
    }
    if (x->over) {
        return 0;
    }
    uint32_t place = 0;
    if (x->strategy == STRATEGY_PCT) {
        place = pct_place(x, core); /* also to count a lone fiber's steps */
    } else if (x->strategy == STRATEGY_RANDOM && count > 1) {
        place = pf_testing_random_below(&x->random, count);
    }
    return count < 2 ? 0 : decide(x, count, PF_CHOOSE_READY, place);
}

/* Removes the fiber at `place` of the ready queue, the hub not counted. */
static pf_task *
take(pf_scheduler *core, uint32_t place)
{
    pf_task *before = NULL;
    pf_task *f = core->ready.head;
    for (; f == pf_scheduler_hub_task(core) || place > 0; f = f->next) {
        place -= f != pf_scheduler_hub_task(core);
        before = f;
    }
    pf_queue_unlink(&core->ready, before, f);
    return f;
}

/* The hub runs when it is first in the queue, as outside of a test.  Otherwise
 * it is not among the possibilities. */
pf_task *
pf_explorer_pick(pf_scheduler *core, void *data)
{
    ExplorerObject *x = data;
    if (++x->steps > x->max_steps && !x->over) {
        limit_passed(x);
    }
    x->stretch = 0;
    if (core->ready.head == pf_scheduler_hub_task(core)) {
        return pf_queue_pop(&core->ready);
    }
    uint32_t count = pf_explorer_ready(core);
    uint32_t place = choose_ready(x, core, count);
    pf_task *chosen = take(core, place);
    if (pf_task_is_fresh(chosen)) {
        /* Code below may try to wait for it, which must not move it in the
         * queue that it has left. */
        chosen->wake = PF_WAKE_NONE;
    }
    x->tie_passed = 0;
    uint32_t number = number_of(x, chosen);
    x->running = number;
    note(x, ((uint64_t)number << 8) ^ chosen->wake);
    if (x->scheduler->core.clock != NULL) {
        note(x, (uint64_t)pf_scheduler_now(core));
    }
    if (x->trace != NULL && pf_task_kind(chosen)->noun != NULL) {
        call_trace(x, TRACE_RUNS, (PyObject *)pf_task_object(chosen), number,
                   count, place);
    }
    inject(x, pf_task_object(chosen), false);
    return chosen;
}

/* The engine calls this at every switch, because it sets until_poll to 1; the
 * current fiber is about to be left. */
void
pf_explorer_probe(pf_scheduler *core, void *data)
{
    ExplorerObject *x = data;
    core->until_poll = 1;
    pf_task *current = &core->thread->current->task;
    if (current == pf_scheduler_hub_task(core) || current->scheduler != core) {
        return;
    }
    if (x->trace != NULL) {
        call_trace(x, TRACE_LEAVES, (PyObject *)pf_task_object(current),
                   number_of(x, current), 0, 0);
    }
    if (current->state == PF_PARKED) {
        inject(x, pf_task_object(current), true);
    }
}

/* --------------------------------------------------------------- preemption */

/* Lets the ready fiber at `place`, from 1, run first. 0: no place is wanted.
 * 0, or -1 with an exception: the fiber is being unwound. */
static int
leave(ExplorerObject *x, PfThread *t, uint32_t place)
{
    x->forced = place;
    pf_scheduler_yield(&x->scheduler->core);
    x->at_point = true;
    if (t->transfer == NULL) {
        return 0;
    }
    PyObject *value = pf_switch_landed(t);
    Py_XDECREF(value);
    return value == NULL ? -1 : 0;
}

/* May the running fiber be left?  Not if it is not the scheduler's (a raw
 * fiber), or in a no-switch region. */
static bool
may_leave(const ExplorerObject *x, const PfThread *t)
{
    return t->pending == 0 &&
           CURRENT(t)->core.scheduler == &x->scheduler->core;
}

/* ------------------------------------------------------------------- points */

/* PCT at a point: a fiber of a higher priority runs at once.  Priorities are
 * compared only where one has changed, or a fiber has become ready. */
static uint32_t
pct_at_point(ExplorerObject *x, const pf_scheduler *core)
{
    bool change = is_change_point(x);
    if (!change && x->wakeups == core->wakeups) {
        return 0;
    }
    x->wakeups = core->wakeups;
    uint32_t place;
    PfKnown *best = foremost(x, core, &place);
    uint32_t priority = best == NULL ? 0 : best->priority;
    PfKnown *mine = known(x, &core->thread->current->task);
    if (mine == NULL) {
        return 0;
    }
    if (change) {
        mine->priority = --x->lowest;
    }
    return priority > mine->priority ? place + 1 : 0;
}

/* The place of a task in the ready queue, from 1, the hub not counted.  0: the
 * task is not ready. */
static uint32_t
place_of(const pf_scheduler *core, const pf_task *task)
{
    uint32_t place = 1;
    for (const pf_task *f = core->ready.head; f != NULL; f = f->next) {
        if (f == task) {
            return place;
        }
        place += f != pf_scheduler_hub_task(core);
    }
    return 0;
}

/* The random strategy under `directed`: a fiber is kept from a site.  As soon
 * as another one has changed what the fiber uses there, it continues.  Returns
 * the fiber's place, or 0. */
static uint32_t
directed(ExplorerObject *x, uint32_t site)
{
    const pf_scheduler *core = &x->scheduler->core;
    if (&core->thread->current->task == x->kept) {
        x->before = 0; /* The fiber has continued. */
    } else if (x->ripe) {
        x->before = 0;
        x->ripe = false;
        return place_of(core, x->kept);
    } else {
        x->ripe =
            pf_points_conflict((PfPointsObject *)x->points, x->before, site);
    }
    return 0;
}

/* The random strategy switches at the places that were drawn. */
static uint32_t
random_at_point(ExplorerObject *x, uint32_t others, uint32_t site)
{
    if (x->before != 0) {
        return directed(x, site);
    }
    if (!is_change_point(x)) {
        return 0;
    }
    if (x->directed) {
        x->before = site;
        x->kept = &x->scheduler->core.thread->current->task;
        x->ripe = false;
    }
    return 1 + pf_testing_random_below(&x->random, others);
}

/* Returns the place of the ready fiber that the strategy lets run first, from
 * 1, or 0. */
static uint32_t
propose_at_point(ExplorerObject *x, uint32_t others, uint32_t site, bool hot)
{
    bool counts = hot || !x->hot;
    x->ticks += counts;
    switch (x->strategy) {
    case STRATEGY_RANDOM:
        return counts || x->before != 0 ? random_at_point(x, others, site) : 0;
    case STRATEGY_PCT:
        return counts ? pct_at_point(x, &x->scheduler->core) : 0;
    default:
        return 0;
    }
}

/* Chooses at a point: 0, or the place of the ready fiber that runs first, from
 * 1.  A point past `bound` is recorded, too, so that the numbers of choices
 * are those of a run without a bound. */
static uint32_t
choose_at_point(ExplorerObject *x, uint32_t others, uint32_t site, bool hot)
{
    x->places++;
    x->hot_places += hot;
    uint32_t taken = propose_at_point(x, others, site, hot);
    if (x->switched >= x->bound) {
        x->lost |=
            !pf_choices_append(&x->made, (Choice){0, 0, PF_CHOOSE_PREEMPT});
        return 0;
    }
    taken = record(x, (Choice){others + 1, taken, PF_CHOOSE_PREEMPT});
    x->switched += taken != 0;
    return taken;
}

/* The fiber has passed many points without a wait, so it may spin until
 * another fiber has done something, or until it is later.  Returns the place
 * of a fiber that must run, or 0. */
static uint32_t
end_stretch(ExplorerObject *x)
{
    SchedulerObject *s = x->scheduler;
    x->stretch = 0;
    if (pf_explorer_ready(&s->core) == 0) {
        pf_vclock_skip(s);
    }
    return pf_explorer_ready(&s->core) > 0;
}

/* Counts a point.  Returns the place of a fiber that must run, from 1, or 0;
 * STOP if the run has passed too many points. */
#define STOP UINT32_MAX
static uint32_t
count_point(ExplorerObject *x)
{
    x->at_point = true;
    if (++x->passed / POINTS_A_STEP > x->max_steps && !x->over) {
        limit_passed(x);
    }
    if (x->over) {
        return STOP;
    }
    return ++x->stretch >= PATIENCE_AT_POINTS ? end_stretch(x) : 0;
}

int
pf_explorer_pass_quietly(ExplorerObject *x)
{
    PfThread *t = x->scheduler->thread;
    uint32_t place = may_leave(x, t) ? count_point(x) : 0;
    return place == 0 ? 0 : leave(x, t, place == STOP ? 0 : place);
}

int
pf_explorer_pass(ExplorerObject *x, uint32_t site, bool hot)
{
    PfThread *t = x->scheduler->thread;
    if (!may_leave(x, t)) {
        return 0;
    }
    uint32_t place = count_point(x);
    if (place == STOP) {
        return leave(x, t, 0);
    }
    uint32_t others = pf_explorer_ready(&x->scheduler->core);
    uint32_t chosen = others == 0 ? 0 : choose_at_point(x, others, site, hot);
    place = chosen == 0 ? place : chosen;
    if (x->trace != NULL &&
        call_trace(x, TRACE_POINT, NULL, site, others + 1, place) < 0) {
        return 0;
    }
    return place == 0 ? 0 : leave(x, t, place);
}

/* The running fiber is about to use a lock, a queue, ...  The second of these
 * on a line (`with a, b:`) is a point as well. */
static int
operation(ExplorerObject *x)
{
    bool first = x->at_point;
    x->at_point = false;
    return first || pf_points_gil((PfPointsObject *)x->points)
               ? 0
               : pf_points_operation((PfPointsObject *)x->points, x);
}

/* PfExplorerOps.preempt: another ready fiber may be chosen to run first.  An
 * operation of a tool's trace function is none of the program's: coverage takes
 * a lock when a function begins. */
static int
preempt(void)
{
    PfThread *t = pf_thread_current;
    SchedulerObject *s = t == NULL ? NULL : t->scheduler;
    ExplorerObject *x = s == NULL ? NULL : s->explorer;
    if (x == NULL || pystate_in_tracer(t->tstate)) {
        return 0; /* only another thread's run is under test, or a tool runs */
    }
    if (!x->preempt) {
        return x->points == NULL ? 0 : operation(x);
    }
    uint32_t others = pf_explorer_ready(&s->core);
    if (x->over || others == 0 || !may_leave(x, t)) {
        return 0;
    }
    uint32_t place = pf_explorer_choose(s, others + 1, PF_CHOOSE_PREEMPT);
    return place == 0 ? 0 : leave(x, t, place);
}

uint32_t *
pf_explorer_imports(ExplorerObject *x)
{
    PfKnown *k = known(x, &x->scheduler->core.thread->current->task);
    return k == NULL ? NULL : &k->imports;
}

static int
traced(void)
{
#if PF_TRACES_POINTS
    return pf_line_trace_own();
#else
    return 0;
#endif
}

const PfExplorerOps pf_explorer = {
    .preempt = preempt,
    .choose = pf_explorer_choose,
    .failed = explorer_failed,
    .idle = pf_vclock_idle,
    .traced = traced,
};
