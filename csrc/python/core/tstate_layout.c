/* Checks that the interpreter is laid out as tstate.h assumes. The compiler
 * checks the table in tstate_layout.h and the layout of a frame. At import,
 * fields are compared with what the interpreter's own functions return. */
#include "python/core/tstate_layout.h"

#include "python/core/tstate.h"

/* ----------------------------------------------------------- frames, at build */

/* From 3.12 on tstate.h describes a frame itself, since the interpreter's
 * header for it is private and may be missing. Where that header exists, the
 * two are compared. (The header of 3.13 without a GIL contradicts a
 * declaration in tstate.h.) */
#if PY_VERSION_HEX >= 0x030E0000
#define FRAME_HEADER "internal/pycore_interpframe_structs.h"
#else
#define FRAME_HEADER "internal/pycore_frame.h"
#endif
#define COMPARES                                                              \
    (!PF_HAS_FRAME_LAYOUT && (!PF_FREE_THREADED || PF_HAS_DEFERRED))
#if COMPARES && defined(__has_include) && !defined(_WIN32)
#if __has_include(FRAME_HEADER)
#define Py_BUILD_CORE 1
#include FRAME_HEADER
#undef Py_BUILD_CORE

#define SAME(field, theirs)                                                   \
    PF_LIES_AT(struct _PyInterpreterFrame, theirs, ((PyFrameHead *)0)->field, \
               offsetof(PyFrameHead, field))

#if PY_VERSION_HEX < 0x030D0000
SAME(executable, f_code);
SAME(instruction, prev_instr);
#else
SAME(executable, f_executable);
SAME(instruction, instr_ptr);
#endif
#if PY_VERSION_HEX >= 0x030E0000
SAME(stack_pointer, stackpointer);
#endif
SAME(previous, previous);
SAME(function, f_funcobj);
SAME(locals, f_locals);
SAME(frame_obj, frame_obj);
SAME(return_offset, return_offset);
SAME(owner, owner);
SAME(localsplus, localsplus);
#endif
#endif

/* ---------------------------------------------------------- fields, at import */

static bool
version_fits(PyThreadState *ts)
{
    (void)ts;
    return Py_Version >> 16 == PY_VERSION_HEX >> 16;
}

static bool
id_fits(PyThreadState *ts)
{
    return ts->id == PyThreadState_GetID(ts);
}

static bool
limit_fits(PyThreadState *ts)
{
    return pystate_py_limit(ts) == Py_GetRecursionLimit();
}

static bool
tracing_fits(PyThreadState *ts)
{
    int before = ts->tracing;
    PyThreadState_EnterTracing(ts);
    bool fits = ts->tracing == before + 1;
    PyThreadState_LeaveTracing(ts);
    return fits;
}

static bool
exception_fits(PyThreadState *ts)
{
    bool before = pystate_raised(ts);
    PyErr_SetNone(PyExc_ImportError);
    bool after = pystate_raised(ts);
    PyErr_Clear();
    return !before && after && !pystate_raised(ts);
}

static bool
context_fits(PyThreadState *ts)
{
    PyObject *context = PyContext_New();
    uint64_t version = ts->context_ver;
    if (context == NULL || PyContext_Enter(context) < 0) {
        Py_XDECREF(context);
        PyErr_Clear();
        return true; /* cannot be checked */
    }
    bool fits = ts->context == context && ts->context_ver != version;
    (void)PyContext_Exit(context);
    Py_DECREF(context);
    return fits;
}

static bool
data_stack_fits(PyThreadState *ts)
{
    char *chunk = (char *)ts->datastack_chunk;
    char *top = (char *)ts->datastack_top,
         *limit = (char *)ts->datastack_limit;
    return chunk == NULL || (limit == chunk + ts->datastack_chunk->size &&
                             chunk < top && top <= limit);
}

/* A frame object points to its interpreter frame. */
static bool
frame_fits(PyThreadState *ts)
{
    struct {
        PyObject ob_base;
        void *back, *frame;
    } *object = (void *)PyThreadState_GetFrame(ts);
#if PF_HAS_CFRAME
    void *top = ts->cframe->current_frame;
#else
    void *top = ts->current_frame;
#endif
    bool fits = object == NULL || object->frame == top;
    Py_XDECREF(object);
    return fits;
}

int
pystate_check_layout(void)
{
    /* The first two checks follow no pointer, so they are safe on any layout.
     */
    static const struct {
        const char *field;
        bool (*fits)(PyThreadState *);
    } checks[] = {
        {"interp", version_fits},
        {"id", id_fits},
        {"py_recursion_limit", limit_fits},
        {"tracing", tracing_fits},
        {"current_exception", exception_fits},
        {"context", context_fits},
        {"datastack_chunk", data_stack_fits},
        {"current_frame", frame_fits},
    };
    PyThreadState *ts = PyThreadState_Get();
    for (size_t i = 0; i < Py_ARRAY_LENGTH(checks); i++) {
        if (!checks[i].fits(ts)) {
            PyErr_Format(
                PyExc_ImportError,
                "pyfiber was built with the headers of CPython " PY_VERSION
                ", and this is CPython %s, whose PyThreadState.%s lies "
                "elsewhere: build pyfiber with this interpreter's headers "
                "(pip install --force-reinstall --no-binary pyfiber pyfiber)",
                Py_GetVersion(), checks[i].field);
            return -1;
        }
    }
    return 0;
}
