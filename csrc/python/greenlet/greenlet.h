/* The greenlet stand-in: greenlet's types and C API on fibers.
 *
 *   greenlet.c         the type: making one, its end, its attributes
 *   greenlet_switch.c  switch, throw, first run, end, unwinding
 *   greenlet_thread.c  current and main greenlets, threads that end
 *   greenlet_trace.c   settrace
 *   greenlet_capi.c    the capsule, module functions, set-up
 *
 * A started greenlet has a fiber of its own, which no other code starts or
 * ends; its code runs there, and a switch works as in Fiber.switch.  A fiber
 * that no greenlet made gets a greenlet as its view when its code asks for the
 * current greenlet: the main greenlet is the view of the thread's root fiber.
 */
#ifndef PF_GREENLET_H
#define PF_GREENLET_H

#include "python/core/compiler.h"
#include "python/core/parts.h"
#include "python/core/thread.h"
#include "python/core/world.h"
#include "python/task/fiber.h"

typedef struct PfGreenlet PfGreenlet;

/* Compiled classes extend this struct: its size and order are greenlet's. */
typedef struct PyGreenlet {
    PyObject_HEAD
    PyObject *weakreflist;
    PyObject *dict;
    PfGreenlet *pimpl;
} PyGreenlet;

typedef enum PfGreenletKind {
    PF_GREENLET_OWN,  /* made by greenlet() */
    PF_GREENLET_MAIN, /* the view of a thread's root fiber */
    PF_GREENLET_VIEW, /* the view of any other fiber */
} PfGreenletKind;

/* Invariants:
 * - `fiber` is set from the start to the end.  The reference is strong; the
 *   fiber's own pointer back is strong for a view, else borrowed.  If the
 *   thread ends first the fiber is done, and keeps its stack.
 * - `main` is set from the start on; NULL for a main greenlet, which is its
 *   own.  `parent` is NULL for a main greenlet, and once it is cleared.  There
 *   are no cycles of parents.
 * - `thread` made it, and it began there from its start on.  Others look at
 *   it, change it or begin it while that one stands still (core/world.h).
 * - `killer` is set while GreenletExit, thrown because the last reference is
 *   gone, runs through the greenlet: it is the suspended fiber that threw it,
 *   to which control must return.
 */
struct PfGreenlet {
    FiberObject *fiber;
    PyGreenlet *parent;
    PyGreenlet *main;
    FiberObject *killer; /* borrowed */
    PyObject *run;       /* the function to run, until it begins */
    PyObject *context;   /* while there is no fiber */
    const PfThread *thread;
    uint8_t kind;
    bool started;
    bool thread_gone; /* of a main greenlet */
    bool finalized;   /* happens only once in an object's life */
    bool pinned;      /* its thread is gone, its stack must stay */
};

#define IMPL(g) ((g)->pimpl)
#define GREENLET_OF(f) ((PyGreenlet *)(f)->view)

typedef struct PfGreenletGlobals {
    PyObject *error;
    PyObject *exit;
    PyObject *s_run, *s_switch, *s_throw;
} PfGreenletGlobals;
extern PfGreenletGlobals pf_greenlet;
extern PF_ATOMIC(size_t) pf_greenlet_mains; /* alive */
extern PyTypeObject PfGreenlet_Type;

static inline bool
pf_greenlet_check(PyObject *op)
{
    return op != NULL && PyObject_TypeCheck(op, &PfGreenlet_Type);
}

extern const PfTaskOps pf_greenlet_ops; /* of their fibers */

/* Is it the fiber of a greenlet that was made as one? */
static inline bool
pf_greenlet_owns(const FiberObject *fiber)
{
    return pf_fiber_kind(fiber) == &pf_greenlet_ops;
}

static inline bool
pf_greenlet_active(const PyGreenlet *g)
{
    return IMPL(g)->fiber != NULL && IMPL(g)->fiber->core.state != PF_DONE;
}

static inline bool
pf_greenlet_stop_world(const PyGreenlet *g)
{
    return pf_world_stop(IMPL(g)->thread);
}

