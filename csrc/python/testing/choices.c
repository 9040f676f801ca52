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

/* Makes and records one choice; every choice comes here.  `taken` is what the
 * strategy proposes. */
static uint32_t
decide(ExplorerObject *x, uint32_t count, PfChoiceKind kind, uint32_t taken)
{
    Choice choice = {count, taken, (uint32_t)kind};
    choice.taken = scripted(x, choice);
    if (!pf_choices_append(&x->made, choice)) {
        x->lost = true;
    }
    note(x, ((uint64_t)kind << 56) ^ ((uint64_t)count << 28) ^ choice.taken);
    if (x->trace != NULL && kind != PF_CHOOSE_READY &&
        kind != PF_CHOOSE_FAULT) {
        call_trace(x, TRACE_CHOICE, NULL, (uint32_t)kind, count, choice.taken);
    }
    return choice.taken;
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

static uint32_t
choose_slow(SchedulerObject *s, uint32_t n, PfChoiceKind kind)
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

static bool
hub_waits_in(const pf_scheduler *core)
{
    return core->hub != NULL && core->hub->task.state == PF_READY;
}

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

/* PCT: is this step a change point, or does the fiber spin?  Then it gets the
 * lowest priority. */
static bool
must_give_way(ExplorerObject *x, const pf_task *task)
{
    x->in_a_row = task == x->last ? x->in_a_row + 1 : 0;
    x->last = task;
    if (x->in_a_row >= PATIENCE) {
        x->in_a_row = 0;
        return true;
    }
    for (uint32_t i = 0; i + 1 < x->depth; i++) {
        if (x->change_at[i] == x->steps) {
            return true;
        }
    }
    return false;
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
    if (core->ready.head == pf_scheduler_hub_task(core)) {
        return pf_queue_pop(&core->ready);
    }
    uint32_t count = (uint32_t)core->ready.count - hub_waits_in(core);
    uint32_t place = choose_ready(x, core, count);
    pf_task *chosen = take(core, place);
    if (pf_task_is_fresh(chosen)) {
        /* Code below may try to wait for it, which must not move it in the
         * queue that it has left. */
        chosen->wake = PF_WAKE_NONE;
    }
    x->passed = 0;
    uint32_t number = number_of(x, chosen);
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

/* ------------------------------------------------------------------- timers */

/* The timers that are due at the same instant and were not passed over since a
 * fiber has run. */
typedef struct Tie {
    const pf_timers *timers;
    int64_t when;
    uint64_t from;  /* timers of lower sequence numbers do not count */
    uint32_t count; /* found so far */
    uint64_t next;  /* the smallest sequence number of these, and its timer */
    pf_timer *next_timer;
} Tie;

/* Adds the timers of the tie in the part of the heap below `index`. */
static void
scan_tie(Tie *tie, uint64_t index)
{
    if (index >= tie->timers->count ||
        tie->timers->heap[index].when != tie->when) {
        return; /* all timers below are due later, too */
    }
    const pf_timer_entry *entry = &tie->timers->heap[index];
    if (entry->sequence >= tie->from) {
        tie->count++;
        if (tie->next_timer == NULL || entry->sequence < tie->next) {
            tie->next = entry->sequence;
            tie->next_timer = entry->timer;
        }
    }
    for (uint64_t child = 1; child <= PF_TIMER_CHILDREN; child++) {
        scan_tie(tie, index * PF_TIMER_CHILDREN + child);
    }
}

static Tie
tie_from(const pf_scheduler *core, uint64_t from)
{
    Tie tie = {&core->timers, core->timers.heap[0].when, from, 0, 0, NULL};
    scan_tie(&tie, 0);
    return tie;
}

/* Returns the tie at the top of the heap.  If the heap has only lost the first
 * timer of the last tie, the rest of that is the tie now, without a scan.
 * Otherwise a thousand timers that are due together and fire in order would be
 * counted a thousand times. */
static Tie
next_tie(ExplorerObject *x, const pf_scheduler *core)
{
    const pf_timers *timers = &core->timers;
    const pf_timer_entry *first = &timers->heap[0];
    if (x->tie_rest == 0 || timers->sequence != x->tie_sequence ||
        timers->count != x->tie_count || first->when != x->tie_when ||
        first->sequence < x->passed) {
        return tie_from(core, x->passed);
    }
    return (Tie){timers,      first->when,     x->passed,
                 x->tie_rest, first->sequence, first->timer};
}

static void
remember_tie(ExplorerObject *x, const pf_scheduler *core, const Tie *tie)
{
    x->tie_rest = tie->count - 1;
    x->tie_count = core->timers.count;
    x->tie_sequence = core->timers.sequence;
    x->tie_when = tie->when;
}

/* The scheduler's `pop_due`.  Each of several timers that are due together may
 * fire now or, if something else can run first, later.  One is chosen, and the
 * timers before it are passed over until a fiber has run.  So each set of
 * timers is tried once, not in every order. */
pf_timer *
pf_explorer_pop_due(pf_scheduler *core, int64_t now, void *data)
{
    ExplorerObject *x = data;
    if (core->timers.count == 0 || core->timers.heap[0].when > now) {
        return NULL;
    }
    bool may_wait = core->ready.count > (size_t)hub_waits_in(core);
    if (!may_wait) {
        x->passed = 0;
    }
    Tie tie = next_tie(x, core);
    uint32_t options = tie.count + may_wait;
    if (tie.count == 0) {
        return NULL;
    }
    uint32_t place = choose_slow(x->scheduler, options, PF_CHOOSE_TIMER);
    if (place == tie.count) {
        x->passed = UINT64_MAX;
        return NULL;
    }
    for (uint32_t i = 0; i < place; i++) {
        tie = tie_from(core, tie.next + 1);
    }
    x->passed = tie.next + 1;
    pf_timers_remove(&core->timers, tie.next_timer);
    remember_tie(x, core, &tie);
    if (place > 0) {
        x->tie_rest = 0;
    }
    return tie.next_timer;
}

/* --------------------------------------------------------------- preemption */

/* PfExplorerOps.preempt: another ready fiber may be chosen to run first. */
static int
preempt(void)
{
    PfThread *t = pf_thread_current;
    SchedulerObject *s = t == NULL ? NULL : t->scheduler;
    ExplorerObject *x = s == NULL ? NULL : s->explorer;
    if (x == NULL) {
        return 0; /* only another thread's run is under test */
    }
    uint32_t others = (uint32_t)s->core.ready.count - hub_waits_in(&s->core);
    FiberObject *self = CURRENT(t);
    if (!x->preempt || x->over || others == 0 || t->pending != 0 ||
        self->core.scheduler != &s->core) {
        return 0;
    }
    x->forced = choose_slow(s, others + 1, PF_CHOOSE_PREEMPT);
    if (x->forced == 0) {
        return 0;
    }
    pf_scheduler_yield(&s->core);
    if (t->transfer == NULL) {
        return 0;
    }
    PyObject *value = pf_switch_landed(t); /* the fiber is being unwound */
    Py_XDECREF(value);
    return value == NULL ? -1 : 0;
}

const PfExplorerOps pf_explorer = {
    .preempt = preempt,
    .choose = choose_slow,
    .failed = explorer_failed,
    .idle = pf_vclock_idle,
};
