/* Saves and restores the parts of CPython's PyThreadState that belong to a
 * fiber.
 *
 * This file is longer than 800 lines, so that all that differs between
 * versions stands in one place: tstate.h, tstate.c and tstate_layout are the
 * only files with version #ifs, and the only ones that touch fields of
 * PyThreadState (also for csrc/cffi, which uses the helpers at the end; unused
 * inline functions do not need tstate.c). pystate_save and pystate_load mirror
 * each other: a field named in one is named in the other.
 *
 * tstate_layout.h lists every field that is touched, and which ones a switch
 * saves and restores. No other field of the interpreter is written.
 *
 * Not switched are the thread's trace and profile functions, threading.local
 * and the running asyncio loop, because they belong to the thread. (For a loop
 * that runs in a fiber, see wait/asyncio.h; for a fiber's separate trace
 * function, switch/tracing.h.) `current_exception` is not switched either: it
 * is NULL whenever a fiber is left, and an exception in flight travels as the
 * value of the switch.
 */
#ifndef PF_TSTATE_H
#define PF_TSTATE_H

#include "python/core/pyinclude.h"

#include "context/sanitizers.h"
#include "engine/base/memory.h"

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x03100000
#error "pyfiber supports CPython 3.11 to 3.15"
#endif
#if defined(PYPY_VERSION) || defined(GRAALVM_PYTHON)
#error "pyfiber needs CPython: it switches CPython's own thread state"
#endif

/* Does a header of the interpreter define the layout of a frame? */
#define PF_HAS_FRAME_LAYOUT (PY_VERSION_HEX < 0x030C0000)
#if PF_HAS_FRAME_LAYOUT
#define Py_BUILD_CORE 1
#include "internal/pycore_frame.h"
#undef Py_BUILD_CORE
#endif

/* The thread's sentinel frame. Needed only from 3.15 on, where the profiler
 * expects the frames of every stack to end there. */
#if PY_VERSION_HEX >= 0x030F0000
#define PF_BASE_FRAME(ts) ((ts)->base_frame)
#else
#define PF_BASE_FRAME(ts) NULL
#endif

/* Without a GIL other threads run while this one does, and critical sections,
 * which replace the GIL, are locks that a fiber must not hold while it is
 * suspended. From 3.14 on frames hold uncounted references to objects, and the
 * collector looks for these: see pystate_traverse. */
#ifdef Py_GIL_DISABLED
#define PF_FREE_THREADED 1
#define PF_ABI_SUFFIX "t" /* in the name of the interpreter's library */
PyAPI_FUNC(void) _PyCriticalSection_SuspendAll(PyThreadState *);
PyAPI_FUNC(void) _PyCriticalSection_Resume(PyThreadState *);
PyAPI_FUNC(void) _PyEval_StopTheWorld(PyInterpreterState *);
PyAPI_FUNC(void) _PyEval_StartTheWorld(PyInterpreterState *);
#else
#define PF_FREE_THREADED 0
#define PF_ABI_SUFFIX ""
#endif
/* Code objects must be instrumented for the events that tools ask for. From
 * 3.15 on, raising an exception in code that is not yet instrumented reads
 * through NULL. The interpreter instruments the code that threads run when a
 * tool asks; pyfiber does so for a fiber that is resumed later. */
#define PF_PREPARES_CODE (PY_VERSION_HEX >= 0x030F0000)
#define PF_HAS_DEFERRED (PF_FREE_THREADED && PY_VERSION_HEX >= 0x030E0000)

#define PF_HAS_CFRAME (PY_VERSION_HEX < 0x030D0000)
#define PF_HAS_C_COUNTER                                                      \
    (PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x030E0000)
#define PF_HAS_STACK_LIMITS (PY_VERSION_HEX >= 0x030E0000)
#define PF_COUNTS_C_CALLS (PY_VERSION_HEX < 0x030E0000)
#define PF_HAS_DUMP_TRACEBACK (PY_VERSION_HEX >= 0x030F0000)

/* The saved part of the thread state of a suspended fiber. A PyState lies in
 * the room above the fiber's stack (that of a thread's root in its PfThread).
 */
typedef struct PyState {
#if PF_HAS_CFRAME
    _PyCFrame *cframe;
#else
    struct _PyInterpreterFrame *frame;
#endif
    _PyErr_StackItem *exc_info;
    _PyStackChunk *chunk;
    PyObject **top;
    PyObject **limit;
    int py_depth; /* calls so far, not calls left: so a new limit applies at
                     once */
    int tracing;
    struct PfTrace *trace; /* a separate trace function, or NULL: see
                              switch/tracing.h */
#if PY_VERSION_HEX >= 0x030C0000
    int what_event;
#endif
#if PF_HAS_C_COUNTER
    int c_remaining;
    int c_limit; /* the count that the fiber began with */
#endif
#if PY_VERSION_HEX < 0x030D0000
    int trash_nesting;
#endif
#if PY_VERSION_HEX >= 0x030E0000
    PyObject *executor;
    char *stack_low; /* NULL: the thread's own stack */
    size_t stack_size;
#endif
#if PF_FREE_THREADED
    uintptr_t critical_section; /* the list of suspended sections */
#endif
#if PF_HAS_DEFERRED
    struct PyCStackRef *c_stack_refs;
#endif
#if PF_PREPARES_CODE
    uintptr_t events; /* the events that its code is instrumented for */
#endif
    int stolen; /* recursion units taken by pystate_exhaust */
    /* Where the chains that begin in the fields above end, for a fiber. */
    _PyErr_StackItem exc_root;
    _PyStackChunk *chunk_root;
#if PF_HAS_CFRAME
    _PyCFrame cframe_root;
#else
    struct _PyInterpreterFrame *frame_root;
#endif
} PyState;

#if PF_HAS_DEFERRED
/* A reference that C code has on its stack; these are linked, innermost first.
 */
typedef struct PyCStackRef {
    uintptr_t ref;
    struct PyCStackRef *next;
} PyCStackRef;

extern uint8_t pystate_deferred_bit; /* the bit of an object's ob_gc_bits
                                        for deferred counts */

/* The head of that list, in the private part behind PyThreadState. The offset
 * differs between patch releases: pystate_lookup finds it. */
extern size_t pystate_c_stack_refs_offset;
static inline PyCStackRef **
pystate_c_stack_refs(PyThreadState *ts)
{
    return (PyCStackRef **)(void *)((char *)ts + pystate_c_stack_refs_offset);
}
#endif

#if PF_HAS_STACK_LIMITS
typedef int (*pf_set_protection_fn)(PyThreadState *, void *, size_t);
typedef void (*pf_reset_protection_fn)(PyThreadState *);
extern pf_set_protection_fn pystate_set_protection;
extern pf_reset_protection_fn pystate_reset_protection;
#endif

