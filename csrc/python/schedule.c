/* The explorer: makes every choice of a run under test, records it, and makes
 * it again when told to.
 *
 * A run has choice points: places where more than one thing could come next.
 * The strategy answers each with a number from 0 to count - 1, where 0 is
 * always what happens outside of a test.  The list of answers is the
 * schedule; given back as the script of another run it makes that run the
 * same, step by step, as long as the program depends on nothing else.
 */
#include "python/schedule.h"

#include <string.h>

typedef enum Strategy {
    STRATEGY_FIFO,
    STRATEGY_RANDOM,
    STRATEGY_PCT,
    STRATEGY_COUNT
} Strategy;

/* What the trace callback is told. */
enum { TRACE_RUNS, TRACE_LEAVES, TRACE_CHOICE };

typedef struct Choice {
    uint32_t count; /* of possibilities; in a script 0: not known */
    uint32_t taken;
    uint32_t kind;
} Choice;

typedef struct Choices {
    Choice *items;
    size_t count, capacity;
} Choices;

#define MAX_DEPTH 16
/* One fiber chosen so often in a row, with others waiting, spins: PCT's strict
 * priorities would starve those it waits for. */
#define PATIENCE 64

typedef struct PfExplorer {
    PyObject_HEAD
    SchedulerObject *scheduler;
    /* How to choose. */
    Strategy strategy;
    uint64_t random;
    Choices script;
    bool lenient; /* a script that does not fit is bent, not reported */
    bool preempt;
    uint64_t max_steps;
    uint64_t inject; /* the event at which to cancel; 0: none */
    /* What was chosen. */
    Choices made;
    bool lost; /* no memory to record it */
    bool over; /* the limit of steps was passed: no more choices */
    bool diverged;
    Choice wanted, found; /* where it diverged first */
    size_t diverged_at;
    uint64_t steps;  /* fibers chosen */
    uint64_t events; /* where a cancellation may be injected; from 1 */
    uint64_t hash;   /* of everything that happened */
    uint32_t forced; /* pf_preempt has chosen: 1 + place in the queue */
    uint64_t passed; /* timers up to here (exclusive) were passed over */
    uint32_t tie_rest, tie_count; /* see next_tie */
    uint64_t tie_sequence;
    int64_t tie_when;
    /* PCT */
    PfKnownTable known;
    uint32_t depth;
    uint64_t change_at[MAX_DEPTH];
    uint32_t lowest; /* priority given last */
    FiberObject *last;
    uint32_t in_a_row;
    /* Python's part. */
    PyObject *trace;    /* or NULL */
    PyObject *on_limit; /* makes the exception for too many steps */
    PyObject *failures; /* fibers that failed */
    FiberObject *injected;
    bool injected_waiting; /* while it waited, not as it went on */
    bool installed;
} ExplorerObject;

static void
note(ExplorerObject *x, uint64_t fact)
{
    x->hash = pf_random_mix(x->hash ^ fact) + UINT64_C(0x9E3779B97F4A7C15);
}

/* --------------------------------------------------------------- the record */

