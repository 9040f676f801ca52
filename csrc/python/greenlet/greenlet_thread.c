/* The current greenlet, main greenlets, and what happens to a thread's
 * greenlets when the thread ends. */
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/greenlet/greenlet.h"
#include "python/pack/pack.h"
#include "python/switch/home.h"
#include "python/switch/pending.h"
#include "python/switch/switch.h"
#include "python/task/fiber.h"

/* ------------------------------------------------------------------- views */

/* Returns a new greenlet that shows the fiber, or NULL with an exception. */
static PyGreenlet *
make_view(PfThread *t, FiberObject *fiber)
{
    bool main = fiber == t->root;
    PyGreenlet *root = NULL;
    if (!main && (root = pf_greenlet_view(t, t->root)) == NULL) {
        return NULL;
    }
    PyGreenlet *g = (PyGreenlet *)PyType_GenericAlloc(&PfGreenlet_Type, 0);
    PfGreenlet *impl = g == NULL
                           ? NULL
                           : pf_greenlet_impl_new(t, main ? PF_GREENLET_MAIN
                                                          : PF_GREENLET_VIEW);
    if (impl == NULL) {
        Py_XDECREF(g);
        return NULL;
    }
    g->pimpl = impl;
    impl->started = true;
    impl->fiber = (FiberObject *)Py_NewRef((PyObject *)fiber);
    if (main) {
        pf_fetch_add(&pf_greenlet_mains, 1);
    } else {
        impl->main = (PyGreenlet *)Py_NewRef((PyObject *)root);
        impl->parent = (PyGreenlet *)Py_NewRef((PyObject *)root);
    }
    return g;
}

PyGreenlet *
pf_greenlet_view(PfThread *t, FiberObject *fiber)
{
    if (fiber->view == NULL) {
        PyGreenlet *g = make_view(t, fiber);
        /* Code that the collector ran may have made a view meanwhile. */
        if (fiber->view == NULL) {
            fiber->view = (PyObject *)g;
        } else if (g != NULL) {
            Py_CLEAR(
                IMPL(g)->fiber); /* else greenlet_clear() keeps the rest */
            Py_DECREF(g);
        }
    }
    return GREENLET_OF(fiber);
}

void
pf_greenlet_view_done(FiberObject *fiber)
{
    PyGreenlet *g = GREENLET_OF(fiber);
    if (pf_greenlet_owns(fiber)) {
        return;
    }
    fiber->view = NULL;
    Py_CLEAR(IMPL(g)->fiber);
    Py_DECREF(g);
}

/* ------------------------------------------------------------- main greenlets */

PyGreenlet *
pf_greenlet_main(PyGreenlet *g)
{
    return IMPL(g)->kind == PF_GREENLET_MAIN ? g : IMPL(g)->main;
}

bool
pf_greenlet_stop_lineage(const PyGreenlet *g)
{
    while (PF_FREE_THREADED && g != NULL &&
           IMPL(g)->thread == pf_thread_current) {
        g = IMPL(g)->parent;
    }
    return PF_FREE_THREADED && g != NULL && pf_world_stop(NULL);
}

PyGreenlet *
pf_greenlet_main_in_lineage(PyGreenlet *g)
{
    bool stopped = pf_greenlet_stop_lineage(g);
    while (g != NULL && !IMPL(g)->started) {
        g = IMPL(g)->parent;
    }
    PyGreenlet *main = g == NULL ? NULL : pf_greenlet_main(g);
    Py_XINCREF(main);
    pf_world_start(stopped);
    return main;
}

bool
pf_greenlet_thread_gone(PyGreenlet *g)
{
    PyGreenlet *main = pf_greenlet_main(g);
    return main != NULL && IMPL(main)->thread_gone;
}

/* --------------------------------------------------------- before a switch */

/* Greenlets, unlike fibers, may switch while the collector runs, in the
 * finalizer of an object for example: the collector's data are on this stack,
 * which stays where it is.  A switch is refused only if the stack is also the
 * home of other fibers, which may have to run before the collector has ended.
 */
int
pf_greenlet_run_pending(PfThread *t)
{
    if (t->pending & PF_PENDING_RESERVE) {
        pf_pending_close_reserve(t);
    }
    if (pf_home_must_stay(t) && pf_pending_collector_runs(t)) {
        PyErr_SetString(pf_greenlet.error,
                        "cannot switch while the garbage collector runs (in "
                        "__del__ or a weakref callback, say) on a stack that "
                        "other greenlets share: see PYFIBER_SLOTS");
        return -1;
    }
    if (t->pending & PF_PENDING_NO_SWITCH) {
        PyErr_Format(pf_greenlet.error, "cannot switch %s", t->no_switch_why);
        return -1;
    }
    if (t->pending & PF_PENDING_POSTS) {
        pf_pending_take_posts(t);
    }
    return 0;
}

/* ------------------------------------------------------------ a thread's end */

/* Marks a greenlet's fiber as ended whose thread ends.  No code runs on its
 * stack any more: to raise GreenletExit there could take any time.  The stack
 * is kept for gr_frame until the greenlet dies. */
static void
abandon(FiberObject *fiber)
{
    if (pf_pack_show_fiber(fiber) < 0) {
        PyErr_Clear(); /* no memory: gr_frame is None then */
    }
    pf_pack_orphan(&fiber->thread->engine, &fiber->fiber);
    pf_unwind_forget_schedule(fiber);
    pf_fiber_unlink(fiber);
    fiber->core.state = PF_DONE;
    fiber->thread = NULL;
}

/* The objects in the frames leak.  The stack is freed, unless it is pinned or
 * an object that other code may refer to, such as a frame, points into it. */
void
pf_greenlet_end_dead(PyGreenlet *g)
{
    FiberObject *fiber = IMPL(g)->fiber;
    IMPL(g)->fiber = NULL;
    fiber->view = NULL;
    Py_CLEAR(fiber->context);
    if (!IMPL(g)->pinned &&
        (fiber->saved == NULL || !pystate_view(fiber->saved).exposed)) {
        pf_switch_take_stack(fiber);
        Py_DECREF(fiber);
    }
}

/* Returns an unfinished fiber of this thread that a greenlet has made, or
 * NULL. */
static FiberObject *
find_suspended(PfThread *t)
{
    FiberObject *f = t->live;
    while (f != NULL && !pf_greenlet_owns(f)) {
        f = f->next;
    }
    return f;
}

void
pf_greenlets_orphan(PfThread *t)
{
    /* Greenlets whose last reference another thread has dropped get
     * GreenletExit now, as they would have at the next switch. */
    pf_thread_no_switch_begin(t, "while the thread ends");
    pf_pending_take_posts(t);
    pf_thread_no_switch_end(t);
    /* The finalizer of the trace function may set another one, which
     * pf_greenlets_free_spare() clears. */
    Py_CLEAR(pf_greenlet_thread(t)->trace);
    Py_CLEAR(pf_greenlet_thread(t)->origin);
    /* From here on no code runs that could make more greenlets. */
    FiberObject *fiber;
    while ((fiber = find_suspended(t)) != NULL) {
        /* A stack on which the collector runs has the collector's lists. */
        IMPL(GREENLET_OF(fiber))->pinned |= &fiber->fiber == t->collecting;
        abandon(fiber);
    }
    PyGreenlet *main = GREENLET_OF(t->root);
    if (main != NULL) {
        IMPL(main)->thread_gone = true;
        pf_greenlet_view_done(t->root);
    }
}
