/* Run-time look-ups in the interpreter, and the signal-safe traceback: see
 * tstate.h. */
#include "python/core/tstate.h"

#include "engine/base/atomics.h"

#include <stdio.h>
#ifdef _WIN32
#include <windows.h>
#else
#include <dlfcn.h>
#include <unistd.h>
#endif

int pystate_c_most; /* constant after import */

/* ---------------------------------------------------------- watching calls */

#if PF_COUNTS_C_CALLS

/* Whether the interpreter's setter of the function that evaluates frames (PEP
 * 523) only stores one word, so that a signal handler may call it. With the
 * experimental JIT the setter frees compiled code as well. In 3.13 it also
 * ends the process on a thread that does not hold the GIL; pystate_watch_calls
 * checks for that. Constant after import. */
static bool setter_stores;
/* The evaluating function that was set before. Shared, one word; also in
 * handlers. */
static PF_ATOMIC(size_t) evaluate;
/* The pystate_entered_fn, always the same one. Shared, one word; also in
 * handlers. */
static PF_ATOMIC(size_t) asked;

/* Evaluates a frame, after it has asked the pystate_entered_fn. If that
 * exhausts the budget, the interpreter's own check makes the call fail, as it
 * knows how to clean up the frame. */
static PyObject *
ask_first(PyThreadState *ts, struct _PyInterpreterFrame *frame, int throwing)
{
    size_t left = 0;
    PyState *exhausted = ((pystate_entered_fn)pf_load(&asked))(ts, &left);
    _PyFrameEvalFunction next = (_PyFrameEvalFunction)pf_load(&evaluate);
    PyObject *result = next(ts, frame, throwing);
    if (exhausted != NULL && result == NULL) {
        pystate_lend(ts, exhausted, left);
    }
    return result;
}

bool
pystate_watch_calls(PyThreadState *ts, pystate_entered_fn entered)
{
    bool may_set = PY_VERSION_HEX < 0x030D0000 || pystate_attached() == ts;
    if (!setter_stores || !may_set) {
        return false;
    }
    _PyFrameEvalFunction now =
        _PyInterpreterState_GetEvalFrameFunc(PyThreadState_GetInterpreter(ts));
    if (entered == NULL && now == ask_first) {
        _PyInterpreterState_SetEvalFrameFunc(
            PyThreadState_GetInterpreter(ts),
            (_PyFrameEvalFunction)pf_load(&evaluate));
    } else if (entered != NULL && now != ask_first) {
        pf_store(&asked, (size_t)entered);
        pf_store(&evaluate, (size_t)now);
        _PyInterpreterState_SetEvalFrameFunc(PyThreadState_GetInterpreter(ts),
                                             ask_first);
    }
    return true;
}

#else

bool
pystate_watch_calls(PyThreadState *ts, pystate_entered_fn entered)
{
    (void)ts, (void)entered;
    return false;
}

#endif

/* ----------------------------------------------- events that tools ask for */

#if PF_PREPARES_CODE

PyAPI_FUNC(int) _Py_Instrument(PyCodeObject *, PyInterpreterState *);

/* Runs no code. Without memory the event is missed, or raising reads through
 * NULL. */
void
pystate_prepare_code(PyThreadState *ts, PyState *st)
{
    PyFrameHead *end, *f = pystate_frames(st, &end);
    for (; f != NULL && f != end; f = f->previous) {
        if (f->owner > PF_OWNED_BY_FRAME_OBJECT) {
            continue; /* an entry frame */
        }
        PyObject *code = PyUnstable_InterpreterFrame_GetCode(
            (struct _PyInterpreterFrame *)(void *)f);
        if (_Py_Instrument((PyCodeObject *)code,
                           PyThreadState_GetInterpreter(ts)) < 0) {
            PyErr_Clear();
        }
        Py_DECREF(code); /* the frame has another reference */
    }
}

#endif

/* ----------------------------------------------------------- at import time */