/* Of each thread. */
typedef struct GreenThread {
    PyObject *trace;  /* of greenlet.settrace(), or NULL */
    PyObject *origin; /* where the present switch began, for that */
} GreenThread;
extern PfKeeps pf_greenlet_of_thread;
static inline GreenThread *
pf_greenlet_thread(PfThread *t)
{
    return pf_parts_at(t, &pf_greenlet_of_thread);
}

/* --- greenlet.c --- */
PyObject *pf_greenlet_parent(PyGreenlet *g); /* new; NULL: none */
bool pf_greenlet_is_active(PyGreenlet *g);   /* of any thread */
bool pf_greenlet_is_dead(PyGreenlet *g);
int pf_greenlet_set_parent(PyGreenlet *g, PyObject *value);
PyObject *pf_greenlet_new(PyTypeObject *type, PyObject *args,
                          PyObject *kwargs);
int pf_greenlet_init(PyObject *op, PyObject *args, PyObject *kwargs);
PfGreenlet *pf_greenlet_impl_new(PfThread *t, PfGreenletKind kind);
void pf_greenlets_free_spare(PfThread *t);

/* --- greenlet_switch.c --- */
PyObject *pf_greenlet_switch_method(PyObject *op, PyObject *const *args,
                                    Py_ssize_t nargs, PyObject *kwnames);
PyObject *pf_greenlet_throw_method(PyObject *op, PyObject *args);
PyObject *pf_greenlet_switch(PyGreenlet *g, PyObject *args, PyObject *kwargs);
PyObject *pf_greenlet_throw(PyGreenlet *g, PyObject *type, PyObject *value,
                            PyObject *traceback);
/* Throw GreenletExit into a suspended greenlet of this thread whose last
 * reference is gone. */
void pf_greenlet_kill(PfThread *t, PyGreenlet *g);

/* --- greenlet_thread.c --- */
/* The fiber, which has a view or a greenlet, is over: the view shows that. */
void pf_greenlet_view_done(FiberObject *fiber);
PyGreenlet *pf_greenlet_view(PfThread *t, FiberObject *fiber); /* borrowed */
static inline PyGreenlet *
pf_greenlet_current(PfThread *t) /* borrowed; NULL with an exception */
{
    FiberObject *fiber = CURRENT(t);
    return PF_LIKELY(fiber->view != NULL) ? GREENLET_OF(fiber)
                                          : pf_greenlet_view(t, fiber);
}
/* A new reference; NULL: none (its parents were cleared by the collector). */
PyGreenlet *pf_greenlet_main_in_lineage(PyGreenlet *g);
/* As pf_greenlet_stop_world, for a greenlet and all its ancestors. */
bool pf_greenlet_stop_lineage(const PyGreenlet *g);
PyGreenlet *pf_greenlet_main(PyGreenlet *g); /* borrowed; NULL: not started */
bool pf_greenlet_thread_gone(PyGreenlet *g);
/* The thread ends: its greenlets cannot be entered any more. */
void pf_greenlets_orphan(PfThread *t);
/* The end of a greenlet whose thread went away before it. */
void pf_greenlet_bury(PyGreenlet *g);
/* Deal with t->pending. 0, or -1 with greenlet.error. */
int pf_greenlet_run_pending(PfThread *t);

/* --- greenlet_trace.c --- */
PyObject *pf_greenlet_settrace(PyObject *module, PyObject *callback);
PyObject *pf_greenlet_gettrace(PyObject *module, PyObject *ignored);
/* Tell the trace function about a switch that has just landed. 0, or -1 with
 * its exception. */
int pf_greenlet_trace(PfThread *t, bool throwing);

/* --- greenlet_capi.c --- */
void pf_greenlet_module_init(void);
extern const PfPart pf_greenlets_part;
PyObject *pf_greenlet_api(PyObject *module, PyObject *ignored);
PyObject *pf_greenlet_getcurrent(PyObject *module, PyObject *ignored);

#endif