/* 3.12 and 3.13 count C recursion instead of checking the stack pointer, and
 * 3.11 counts C and Python levels together. A fiber's counter starts as high
 * as on the main thread, or at what its stack can hold of the cheapest counted
 * recursion: the compiler's own passes read the counter once and then descend
 * that many levels of about 130 bytes without counting. When a more expensive
 * recursion runs into the stack's reserve before the counter runs out,
 * pystate_exhaust ends the count there. Where there is no reserve (Windows)
 * the count is scaled by the most expensive known use of a unit: sorted(key=f)
 * with f calling sorted again takes about 5.2 KB for 3 units. */
#define PF_CHEAPEST_UNIT 150
#ifdef _WIN32
#define PF_DEAREST_UNIT 2600 /* larger frames; 1760 is too little there */
#else
#define PF_DEAREST_UNIT 1760
#endif
extern int pystate_c_most; /* the main thread's */

static inline int
pystate_py_limit(PyThreadState *ts)
{
#if PY_VERSION_HEX < 0x030C0000
    return ts->recursion_limit;
#else
    return ts->py_recursion_limit;
#endif
}

static inline int *
pystate_py_remaining(PyThreadState *ts)
{
#if PY_VERSION_HEX < 0x030C0000
    return &ts->recursion_remaining;
#else
    return &ts->py_recursion_remaining;
#endif
}

/* The operating system's handle of the thread, as threading.get_ident()
 * returns it. */
static inline unsigned long
pystate_thread(PyThreadState *ts)
{
    return ts->thread_id;
}

/* The field with the running fiber's contextvars context, which is NULL if it
 * has none yet. */
static inline PyObject **
pystate_context(PyThreadState *ts)
{
    return &ts->context;
}

/* Puts `*context` in place of the running fiber's context and stores the
 * latter there, as a switch does. (PyContext_Enter would also mark the context
 * as entered, call watchers from 3.14 on, and fail for one that is entered
 * already.) */
static inline void
pystate_swap_context(PyThreadState *ts, PyObject **context)
{
    PyObject *left = ts->context;
    if (left != *context) {
        ts->context = *context;
        ts->context_ver++;
        *context = left;
    }
}

/* Reads the thread's hooks for asynchronous generators: new references, or
 * NULL. */
static inline void
pystate_asyncgen_hooks(PyThreadState *ts, PyObject *hooks[2])
{
    hooks[0] = Py_XNewRef(ts->async_gen_firstiter);
    hooks[1] = Py_XNewRef(ts->async_gen_finalizer);
}

/* Exchanges these hooks, when the fiber of an asyncio loop is left or entered.
 * (sys.set_asyncgen_hooks() does the same, but may fail, and audit hooks run.)
 */
static inline void
pystate_swap_asyncgen_hooks(PyThreadState *ts, PyObject *hooks[2])
{
    PyObject *first = ts->async_gen_firstiter;
    PyObject *last = ts->async_gen_finalizer;
    ts->async_gen_firstiter = hooks[0];
    ts->async_gen_finalizer = hooks[1];
    hooks[0] = first;
    hooks[1] = last;
}

/* How many frames a new coroutine remembers of its origin, as
 * sys.set_coroutine_origin_tracking_depth() sets it; a loop in debug mode does.
 */
static inline int
pystate_origin_depth(const PyThreadState *ts)
{
    return ts->coroutine_origin_tracking_depth;
}

/* Exchanges that number. */
static inline void
pystate_swap_origin_depth(PyThreadState *ts, int *depth)
{
    int left = ts->coroutine_origin_tracking_depth;
    ts->coroutine_origin_tracking_depth = *depth;
    *depth = left;
}

/* Makes the next load of `st` keep the tracing depth. After a trace function
 * has left the running fiber by greenlet's switch, no trace function is then
 * called at the target. */
static inline void
pystate_keep_tracing(PyThreadState *ts, PyState *st)
{
    st->tracing = ts->tracing;
}

/* Has the thread a trace function, as sys.settrace() sets it? The next two
 * return it and its object. */
static inline bool
pystate_traced(const PyThreadState *ts)
{
    return ts->c_tracefunc != NULL;
}

static inline Py_tracefunc
pystate_trace_function(const PyThreadState *ts)
{
    return ts->c_tracefunc;
}

static inline PyObject *
pystate_trace_object(const PyThreadState *ts)
{
    return ts->c_traceobj;
}

/* The same for the profile function. */
static inline Py_tracefunc
pystate_profile_function(const PyThreadState *ts)
{
    return ts->c_profilefunc;
}

static inline PyObject *
pystate_profile_object(const PyThreadState *ts)
{
    return ts->c_profileobj;
}

/* Is a trace or profile function running? */
static inline bool
pystate_in_tracer(const PyThreadState *ts)
{
    return ts->tracing != 0;
}

/* Exchanges the thread's trace function and its object, at a switch from or to
 * a fiber with a separate one. The thread traces before and after, so the
 * interpreter's count of traced threads stays right. (PyEval_SetTrace would
 * run audit hooks and instrument all code anew at each switch.) */
static inline void
pystate_exchange_trace(PyThreadState *ts, Py_tracefunc *function,
                       PyObject **object)
{
    Py_tracefunc was = ts->c_tracefunc;
    PyObject *was_object = ts->c_traceobj;
    ts->c_tracefunc = *function;
    ts->c_traceobj = *object;
    *function = was;
    *object = was_object;
}

/* A thread's trace and profile functions, with the references to their
 * objects. */
typedef struct PyTracing {
    Py_tracefunc trace, profile;
    PyObject *trace_object, *profile_object;
} PyTracing;

/* Exchanges all of that, at a switch from or to a fiber that has its own, as a
 * thread has.  The interpreter counts how many threads trace, so that code is
 * instrumented while any does: such a fiber counts as one of them. */
static inline void
pystate_exchange_tracing(PyThreadState *ts, PyTracing *other)
{
    PyTracing was = {ts->c_tracefunc, ts->c_profilefunc, ts->c_traceobj,
                     ts->c_profileobj};
    ts->c_tracefunc = other->trace;
    ts->c_profilefunc = other->profile;
    ts->c_traceobj = other->trace_object;
    ts->c_profileobj = other->profile_object;
    *other = was;
#if PY_VERSION_HEX < 0x030C0000
    ts->cframe->use_tracing =
        ts->tracing == 0 && (ts->c_tracefunc || ts->c_profilefunc) ? 255 : 0;
#endif
}

/* Has the thread a profile function set from C, by PyEval_SetProfile()? */
static inline bool
pystate_profiled(const PyThreadState *ts)
{
    return ts->c_profilefunc != NULL;
}

/* Must a switch from one state to another do anything for tracers or
 * profilers? */
static inline bool
pystate_watched(const PyThreadState *ts, const PyState *left,
                const PyState *entered)
{
    return ((uintptr_t)ts->c_tracefunc | (uintptr_t)ts->c_profilefunc |
            (uintptr_t)left->trace | (uintptr_t)entered->trace) != 0;
}

/* Is an exception set? As PyErr_Occurred(), for code that has the thread
 * state. */
static inline bool
pystate_raised(PyThreadState *ts)
{
#if PY_VERSION_HEX >= 0x030C0000
    return ts->current_exception != NULL;
#else
    return ts->curexc_type != NULL;
#endif
}