static void *
symbol(const char *name)
{
#ifdef _WIN32
    HMODULE python = GetModuleHandleA("python" Py_STRINGIFY(
        PY_MAJOR_VERSION) Py_STRINGIFY(PY_MINOR_VERSION) PF_ABI_SUFFIX ".dll");
    return python == NULL ? NULL : (void *)GetProcAddress(python, name);
#else
    return dlsym(RTLD_DEFAULT, name);
#endif
}

#if PF_HAS_STACK_LIMITS

pf_set_protection_fn pystate_set_protection;     /* constant after import */
pf_reset_protection_fn pystate_reset_protection; /* constant after import */

#if PF_HAS_DEFERRED

size_t pystate_c_stack_refs_offset; /* constant after import */

/* Finds the offset of `c_stack_refs`. The interpreter calls this from a
 * function that has such a reference on its stack, somewhere between here and
 * `base`: the one word of the thread state's private part that points there is
 * the head of the list. */
static PyObject *
find_c_stack_refs(PyObject *base, PyObject *ignored)
{
    (void)ignored;
    char here = 0;
    char *from = &here, *to = PyLong_AsVoidPtr(base);
    char *ts = (char *)PyThreadState_Get();
    size_t found = 0, count = 0;
    for (size_t at = sizeof(PyThreadState) - 64;
         at < sizeof(PyThreadState) + 256; at += sizeof(char *)) {
        char *word = *(char **)(void *)(ts + at);
        if (word > from && word < to) {
            found = at;
            count++;
        }
    }
    pystate_c_stack_refs_offset = count == 1 ? found : 0;
    return PyLong_FromLong(0);
}

static PyMethodDef finder = {"__len__", find_c_stack_refs, METH_NOARGS, NULL};

static int
lookup_c_stack_refs(void)
{
    char base = 0;
    PyObject *place = PyLong_FromVoidPtr(&base);
    PyObject *fn = place == NULL ? NULL : PyCFunction_New(&finder, place);
    PyObject *type =
        fn == NULL ? NULL
                   : PyObject_CallFunction((PyObject *)&PyType_Type, "s(){sO}",
                                           "_Probe", "__len__", fn);
    PyObject *probe = type == NULL ? NULL : PyObject_CallNoArgs(type);
    Py_ssize_t rc = probe == NULL ? -1 : PyObject_Size(probe);
    Py_XDECREF(probe);
    Py_XDECREF(type);
    Py_XDECREF(fn);
    Py_XDECREF(place);
    if (rc == 0 && pystate_c_stack_refs_offset == 0) {
        PyErr_SetString(PyExc_ImportError,
                        "pyfiber does not know this release of free-threaded "
                        "CPython: its thread state looks different");
        rc = -1;
    }
    return rc < 0 ? -1 : 0;
}

uint8_t pystate_deferred_bit; /* constant after import; 0: not found */

/* Finds the bit of ob_gc_bits that says that only the collector frees the
 * object. */
static int
lookup_deferred_bit(void)
{
    PyObject *list = PyList_New(0);
    if (list == NULL) {
        return -1;
    }
    uint8_t before = list->ob_gc_bits;
    if (PyUnstable_Object_EnableDeferredRefcount(list)) {
        pystate_deferred_bit = list->ob_gc_bits ^ before;
    }
    Py_DECREF(list);
    return 0;
}

/* The mutex of the interpreter's list of thread states: without a GIL a thread
 * may end, and its state be freed, while others follow the list. Constant
 * after import. */
static PyMutex *list_mutex;

/* Finds that mutex: the word before the pointer to the first interpreter,
 * whose place the runtime gives debuggers in a table at its beginning. */
static int
lookup_list_mutex(void)
{
    char *runtime = symbol("_PyRuntime");
    uint64_t head = 0;
    if (runtime != NULL && memcmp(runtime, "xdebugpy", 8) == 0) {
        memcpy(&head, runtime + 5 * sizeof head, sizeof head);
    }
    size_t *first = (size_t *)(void *)(runtime + head);
    if (head != 0 && head < 65536 && head % sizeof *first == 0 &&
        first[0] == (size_t)PyInterpreterState_Get() &&
        (first[-1] & ~(size_t)3) == 0) { /* another thread may hold it */
        list_mutex = (PyMutex *)(void *)&first[-1];
        return 0;
    }
    PyErr_SetString(PyExc_ImportError,
                    "pyfiber does not know this release of free-threaded "
                    "CPython: its list of threads is elsewhere");
    return -1;
}

