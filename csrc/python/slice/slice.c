/* Preemption itself: the line of preempted fibers, and how a fiber is put into
 * it. See slice.h.
 *
 * A preempted fiber is ready, but it has had its turn. So preempted fibers wait
 * in a separate line and continue when no other fiber is ready, or at
 * every PF_POLL_EVERY-th switch. A fiber that has been woken by a timer or a
 * descriptor therefore waits for one slice at most, however many fibers
 * compute, and those share what is left in turn.
 *
 * The wait in the line is shielded: a cancellation is raised at the next wait
 * of the fiber's own code, never at a preemption.
 */
#include "python/slice/slice.h"

#include "python/core/state.h"
#include "python/core/tstate.h"
#include "python/switch/pending.h"
#include "python/switch/switch.h"
#include "python/switch/unwind.h"
#include "python/wait/in_line.h"

#include "engine/io/poller.h"

/* A thread of the program that is being cut off may compute for so many slices
 * in its `finally` blocks. */
#define MOST_OVERTIME 10

/* constant after import */
static PfKeeps of_scheduler = {.size = sizeof(PfSlice)};

PfSlice *
pf_slice_of(const SchedulerObject *s)
{
    return pf_scheduler_keeps(s, &of_scheduler);
}

/* ------------------------------------------------------------------- the line */

/* Puts the first of the line at the end of the ready queue. */
static void
serve(SchedulerObject *s, PfSlice *slice)
{
    slice->served = s->core.switches;
    pf_waitq_grant(slice->line.head);
}

/* The scheduler's probe: called at each look at messages and timers. */
static void
serve_sometimes(pf_scheduler *core, void *ignored)
{
    (void)ignored;
    SchedulerObject *s = SCHEDULER_OF(core);
    PfSlice *slice = pf_slice_of(s);
    if (!pf_waitq_empty(&slice->line) &&
        core->switches - slice->served >= PF_POLL_EVERY) {
        serve(s, slice);
    }
}

/* Wakes what timers, messages and descriptors have made ready. */
static void
look(SchedulerObject *s)
{
    pf_scheduler_poll(&s->core);
    if (pf_poller_busy(s->core.poller)) {
        pf_scheduler_look(&s->core);
    }
}

/* Nothing is ready. A fiber that a timer or a descriptor wakes goes first. */
static bool
ask_again(SchedulerObject *s)
{
    PfSlice *slice = pf_slice_of(s);
    if (pf_waitq_empty(&slice->line)) {
        return false;
    }
    look(s);
    if (s->core.ready.head == NULL && !pf_waitq_empty(&slice->line)) {
        serve(s, slice);
    }
    return s->core.ready.head != NULL;
}

/* ----------------------------------------------------------------- preemption */

bool
pf_slice_others(const SchedulerObject *s)
{
    return s->core.ready.head != NULL ||
           !pf_waitq_empty(&pf_slice_of(s)->line) ||
           s->core.timers.count != 0 || pf_inbox_pending(&s->core.inbox) ||
           pf_poller_busy(s->core.poller) ||
           (s->thread != NULL && s->thread->unwinder != NULL);
}

/* Does the running fiber take turns with those of the scheduler? */
static bool
takes_turns(const FiberObject *self, const SchedulerObject *s)
{
    return self->scheduled ? self->core.scheduler == &s->core
                           : pf_parts_hooks.main_program->is_main(self);
}

/* Is the running fiber at a place where it may be left? */
static bool
may_be_left(const PfThread *t)
{
    return CURRENT(t)->dying
               ? pf_unwind_cuts_off(t)
               : (t->pending & (PF_PENDING_NO_SWITCH | PF_PENDING_GC)) == 0;
}

/* In the child of a fork of a patched program (`blocks`) the other fibers are
 * copies that must not go on. */
bool
pf_slice_may(const PfThread *t, const SchedulerObject *s)
{
    const FiberObject *self = CURRENT(t);
    return takes_turns(self, s) && !s->blocks && !self->is_hub &&
           !pf_fiber_kind(self)->serves &&
           pf_fiber_rare(self)->unpreemptible == 0 && may_be_left(t);
}

/* Waits in the line. A failure to wait for lack of memory is no failure of the
 * fiber's code, which just goes on. */
static int
leave(PfThread *t, SchedulerObject *s)
{
    PfWait *wait = pf_wait_new(t, NULL);
    if (wait == NULL) {
        PyErr_Clear();
        return 0;
    }
    s->core.preemptions++;
    wait->waiter.shielded = true;
    int rc = pf_wait_for(wait, &pf_slice_of(s)->line, NULL, t, PF_NEVER,
                         pf.s_slice);
    pf_wait_free(t, wait);
    return rc;
}