static bool
append(Choices *choices, Choice choice)
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
free_choices(Choices *choices)
{
    PyMem_RawFree(choices->items);
    memset(choices, 0, sizeof *choices);
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

/* What the script says at this point, if it says anything that fits. */
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

static int call_trace(ExplorerObject *x, int what, FiberObject *fiber,
                      uint32_t number, uint32_t count, uint32_t taken);

/* Every choice ends here.  `taken` is the strategy's. */
static uint32_t
settle(ExplorerObject *x, uint32_t count, PfChoiceKind kind, uint32_t taken)
{
    Choice choice = {count, taken, (uint32_t)kind};
    choice.taken = scripted(x, choice);
    if (!append(&x->made, choice)) {
        x->lost = true;
    }
    note(x, ((uint64_t)kind << 56) ^ ((uint64_t)count << 28) ^ choice.taken);
    if (x->trace != NULL && kind != PF_CHOOSE_READY) {
        call_trace(x, TRACE_CHOICE, NULL, (uint32_t)kind, count, choice.taken);
    }
    return choice.taken;
}

static uint32_t
propose(ExplorerObject *x, uint32_t count)
{
    switch (x->strategy) {
    case STRATEGY_RANDOM:
        return pf_random_below(&x->random, count);
    case STRATEGY_PCT: /* rarely something else than usual */
        return pf_random_below(&x->random, 4) == 0
                   ? pf_random_below(&x->random, count)
                   : 0;
    default:
        return 0;
    }
}

uint32_t
pf_choose_slow(SchedulerObject *s, uint32_t n, PfChoiceKind kind)
{
    ExplorerObject *x = s->explorer;
    if (n < 2 || x->over) {
        return 0;
    }
    return settle(x, n, kind, propose(x, n));
}

/* ---------------------------------------------------------- calls to Python */

/* The fiber under way is leaving: nothing that runs here may wait. */
static int
call_trace(ExplorerObject *x, int what, FiberObject *fiber, uint32_t number,
           uint32_t count, uint32_t taken)
{
    SchedulerObject *s = x->scheduler;
    pf_no_switch_begin(s->thread, "while a schedule is traced");
    PyObject *done = PyObject_CallFunction(
        x->trace, "iOIII", what, fiber == NULL ? Py_None : (PyObject *)fiber,
        number, count, taken);
    pf_no_switch_end(s->thread);
    if (done == NULL) {
        pf_scheduler_fail(s, pf_take_exception());
        pf_wake_hub(s);
        return -1;
    }
    Py_DECREF(done);
    return 0;
}

/* Too many steps: the run ends at once.  Its fibers are not cancelled first,
 * for who runs in circles might ignore that for ever. */
static void
limit_passed(ExplorerObject *x)
{
    SchedulerObject *s = x->scheduler;
    x->over = true;
    pf_no_switch_begin(s->thread, "while a livelock is reported");
    PyObject *exc = PyObject_CallNoArgs(x->on_limit);
    pf_no_switch_end(s->thread);
    pf_scheduler_fail(s, exc != NULL ? exc : pf_take_exception());
    s->interrupts = 2;
    pf_wake_hub(s);
}

static void
inject(ExplorerObject *x, FiberObject *fiber, bool waiting)
{
    if (++x->events != x->inject ||
        !(fiber->core.host_bits & PF_F_SCHEDULED)) {
        return;
    }
    PfThread *t = x->scheduler->thread;
    x->injected = (FiberObject *)Py_NewRef((PyObject *)fiber);
    x->injected_waiting = waiting;
    pf_no_switch_begin(t, "while a cancellation is injected");
    PyObject *reason = PyUnicode_FromString("injected by the test");
    if (reason == NULL) {
        PyErr_Clear();
        reason = Py_NewRef(Py_None);
    }
    pf_cancel_now(fiber, reason, Py_None);
    Py_DECREF(reason);
    pf_no_switch_end(t);
}

void
pf_explorer_failed(SchedulerObject *s, FiberObject *fiber)
{
    PyObject *list = s->explorer->failures;
    if (list != NULL && PyList_Append(list, (PyObject *)fiber) < 0) {
        PyErr_Clear(); /* then it is logged as always */
    }
}

/* -------------------------------------------------------------- who is next */

static bool
hub_waits_in(const pf_scheduler *core)
{
    return core->hub != NULL && core->hub->state == PF_READY;
}

static PfKnown *
known(ExplorerObject *x, pf_fiber *core)
{
    bool fresh;
    PfKnown *k = pf_known_find(&x->known, FIBER_OF(core), &fresh);
    if (k == NULL) {
        x->lost = true;
    } else if (fresh) {
        k->priority = (uint32_t)(pf_random_next(&x->random) >> 32) |
                      UINT32_C(0x80000000);
    }
    return k;
}

/* The ready fiber of the highest priority, its place in *place. */
static PfKnown *
foremost(ExplorerObject *x, const pf_scheduler *core, uint32_t *place)
{
    PfKnown *best = NULL;
    uint32_t best_number = 0, i = 0;
    /* Adding to the table may move it: number them all before comparing. */
    for (pf_fiber *f = core->ready.head; f != NULL; f = f->next) {
        known(x, f);
    }
    for (pf_fiber *f = core->ready.head; f != NULL; f = f->next) {
        if (f == core->hub) {
            continue;
        }
        PfKnown *k = known(x, f);
        if (k != NULL && (best == NULL || k->priority > best->priority)) {
            best = k;
            best_number = i;
        }
        i++;
    }
    *place = best_number;
    return best;
}

static bool
must_give_way(ExplorerObject *x, FiberObject *fiber)
{
    x->in_a_row = fiber == x->last ? x->in_a_row + 1 : 0;
    x->last = fiber;
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
    if (best != NULL && must_give_way(x, best->fiber)) {
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
        place = pct_place(x, core); /* counts its steps alone, too */
    } else if (x->strategy == STRATEGY_RANDOM && count > 1) {
        place = pf_random_below(&x->random, count);
    }
    return count < 2 ? 0 : settle(x, count, PF_CHOOSE_READY, place);
}

/* Remove the fiber at `place`, the hub not counted. */
static pf_fiber *
take(pf_scheduler *core, uint32_t place)
{
    pf_fiber *before = NULL;
    pf_fiber *f = core->ready.head;
    for (; f == core->hub || place > 0; f = f->next) {
        place -= f != core->hub;
        before = f;
    }
    if (before == NULL) {
        return pf_queue_pop(&core->ready);
    }
    before->next = f->next;
    if (core->ready.tail == f) {
        core->ready.tail = before;
    }
    f->next = NULL;
    core->ready.count--;
    return f;
}

/* The hub ends runs; it is chosen when it is first in the queue, as always,
 * and is no choice otherwise. */
static pf_fiber *
pick(pf_scheduler *core, void *data)
{
    ExplorerObject *x = data;
    if (++x->steps > x->max_steps && !x->over) {
        limit_passed(x);
    }
    if (core->ready.head == core->hub) {
        return pf_queue_pop(&core->ready);
    }
    uint32_t count = (uint32_t)core->ready.count - hub_waits_in(core);
    uint32_t place = choose_ready(x, core, count);
    pf_fiber *chosen = take(core, place);
    x->passed = 0;
    PfKnown *k = known(x, chosen);
    uint32_t number = k == NULL ? 0 : k->number;
    note(x, ((uint64_t)number << 8) ^ chosen->wake);
    if (x->scheduler->clock != NULL) {
        note(x, (uint64_t)pf_now(core));
    }
    if (x->trace != NULL && !(chosen->host_bits & (PF_F_ASKER | PF_F_POOL))) {
        call_trace(x, TRACE_RUNS, FIBER_OF(chosen), number, count, place);
    }
    inject(x, FIBER_OF(chosen), false);
    return chosen;
}

/* Called at every switch, because it asks for that: the current fiber is
 * about to be left. */
static void
probe(pf_scheduler *core, void *data)
{
    ExplorerObject *x = data;
    core->until_poll = 1;
    pf_fiber *current = core->thread->current;
    if (current == core->hub || current->scheduler != core) {
        return;
    }
    if (x->trace != NULL) {
        PfKnown *k = known(x, current);
        call_trace(x, TRACE_LEAVES, FIBER_OF(current),
                   k == NULL ? 0 : k->number, 0, 0);
    }
    if (current->state == PF_PARKED) {
        inject(x, FIBER_OF(current), true);
    }
}

/* ------------------------------------------------------------------- timers */

/* Timers due at the same instant, and not passed over since a fiber ran: how
 * many (while *found stays NULL) or the `place`-th of them in order. */
typedef struct Tie {
    const pf_timers *timers;
    int64_t when;
    uint64_t from;  /* sequence numbers below do not count */
    uint32_t count; /* so far */
    uint64_t next;  /* the smallest sequence >= from */
    pf_timer *next_timer;
} Tie;

static void
scan_tie(Tie *tie, uint64_t index)
{
    if (index >= tie->timers->count ||
        tie->timers->heap[index].when != tie->when) {
        return; /* all below are later still */
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

/* A thousand timers due together, fired in order, would be counted a thousand
 * times: if the heap has lost nothing but the first of the tie counted last,
 * the rest of that is the tie now. */
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

/* Of timers due together each may fire now or, if something else can run
 * first, later.  They are asked in order, and the ones before the chosen one
 * are passed over until a fiber has run: so each set is tried once, not in
 * every order. */
static pf_timer *
pop_due(pf_scheduler *core, int64_t now, void *data)
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
    uint32_t place = pf_choose_slow(x->scheduler, options, PF_CHOOSE_TIMER);
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

int
pf_preempt_slow(PfThread *t)
{
    SchedulerObject *s = t->scheduler;
    ExplorerObject *x = s->explorer;
    uint32_t others = (uint32_t)s->core.ready.count - hub_waits_in(&s->core);
    FiberObject *self = CURRENT(t);
    if (!x->preempt || x->over || others == 0 || t->attention != 0 ||
        self->core.scheduler != &s->core) {
        return 0;
    }
    x->forced = pf_choose_slow(s, others + 1, PF_CHOOSE_PREEMPT);
    if (x->forced == 0) {
        return 0;
    }
    pf_yield(&s->core);
    if (t->transfer == NULL) {
        return 0;
    }
    PyObject *value = pf_value_in_parent(t); /* it is being unwound */
    Py_XDECREF(value);
    return value == NULL ? -1 : 0;
}

/* ------------------------------------------------------------------ one run */

static void
draw_change_points(ExplorerObject *x, uint64_t length)
{
    for (uint32_t i = 0; i + 1 < x->depth; i++) {
        uint32_t n = length < UINT32_MAX ? (uint32_t)length : UINT32_MAX;
        x->change_at[i] = 1 + pf_random_below(&x->random, n > 0 ? n : 1);
    }
}

static void
start_over(ExplorerObject *x)
{
    x->made.count = 0;
    x->lost = x->over = x->diverged = false;
    x->steps = x->events = x->hash = x->passed = 0;
    x->forced = x->in_a_row = x->tie_rest = 0;
    x->lowest = UINT32_C(0x7FFFFFFF);
    x->last = NULL;
    pf_known_reset(&x->known);
    Py_CLEAR(x->injected);
}

static int
install(ExplorerObject *x, PyObject *clock)
{
    SchedulerObject *s = x->scheduler;
    if (x->installed || s->explorer != NULL) {
        PyErr_SetString(pf.fiber_error, "the explorer is in use");
        return -1;
    }
    if (pf_may_run(s) < 0 ||
        (clock != Py_None && pf_clock_install(s, clock) < 0)) {
        return -1;
    }
    x->installed = true;
    s->explorer = x;
    s->core.pick = pick;
    s->core.pick_data = x;
    s->core.probe = probe;
    s->core.pop_due = pop_due;
    s->core.until_poll = 1;
    return 0;
}

static void
uninstall(ExplorerObject *x)
{
    SchedulerObject *s = x->scheduler;
    s->core.pick = NULL;
    s->core.pick_data = NULL;
    s->core.probe = NULL;
    s->core.pop_due = NULL;
    s->core.until_poll = PF_POLL_EVERY;
    s->explorer = NULL;
    x->installed = false;
    pf_clock_remove(s);
}

static PyObject *
explorer_run(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    ExplorerObject *x = (ExplorerObject *)op;
    if (nargs < 2) {
        PyErr_SetString(PyExc_TypeError, "run() needs a clock and a function");
        return NULL;
    }
    if (install(x, args[0]) < 0) {
        return NULL;
    }
    start_over(x);
    Py_XSETREF(x->failures, PyList_New(0));
    PyObject *run = NULL, *result = NULL;
    if (x->failures != NULL) {
        run = PyObject_GetAttrString((PyObject *)x->scheduler, "run");
    }
    if (run != NULL) {
        result = PyObject_Vectorcall(run, args + 1, (size_t)(nargs - 1), NULL);
    }
    Py_XDECREF(run);
    uninstall(x);
    if (result != NULL && x->lost) {
        Py_CLEAR(result);
        PyErr_NoMemory();
    }
    return result;
}

/* ------------------------------------------------------------------- scripts */

static int
read_choice(PyObject *item, Choice *choice)
{
    return PyArg_ParseTuple(item, "III", &choice->kind, &choice->count,
                            &choice->taken)
               ? 0
               : -1;
}

static int
read_script(ExplorerObject *x, PyObject *script)
{
    x->script.count = 0;
    if (script == Py_None) {
        return 0;
    }
    PyObject *items = PySequence_Fast(script, "a script is a sequence");
    if (items == NULL) {
        return -1;
    }
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items); i++) {
        Choice choice;
        if (read_choice(PySequence_Fast_GET_ITEM(items, i), &choice) < 0) {
            Py_DECREF(items);
            return -1;
        }
        if (!append(&x->script, choice)) {
            Py_DECREF(items);
            PyErr_NoMemory();
            return -1;
        }
    }
    Py_DECREF(items);
    return 0;
}

static PyObject *
explorer_configure(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"strategy", "seed",    "depth",   "length",
                            "script",   "lenient", "preempt", "max_steps",
                            "inject",   "trace",   NULL};
    ExplorerObject *x = (ExplorerObject *)op;
    int strategy = 0, lenient = 0, preempt = 0;
    unsigned int depth = 1;
    unsigned long long seed = 0, length = 0, max_steps = 0, event = 0;
    PyObject *script = Py_None, *trace = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$iKIKOppKKO:configure",
                                     names, &strategy, &seed, &depth, &length,
                                     &script, &lenient, &preempt, &max_steps,
                                     &event, &trace)) {
        return NULL;
    }
    if (x->installed || strategy < 0 || strategy >= STRATEGY_COUNT ||
        depth < 1 || depth > MAX_DEPTH || max_steps == 0) {
        PyErr_SetString(
            PyExc_ValueError,
            "no such strategy, depth or limit, or a run under way");
        return NULL;
    }
    if (pf_may_run(x->scheduler) < 0 || read_script(x, script) < 0) {
        return NULL;
    }
    x->strategy = (Strategy)strategy;
    x->random = pf_random_mix(seed + UINT64_C(0x632BE59BD9B4E019));
    x->depth = depth;
    x->lenient = lenient;
    x->preempt = preempt;
    x->max_steps = max_steps;
    x->inject = event;
    Py_XSETREF(x->trace, trace == Py_None ? NULL : Py_NewRef(trace));
    draw_change_points(x, length);
    Py_RETURN_NONE;
}