#else

static int
lookup_c_stack_refs(void)
{
    return 0;
}

static int
lookup_deferred_bit(void)
{
    return 0;
}

static int
lookup_list_mutex(void)
{
    return 0;
}

#endif

int
pystate_lookup(void)
{
    if (pystate_check_layout() < 0) {
        return -1;
    }
    pystate_set_protection = (pf_set_protection_fn)symbol(
        "PyUnstable_ThreadState_SetStackProtection");
    pystate_reset_protection = (pf_reset_protection_fn)symbol(
        "PyUnstable_ThreadState_ResetStackProtection");
    if (pystate_set_protection == NULL || pystate_reset_protection == NULL) {
        PyErr_SetString(PyExc_ImportError,
                        "this CPython has no function that sets the bounds of "
                        "another stack: pyfiber needs 3.14.2 or later");
        return -1;
    }
    return lookup_list_mutex() < 0 || lookup_deferred_bit() < 0
               ? -1
               : lookup_c_stack_refs();
}

#else

int
pystate_lookup(void)
{
    if (pystate_check_layout() < 0) {
        return -1;
    }
#if PF_HAS_C_COUNTER
    /* The interpreter's limit, which a patch release may have changed since
     * its headers: the rest at this place, plus the few units that the present
     * import uses. Limits have always been multiples of 500. */
    int left = PyThreadState_Get()->c_recursion_remaining;
    pystate_c_most = (left + 499) / 500 * 500;
#endif
    setter_stores = symbol("_Py_Executors_InvalidateAll") == NULL;
    return 0;
}

#endif

/* ------------------------------------------------ the next event of a thread */

#if !PF_HAS_MONITORING

PyObject *
pystate_trace_next(PyThreadState *ts, Py_tracefunc function)
{
    PyFrameObject *frame = PyThreadState_GetFrame(ts);
    if (frame == NULL || ts->c_tracefunc != NULL || ts->tracing != 0) {
        Py_XDECREF(frame);
        return NULL;
    }
    frame->f_trace_opcodes = 1;
    ts->c_tracefunc = function;
    ts->cframe->use_tracing = 255;
    return (PyObject *)frame;
}

void
pystate_trace_no_more(PyThreadState *ts, Py_tracefunc function)
{
    if (ts->c_tracefunc == function) {
        ts->c_tracefunc = NULL;
        ts->cframe->use_tracing =
            ts->tracing == 0 && ts->c_profilefunc != NULL ? 255 : 0;
    }
}

void
pystate_trace_opcodes(PyObject *frame, bool wanted)
{
    ((PyFrameObject *)frame)->f_trace_opcodes = wanted;
}

#endif

/* ----------------------------------------------------------------- all threads */

#if PF_HAS_DEFERRED

/* Stays attached while it waits, unlike PyMutex_Lock: the caller may hold a
 * lock that must not be held while the interpreter is stopped. */
static void
lock_list(void)
{
    pystate_lock_mutex(list_mutex);
}

static void
unlock_list(void)
{
    PyMutex_Unlock(list_mutex);
}

#else

static void
lock_list(void)
{
}

static void
unlock_list(void)
{
}

#endif

bool
pystate_any(pystate_is_fn is, const void *arg)
{
    lock_list();
    PyThreadState *ts =
        PyInterpreterState_ThreadHead(PyInterpreterState_Get());
    while (ts != NULL && !is(PyThreadState_GetID(ts), arg)) {
        ts = PyThreadState_Next(ts);
    }
    unlock_list();
    return ts != NULL;
}

bool
pystate_knows_native(uint64_t number)
{
    lock_list();
    PyThreadState *ts =
        PyInterpreterState_ThreadHead(PyInterpreterState_Get());
    while (ts != NULL && ts->native_thread_id != number) {
        ts = PyThreadState_Next(ts);
    }
    unlock_list();
    return ts != NULL;
}