/* Takes a count of the thread's state, which is never returned: it goes with
 * the state. The PyGILState_Release that took the count to 0 may be clearing
 * the state just now; then a PyGILState_Ensure and Release by code that runs
 * meanwhile (a callback of ctypes, say) would clear it once more. From 3.13 on
 * the interpreter holds such a count itself. */
static inline void
pystate_hold(PyThreadState *ts)
{
#if PY_VERSION_HEX < 0x030D0000
    if (ts->gilstate_counter == 0) {
        (void)PyGILState_Ensure();
    }
#else
    (void)ts;
#endif
}

/* Between pystate_end_enter and pystate_end_leave a thread that is about to
 * end, and whose state still exists, is attached. The latter clears the state
 * if the thread's own code has released it. Code that runs in between releases
 * only what it took itself. */
typedef struct PyStateEnd {
    void *token; /* not NULL: PyThreadState_Ensure had made the state */
    PyGILState_STATE held;
} PyStateEnd;

/* False: the interpreter is shutting down. */
static inline bool
pystate_end_enter(PyThreadState *ts, PyStateEnd *end)
{
    *end = (PyStateEnd){NULL, PyGILState_LOCKED};
#if PY_VERSION_HEX >= 0x030F0000
    if (ts != NULL && ts->ensure.delete_on_release) {
        PyInterpreterView *view = PyInterpreterView_FromMain();
        if (view != NULL) {
            end->token = PyThreadState_EnsureFromView(view);
            PyInterpreterView_Close(view);
        }
        return end->token != NULL;
    }
#endif
    (void)ts;
    end->held = PyGILState_Ensure();
    return true;
}

static inline void
pystate_end_leave(PyStateEnd *end)
{
#if PY_VERSION_HEX >= 0x030F0000
    if (end->token != NULL) {
        PyThreadState_Release(end->token);
        return;
    }
#endif
    PyGILState_Release(end->held);
}

/* Does Python code run on the stack of this thread state, or wait there for C
 * code that it has called? The thread itself may call this without the GIL. No
 * frame is read, as the stack may already be left for good. */
static inline bool
pystate_in_code(PyThreadState *ts)
{
#if PF_HAS_CFRAME
    return ts->cframe != &ts->root_cframe;
#elif PY_VERSION_HEX >= 0x030F0000
    return ts->current_frame != ts->base_frame;
#else
    return ts->current_frame != NULL;
#endif
}

/* Notes that ts->context was replaced, so that the interpreter drops what it
 * has cached of the former one. */
static inline void
pystate_context_changed(PyThreadState *ts)
{
    ts->context_ver++;
}

/* The depth of the running fiber's nested deallocations; 0 in versions that do
 * not count it. */
static inline int
pystate_trash_nesting(PyThreadState *ts)
{
#if PY_VERSION_HEX < 0x030C0000
    return ts->trash_delete_nesting;
#elif PY_VERSION_HEX < 0x030D0000
    return ts->trash.delete_nesting;
#else
    (void)ts;
    return 0;
#endif
}

#if PF_PREPARES_CODE
/* The version of the set of events that tools ask for: the word's upper bits.
 */
static inline uintptr_t
pystate_events(PyThreadState *ts)
{
    return _Py_atomic_load_uintptr_relaxed(&ts->eval_breaker) &
           ~(uintptr_t)255;
}
/* Instruments the code of the fiber's frames. Called when the version has
 * changed while the fiber was suspended. */
void pystate_prepare_code(PyThreadState *ts, PyState *st);
#endif

static inline void
pystate_save(PyThreadState *ts, PyState *st, PyObject **context)
{
#if PF_FREE_THREADED
    if (ts->critical_section != 0) {
        _PyCriticalSection_SuspendAll(ts);
    }
    st->critical_section = ts->critical_section;
#endif
#if PF_HAS_DEFERRED
    st->c_stack_refs = *pystate_c_stack_refs(ts);
#endif
#if PF_PREPARES_CODE
    st->events = pystate_events(ts);
#endif
#if PF_HAS_CFRAME
    st->cframe = ts->cframe;
#else
    st->frame = ts->current_frame;
#endif
    st->exc_info = ts->exc_info;
    st->chunk = ts->datastack_chunk;
    st->top = ts->datastack_top;
    st->limit = ts->datastack_limit;
    st->py_depth = pystate_py_limit(ts) - *pystate_py_remaining(ts);
    st->tracing = ts->tracing;
#if PY_VERSION_HEX >= 0x030C0000
    st->what_event = ts->what_event;
#endif
#if PF_HAS_C_COUNTER
    st->c_remaining = ts->c_recursion_remaining;
#endif
#if PY_VERSION_HEX < 0x030C0000
    st->trash_nesting = ts->trash_delete_nesting;
#elif PY_VERSION_HEX < 0x030D0000
    st->trash_nesting = ts->trash.delete_nesting;
#endif
#if PY_VERSION_HEX >= 0x030E0000
    /* An own reference, because the interpreter frees executors that no thread
     * runs. */
    st->executor = Py_XNewRef(ts->current_executor);
#endif
    *context = ts->context;
}

static inline void
pystate_load(PyThreadState *ts, PyState *st, PyObject **context)
{
#if PF_HAS_CFRAME
    ts->cframe = st->cframe;
#else
    ts->current_frame = st->frame;
#endif
    ts->exc_info = st->exc_info;
    ts->datastack_chunk = st->chunk;
    ts->datastack_top = st->top;
    ts->datastack_limit = st->limit;
    *pystate_py_remaining(ts) = pystate_py_limit(ts) - st->py_depth;
    ts->tracing = st->tracing;
#if PY_VERSION_HEX < 0x030C0000
    /* Computed from the thread's trace function, which may have been set or
     * removed while this fiber was suspended. */
    ts->cframe->use_tracing =
        st->tracing == 0 && (ts->c_tracefunc || ts->c_profilefunc) ? 255 : 0;
#else
    ts->what_event = st->what_event;
#endif
#if PF_HAS_C_COUNTER
    ts->c_recursion_remaining = st->c_remaining;
#endif
#if PY_VERSION_HEX < 0x030C0000
    ts->trash_delete_nesting = st->trash_nesting;
#elif PY_VERSION_HEX < 0x030D0000
    ts->trash.delete_nesting = st->trash_nesting;
#endif
#if PY_VERSION_HEX >= 0x030F0000
    ts->last_profiled_frame = NULL; /* a frame of the stack just left */
#endif
#if PY_VERSION_HEX >= 0x030E0000
    ts->current_executor = st->executor;
    Py_XDECREF(st->executor); /* runs no code */
    st->executor = NULL;
    if (st->stack_low != NULL) {
        (void)pystate_set_protection(ts, st->stack_low, st->stack_size);
    } else {
        pystate_reset_protection(ts);
    }
#endif
    ts->context = *context;
    *context = NULL;
    ts->context_ver++;
#if PF_HAS_DEFERRED
    *pystate_c_stack_refs(ts) = st->c_stack_refs;
#endif
#if PF_FREE_THREADED
    /* Last, because a thread that waits for such a lock lets the collector
     * run. */
    ts->critical_section = st->critical_section;
    if (ts->critical_section != 0) {
        _PyCriticalSection_Resume(ts);
    }
#endif
#if PF_PREPARES_CODE
    if (pystate_events(ts) != st->events) {
        pystate_prepare_code(ts, st);
    }
#endif
}