/* Depth first: the script of the next branch is what was chosen last, up to
 * the last choice that has another possibility, and that one. */
static PyObject *
explorer_next_branch(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    ExplorerObject *x = (ExplorerObject *)op;
    Choices *made = &x->made;
    size_t n = made->count;
    while (n > 0 && made->items[n - 1].taken + 1 >= made->items[n - 1].count) {
        n--;
    }
    x->script.count = 0;
    for (size_t i = 0; i < n; i++) {
        if (!append(&x->script, made->items[i])) {
            return PyErr_NoMemory();
        }
    }
    if (n > 0) {
        x->script.items[n - 1].taken++;
    }
    return PyBool_FromLong(n > 0);
}

/* --------------------------------------------------------------- what it saw */

static PyObject *
choice_tuple(Choice choice)
{
    return Py_BuildValue("III", choice.kind, choice.count, choice.taken);
}

static PyObject *
explorer_choices(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    ExplorerObject *x = (ExplorerObject *)op;
    PyObject *list = PyList_New((Py_ssize_t)x->made.count);
    for (size_t i = 0; list != NULL && i < x->made.count; i++) {
        PyObject *item = choice_tuple(x->made.items[i]);
        if (item == NULL) {
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, (Py_ssize_t)i, item);
        }
    }
    return list;
}