/* ------------------------------------------------------- signal-safe traceback */

#ifdef _WIN32

void
pystate_dump_traceback(PyThreadState *ts, int fd)
{
    (void)ts;
    (void)fd;
}

#elif PF_HAS_DUMP_TRACEBACK

void
pystate_dump_traceback(PyThreadState *ts, int fd)
{
    (void)PyUnstable_DumpTraceback(fd, ts);
}

#else

#if PF_HAS_FRAME_LAYOUT
typedef _PyInterpreterFrame Frame;

static PyCodeObject *
frame_code(Frame *frame)
{
    return frame->f_code;
}

static int
frame_line(Frame *frame, PyCodeObject *code)
{
    int lasti = _PyInterpreterFrame_LASTI(frame) * (int)sizeof(_Py_CODEUNIT);
    return PyCode_Addr2Line(code, lasti);
}
#else
/* The first fields of an interpreter frame in 3.12, 3.13 and 3.14 (where the
 * first one carries tag bits). */
typedef struct Frame {
    uintptr_t executable;
    struct Frame *previous;
} Frame;

static PyCodeObject *
frame_code(Frame *frame)
{
    PyObject *object = (PyObject *)(frame->executable & ~(uintptr_t)3);
    return object != NULL && PyCode_Check(object) ? (PyCodeObject *)object
                                                  : NULL;
}

static int
frame_line(Frame *frame, PyCodeObject *code)
{
    (void)code;
    return PyUnstable_InterpreterFrame_GetLine(
        (struct _PyInterpreterFrame *)(void *)frame);
}
#endif

static void
put(int fd, const char *text, size_t size)
{
    ssize_t written = write(fd, text, size);
    (void)written;
}

static void
put_text(int fd, PyObject *text)
{
    char buffer[200];
    Py_ssize_t n = PyUnicode_GET_LENGTH(text);
    if (n > (Py_ssize_t)sizeof(buffer)) {
        n = (Py_ssize_t)sizeof(buffer);
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        Py_UCS4 c = PyUnicode_READ_CHAR(text, i);
        buffer[i] = c >= 0x20 && c < 0x7F ? (char)c : '?';
    }
    put(fd, buffer, (size_t)n);
}

static void
put_number(int fd, int number)
{
    char digits[16];
    size_t at = sizeof(digits);
    unsigned rest = number < 0 ? 0 : (unsigned)number;
    do {
        digits[--at] = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest != 0);
    put(fd, digits + at, sizeof(digits) - at);
}

/* Is this the code of one of the interpreter's entry frames, whose file is
 * "<shim>"? */
static bool
is_shim(PyCodeObject *code)
{
    return PyUnicode_GET_LENGTH(code->co_filename) == 6 &&
           PyUnicode_READ_CHAR(code->co_filename, 0) == '<' &&
           PyUnicode_READ_CHAR(code->co_filename, 1) == 's' &&
           PyUnicode_READ_CHAR(code->co_filename, 2) == 'h';
}

#define MOST_FRAMES 100

void
pystate_dump_traceback(PyThreadState *ts, int fd)
{
#if PF_HAS_CFRAME
    Frame *frame = (Frame *)(void *)ts->cframe->current_frame;
#else
    Frame *frame = (Frame *)(void *)ts->current_frame;
#endif
    static const char head[] =
        "Stack of the fiber (most recent call first):\n";
    put(fd, head, sizeof(head) - 1);
    for (int n = 0; frame != NULL && n < MOST_FRAMES;
         frame = frame->previous) {
        PyCodeObject *code = frame_code(frame);
        if (code == NULL || !PyUnicode_Check(code->co_filename) ||
            is_shim(code)) {
            continue;
        }
        put(fd, "  File \"", 8);
        put_text(fd, code->co_filename);
        put(fd, "\", line ", 8);
        put_number(fd, frame_line(frame, code));
        put(fd, " in ", 4);
        put_text(fd, code->co_qualname);
        put(fd, "\n", 1);
        n++;
    }
    if (frame != NULL) {
        put(fd, "  ...\n", 6);
    }
}

#endif