/* Sets the bounds of the fiber's stack that the interpreter gets to see. A
 * stack smaller than it accepts is presented as large enough; the stack's
 * guard must suffice then. The interpreter accepts 96 KiB and more, and 192 if
 * it was built with ThreadSanitizer. (A fiber's stack has at least about 120.)
 */
#define PF_LEAST_PROTECTED ((size_t)(PF_WITH_TSAN ? 192 : 96) * 1024)
static inline void
pystate_set_stack(PyState *st, char *low, size_t size)
{
#if PF_HAS_STACK_LIMITS
    if (low != NULL && size < PF_LEAST_PROTECTED) {
        low -= PF_LEAST_PROTECTED - size;
        size = PF_LEAST_PROTECTED;
    }
    st->stack_low = low;
    st->stack_size = size;
#else
    (void)st, (void)low, (void)size;
#endif
}

/* Sets other bounds while the running fiber's code continues on another C
 * stack (a context of the C API); `low` NULL: the thread's own stack. Needs no
 * GIL, as only the thread itself reads the bounds. */
static inline void
pystate_move(PyThreadState *ts, PyState *st, char *low, size_t size)
{
#if PF_HAS_STACK_LIMITS
    pystate_set_stack(st, low, size);
    if (low != NULL) {
        (void)pystate_set_protection(ts, st->stack_low, st->stack_size);
    } else {
        pystate_reset_protection(ts);
    }
#else
    (void)ts, (void)st, (void)low, (void)size;
#endif
}

/* The hot part of a frame (instruction pointer, stack pointer, locals) begins
 * 56 bytes into it on every version. The first frame is placed so that this
 * part begins a cache line: a switch between shallow fibers touches one line
 * of the data stack instead of two. */
#define PF_FRAME_LEAD 56
#define PF_LINE 64
#define PF_TOP_AFTER(n)                                                       \
    (((n) + PF_FRAME_LEAD + PF_LINE - 1) / PF_LINE * PF_LINE - PF_FRAME_LEAD)
/* Offsets from the start of the room, which begins a cache line. */
#define PF_CHUNK_OFFSET ((sizeof(PyState) + 15) & ~(size_t)15)
#define PF_FIRST_FRAME                                                        \
    PF_TOP_AFTER(PF_CHUNK_OFFSET + offsetof(_PyStackChunk, data) +            \
                 sizeof(PyObject *))
/* A switch may read beyond the PyState's first line. */
#define PF_SECOND_LINE (offsetof(PyState, exc_root) > PF_LINE ? PF_LINE : 0)

#if PF_HAS_C_COUNTER
/* How many units of C recursion a fiber begins with. */
static inline int
pystate_c_units(size_t stack_size)
{
#ifdef _WIN32
    size_t units = stack_size / PF_DEAREST_UNIT;
#else
    size_t units = stack_size / PF_CHEAPEST_UNIT;
#endif
    return units < (size_t)pystate_c_most ? (int)units : pystate_c_most;
}
#endif

/* Initialises a state without frames and without a data stack. */
static inline void
pystate_init_bare(PyThreadState *ts, PyState *st)
{
    pf_memory_zero(st, sizeof *st);
#if PF_HAS_CFRAME
    st->cframe_root.previous = &ts->root_cframe;
    st->cframe = &st->cframe_root;
#else
    st->frame_root = st->frame = PF_BASE_FRAME(ts);
#endif
    st->exc_info = &st->exc_root;
#if PY_VERSION_HEX >= 0x030C0000
    st->what_event = -1;
#endif
    (void)ts;
}

/* Initialises the state of a fiber that has not run, at the beginning of its
 * room. The first data-stack chunk follows in the room. Frames begin above
 * data[0], so the interpreter never pops this chunk; it maps and frees later
 * ones itself. */
static inline PyState *
pystate_init(PyThreadState *ts, char *room, size_t room_size, char *stack_low,
             size_t stack_size)
{
    PyState *st = (PyState *)(void *)room;
    pystate_init_bare(ts, st);
    _PyStackChunk *chunk = (_PyStackChunk *)(void *)(room + PF_CHUNK_OFFSET);
    chunk->previous = NULL;
    chunk->size = room_size - PF_CHUNK_OFFSET;
    chunk->top = 0;
    st->chunk_root = st->chunk = chunk;
    st->top = (PyObject **)(void *)(room + PF_FIRST_FRAME);
    st->limit = (PyObject **)(void *)(room + room_size);
#if PF_HAS_C_COUNTER
    st->c_limit = st->c_remaining = pystate_c_units(stack_size);
#endif
#if PY_VERSION_HEX < 0x030C0000 && defined(_WIN32)
    /* One counter counts both kinds of calls: a small stack begins as if it
     * were already that deep in the default limit of 1,000. A program that
     * raises the limit must know how much its stacks hold, as on a thread. */
    int limit = ts->recursion_limit < 1000 ? ts->recursion_limit : 1000;
    size_t units = stack_size / PF_DEAREST_UNIT;
    st->py_depth = units < (size_t)limit ? limit - (int)units : 0;
#endif
    pystate_set_stack(st, stack_low, stack_size);
    (void)ts;
    return st;
}

#if PF_COUNTS_C_CALLS
/* The counter of C recursion. pystate_c_limit is the value with which it began
 * for the running fiber. */
static inline int *
pystate_c_remaining(PyThreadState *ts)
{
#if PF_HAS_C_COUNTER
    return &ts->c_recursion_remaining;
#else
    return &ts->recursion_remaining;
#endif
}

static inline int
pystate_c_limit(PyThreadState *ts, PyState *st)
{
#if PF_HAS_C_COUNTER
    (void)ts;
    return st->c_limit;
#else
    (void)st;
    return ts->recursion_limit;
#endif
}
#endif

/* Ends the recursion budget of the running fiber, which has reached its
 * stack's reserve: the next counted call raises RecursionError. (The counter
 * is a field that a switch saves. The interpreter has no function that lowers
 * it.) If so little of the budget is used that counted recursion cannot have
 * filled the stack, the next call is not the cause and must not fail: then
 * this does nothing and returns false. From 3.14 on the interpreter watches
 * the stack pointer itself, and the reserve is just the part of the stack its
 * limits lie in.
 *
 * In a signal handler the write may be lost, as the handler may have
 * interrupted the counting; but only C code that calls no Python function
 * depends on it there: see pystate_watch_calls.
 */
