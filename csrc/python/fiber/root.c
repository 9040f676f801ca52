/* A thread's root, and what happens to the thread's suspended fibers when the
 * thread ends: see root.h. */
#include "python/fiber/root.h"

#include "python/core/state.h"
#include "python/core/thread.h"
#include "python/core/world.h"
#include "python/fiber/fiber_type.h"
#include "python/pack/pack.h"
#include "python/switch/locals.h"
#include "python/switch/pending.h"
#include "python/switch/switch.h"
#include "python/switch/tracing.h"
#include "python/switch/unwind.h"
#include "python/task/fiber.h"
#include "python/task/post.h"
#include "python/waitq/wait_memory.h"
#include "python/waitq/waitq.h"

/* ------------------------------------------------------------------- the root */

static FiberObject *
make(void)
{
    FiberObject *root = pf_fiber_alloc(NULL);
    if (root != NULL) {
        root->name = PyUnicode_FromString("main");
        if (root->name == NULL) {
            Py_CLEAR(root);
        }
    }
    return root;
}

static void
begin(PfThread *t, FiberObject *root)
{
    root->fiber = t->engine.root;
    pf_task_set_kind(&root->core, &pf_fiber_ops);
    root->core.state = PF_RUNNING;
    root->saved = &t->root_state;
    root->thread = t;
    t->root = root;
    t->engine.current = &root->fiber;
    pf_pack_reset(t);
}

static bool
runs(const PfThread *t)
{
    return CURRENT(t) == t->root;
}

static void
end(PfThread *t)
{
    FiberObject *root = t->root;
    t->engine.root.context = root->fiber.context;
    t->engine.current = &t->engine.root;
    root->core.state = PF_DONE;
    root->outcome = PF_OUTCOME_OK;
    root->stack_size = 0;
    root->thread = NULL;
    t->root = NULL;
    Py_XSETREF(root->value, Py_NewRef(Py_None));
    Py_DECREF(root);
}

/* ------------------------------------------------------------- what is suspended */

static FiberObject *
find_suspended(FiberObject *f)
{
    while (f != NULL && (pf_fiber_kind(f)->is_part || !pf_unwind_may(f))) {
        f = f->next;
    }
    return f;
}

static FiberObject *
hold_suspended(PfThread *t)
{
    FiberObject *f = find_suspended(t->live);
    while (f != NULL && !pf_world_hold((PyObject *)f)) {
        f = find_suspended(f->next);
    }
    return f;
}

static void
unwind_all(PfThread *t)
{
    FiberObject *fiber;
    pf_pending_take_posts(t);
    while ((fiber = hold_suspended(t)) != NULL) {
        pf_unwind_fiber(t, fiber);
        Py_DECREF(fiber);
    }
    pf_tracing_free_spares(t);
}

static void
report_left(PfThread *t)
{
    FiberObject *first = find_suspended(t->live);
    if (first != NULL) {
        Py_INCREF(first);
        PyErr_SetString(
            pf.fiber_error,
            "the thread, which C code made, has ended while this fiber was "
            "suspended inside of a callback from C: it can never be unwound, "
            "and its memory is lost; let it end before the thread does");
        PyErr_WriteUnraisable((PyObject *)first);
        Py_DECREF(first);
    }
}

static void
free_spare(PfThread *t)
{
    pf_fibers_free_spare(t);
    pf_wait_memory_clear(t);
}

static const PfRootOps root = {
    .host = &pf_switch_host,
    .make = make,
    .begin = begin,
    .runs = runs,
    .drop_posts = pf_post_close,
    .end = end,
    .report_left = report_left,
};

const PfPart pf_root_part = {
    .hooks = {.root = &root, .plain_fiber = &pf_fiber_ops},
    .thread_end = unwind_all,
    .thread_lost = pf_waitq_forget_thread,
    .at_exit = unwind_all,
    .free_spare = free_spare,
};

/* -------------------------------------------------------- the root's locals */

/* Code that runs as the values die may set locals again, so this repeats, but
 * not without end. */
static void
clear_locals(PfThread *t)
{
    for (int i = 0; i < 8 && pf_fiber_rare(t->root)->slots != NULL; i++) {
        pf_locals_clear(t->root);
    }
}

const PfPart pf_root_locals_part = {
    .thread_end = clear_locals,
};
