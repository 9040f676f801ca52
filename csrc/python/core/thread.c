/* The record of a Python thread that uses fibers: made when the thread first
 * uses one, and ended with the thread.
 *
 * A C thread-local points to the record, and a capsule in the thread state's
 * dict owns it. The capsule's destructor runs on the dying thread and unwinds
 * the fibers that are still suspended there. The state of a thread that C made
 * may never be cleared; then the capsule is dropped at the thread's real end,
 * which thread_end.h reports.
 */
#include "python/core/thread.h"

#include "python/core/arguments.h"
#include "python/core/compiler.h"
#include "python/core/parts.h"
#include "python/core/state.h"
#include "python/core/tstate.h"

#include "engine/base/interrupt.h"
#include "engine/core/thread_end.h"
#include "engine/stack/overflow.h"

PF_TLS PfThread *pf_thread_current; /* of a thread */
PF_TLS bool pf_thread_collects;     /* of a thread */
PfThread *pf_threads;               /* shared, behind pf_threads_lock */
pf_mutex pf_threads_lock = PF_MUTEX_INIT;

/* Bytes of each stack for the PyState and the data stack's first chunk.
 * CPython's own chunks are 16 KiB; twice that holds some 250 Python frames
 * before the interpreter has to map memory for a fiber. */
#define ROOM_SIZE (32 * 1024)

#define CAPSULE_NAME "pyfiber.thread"

PfThread *
pf_thread_peek(void)
{
    return pf_thread_current;
}

/* ------------------------------------------------------------- birth, death */

static void
unlist(PfThread *t)
{
    pf_mutex_lock(&pf_threads_lock);
    PfThread **link = &pf_threads;
    while (*link != NULL && *link != t) {
        link = &(*link)->next;
    }
    if (*link == t) {
        *link = t->next;
    }
    pf_mutex_unlock(&pf_threads_lock);
}

/* The id of the thread state that this thread's record was made for, once the
 * record has ended. Of a thread. */
static PF_TLS uint64_t ended;

/* thread_ended() will be called at this thread's end. Of a thread. */
static PF_TLS bool end_is_watched;

static void
free_spare(PfThread *t)
{
    PF_EACH_PART(part, free_spare) {
        part->free_spare(t);
    }
}

static void
free_record(PfThread *t)
{
    pf_parts_hooks.root->end(t);
    free_spare(t);
    pf_overflow_thread_finish();
    pf_thread_finish(&t->engine);
    if (!PF_FREE_THREADED || t->live == NULL) {
        PyMem_RawFree(t);
    } /* else a fiber is dying on another thread, which reads here that this
         one is gone */
}

/* Ends everything on the thread while it still has a current fiber. Code that
 * this runs can make no new scheduler and leave no fiber suspended. Afterwards
 * the thread has no record and gets no new one: code that runs while the rest
 * of its state is cleared gets an error if it uses fibers. */
static void
end_thread(PfThread *t)
{
    pf_thread_no_switch_begin(t, "while its thread ends");
    t->ending = true;
    pystate_hold(t->tstate);
    PF_EACH_PART(part, thread_end) {
        part->thread_end(t);
    }
    unlist(t);
    pf_parts_hooks.root->drop_posts(t); /* from here on no thread can post */
    ended = PyThreadState_GetID(t->tstate);
    pf_thread_current = NULL;
    free_record(t);
}

/* The capsule's destructor, which runs on the dying thread. A call on any
 * other thread does nothing, because that cannot enter the stacks any more:
 * the interpreter clears the states of threads lost to a fork or at shutdown,
 * or something else has kept the dict alive. The capsule may be dropped while
 * an exception is set. */
static void
thread_gone(PyObject *capsule)
{
    PfThread *t = PyCapsule_GetPointer(capsule, CAPSULE_NAME); /* never NULL */
    if (t != pf_thread_current || pf_state_is_shut_down() ||
        !pf_parts_hooks.root->runs(t)) {
        return;
    }
    PyObject *pending = pystate_take_exception();
    end_thread(t);
    pystate_restore_exception(pending);
}

/* The fibers of `t` stay suspended for good, and this reports them: the
 * interpreter has dropped the thread's state, which the callbacks on their
 * stacks would need. */
static void
give_up_fibers(PfThread *t)
{
    unlist(t); /* code that walks the list looks at the thread's state */
    ended = PyThreadState_GetID(PyThreadState_Get());
    pf_thread_current = NULL;
    pf_parts_hooks.root->report_left(t);
}

static void
end_with_thread(PfThread *t)
{
    if (t->tstate_id != PyThreadState_GetID(PyThreadState_Get())) {
        give_up_fibers(t);
    } else if (PyDict_DelItemString(PyThreadState_GetDict(), CAPSULE_NAME) <
               0) {
        PyErr_WriteUnraisable(NULL);
    }
}

/* Does the thread run Python code? The thread's state may be freed while the
 * state's dict, which owns the record, still lives; so the state is compared
 * before it is read. */