/* (index, wanted, found), or None.  A script that was not used up diverged at
 * the end: found is None then. */
static PyObject *
explorer_divergence(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    ExplorerObject *x = (ExplorerObject *)op;
    if (x->diverged) {
        return Py_BuildValue("nNN", (Py_ssize_t)x->diverged_at,
                             choice_tuple(x->wanted), choice_tuple(x->found));
    }
    if (x->made.count < x->script.count && !x->lenient) {
        return Py_BuildValue("nNO", (Py_ssize_t)x->made.count,
                             choice_tuple(x->script.items[x->made.count]),
                             Py_None);
    }
    Py_RETURN_NONE;
}

/* Fibers that failed with nobody looking.  Now somebody has. */
static PyObject *
explorer_unseen(PyObject *op, PyObject *ignored)
{
    (void)ignored;
    ExplorerObject *x = (ExplorerObject *)op;
    PyObject *list = PyList_New(0);
    Py_ssize_t n = x->failures == NULL ? 0 : PyList_GET_SIZE(x->failures);
    for (Py_ssize_t i = 0; list != NULL && i < n; i++) {
        FiberObject *fiber = (FiberObject *)PyList_GET_ITEM(x->failures, i);
        if (fiber->core.host_bits & PF_F_LOOKED_AT) {
            continue;
        }
        fiber->core.host_bits |= PF_F_LOOKED_AT;
        if (PyList_Append(list, (PyObject *)fiber) < 0) {
            Py_CLEAR(list);
        }
    }
    Py_CLEAR(x->failures);
    return list;
}

