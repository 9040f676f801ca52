/* What a fiber's stack is to Python, for who packs it: see pack.h.
 *
 * From outside, pointers lead into a waiting fiber's stack from here only:
 * - `saved`, its frames' frame objects: set right when it is unpacked
 * - generators that it runs, tracebacks and frames that somebody holds: then
 *   it is not packed
 * What others point to while a fiber waits is not on its stack: wait_memory.h.
 * Other C code than ours and the interpreter's way of calling functions is not
 * on such a stack: see pf_packing_learn.
 */
#include "python/fiber/pack.h"

#include <errno.h>

#include "engine/base/calls.h"
#include "engine/core/shapes.h"
#include "python/core/arguments.h"
#include "python/core/import.h"
#include "python/core/state.h"
#include "python/core/tstate.h"
#include "python/fiber/switch.h"

/* So many stacks fit into the second-level caches, with what a switch touches
 * of them; a program with fewer fibers never packs one. */
#define DEFAULT_SLOTS 256

PF_ATOMIC(size_t) pf_default_slots; /* constant after import */

/* ---------------------------------------------------------------- packing */

static bool
may_pack(pf_thread *thread, pf_fiber *core, pf_packing *packing)
{
    FiberObject *fiber = FIBER_OF(core);
    if (pf_fiber_kind(fiber) != &pf_fiber_ops || !fiber->scheduled ||
        fiber->is_hub || fiber->dying || fiber->greenlet != NULL ||
        core == ((PfThread *)thread)->collecting ||
        !pystate_may_move(fiber->saved)) {
        return false;
    }
    packing->room_end = pystate_room_end(fiber->saved);
    pystate_unsettle(fiber->saved);
    return true;
}

/* Nothing moves: packing.bytes is 0. */
static void
keep(pf_fiber *core, char *moves, char *kept)
{
    (void)core, (void)moves, (void)kept;
}

static void
unpacked(pf_thread *thread, pf_fiber *core, char *moves, char *kept)
{
    (void)thread, (void)moves, (void)kept;
    FiberObject *fiber = FIBER_OF(core);
    pf_stack *stack = core->stack;
    fiber->saved = (PyState *)(void *)stack->room;
    pystate_settle(fiber->saved, stack->room, stack->room_size,
                   stack->area.low + stack->reserve,
                   stack->area.size - stack->reserve);
}

static const pf_pack_host pack_host = {may_pack, keep, unpacked};

const char *
pf_packing_refused_here(void)
{
    const char *why = pystate_packing_refused();
    return why != NULL ? why : pf_packing_refused();
}

void
pf_packing_begin(PfThread *t, size_t slots)
{
    if (pystate_packing_refused() != NULL) {
        return;
    }
    (void)pf_pack_set(&t->engine, &pack_host, slots);
}

/* ------------------------------------------------------------------ learning
 *
 * Python code calls us, and is called by us, through a dozen functions of the
 * interpreter, and these we must know: all that they have on the stack are
 * references and arrays of arguments, which nobody else points to.  Other
 * functions of the interpreter are different: a dictionary that compares keys
 * keeps a hash, which may be any number and look like an address; a
 * BufferedReader lets a memoryview point to a variable.  Which functions they
 * are depends on the version and on the compiler, so pyfiber._packing makes
 * such calls in each way that there is, and we look.
 */

#define MOST_SEEN 256
typedef struct Learning {
    char *base;                /* where pyfiber began to call */
    uintptr_t seen[MOST_SEEN]; /* most calls are those of the probe before */
} Learning;
static PF_TLS Learning *learning; /* of a thread; NULL: it is not */

#if PF_CONTEXT_MOVES

static void
learn_call(uintptr_t back)
{
    uintptr_t *place = &learning->seen[(back ^ back >> 8) % MOST_SEEN];
    if (*place != back && pf_calls_together(back, (uintptr_t)PyObject_Call)) {
        void *function = pf_calls_function(back);
        if (function != NULL) {
            (void)pf_shapes_allow(function); /* else such stacks stay */
        }
    }
    *place = back;
}

static void
learn_calls(void)
{
    pf_calls calls;
    pf_calls_read(&calls, learning->base);
    for (unsigned i = 0; i < calls.count; i++) {
        learn_call(calls.calls[i].back);
    }
}

#else

static void
learn_calls(void)
{
}

#endif

/* Called as functions of ours are, in each of the interpreter's ways. */
static PyObject *
probe(PyObject *self, PyObject *ignored)
{
    (void)self, (void)ignored;
    if (learning != NULL) {
        learn_calls();
    }
    Py_RETURN_NONE;
}

static PyObject *
probe_fast(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
           PyObject *kwnames)
{
    (void)args, (void)nargs, (void)kwnames;
    return probe(self, NULL);
}

static PyObject *
probe_positional(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)args, (void)nargs;
    return probe(self, NULL);
}

static PyObject *
probe_keywords(PyObject *self, PyObject *args, PyObject *kwargs)
{
    (void)args, (void)kwargs;
    return probe(self, NULL);
}

static PyObject *
probe_next(PyObject *self)
{
    return probe(self, NULL);
}

static PyObject *
probe_get(PyObject *self, void *closure)
{
    (void)closure;
    return probe(self, NULL);
}

