/* Every field of PyThreadState that pyfiber touches, and its offset.
 *
 * A switch saves the PF_SWITCHED fields of the fiber that it leaves, and
 * writes those of the one that it enters. pyfiber writes no other field:
 * anything else in the interpreter is changed by the interpreter's own
 * functions. PF_READ fields are read only. A test compares this table with
 * tstate.h and tstate.c, so code that uses another field needs a line here.
 *
 * The columns are offsets in bytes, for CPython 3.11, 3.12, 3.13, 3.14 and
 * 3.15; 0 where the version has no such field. A patch release or a vendor's
 * build with another layout stops the build here, instead of corrupting memory
 * at a switch. The size of PyThreadState is not checked, because patch
 * releases append fields (3.13 and 3.14 have done so). A wheel runs on patch
 * releases that it was not built with, so tstate_layout.c checks at import as
 * well.
 *
 * The offsets hold for all 64-bit systems on which `unsigned long` has 64
 * bits. Builds without a GIL, debug builds and builds with a sanitizer have
 * the same offsets, since none of these adds a field here. Py_STATS adds one
 * before `ensure`. Windows and 32-bit systems have other offsets; for them
 * there is only the check at import.
 *
 * One switched field is not in the table: `c_stack_refs`, without a GIL from
 * 3.14 on. The field lies in the private part behind PyThreadState, at a place
 * that patch releases have moved, and pystate_lookup finds it at import.
 */
#ifndef PF_TSTATE_LAYOUT_H
#define PF_TSTATE_LAYOUT_H

#include "python/core/pyinclude.h"

#if PY_VERSION_HEX < 0x030C0000
#define PF_COLUMN(v11, v12, v13, v14, v15) v11
#elif PY_VERSION_HEX < 0x030D0000
#define PF_COLUMN(v11, v12, v13, v14, v15) v12
#elif PY_VERSION_HEX < 0x030E0000
#define PF_COLUMN(v11, v12, v13, v14, v15) v13
#elif PY_VERSION_HEX < 0x030F0000
#define PF_COLUMN(v11, v12, v13, v14, v15) v14
#else
#define PF_COLUMN(v11, v12, v13, v14, v15) v15
#endif

#define PF_LIES_AT(structure, field, type, offset)                            \
    _Static_assert(offsetof(structure, field) == (offset) &&                  \
                       sizeof(((structure *)0)->field) == sizeof(type),       \
                   "pyfiber does not know this layout of " #structure         \
                   ": the field " #field                                      \
                   " has moved, and a switch would corrupt memory")

#define PF_SWITCHED(field, type, ...)                                         \
    PF_LIES_AT(PyThreadState, field, type, PF_COLUMN(__VA_ARGS__))
#define PF_READ(field, type, ...) PF_SWITCHED(field, type, __VA_ARGS__)

#if SIZEOF_VOID_P == 8 && SIZEOF_LONG == 8
/* clang-format off */

/* The running frame, and the data stack, on which Python's frames lie. */
#if PY_VERSION_HEX < 0x030D0000
PF_SWITCHED(cframe,                  void *,    56,  56,   0,   0,   0);
PF_READ    (root_cframe,          _PyCFrame,   336, 272,   0,   0,   0);
#else
PF_SWITCHED(current_frame,           void *,     0,   0,  72,  72,  72);
#endif
PF_SWITCHED(datastack_chunk,         void *,   296, 232, 232, 232, 256);
PF_SWITCHED(datastack_top,           void *,   304, 240, 240, 240, 264);
PF_SWITCHED(datastack_limit,         void *,   312, 248, 248, 248, 272);

/* The chain of exceptions that are being handled. */
PF_SWITCHED(exc_info,                void *,   120, 104, 120, 120, 144);

/* The depth of calls. 3.14 and 3.15 compare the stack pointer with limits
 * instead of counting C calls; PyUnstable_ThreadState_SetStackProtection sets
 * those limits. */
#if PY_VERSION_HEX < 0x030C0000
PF_SWITCHED(recursion_remaining,        int,    32,   0,   0,   0,   0);
PF_READ    (recursion_limit,            int,    36,   0,   0,   0,   0);
PF_SWITCHED(trash_delete_nesting,       int,   168,   0,   0,   0,   0);
#else
PF_SWITCHED(py_recursion_remaining,     int,     0,  28,  44,  48,  52);
PF_READ    (py_recursion_limit,         int,     0,  32,  48,  52,  56);
#endif
#if PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x030E0000
PF_SWITCHED(c_recursion_remaining,      int,     0,  36,  52,   0,   0);
#endif
#if PY_VERSION_HEX >= 0x030C0000 && PY_VERSION_HEX < 0x030D0000
PF_SWITCHED(trash.delete_nesting,       int,     0, 152,   0,   0,   0);
#endif