static inline bool
pystate_exhaust(PyThreadState *ts, PyState *st, size_t stack_size)
{
#if PF_COUNTS_C_CALLS
    int *remaining = pystate_c_remaining(ts);
    int used = pystate_c_limit(ts, st) - *remaining;
    if (*remaining > 0 && (size_t)used >= stack_size / (3 * PF_DEAREST_UNIT)) {
        st->stolen += *remaining;
        *remaining = 0;
        return true;
    }
#else
    (void)ts, (void)st, (void)stack_size;
#endif
    return false;
}

/* Returns as much of the ended budget as `bytes` of stack can hold, for the
 * code that handles or reports the exception of the refused call. */
static inline void
pystate_lend(PyThreadState *ts, PyState *st, size_t bytes)
{
#if PF_COUNTS_C_CALLS
    int units = (int)(bytes / PF_DEAREST_UNIT);
    units = units < st->stolen ? units : st->stolen;
    st->stolen -= units;
    *pystate_c_remaining(ts) += units;
#else
    (void)ts, (void)st, (void)bytes;
#endif
}

/* Returns the whole budget, once the stack is back above the reserve. (Never
 * more than there was, in case the signal handler's write was lost.) */
static inline void
pystate_replenish(PyThreadState *ts, PyState *st)
{
#if PF_COUNTS_C_CALLS
    int *remaining = pystate_c_remaining(ts);
    int limit = pystate_c_limit(ts, st);
    *remaining += st->stolen;
    *remaining = *remaining < limit ? *remaining : limit;
#else
    (void)ts;
#endif
    st->stolen = 0;
}

/* Has `entered` called whenever C code calls a Python function, on any thread,
 * with that thread's state; NULL ends that. `entered` returns NULL, or the
 * running fiber's state if it has just exhausted that to make the call fail;
 * then `*left` is the number of bytes of stack that are left to handle the
 * error. `ts` is the calling thread's. Safe in a signal handler. False: not
 * supported, as always from 3.14 on, and on 3.13 on a thread that does not
 * hold the GIL. */
typedef PyState *(*pystate_entered_fn)(PyThreadState *ts, size_t *left);
bool pystate_watch_calls(PyThreadState *ts, pystate_entered_fn entered);

/* Drops the exception that the running fiber still handles after the end of
 * its code, as a thread's end does. There is one if a trace function raised at
 * the beginning of an `except` clause: the interpreter then keeps that
 * clause's exception as the one being handled for ever. Any code may run. */
static inline void
pystate_drop_handled(PyState *st)
{
    Py_CLEAR(st->exc_root.exc_value);
}

/* Frees the data-stack chunks that the ending fiber's frames may have left. No
 * Python code runs on the fiber afterwards. */
static inline void
pystate_finish(PyThreadState *ts, PyState *st)
{
    _PyStackChunk *chunk = ts->datastack_chunk;
    if (chunk != st->chunk_root) {
        PyObjectArenaAllocator arena;
        PyObject_GetArenaAllocator(&arena);
        while (chunk != NULL && chunk != st->chunk_root) {
            _PyStackChunk *previous = chunk->previous;
            arena.free(arena.ctx, chunk, chunk->size);
            chunk = previous;
        }
        ts->datastack_chunk = chunk;
        ts->datastack_top = &chunk->data[1];
        ts->datastack_limit = (PyObject **)((char *)chunk + chunk->size);
    }
}

/* The smallest stack of a fiber, in bytes: its room takes 32 KiB of it, and
 * 3.14 refuses to protect less than 48 KiB. */
static inline size_t
pystate_min_stack(void)
{
    return 128 * 1024;
}

/* Returns a new reference to the top frame of a suspended fiber, or NULL
 * without an exception. The interpreter makes frame objects only for the
 * running stack; so the suspended one is presented as running, by the field
 * that a switch changes too. The collector is off meanwhile, because it must
 * not run finalizers then. */
static inline PyObject *
pystate_frame(PyThreadState *ts, PyState *st)
{
    int collecting = PyGC_Disable();
#if PF_HAS_CFRAME
    _PyCFrame *running = ts->cframe;
    ts->cframe = st->cframe;
    PyObject *frame = (PyObject *)PyThreadState_GetFrame(ts);
    ts->cframe = running;
#else
    struct _PyInterpreterFrame *running = ts->current_frame;
    ts->current_frame = st->frame;
    PyObject *frame = (PyObject *)PyThreadState_GetFrame(ts);
    ts->current_frame = running;
#endif
    if (collecting) {
        PyGC_Enable();
    }
    return frame;
}

/* The first fields of an interpreter frame. */
#if PY_VERSION_HEX < 0x030C0000
typedef _PyInterpreterFrame PyFrameHead;
#else
typedef struct PyFrameHead {
    uintptr_t executable; /* from 3.14 on this and `function` carry tag bits */
    struct PyFrameHead *previous;
    uintptr_t function;
    PyObject *globals, *builtins; /* borrowed */
    PyObject *locals, *frame_obj;
    void *instruction;
#if PY_VERSION_HEX >= 0x030E0000
    void *stack_pointer;
#else
    int stack_top;
#endif
#if PF_HAS_DEFERRED
    int32_t tlbc_index;
#endif
    uint16_t return_offset;
    char owner;
    uint8_t visited;
    uintptr_t localsplus[1]; /* and behind them the frame's evaluation stack */
} PyFrameHead;
#endif
enum {
    PF_OWNED_BY_THREAD = 0,
    PF_OWNED_BY_GENERATOR = 1,
    PF_OWNED_BY_FRAME_OBJECT = 2,
};

/* The innermost frame of a suspended fiber; *end is the frame, or NULL, before
 * which the chain of its frames ends. */
static inline PyFrameHead *
pystate_frames(PyState *st, PyFrameHead **end)
{
#if PF_HAS_CFRAME
    *end = NULL;
    return (PyFrameHead *)(void *)st->cframe->current_frame;
#else
    *end = (PyFrameHead *)(void *)st->frame_root;
    return (PyFrameHead *)(void *)st->frame;
#endif
}

/* Returns (code, line) of the call that the frame represents. */
static inline PyObject *
pystate_call(PyFrameHead *f)
{
#if PY_VERSION_HEX < 0x030C0000
    int at = _PyInterpreterFrame_LASTI(f) * (int)sizeof(_Py_CODEUNIT);
    return Py_BuildValue("Oi", f->f_code, PyCode_Addr2Line(f->f_code, at));
#else
    struct _PyInterpreterFrame *frame =
        (struct _PyInterpreterFrame *)(void *)f;
    return Py_BuildValue("Ni", PyUnstable_InterpreterFrame_GetCode(frame),
                         PyUnstable_InterpreterFrame_GetLine(frame));
#endif
}

