/* What the engine's packer (engine/core/pack.h) asks of Python: see pack.h.
 *
 * These are the only pointers from outside into the stack of a waiting fiber:
 *
 * - FiberObject.saved.  NULL while the fiber has a small image, because then
 *   its bytes are in no one place.
 * - The pointers of its frame objects, and of generators that it runs.  A fiber
 *   that has some gets a whole image, and pystate_follow makes them point into
 *   that.
 *
 * Memory that other code points to while a fiber waits is not on its stack: see
 * waitq/wait_memory.h.
 */
#include "python/pack/pack.h"

#include <errno.h>

#include "engine/base/os_threads.h"
#include "python/core/tstate.h"
#include "python/switch/tracing.h"

/* As many stacks as fit into a second-level cache, if only what a switch
 * touches counts.  A program with at most four times as many fibers never
 * packs one. */
#define DEFAULT_SLOTS 256

PF_ATOMIC(size_t) pf_pack_default_slots; /* constant after import */

/* A thread's fiber that only the packer uses, to pack the fiber that runs: see
 * pf_pack_bring_home.  No Python object refers to it. */
typedef struct Mover {
    FiberObject fiber; /* first */
    PyState state;
} Mover;

/* ---------------------------------------------------------------- the host */

static void
look(pf_thread *thread, pf_fiber *core, pf_packing *packing)
{
    PfThread *t = (PfThread *)thread;
    FiberObject *fiber = FIBER_OF(core);
    packing->pinned = core == t->collecting;
    if (core == thread->current) {
        packing->room_end = pystate_running_room_end(t->tstate, fiber->saved);
        return;
    }
    PyStateView view = pystate_view(fiber->saved);
    packing->room_end = pystate_room_end(fiber->saved);
    packing->exposed = view.exposed;
    packing->called_back = view.called_back ||
                           pf_fiber_rare(fiber)->foreign_waits != 0 ||
                           fiber->is_hub;
}

/* Returns where the fiber's saved state is while its bytes are at home.  The
 * address is computed, not read from the stack's header: while the slot is
 * vacant, the header's memory may have gone back to the system. */
static PyState *
state_at_home(const pf_fiber *core)
{
    return (PyState *)(void *)((char *)core->stack + PF_STACK_LEAD);
}

static void
moved(pf_fiber *core, const char *low, const char *high, ptrdiff_t distance)
{
    FiberObject *fiber = FIBER_OF(core);
    const PyStateMove move = {low, high, distance};
    fiber->saved = pystate_moved(
        &move, fiber->saved != NULL ? fiber->saved : state_at_home(core));
    pystate_follow(fiber->saved, &move);
}

static void
packed(pf_fiber *core)
{
    FIBER_OF(core)->saved = NULL;
}

static void
unpacked(pf_fiber *core)
{
    FIBER_OF(core)->saved = state_at_home(core);
}

static void
on_arrival(pf_thread *thread, pf_fiber *mover, pf_fiber *to)
{
    PfThread *t = (PfThread *)thread;
    FiberObject *from = FIBER_OF(mover), *f = FIBER_OF(to);
    if (t->keeps_tracing) {
        t->keeps_tracing = false;
        pystate_keep_tracing(t->tstate, f->saved);
    }
    pystate_save(t->tstate, from->saved, &from->context);
    pystate_load(t->tstate, f->saved, &f->context);
    pf_tracing_switch(t->tstate, NULL, f->saved->trace);
}

static pf_fiber *
new_mover(pf_thread *thread)
{
    PfThread *t = (PfThread *)thread;
    Mover *mover = PyMem_RawCalloc(1, sizeof *mover);
    if (mover == NULL) {
        return NULL;
    }
    mover->fiber.saved = &mover->state;
    mover->fiber.thread = t;
    pystate_init_bare(t->tstate, &mover->state);
    return &mover->fiber.fiber;
}

static void
free_mover(pf_fiber *mover)
{
    PyMem_RawFree(mover == NULL ? NULL : FIBER_OF(mover));
}

static void
pause_without_gil(void)
{
    Py_BEGIN_ALLOW_THREADS pf_os_thread_pause();
    Py_END_ALLOW_THREADS
}

static const pf_pack_host pack_host = {
    .look = look,
    .moved = moved,
    .packed = packed,
    .unpacked = unpacked,
    .new_mover = new_mover,
    .free_mover = free_mover,
    .on_arrival = on_arrival,
    .pause = pause_without_gil,
};

const char *
pf_pack_refused_here(void)
{
    const char *why = pystate_packing_refused();
    return why != NULL ? why : pf_pack_refused();
}

void
pf_pack_use(PfThread *t, size_t slots)
{
    if (pf_pack_refused_here() == NULL) {
        (void)pf_pack_set(&t->engine, &pack_host, slots);
    }
}

void
pf_pack_reset(PfThread *t)
{
    pf_pack_use(t, pf_load_relaxed(&pf_pack_default_slots));
}

/* No object refers to the frames of a fiber with a small image, so
 * pystate_follow changes only the copy. */
PyState *
pf_pack_state_packed(const FiberObject *fiber)
{
    PyStateMove move;
    char *header = pf_pack_peek(&fiber->thread->engine, &fiber->fiber,
                                &move.low, &move.high);
    move.distance = header - (char *)fiber->fiber.stack;
    PyState *st = (PyState *)(void *)(header + PF_STACK_LEAD);
    pystate_follow(st, &move);
    return st;
}

/* ---------------------------------------------------------------- how many */

/* Reads PYFIBER_SLOTS: how many stacks fibers share; 0: each has a separate
 * stack.  Returns 0, or -1 with ValueError. */
static int
slots_from_environment(void)
{
    const char *text = getenv("PYFIBER_SLOTS");
    pf_store(&pf_pack_default_slots, DEFAULT_SLOTS);
    if (text == NULL || *text == '\0') {
        return 0;
    }
    char *end;
    errno = 0;
    long slots = strtol(text, &end, 10);
    if (*end != '\0' || errno != 0 || slots < 0 || slots == 1) {
        PyErr_Format(PyExc_ValueError,
                     "PYFIBER_SLOTS must be 0 or a number from 2 on, not "
                     "'%.100s'",
                     text);
        return -1;
    }
    pf_store(&pf_pack_default_slots, (size_t)slots);
    return 0;
}

int
pf_pack_slots(PyObject *wanted, size_t *slots)
{
    *slots = pf_load_relaxed(&pf_pack_default_slots);
    if (wanted == Py_None) {
        return 0;
    }
    Py_ssize_t number = PyNumber_AsSsize_t(wanted, PyExc_OverflowError);
    if (number == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (number < 0 || number == 1) {
        PyErr_Format(PyExc_ValueError,
                     "slots must be 0 (each fiber has a stack of its own) or "
                     "a number from 2 on, not %zd",
                     number);
        return -1;
    }
    *slots = (size_t)number;
    return 0;
}

int
pf_pack_init(void)
{
    return slots_from_environment();
}