/* Tracing: its depth, the event, and the functions, which a switch
 * changes if a fiber has a separate one. `last_profiled_frame` is set to NULL,
 * because it points into the stack that was just left. */
PF_SWITCHED(tracing,                    int,    44,  44,  60,  60,  64);
#if PY_VERSION_HEX >= 0x030C0000
PF_SWITCHED(what_event,                 int,     0,  48,  64,  64,  68);
#endif
PF_SWITCHED(c_tracefunc,             void *,    72,  72,  88,  88, 112);
PF_SWITCHED(c_traceobj,              void *,    88,  88, 104, 104, 128);
PF_SWITCHED(c_profilefunc,           void *,    64,  64,  80,  80, 104);
PF_SWITCHED(c_profileobj,            void *,    80,  80,  96,  96, 120);
#if PY_VERSION_HEX >= 0x030F0000
PF_SWITCHED(last_profiled_frame,     void *,     0,   0,   0,   0,  88);
PF_READ    (base_frame,              void *,     0,   0,   0,   0,  80);
PF_READ    (eval_breaker,         uintptr_t,     0,   0,   0,   0,  24);
#endif

/* What belongs to the running code. The hooks, and how much of its origin a
 * coroutine remembers, are switched with a fiber that runs an asyncio loop. */
PF_SWITCHED(context,                 void *,   224, 208, 208, 208, 232);
PF_SWITCHED(context_ver,           uint64_t,   232, 216, 216, 216, 240);
PF_SWITCHED(async_gen_firstiter,     void *,   208, 192, 192, 192, 216);
PF_SWITCHED(async_gen_finalizer,     void *,   216, 200, 200, 200, 224);
PF_SWITCHED(coroutine_origin_tracking_depth,
                                        int,   200, 184, 184, 184, 208);
#if PY_VERSION_HEX >= 0x030E0000
PF_SWITCHED(current_executor,        void *,     0,   0,   0, 272, 304);
#endif
#if PY_VERSION_HEX >= 0x030D0000
PF_SWITCHED(critical_section,     uintptr_t,     0,   0, 176, 176, 200);
#endif

/* Read only. */
#if PY_VERSION_HEX < 0x030C0000
PF_READ    (curexc_type,             void *,    96,   0,   0,   0,   0);
#else
PF_READ    (current_exception,       void *,     0,  96, 112, 112, 136);
#endif
#if PY_VERSION_HEX < 0x030D0000
PF_READ    (gilstate_counter,           int,   136, 120,   0,   0,   0);
#endif
PF_READ    (id,                    uint64_t,   240, 224, 224, 224, 248);
PF_READ    (thread_id,        unsigned long,   152, 136, 152, 152, 176);
PF_READ    (native_thread_id, unsigned long,   160, 144, 160, 160, 184);
#if PY_VERSION_HEX >= 0x030F0000 && !defined(Py_STATS)
PF_READ    (ensure.delete_on_release,   int,     0,   0,   0,   0, 872);
#endif

/* What the fields point to: pyfiber makes one of each for every fiber. */
PF_LIES_AT(_PyErr_StackItem, exc_value,      void *,  0);
PF_LIES_AT(_PyErr_StackItem, previous_item,  void *,  8);
_Static_assert(sizeof(_PyErr_StackItem) == 16, "pyfiber knows two fields");
PF_LIES_AT(_PyStackChunk,    previous,       void *,  0);
PF_LIES_AT(_PyStackChunk,    size,           size_t,  8);
PF_LIES_AT(_PyStackChunk,    top,            size_t, 16);
PF_LIES_AT(_PyStackChunk,    data,        void *[1], 24);
#if PY_VERSION_HEX < 0x030C0000
PF_LIES_AT(_PyCFrame,        use_tracing,   uint8_t,  0);
PF_LIES_AT(_PyCFrame,        current_frame,  void *,  8);
PF_LIES_AT(_PyCFrame,        previous,       void *, 16);
_Static_assert(sizeof(_PyCFrame) == 24, "pyfiber knows three fields");
#elif PY_VERSION_HEX < 0x030D0000
PF_LIES_AT(_PyCFrame,        current_frame,  void *,  0);
PF_LIES_AT(_PyCFrame,        previous,       void *,  8);
_Static_assert(sizeof(_PyCFrame) == 16, "pyfiber knows two fields");
#endif

/* clang-format on */
#endif

#endif
