/* virtual/: threads of the program that are fibers of a run.
 *
 *   handle.c  the object that a thread's starter, its joiners and its fiber
 *             share: what the thread calls, whether it has begun, its end
 *   start.c   starting a thread as a fiber, finding such fibers, cutting them
 *             off at the end
 *   ident.c   which thread the running code belongs to
 *   main.c    the main program: exceptions and signals reach it where it waits
 *   others.c  what a thread does to others: exceptions, trace functions
 *
 * Called by module.c.  pyfiber/_virtual decides which functions of the
 * standard library lead here, and when.
 *
 * The words: a *virtual thread* is a scheduled fiber of the kind
 * pf_virtual_ops, whose target is its handle until the fiber is done.  Code
 * runs *in* a virtual thread if the fiber itself runs it, or a raw fiber or
 * generator that was entered from there.  All other code of the operating
 * system's thread belongs to the main program.
 */
#ifndef PF_VIRTUAL_H
#define PF_VIRTUAL_H

#include "python/core/pyinclude.h"

#include "python/core/parts.h"
#include "python/core/thread.h"
#include "python/task/fiber.h"
#include "python/waitq/waitq.h"

typedef enum PfHandleState {
    PF_HANDLE_NEW,
    PF_HANDLE_STARTING, /* the fiber is ready and has not begun */
    PF_HANDLE_BEGUN,
    PF_HANDLE_DONE,
    PF_HANDLE_REFUSED, /* done, and the fiber never began */
} PfHandleState;

/* Invariants:
 * - `fiber` is set exactly while `state` is STARTING or BEGUN, but for the
 *   main program's handle, which has none.  The fiber holds a reference to the
 *   handle then, as its target.
 * - `function`, `args` and `kwargs` are set from the start until the fiber
 *   begins.
 * - `waiters` has the starter while the state is STARTING, and afterwards
 *   those that join. */
typedef struct PfHandle {
    PyObject_HEAD
    PyObject *function, *args, *kwargs;
    PyObject *sentinel; /* the thread's end calls its release(); or NULL */
    PyObject *weakrefs;
    FiberObject *fiber; /* borrowed */
    size_t ident;       /* 0: not started */
    uint64_t native_id; /* 0: not started */
    PfWaitq waiters;
    uint8_t state; /* a PfHandleState */
    bool daemon;
} PfHandle;

/* handle.c */
extern PyTypeObject *pf_handle_type; /* constant after import */
void pf_handle_set_state(PfHandle *handle, PfHandleState state);
/* Waits until the thread has begun, or will never begin. Returns 0, or -1 with
 * an exception. */
int pf_handle_await_begin(PfHandle *handle, PfThread *t);
void pf_handle_ended(PfHandle *handle);
void pf_handle_lost(PfHandle *handle);
int pf_handle_init(PyObject *module);

/* start.c */
extern const PfTaskOps pf_virtual_ops;
static inline bool
pf_virtual_is(const FiberObject *fiber)
{
    return pf_fiber_kind(fiber) == &pf_virtual_ops;
}
int pf_virtual_after_fork(PfThread *t); /* 0 */
int pf_virtual_start_init(PyObject *module);

/* ident.c */
/* The thread's number: the address of its fiber, with a bit that no identifier
 * of a system's thread has.  Such identifiers are addresses, too, or multiples of four. */
static inline size_t
pf_virtual_ident(const FiberObject *fiber)
{
    return (size_t)fiber | 1;
}
/* The number of a thread that is not done. */
static inline uint64_t
pf_virtual_native_id(const FiberObject *fiber)
{
    return ((const PfHandle *)fiber->target)->native_id;
}
/* The fiber of the virtual thread in which the running code is, or NULL. */
FiberObject *pf_virtual_here(const PfThread *t);
/* Does the running code belong to a thread of the program that shares this
 * thread of the system with others? */
bool pf_virtual_is_one_of_several(PfThread *t);
int pf_virtual_ident_init(PyObject *module);

/* main.c */
extern const PfPart pf_virtual_part;
/* Does the running code belong to the main program? */
bool pf_virtual_in_main(const PfThread *t);
/* The fiber of the main program, or NULL outside of a block: for any thread. */
FiberObject *pf_virtual_main(void);
int pf_virtual_main_init(PyObject *module);

/* others.c */
int pf_virtual_others_init(PyObject *module);

int pf_virtual_init(PyObject *module);

#endif