static bool
runs_code(PfThread *t)
{
    return PyGILState_GetThisThreadState() == t->tstate &&
           pystate_in_code(t->tstate);
}

/* Runs when the thread itself ends. The thread's state has not been cleared if
 * a PyGILState_Release is still missing, as in a callback from C in which a
 * fiber is suspended. Dropping the capsule unwinds that fiber; the last
 * PyGILState_Release, in pystate_end_leave, then clears the state. Does
 * nothing if the thread ended within Python code, or called exit() there. */
static void
thread_ended(void)
{
    PfThread *t = pf_thread_current;
    end_is_watched = false;
    if (t == NULL || pf_state_is_shut_down() || pystate_finalizing() ||
        !pf_parts_hooks.root->runs(t) || runs_code(t)) {
        return;
    }
    PyThreadState *ts = PyGILState_GetThisThreadState();
    PyStateEnd end;
    if (!pystate_end_enter(ts, &end)) {
        return;
    }
    if (!pf_state_is_shut_down()) { /* shutdown began meanwhile */
        end_with_thread(t);
    }
    pystate_end_leave(&end);
}

static void
watch_end(void)
{
    if (!end_is_watched) {
        end_is_watched = true;
        pf_thread_end_watch(thread_ended);
    }
}

static int
may_have_record(void)
{
    const char *why = NULL;
    if (pf_state_is_shut_down()) {
        why = "the interpreter is shutting down: no fibers any more";
    } else if (PyThreadState_GetID(PyThreadState_Get()) == ended) {
        why = "the thread is ending: no fibers any more";
    }
    if (why != NULL) {
        PyErr_SetString(pf.fiber_error, why);
    }
    return why == NULL ? 0 : -1;
}

/* Makes the record of this thread. Takes over `root`, which may be NULL with
 * an exception; runs no code. NULL with an exception. */
static PfThread *
make_record(FiberObject *root)
{
    PfThread *t = root == NULL
                      ? NULL
                      : PyMem_RawCalloc(1, sizeof(*t) + pf_parts_of_thread);
    if (t == NULL) {
        Py_XDECREF(root);
        return root == NULL ? NULL : (PfThread *)PyErr_NoMemory();
    }
    int rc = pf_thread_init(&t->engine, pf_parts_hooks.root->host, ROOM_SIZE);
    if (rc < 0) {
        PyMem_RawFree(t);
        Py_DECREF(root);
        errno = -rc;
        return (PfThread *)PyErr_SetFromErrno(PyExc_OSError);
    }
    (void)pf_overflow_thread_init(); /* optional: reports overflows */
    t->tstate = PyThreadState_Get();
    t->tstate_id = PyThreadState_GetID(t->tstate);
    t->native = pf_interrupt_this_thread();
    pf_parts_hooks.root->begin(t, root);
    pf_thread_mark_collector(t, pf_thread_collects);
    return t;
}

/* Gives the record to the thread state's dict and puts it into the list of
 * threads. Runs no code. 0 or -1. */
static int
own(PfThread *t, PyObject *dict, PyObject *capsule)
{
    if (PyCapsule_SetPointer(capsule, t) < 0 ||
        PyDict_SetItemString(dict, CAPSULE_NAME, capsule) < 0) {
        return -1;
    }
    (void)PyCapsule_SetDestructor(capsule, thread_gone);
    watch_end();
    pf_thread_current = t;
    pf_mutex_lock(&pf_threads_lock);
    t->next = pf_threads;
    pf_threads = t;
    pf_mutex_unlock(&pf_threads_lock);
    return 0;
}

/* The thread state's dict, borrowed. The interpreter makes it when it is first
 * needed. If the collector ran meanwhile, code that needs the dict would make
 * another one; the interpreter would keep only one of the two and lose the
 * other with everything it owns. So the collector is off here. */
static PyObject *
state_dict(void)
{
    int collecting = PyGC_Disable();
    PyObject *dict = PyThreadState_GetDict();
    if (collecting) {
        PyGC_Enable();
    }
    return dict;
}

/* Makes the parts of a record first. This may run the collector, and so code
 * that makes a record for this thread, too; then that record is used. */
PfThread *
pf_thread_create(void)
{
    if (may_have_record() < 0) {
        return NULL;
    }
    FiberObject *root = pf_parts_hooks.root->make();
    PyObject *dict = root == NULL ? NULL : state_dict();
    PyObject *capsule =
        dict == NULL ? NULL : PyCapsule_New(root, CAPSULE_NAME, NULL);
    PfThread *t = pf_thread_current;
    if (t == NULL && capsule != NULL) {
        t = make_record((FiberObject *)Py_NewRef((PyObject *)root));
        if (t != NULL && own(t, dict, capsule) < 0) {
            free_record(t);
            t = NULL;
        }
    }
    Py_XDECREF(capsule);
    Py_XDECREF(root);
    if (t == NULL && !PyErr_Occurred()) {
        PyErr_NoMemory(); /* state_dict() sets no exception */
    }
    return t;
}

/* ------------------------------------------------- hooks into the interpreter */