static PyObject *
get_injected(PyObject *op, void *closure)
{
    (void)closure;
    ExplorerObject *x = (ExplorerObject *)op;
    if (x->injected == NULL) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("OO", x->injected,
                         x->injected_waiting ? Py_True : Py_False);
}

static PyObject *
get_count(PyObject *op, void *field)
{
    const char *at = (const char *)op + (uintptr_t)field;
    uint64_t value;
    memcpy(&value, at, sizeof value);
    return PyLong_FromUnsignedLongLong(value);
}

static PyObject *
get_choice_count(PyObject *op, void *closure)
{
    (void)closure;
    return PyLong_FromSize_t(((ExplorerObject *)op)->made.count);
}

/* --------------------------------------------------------------- the type */

static PyObject *
explorer_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"scheduler", "on_limit", NULL};
    PyObject *scheduler, *on_limit;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O:_Explorer", names,
                                     pf.scheduler_type, &scheduler,
                                     &on_limit)) {
        return NULL;
    }
    ExplorerObject *x = (ExplorerObject *)type->tp_alloc(type, 0);
    if (x != NULL) {
        x->scheduler = (SchedulerObject *)Py_NewRef(scheduler);
        x->on_limit = Py_NewRef(on_limit);
        x->depth = 1;
        x->max_steps = UINT32_MAX;
    }
    return (PyObject *)x;
}