/* Returns a list of (code, line) of each call, innermost first. */
static inline PyObject *
pystate_calls_between(PyFrameHead *f, PyFrameHead *end)
{
    PyObject *list = PyList_New(0);
    for (; list != NULL && f != NULL && f != end; f = f->previous) {
        if (f->owner > PF_OWNED_BY_FRAME_OBJECT) {
            continue; /* an entry frame */
        }
        PyObject *call = pystate_call(f);
        if (call == NULL || PyList_Append(list, call) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(call);
    }
    return list;
}

/* The calls of a suspended fiber, and those that a thread runs: this thread,
 * or one that is stopped. */
static inline PyObject *
pystate_calls(PyState *st)
{
    PyFrameHead *end, *f = pystate_frames(st, &end);
    return pystate_calls_between(f, end);
}
static inline PyObject *
pystate_running_calls(PyThreadState *ts)
{
#if PF_HAS_CFRAME
    void *f = ts->cframe->current_frame;
#else
    void *f = ts->current_frame;
#endif
    return pystate_calls_between(f, (PyFrameHead *)(void *)PF_BASE_FRAME(ts));
}

/* Writes one position in the code for each call of a suspended fiber,
 * innermost first, to `places` (NULL: only count them), and returns their
 * number. No frame object is made, because those would stay as long as the
 * frames. */
static inline size_t
pystate_places(PyState *st, uintptr_t *places)
{
    size_t count = 0;
    PyFrameHead *end, *f = pystate_frames(st, &end);
    for (; f != end; f = f->previous) {
        if (f->owner > PF_OWNED_BY_FRAME_OBJECT) {
            continue; /* an entry frame */
        }
        if (places != NULL) {
#if PY_VERSION_HEX < 0x030C0000
            places[count] = (uintptr_t)f->prev_instr;
#else
            places[count] = (uintptr_t)f->instruction;
#endif
        }
        count++;
    }
    return count;
}

/* --- the running fiber's frames, for time slices: see slice/ --- */

/* Can the code of a single function be watched for events (sys.monitoring)? */
#define PF_HAS_MONITORING (PY_VERSION_HEX >= 0x030C0000)

/* The innermost frame that the thread runs: this thread, or one that is
 * stopped. */
static inline PyFrameHead *
pystate_running_frames(PyThreadState *ts, PyFrameHead **end)
{
    *end = (PyFrameHead *)(void *)PF_BASE_FRAME(ts);
#if PF_HAS_CFRAME
    return (PyFrameHead *)(void *)ts->cframe->current_frame;
#else
    return (PyFrameHead *)(void *)ts->current_frame;
#endif
}

/* The code of a frame, borrowed; NULL: the frame has none. */
static inline PyCodeObject *
pystate_frame_code(const PyFrameHead *f)
{
#if PY_VERSION_HEX < 0x030C0000
    return f->f_code;
#else
    PyObject *code = (PyObject *)(f->executable & ~(uintptr_t)3);
    return f->owner <= PF_OWNED_BY_FRAME_OBJECT && code != NULL &&
                   PyCode_Check(code)
               ? (PyCodeObject *)code
               : NULL;
#endif
}

/* The function object that the frame calls, to compare pointers. */
static inline uintptr_t
pystate_frame_function(const PyFrameHead *f)
{
#if PY_VERSION_HEX < 0x030C0000
    return (uintptr_t)f->f_func;
#else
    return f->function & ~(uintptr_t)3;
#endif
}

/* The offset in bytes of the instruction that the frame executes. */
static inline int
pystate_frame_offset(PyFrameHead *f)
{
#if PY_VERSION_HEX < 0x030C0000
    return _PyInterpreterFrame_LASTI(f) * (int)sizeof(_Py_CODEUNIT);
#else
    return PyUnstable_InterpreterFrame_GetLasti(
        (struct _PyInterpreterFrame *)(void *)f);
#endif
}

/* The value in the frame's variable `index`, or behind its variables in its
 * evaluation stack, without tag bits. Above the top of the stack it is a value
 * that was there once: to be compared, not followed. */
static inline uintptr_t
pystate_frame_value(const PyFrameHead *f, int index)
{
#if PY_VERSION_HEX < 0x030C0000
    return (uintptr_t)f->localsplus[index];
#else
    return f->localsplus[index] & ~(uintptr_t)3;
#endif
}

/* Was this frame entered from C code? *caller is the frame, or NULL, of the
 * Python code that called that C code. (On 3.11 the frame itself is marked,
 * later versions have an entry frame below it.) */
static inline bool
pystate_frame_is_entry(const PyFrameHead *f, PyFrameHead **caller)
{
#if PY_VERSION_HEX < 0x030C0000
    *caller = f->previous;
    return f->is_entry;
#else
    *caller = f->previous;
    if (*caller == NULL || (*caller)->owner <= PF_OWNED_BY_FRAME_OBJECT) {
        return false;
    }
    *caller = (*caller)->previous;
    return true;
#endif
}

#if !PF_HAS_MONITORING
/* Lets the thread's next event call `function` as its trace function, unless
 * the thread has one. The innermost frame reports each instruction until
 * pystate_trace_opcodes(), because a loop of a single instruction has no other
 * events. Returns the frame, a new reference; NULL: nothing was done. */
PyObject *pystate_trace_next(PyThreadState *ts, Py_tracefunc function);
void pystate_trace_no_more(PyThreadState *ts, Py_tracefunc function);
void pystate_trace_opcodes(PyObject *frame, bool wanted);
#else
static inline PyObject *
pystate_trace_next(PyThreadState *ts, Py_tracefunc function)
{
    (void)ts, (void)function;
    return NULL;
}
static inline void
pystate_trace_no_more(PyThreadState *ts, Py_tracefunc function)
{
    (void)ts, (void)function;
}
static inline void
pystate_trace_opcodes(PyObject *frame, bool wanted)
{
    (void)frame, (void)wanted;
}
#endif

/* --- a suspended fiber's stack that is packed: see pack/pack.c --- */

/* The first fields of a frame object. */
typedef struct PyFrameObjectHead {
    PyObject ob_base;
    void *back;
    void *frame; /* the interpreter's frame */
} PyFrameObjectHead;

/* Is this an entry frame, which marks where C code called the interpreter? */
static inline bool
pystate_is_entry(const PyFrameHead *f)
{
#if PY_VERSION_HEX < 0x030C0000
    return f->is_entry;
#else
    return f->owner > PF_OWNED_BY_FRAME_OBJECT;
#endif
}

/* What could refer to a suspended fiber's frames or its C stack. */
typedef struct PyStateView {
    bool exposed;     /* a frame has an object or belongs to a generator,
                         which point to it; or the fiber has a separate
                         trace function */
    bool called_back; /* C code that Python code has called has called the
                         interpreter again */
} PyStateView;

static inline PyStateView
pystate_view(PyState *st)
{
    PyStateView view = {.exposed = st->trace != NULL};
    int entries = 0;
    PyFrameHead *end, *f = pystate_frames(st, &end);
    for (; f != end; f = f->previous) {
        entries += pystate_is_entry(f);
        view.exposed |=
            f->owner == PF_OWNED_BY_GENERATOR ||
            (f->owner == PF_OWNED_BY_THREAD && f->frame_obj != NULL);
    }
    view.called_back = entries > 1;
    return view;
}

/* The end of the used part of the room, for a suspended fiber; the next
 * function does the same for the running one. */
static inline char *
pystate_room_end(PyState *st)
{
    return st->chunk == st->chunk_root
               ? (char *)st->top
               : (char *)&st->chunk_root->data[st->chunk_root->top];
}
static inline char *
pystate_running_room_end(PyThreadState *ts, PyState *st)
{
    return ts->datastack_chunk == st->chunk_root
               ? (char *)ts->datastack_top
               : (char *)&st->chunk_root->data[st->chunk_root->top];
}

/* Bytes between `low` and `high` that have moved by `distance`. */
typedef struct PyStateMove {
    const char *low, *high;
    ptrdiff_t distance;
} PyStateMove;

static inline void *
pystate_moved(const PyStateMove *move, void *place)
{
    char *p = place;
    return p >= move->low && p < move->high ? p + move->distance : p;
}

/* Adjusts pointers after the fiber's bytes, `st` among them, have been copied:
 * those from frame to frame, and those to a frame from its object or from the
 * generator that it runs, lead to the copies afterwards. The interpreter
 * follows no other pointers into the stack while the fiber is suspended. */
static inline void
pystate_follow(PyState *st, const PyStateMove *move)
{
#if PF_HAS_CFRAME
    st->cframe = pystate_moved(move, st->cframe);
    for (_PyCFrame *c = st->cframe;; c = c->previous) {
        c->current_frame = pystate_moved(move, c->current_frame);
        if (c == &st->cframe_root) {
            break;
        }
        c->previous = pystate_moved(move, c->previous);
    }
#else
    st->frame = pystate_moved(move, st->frame);
#endif
    PyFrameHead *end, *f = pystate_frames(st, &end);
    for (; f != end; f = f->previous) {
        f->previous = pystate_moved(move, f->previous);
        if (f->owner != PF_OWNED_BY_THREAD) {
            continue;
        }
        if (f->frame_obj != NULL) {
            ((PyFrameObjectHead *)(void *)f->frame_obj)->frame = f;
        }
#if PY_VERSION_HEX >= 0x030E0000
        /* The stack pointer moves with its frame, even if it points to the end
         * of the moved bytes. */
        char *before = (char *)f - move->distance;
        if (before >= move->low && before < move->high &&
            f->stack_pointer != NULL) {
            f->stack_pointer = (char *)f->stack_pointer + move->distance;
        }
#endif
    }
}

/* tp_traverse through the frames of a suspended fiber, in versions that export
 * what that needs. In others a cycle through a suspended frame is never freed,
 * as with greenlet. */
#if PY_VERSION_HEX >= 0x030F0000 && !defined(Py_GIL_DISABLED)
PyAPI_FUNC(int)
    _PyGC_VisitFrameStack(struct _PyInterpreterFrame *, visitproc, void *);

/* The object of a tagged reference that the frame has counted, for which both
 * tag bits are clear; else NULL. */
static inline PyObject *
pystate_owned(uintptr_t reference)
{
    return (reference & 3) == 0 ? (PyObject *)reference : NULL;
}

/* Visits the frames that the thread owns. Others are an entry frame, which
 * holds nothing, or a generator's frame, which the generator traverses: a
 * reference visited twice looks like garbage. Ends before the thread's
 * sentinel frame, which goes with the thread. */
static inline int
pystate_traverse(PyState *st, visitproc visit, void *arg)
{
    PyFrameHead *f = (PyFrameHead *)(void *)st->frame;
    PyFrameHead *end = (PyFrameHead *)(void *)st->frame_root;
    for (; f != end; f = f->previous) {
        if (f->owner != PF_OWNED_BY_THREAD) {
            continue;
        }
        Py_VISIT(f->frame_obj);
        Py_VISIT(f->locals);
        Py_VISIT(pystate_owned(f->function));
        int rc = _PyGC_VisitFrameStack((struct _PyInterpreterFrame *)(void *)f,
                                       visit, arg);
        if (rc != 0) {
            return rc;
        }
    }
    return 0;
}
#define PF_TRAVERSES_FRAMES 1
#define PF_TRAVERSES_ALL 0
#elif PF_HAS_DEFERRED
/* The object of a tagged reference. Tag 3 marks a number: NULL, nothing to
 * visit. With tag 1 the reference is not counted. */
static inline PyObject *
pystate_referent(uintptr_t reference)
{
    return (reference & 3) == 3 ? NULL
                                : (PyObject *)(reference & ~(uintptr_t)3);
}

/* Visits a tagged reference. The two passes of the collector that subtract
 * references from counts pass no `arg`, and must not subtract a reference that
 * was not counted. */
static inline int
pystate_visit(uintptr_t reference, visitproc visit, void *arg)
{
    if ((reference & 1) == 0 || arg != NULL) {
        Py_VISIT(pystate_referent(reference));
    }
    return 0;
}

/* The end of the frame's references. The stack pointer is NULL while the
 * interpreter keeps it in a register; then what is on the evaluation stack is
 * unknown. */
static inline uintptr_t *
pystate_frame_end(PyFrameHead *f)
{
    if (f->stack_pointer != NULL) {
        return f->stack_pointer;
    }
    PyObject *code = pystate_referent(f->executable);
    return f->localsplus + (code != NULL && PyCode_Check(code)
                                ? ((PyCodeObject *)code)->co_nlocalsplus
                                : 0);
}

static inline int
pystate_visit_frame(PyFrameHead *f, visitproc visit, void *arg)
{
    Py_VISIT(f->frame_obj);
    Py_VISIT(f->locals);
    int rc = pystate_visit(f->function, visit, arg);
    rc = rc != 0 ? rc : pystate_visit(f->executable, visit, arg);
    uintptr_t *end = pystate_frame_end(f);
    for (uintptr_t *p = f->localsplus; rc == 0 && p < end; p++) {
        rc = pystate_visit(*p, visit, arg);
    }
    return rc;
}

/* Visits each frame that the thread owns exactly once; a generator visits its
 * own. The collector itself finds uncounted references in the frames that
 * threads run; for suspended fibers it depends on this. */
static inline int
pystate_traverse(PyState *st, visitproc visit, void *arg)
{
    PyFrameHead *end, *f = pystate_frames(st, &end);
    int rc = 0;
    for (; rc == 0 && f != end; f = f->previous) {
        if (f->owner == PF_OWNED_BY_THREAD) {
            rc = pystate_visit_frame(f, visit, arg);
        }
    }
    for (PyCStackRef *c = st->c_stack_refs; rc == 0 && c != NULL;
         c = c->next) {
        rc = arg == NULL ? 0 : pystate_visit(c->ref, visit, arg);
    }
    return rc;
}

#define PF_TRAVERSES_FRAMES 1
#define PF_TRAVERSES_ALL 1
#else
static inline int
pystate_traverse(PyState *st, visitproc visit, void *arg)
{
    (void)st;
    (void)visit;
    (void)arg;
    return 0;
}
#define PF_TRAVERSES_FRAMES 0
#define PF_TRAVERSES_ALL 0
#endif
/* Why fibers cannot share stacks with this interpreter; NULL if they can. */
static inline const char *
pystate_packing_refused(void)
{
#if PF_FREE_THREADED
    return "without a GIL other threads look at suspended frames";
#else
    return NULL;
#endif
}

/* --- objects that several threads use --- */

/* Makes the interpreter leave references to a nested function, and to the
 * cells and functions that it refers to, to the collector instead of counting
 * them (deferred reference counts), so that threads can share it: without a
 * GIL the cache line of a count would go to and fro between the processors.
 * The interpreter does this for module-level functions itself. */
static inline void
pystate_share_function(PyObject *function)
{
#if PF_FREE_THREADED
    PyObject *cells =
        PyFunction_Check(function) ? PyFunction_GetClosure(function) : NULL;
    if (cells == NULL) {
        return;
    }
    (void)PyUnstable_Object_EnableDeferredRefcount(function);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(cells); i++) {
        PyObject *cell = PyTuple_GET_ITEM(cells, i);
        (void)PyUnstable_Object_EnableDeferredRefcount(cell);
        PyObject *inside = PyCell_Get(cell);
        if (inside != NULL && PyFunction_Check(inside)) {
            (void)PyUnstable_Object_EnableDeferredRefcount(inside);
        }
        Py_XDECREF(inside);
    }
#else
    (void)function;
#endif
}

