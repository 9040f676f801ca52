/* The package greenlet's types and C API, implemented with fibers.
 *
 *   greenlet.c         the type: creation, end, attributes
 *   greenlet_switch.c  switch, throw, first run, end, unwinding
 *   greenlet_thread.c  current and main greenlets, threads that end
 *   greenlet_trace.c   settrace
 *   greenlet_capi.c    the capsule, module functions, set-up
 *
 * A started greenlet has a separate fiber, which no other code starts or ends.
 * The greenlet's code runs there, and a switch works as in Fiber.switch.  A
 * fiber that no greenlet has made gets a greenlet as its view when its code
 * asks for the current greenlet: the main greenlet is the view of the thread's
 * root fiber.
 */
#ifndef PF_GREENLET_H
#define PF_GREENLET_H

#include "python/core/compiler.h"
#include "python/core/parts.h"
#include "python/core/thread.h"
#include "python/core/world.h"
#include "python/task/fiber.h"

typedef struct PfGreenlet PfGreenlet;

/* The size and the order of fields must be those of greenlet's struct, because
 * compiled classes extend it. */
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
 * - `fiber` is set from the greenlet's start to its end, and owned.  The
 *   fiber's pointer back, `view`, is owned if the greenlet is a view, else
 *   borrowed.  If the thread ends before the greenlet, the fiber's state is
 *   PF_DONE, but the fiber keeps its stack.
 * - `main` is set from the start on, but NULL in a main greenlet.  `parent` is
 *   NULL in a main greenlet, and after the collector has cleared it.  There are
 *   no cycles of parents.
 * - `thread` is the thread that made the greenlet and, from the start on, the
 *   one that runs it.  Other threads stop that thread (core/world.h) to look
 *   at the greenlet, change it or start it.
 * - `killer` is set while GreenletExit, thrown because the last reference is
 *   gone, unwinds the greenlet, if control must return to the fiber that threw
 *   it and not to `parent`: that suspended fiber is the killer.
 */
struct PfGreenlet {
    FiberObject *fiber;
    PyGreenlet *parent;
    PyGreenlet *main;
    FiberObject *killer; /* borrowed */
    PyObject *run;       /* the function to run; NULL once it has begun */
    PyObject *context;   /* the contextvars context, while there is no fiber */
    const PfThread *thread;
    uint8_t kind; /* a PfGreenletKind */
    bool started;
    bool thread_gone; /* of a main greenlet: its thread has ended */
    bool finalized;   /* tp_finalize has run, as it does once per object */
    bool pinned;      /* the stack may not be freed after the thread's end */
};

#define IMPL(g) ((g)->pimpl)
#define GREENLET_OF(f) ((PyGreenlet *)(f)->view)

typedef struct PfGreenletGlobals {
    PyObject *error;                      /* greenlet.error */
    PyObject *exit;                       /* greenlet.GreenletExit */
    PyObject *s_run, *s_switch, *s_throw; /* interned names */
} PfGreenletGlobals;
extern PfGreenletGlobals pf_greenlet;
extern PF_ATOMIC(size_t) pf_greenlet_mains; /* main greenlets alive */
extern PyTypeObject PfGreenlet_Type;

static inline bool
pf_greenlet_check(PyObject *op)
{
    return op != NULL && PyObject_TypeCheck(op, &PfGreenlet_Type);
}

extern const PfTaskOps pf_greenlet_ops; /* the kind of greenlets' fibers */

/* Returns true if a greenlet has made the fiber: then it is no view. */
static inline bool
pf_greenlet_owns(const FiberObject *fiber)
{
    return pf_fiber_kind(fiber) == &pf_greenlet_ops;
}

/* Returns true if the greenlet has started and not ended.  Call this on the
 * greenlet's thread or while that is stopped, else pf_greenlet_is_active(). */
static inline bool
pf_greenlet_active(const PyGreenlet *g)
{
    return IMPL(g)->fiber != NULL && IMPL(g)->fiber->core.state != PF_DONE;
}

/* Stop the other threads if one of them may change the greenlet.  The result
 * is the argument for pf_world_start(). */
static inline bool
pf_greenlet_stop_world(const PyGreenlet *g)
{
    return pf_world_stop(IMPL(g)->thread);
}

/* What this room keeps for each thread. */
typedef struct GreenThread {
    PyObject *trace;  /* the function of greenlet.settrace(), or NULL */
    PyObject *origin; /* the greenlet that the present switch has left, for
                         `trace`; or NULL */
} GreenThread;
extern PfKeeps pf_greenlet_of_thread;
static inline GreenThread *
pf_greenlet_thread(PfThread *t)
{
    return pf_parts_at(t, &pf_greenlet_of_thread);
}

/* --- greenlet.c --- */
/* Any thread may call these.  The parent is a new reference, or NULL, without
 * an exception, if there is none. */
PyObject *pf_greenlet_parent(PyGreenlet *g);
bool pf_greenlet_is_active(PyGreenlet *g);
bool pf_greenlet_is_dead(PyGreenlet *g);
/* Returns 0, or -1 with an exception. */
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
 * reference is gone, and write out an exception that comes of it. */
void pf_greenlet_kill(PfThread *t, PyGreenlet *g);

/* --- greenlet_thread.c --- */
/* Detach the view, if the fiber has one, from a fiber that has ended.  Does
 * nothing to a greenlet's own fiber. */
void pf_greenlet_view_done(FiberObject *fiber);
/* Returns the greenlet that is, or shows, the fiber: borrowed, or NULL with an
 * exception.  The first call makes the view. */
PyGreenlet *pf_greenlet_view(PfThread *t, FiberObject *fiber);
static inline PyGreenlet *
pf_greenlet_current(PfThread *t)
{
    FiberObject *fiber = CURRENT(t);
    return PF_LIKELY(fiber->view != NULL) ? GREENLET_OF(fiber)
                                          : pf_greenlet_view(t, fiber);
}
/* Returns the main greenlet of the first started greenlet among `g` and its
 * ancestors: a new reference, or NULL, without an exception, if the collector
 * has cleared the parents. */
PyGreenlet *pf_greenlet_main_in_lineage(PyGreenlet *g);
/* As pf_greenlet_stop_world, for a greenlet and all its ancestors. */
bool pf_greenlet_stop_lineage(const PyGreenlet *g);
/* Returns the main greenlet, borrowed; NULL if `g` has not started. */
PyGreenlet *pf_greenlet_main(PyGreenlet *g);
bool pf_greenlet_thread_gone(PyGreenlet *g);
/* Abandon the greenlets of a thread that ends: none can be entered again. */
void pf_greenlets_orphan(PfThread *t);
/* Free the fiber of a greenlet that dies after its thread has ended. */
void pf_greenlet_end_dead(PyGreenlet *g);
/* Do what t->pending asks for before a switch, as pf_pending_run() does for
 * fibers.  Returns 0, or -1 with greenlet.error. */
int pf_greenlet_run_pending(PfThread *t);

/* --- greenlet_trace.c --- */
PyObject *pf_greenlet_settrace(PyObject *module, PyObject *callback);
PyObject *pf_greenlet_gettrace(PyObject *module, PyObject *ignored);
/* Call the trace function for a switch that has just arrived in the running
 * fiber.  Returns 0, or -1 with the function's exception. */
int pf_greenlet_trace(PfThread *t, bool throwing);

/* --- greenlet_capi.c --- */
void pf_greenlet_module_init(void);
extern const PfPart pf_greenlets_part;
PyObject *pf_greenlet_api(PyObject *module, PyObject *ignored);
PyObject *pf_greenlet_getcurrent(PyObject *module, PyObject *ignored);

#endif