/* The running thread of the program is over its slice while it is being cut
 * off. */
static int
cut_off(PfThread *t, PfSlice *slice)
{
    if (slice->cut_off != CURRENT(t)) {
        slice->cut_off = CURRENT(t);
        slice->overtime = 0;
    }
    return ++slice->overtime < MOST_OVERTIME ? 0 : pf_pending_before_wait(t);
}

int
pf_slice_over(PfThread *t)
{
    SchedulerObject *s = t->scheduler;
    PyCodeObject *below = NULL;
    if (!pf_slice_may(t, s)) {
        return 0;
    }
    int found = pf_entry_find(t, &below);
    if (found != 0) {
        if (found < 0) {
            PyErr_WriteUnraisable(NULL);
        } else if (below != NULL) {
            pf_arm_code(s, below);
        }
        return 0;
    }
    if (CURRENT(t)->dying) {
        return cut_off(t, pf_slice_of(s));
    }
    look(s);
    if ((s->core.ready.head == NULL &&
         pf_waitq_empty(&pf_slice_of(s)->line)) ||
        !pf_slice_may(t, s)) { /* messages may have run code */
        return 0;
    }
    return leave(t, s);
}

/* -------------------------------------------------------------- no_preemption */

/* _no_preemption_begin() -> fiber: the running fiber is not preempted until
 * _no_preemption_end(fiber). */
static PyObject *
no_preemption_begin(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    PfThread *t = pf_thread_this();
    PfRare *rare = t == NULL ? NULL : pf_fiber_rare_of(CURRENT(t));
    if (rare == NULL) {
        return NULL;
    }
    rare->unpreemptible++;
    return Py_NewRef((PyObject *)CURRENT(t));
}

static PyObject *
no_preemption_end(PyObject *module, PyObject *op)
{
    (void)module;
    FiberObject *fiber = pf_fiber_expect(op);
    PfRare *rare = fiber == NULL ? NULL : pf_fiber_rare_of(fiber);
    if (rare == NULL) {
        return NULL;
    }
    if (rare->unpreemptible != 0) {
        rare->unpreemptible--;
    }
    Py_RETURN_NONE;
}

static PyObject *
set_default_slice(PyObject *module, PyObject *seconds)
{
    (void)module;
    int64_t ns;
    if (pf_scheduler_time_slice(seconds, &ns) < 0) {
        return NULL;
    }
    pf_scheduler_default_slice = ns;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"_set_time_slice", set_default_slice, METH_O,
     "_set_time_slice(seconds, /)\n--\n\n"
     "Set the time slice of schedulers for which none is given."},
    {"_no_preemption_begin", no_preemption_begin, METH_NOARGS,
     "_no_preemption_begin()\n--\n\n"
     "Keep the running fiber from being preempted until _no_preemption_end()\n"
     "is called with what this returns: the fiber. Calls may be nested."},
    {"_no_preemption_end", no_preemption_end, METH_O,
     "_no_preemption_end(fiber, /)\n--\n\n"
     "Undo one _no_preemption_begin() of the fiber."},
    {NULL, NULL, 0, NULL},
};

/* ------------------------------------------------------------------- the part */

static int
run_may_begin(SchedulerObject *s)
{
    PfSlice *slice = pf_slice_of(s);
    if (pf_load_relaxed(&s->time_slice) == 0 || slice->open ||
        pystate_finalizing()) {
        return 0; /* a thread would not get the GIL at the interpreter's end */
    }
    if (pf_ticker_open(s) < 0) {
        return -1;
    }
    s->pokes = true;
    s->core.probe = serve_sometimes;
    return 0;
}

static void
closed(SchedulerObject *s)
{
    PfSlice *slice = pf_slice_of(s);
    if (slice->open) {
        s->core.probe = NULL;
        pf_ticker_close(s);
    }
}

static void
poke(SchedulerObject *s)
{
    if (pf_slice_of(s)->open) {
        pf_ticker_poke();
    }
}

static void
at_exit(PfThread *t)
{
    (void)t;
    pf_ticker_stop();
}

static int
after_fork(PfThread *t)
{
    return pf_ticker_after_fork(t);
}

const PfPart pf_slice_part = {
    .of_scheduler = &of_scheduler,
    .run_may_begin = run_may_begin,
    .closed = closed,
    .poke = poke,
    .ask_again = ask_again,
    .at_exit = at_exit,
    .after_fork = after_fork,
};

int
pf_slice_init(PyObject *module)
{
    return PyModule_AddFunctions(module, functions) < 0 ||
                   pf_ticker_init() < 0 || pf_arm_init(module) < 0 ||
                   pf_entry_init(module) < 0
               ? -1
               : 0;
}