/* Is this a function that only the collector frees? References to it need not
 * be counted if pystate_visit_uncounted reports them to the collector, and if
 * they are not followed once the interpreter shuts down. */
static inline bool
pystate_is_deferred(PyObject *op)
{
#if PF_HAS_DEFERRED
    return PyFunction_Check(op) &&
           (op->ob_gc_bits & pystate_deferred_bit) != 0;
#else
    (void)op;
    return false;
#endif
}
static inline int
pystate_visit_uncounted(PyObject *op, visitproc visit, void *arg)
{
#if PF_HAS_DEFERRED
    return pystate_visit((uintptr_t)op | 1, visit, arg);
#else
    return visit(op, arg);
#endif
}

/* --- mutexes of a byte --- */

#if PF_FREE_THREADED
PyAPI_FUNC(PyLockStatus) _PyMutex_LockTimed(PyMutex *, int64_t, int);

/* Locks like PyMutex_Lock, but the thread stays attached while it waits. */
static inline void
pystate_lock_mutex(PyMutex *mutex)
{
    uint8_t unlocked = 0;
    if (!_Py_atomic_compare_exchange_uint8(&mutex->_bits, &unlocked, 1)) {
        (void)_PyMutex_LockTimed(mutex, -1, 0);
    }
}
#endif