static PyObject *
gc_callback(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    (void)module;
    PfThread *t = pf_thread_current;
    if (nargs >= 1 && PyUnicode_Check(args[0])) {
        pf_thread_collects =
            PyUnicode_CompareWithASCIIString(args[0], "start") == 0;
        if (t != NULL) {
            pf_thread_mark_collector(t, pf_thread_collects);
        }
    }
    Py_RETURN_NONE;
}

/* Marks all waits on threads other than `keep` as over: in the child of a fork
 * these threads do not exist, and at exit their stacks go away. (Without a GIL
 * the stacks stay: the interpreter lets such threads hang.) */
static void
forget_others(PfThread *keep)
{
    pf_mutex_lock(&pf_threads_lock);
    for (PfThread *t = pf_threads; t != NULL; t = t->next) {
        if (t != keep) {
            PF_EACH_PART(part, thread_lost) {
                part->thread_lost(t);
            }
        }
    }
    pf_mutex_unlock(&pf_threads_lock);
}

static bool
needs_record(void)
{
    PF_EACH_PART(part, needs_record) {
        if (part->needs_record()) {
            return true;
        }
    }
    return false;
}

/* Called when the interpreter begins to shut down, with everything still in
 * place: this is the last moment when `finally` blocks of suspended fibers can
 * run. */
static PyObject *
at_exit(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    PfThread *t = pf_thread_current;
    if (t == NULL && needs_record()) {
        t = pf_thread_create();
        if (t == NULL) {
            return NULL;
        }
    } else if (t != NULL) {
        pf_thread_no_switch_begin(t, "while the interpreter shuts down");
        PF_EACH_PART(part, at_exit) {
            part->at_exit(t);
        }
        pf_thread_no_switch_end(t);
    }
    if (!PF_FREE_THREADED) { /* without a GIL the others still run */
        forget_others(pf_thread_current);
    }
    pf_store(&pf_state_shut_down, 1);
    if (t != NULL) {
        free_spare(t);
    }
    Py_RETURN_NONE;
}

/* Only this thread continues in the child. This thread's fibers stay; those of
 * other threads are out of reach for good. */
static PyObject *
after_fork_in_child(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    PfThread *t = pf_thread_current;
    pf_threads_lock = (pf_mutex)PF_MUTEX_INIT; /* another thread may hold it */
    for (PfThread *each = pf_threads; each != NULL; each = each->next) {
        each->lost = each != t;
    }
    forget_others(t);
    pf_threads = t;
    if (t != NULL) {
        t->next = NULL;
        t->tstate = PyThreadState_Get();
    }
    PF_EACH_PART(part, after_fork) {
        if (part->after_fork(t) < 0) {
            return NULL;
        }
    }
    Py_RETURN_NONE;
}

static PyMethodDef hook_methods[] = {
    {"_gc_callback", PF_FAST(gc_callback), METH_FASTCALL,
     "Marks the running fiber as one that must not be left while the\n"
     "collector runs on its stack."},
    {"_at_exit", at_exit, METH_NOARGS,
     "Unwinds the fibers that are suspended on this thread."},
    {"_after_fork_in_child", after_fork_in_child, METH_NOARGS,
     "Makes pyfiber usable in the child of a fork."},
    {NULL, NULL, 0, NULL},
};

static int
call_method(PyObject *object, const char *method, PyObject *arg,
            const char *keyword)
{
    PyObject *bound = PyObject_GetAttrString(object, method);
    PyObject *done = NULL;
    if (bound != NULL && keyword == NULL) {
        done = PyObject_CallOneArg(bound, arg);
    } else if (bound != NULL) {
        PyObject *empty = PyTuple_New(0);
        PyObject *kwargs = Py_BuildValue("{sO}", keyword, arg);
        if (empty != NULL && kwargs != NULL) {
            done = PyObject_Call(bound, empty, kwargs);
        }
        Py_XDECREF(empty);
        Py_XDECREF(kwargs);
    }
    Py_XDECREF(bound);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

static int
hook(PyObject *module, const char *ours, const char *where, const char *object,
     const char *method, const char *keyword)
{
    int rc = -1;
    PyObject *fn = PyObject_GetAttrString(module, ours);
    PyObject *target = PyImport_ImportModule(where);
    if (target != NULL && object != NULL) {
        Py_SETREF(target, PyObject_GetAttrString(target, object));
    }
    if (fn != NULL && target != NULL) {
        rc = call_method(target, method, fn, keyword);
    }
    Py_XDECREF(fn);
    Py_XDECREF(target);
    return rc;
}

int
pf_thread_module_init(PyObject *module)
{
    if (PyModule_AddFunctions(module, hook_methods) < 0 ||
        hook(module, "_gc_callback", "gc", "callbacks", "append", NULL) < 0 ||
        hook(module, "_at_exit", "atexit", NULL, "register", NULL) < 0) {
        return -1;
    }
#ifndef _WIN32
    if (hook(module, "_after_fork_in_child", "os", NULL, "register_at_fork",
             "after_in_child") < 0) {
        return -1;
    }
#endif
    return 0;
}