#define PROBES                                                                \
    {"noargs", probe, METH_NOARGS, NULL}, {"o", probe, METH_O, NULL},         \
        {"fast", (PyCFunction)(void (*)(void))probe_fast,                     \
         METH_FASTCALL | METH_KEYWORDS, NULL},                                \
        {"positional", (PyCFunction)(void (*)(void))probe_positional,         \
         METH_FASTCALL, NULL},                                                \
        {"keywords", (PyCFunction)(void (*)(void))probe_keywords,             \
         METH_VARARGS | METH_KEYWORDS, NULL},                                 \
    {                                                                         \
        "args", probe, METH_VARARGS, NULL                                     \
    }

static PyMethodDef probe_functions[] = {PROBES, {0}};

static PyMethodDef probe_methods[] = {
    PROBES,
    {"__enter__", probe, METH_NOARGS, NULL},
    {"__exit__", (PyCFunction)(void (*)(void))probe_positional, METH_FASTCALL,
     NULL},
    {0},
};

static PyGetSetDef probe_getset[] = {
    {"attribute", probe_get, NULL, NULL, NULL},
    {0},
};

static PyType_Slot probe_slots[] = {
    {Py_tp_methods, probe_methods},  {Py_tp_getset, probe_getset},
    {Py_tp_iter, PyObject_SelfIter}, {Py_tp_iternext, probe_next},
    {Py_tp_call, probe_keywords},    {0, NULL},
};

static PyType_Spec probe_spec = {
    .name = "pyfiber._engine._Probe",
    .basicsize = sizeof(PyObject),
    .flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = probe_slots,
};

/* As switch.c calls what a fiber runs. */
static PyObject *
call_in_each_way(PyObject *callable)
{
    PyObject *none = PyTuple_Pack(1, Py_None);
    PyObject *named = PyDict_New();
    PyObject *result = NULL;
    if (none != NULL && named != NULL &&
        PyDict_SetItemString(named, "named", Py_None) == 0) {
        result = PyObject_Call(callable, none, NULL);
        Py_XDECREF(result);
        result = result == NULL ? NULL : PyObject_Call(callable, none, named);
        Py_XDECREF(result);
        result = result == NULL ? NULL : pf_call(callable);
        Py_XDECREF(result);
        result = result == NULL ? NULL : PyObject_CallNoArgs(callable);
        Py_XDECREF(result);
        result = result == NULL
                     ? NULL
                     : PyObject_CallMethodNoArgs(callable, pf.s_run);
    }
    Py_XDECREF(none);
    Py_XDECREF(named);
    return result;
}

/* _learn(callable, /, *, once=False): what it calls us by is known afterwards;
 * called in each way, or only once. */
static PyObject *
mod_learn(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
          PyObject *kwnames)
{
    (void)module;
    if (nargs != 1) {
        PyErr_SetString(PyExc_TypeError, "_learn() takes a callable");
        return NULL;
    }
    Learning *outer = learning;
    Learning now = {.base = (char *)&now};
    learning = &now;
    PyObject *result = kwnames == NULL ? call_in_each_way(args[0])
                                       : PyObject_CallNoArgs(args[0]);
    learning = outer;
    return result;
}

/* Without what it shows, every fiber keeps its stack: no reason to fail. */
static int
learn_once(void)
{
    static PF_ATOMIC(uint8_t) learned; /* shared, one word */
    if (pf_load(&learned) != 0 || pf_packing_refused_here() != NULL) {
        return 0;
    }
    pf_store(&learned, 1);
    PyObject *learn = pf_import_from("pyfiber._packing", "learn");
    PyObject *done = learn == NULL ? NULL : PyObject_CallNoArgs(learn);
    Py_XDECREF(learn);
    Py_XDECREF(done);
    if (done != NULL) {
        return 0;
    }
    pf_store(&learned, 0); /* the next scheduler tries again */
    if (!PyErr_ExceptionMatches(PyExc_Exception)) {
        return -1;
    }
    PyErr_WriteUnraisable(NULL);
    return 0;
}

/* PYFIBER_SLOTS: a number, 0 for as many as there are fibers. */
static int
slots_from_environment(void)
{
    const char *text = getenv("PYFIBER_SLOTS");
    pf_store(&pf_default_slots, DEFAULT_SLOTS);
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
    pf_store(&pf_default_slots, (size_t)slots);
    return 0;
}

static int
check_slots(PyObject *wanted, size_t *slots)
{
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
pf_packing_slots(PyObject *wanted, size_t *slots)
{
    *slots = pf_load_relaxed(&pf_default_slots);
    if (wanted != Py_None && check_slots(wanted, slots) < 0) {
        return -1;
    }
    return *slots == 0 ? 0 : learn_once();
}

static PyMethodDef functions[] = {
    {"_learn", (PyCFunction)(void (*)(void))mod_learn,
     METH_FASTCALL | METH_KEYWORDS,
     "_learn(callable, /, *, once=False)\n--\n\n"
     "The functions by which this calls probes, and is called, are known "
     "then."},
    {0},
};

int
pf_packing_init(PyObject *module)
{
    if (slots_from_environment() < 0) {
        return -1;
    }
    PyTypeObject *probes = pf_add_type(module, &probe_spec, NULL);
    if (probes == NULL) {
        return -1;
    }
    Py_DECREF(probes); /* the module has it */
    PyObject *own = PyModule_New("pyfiber._engine._probes");
    if (own == NULL || PyModule_AddFunctions(own, probe_functions) < 0 ||
        PyModule_AddObjectRef(module, "_probes", own) < 0) {
        Py_XDECREF(own);
        return -1;
    }
    Py_DECREF(own);
    return PyModule_AddFunctions(module, functions);
}