/* --- objects that may be dying on another thread --- */

/* pystate_try_incref takes a reference to an object that was prepared before;
 * false: the object is dying. The caller holds a lock that the object's
 * deallocation takes as well. */
static inline void
pystate_prepare_try_incref(PyObject *op)
{
#if PF_FREE_THREADED
    PyUnstable_EnableTryIncRef(op);
#else
    (void)op;
#endif
}
static inline bool
pystate_try_incref(PyObject *op)
{
#if PF_FREE_THREADED
    return PyUnstable_TryIncRef(op) != 0;
#else
    Py_INCREF(op);
    return true;
#endif
}

/* --- exceptions in flight --- */

/* Reports the exception that is set, and that a thread's function has raised,
 * through sys.unraisablehook, with the interpreter's own words. */
static inline void
pystate_unraisable_in_thread(PyObject *function)
{
#if PY_VERSION_HEX >= 0x030D0000
    PyErr_FormatUnraisable("Exception ignored in thread started by %R",
                           function);
#else
    _PyErr_WriteUnraisableMsg("in thread started by", function);
#endif
}

static inline PyObject *
pystate_take_exception(void)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyErr_GetRaisedException();
#else
    PyObject *type, *value, *tb;
    PyErr_Fetch(&type, &value, &tb);
    if (type == NULL) {
        return NULL;
    }
    PyErr_NormalizeException(&type, &value, &tb);
    if (tb != NULL) {
        PyException_SetTraceback(value, tb);
    }
    Py_DECREF(type);
    Py_XDECREF(tb);
    return value;
#endif
}

/* Steals a reference. NULL changes nothing: no exception had been taken. */
static inline void
pystate_restore_exception(PyObject *exc)
{
    if (exc == NULL) {
        return;
    }
#if PY_VERSION_HEX >= 0x030C0000
    PyErr_SetRaisedException(exc);
#else
    PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(exc)), exc,
                  PyException_GetTraceback(exc));
#endif
}

/* Calls `is` with the id of each thread state, until it returns true; returns
 * whether it did. `is` runs no Python code and asks for no thread state,
 * because without a GIL the interpreter's list of them is locked. */
typedef bool (*pystate_is_fn)(uint64_t id, const void *arg);
bool pystate_any(pystate_is_fn is, const void *arg);
/* Is `number` the system's number of a thread that has a thread state? */
bool pystate_knows_native(uint64_t number);

/* The thread state that holds the GIL on this thread, or NULL. */
static inline PyThreadState *
pystate_attached(void)
{
#if PY_VERSION_HEX >= 0x030D0000
    return PyThreadState_GetUnchecked();
#else
    return _PyThreadState_UncheckedGet();
#endif
}

static inline bool
pystate_finalizing(void)
{
#if PY_VERSION_HEX >= 0x030D0000
    return Py_IsFinalizing();
#else
    return _Py_IsFinalizing();
#endif
}

/* Between these two calls no other thread with a state runs: each is stopped
 * where the collector might look at everything. The caller waits for nothing,
 * runs no code and drops no last reference meanwhile. With a GIL the others
 * are stopped anyway. */
static inline void
pystate_stop_others(void)
{
#if PF_FREE_THREADED
    _PyEval_StopTheWorld(PyInterpreterState_Get());
#endif
}
static inline void
pystate_let_others_go(void)
{
#if PF_FREE_THREADED
    _PyEval_StartTheWorld(PyInterpreterState_Get());
#endif
}

/* Between these two no other thread is in such a section with the same object.
 * If this thread waits in between, or another fiber runs, the object is
 * released meanwhile. With a GIL that is so anyway. */
#if PF_FREE_THREADED
#define PF_BEGIN_ALONE(op) Py_BEGIN_CRITICAL_SECTION(op)
#define PF_END_ALONE() Py_END_CRITICAL_SECTION()
#else
#define PF_BEGIN_ALONE(op) {
#define PF_END_ALONE() }
#endif

/* --- points of runs under test --- */

/* From 3.12 on sys.monitoring reports lines and instructions; before, only a
 * trace function does. */
#define PF_TRACES_POINTS (PY_VERSION_HEX < 0x030C0000)

/* Find functions that this interpreter exports only at run time, and check its
 * layout. 0, or -1 with ImportError. */
int pystate_lookup(void);
/* Called by pystate_lookup: check that this interpreter's thread state is laid
 * out as in the headers that pyfiber was built with. See tstate_layout.c. */
int pystate_check_layout(void);

/* Print the frames of the running fiber to `fd`. Called in a signal handler,
 * so this only reads memory, and writes with write(2). */
void pystate_dump_traceback(PyThreadState *ts, int fd);

#endif