static int
explorer_traverse(PyObject *op, visitproc visit, void *arg)
{
    ExplorerObject *x = (ExplorerObject *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(x->scheduler);
    Py_VISIT(x->trace);
    Py_VISIT(x->on_limit);
    Py_VISIT(x->failures);
    Py_VISIT(x->injected);
    return 0;
}

/* (A run under way keeps it alive.  The scheduler stays: its methods rely on
 * it, and it does not refer back.) */
static int
explorer_clear(PyObject *op)
{
    ExplorerObject *x = (ExplorerObject *)op;
    Py_CLEAR(x->trace);
    Py_CLEAR(x->failures);
    Py_CLEAR(x->injected);
    return 0;
}

static void
explorer_dealloc(PyObject *op)
{
    ExplorerObject *x = (ExplorerObject *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    explorer_clear(op);
    Py_CLEAR(x->on_limit);
    Py_CLEAR(x->scheduler);
    free_choices(&x->made);
    free_choices(&x->script);
    pf_known_free(&x->known);
    type->tp_free(op);
    Py_DECREF(type);
}

#define FAST(fn) ((PyCFunction)(void (*)(void))fn)

static PyMethodDef explorer_methods[] = {
    {"configure", FAST(explorer_configure), METH_VARARGS | METH_KEYWORDS,
     "Set how the next runs choose; every argument has a default."},
    {"run", FAST(explorer_run), METH_FASTCALL,
     "run(clock, fn, *args): Scheduler.run(fn, *args) under this explorer."},
    {"choices", explorer_choices, METH_NOARGS,
     "What the last run chose: (kind, count, taken) each."},
    {"next_branch", explorer_next_branch, METH_NOARGS,
     "Set the script for the next schedule, depth first; False: that was "
     "all."},
    {"divergence", explorer_divergence, METH_NOARGS,
     "Where the script first did not fit: (index, wanted, found), or None."},
    {"unseen", explorer_unseen, METH_NOARGS,
     "The fibers whose failure nobody looked at."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef explorer_getset[] = {
    {"steps", get_count, NULL, "Fibers chosen in the last run.",
     (void *)offsetof(ExplorerObject, steps)},
    {"events", get_count, NULL, "Places for an injected cancellation.",
     (void *)offsetof(ExplorerObject, events)},
    {"fingerprint", get_count, NULL, "Equal for equal runs.",
     (void *)offsetof(ExplorerObject, hash)},
    {"choice_count", get_choice_count, NULL, "len(choices()).", NULL},
    {"injected", get_injected, NULL,
     "(fiber, whether it waited) of the injected cancellation, or None.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot explorer_slots[] = {
    {Py_tp_doc,
     (void *)"Chooses who runs in a run under test; see pyfiber.testing."},
    {Py_tp_new, explorer_new},
    {Py_tp_dealloc, explorer_dealloc},
    {Py_tp_traverse, explorer_traverse},
    {Py_tp_clear, explorer_clear},
    {Py_tp_methods, explorer_methods},
    {Py_tp_getset, explorer_getset},
    {0, NULL},
};

static PyType_Spec pf_explorer_spec = {
    .name = "pyfiber._engine._Explorer",
    .basicsize = sizeof(ExplorerObject),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .slots = explorer_slots,
};

/* --------------------------------------------------------- module functions */

static PyObject *
mod_choose(PyObject *module, PyObject *number)
{
    (void)module;
    PfThread *t = pf_this_thread();
    unsigned long n = PyLong_AsUnsignedLong(number);
    if (t == NULL || (n == (unsigned long)-1 && PyErr_Occurred())) {
        return NULL;
    }
    if (n < 1 || n > UINT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "there is nothing to choose from");
        return NULL;
    }
    uint32_t taken =
        t->scheduler == NULL
            ? 0
            : pf_choose(t->scheduler, (uint32_t)n, PF_CHOOSE_USER);
    return PyLong_FromUnsignedLong(taken);
}

static PyObject *
mod_preempt(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    PfThread *t = pf_this_thread();
    return t == NULL || pf_preempt(t) < 0 ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef functions[] = {
    {"_choose", mod_choose, METH_O, "One of 0..n-1: 0 outside of a test."},
    {"_preempt", mod_preempt, METH_NOARGS,
     "Let a test that preempts switch here."},
    {NULL, NULL, 0, NULL},
};

int
pf_schedule_init(PyObject *module)
{
    pf.clock_type =
        (PyTypeObject *)PyType_FromModuleAndSpec(module, &pf_clock_spec, NULL);
    PyTypeObject *explorer = (PyTypeObject *)PyType_FromModuleAndSpec(
        module, &pf_explorer_spec, NULL);
    int rc = pf.clock_type == NULL || explorer == NULL ||
                     PyModule_AddType(module, pf.clock_type) < 0 ||
                     PyModule_AddType(module, explorer) < 0 ||
                     PyModule_AddFunctions(module, functions) < 0
                 ? -1
                 : 0;
    Py_XDECREF(explorer);
    return rc;
}
