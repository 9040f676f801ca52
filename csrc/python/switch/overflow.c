/* What the engine's fault handler calls. All of this runs inside a signal
 * handler, so it only reads memory, and writes with write(2).
 *
 * Up to 3.13 the interpreter counts how deeply C calls are nested; when a
 * stack's reserve is reached, that budget must end. The handler cannot end it:
 * it may have interrupted the counting itself, between the load of the counter
 * and the store, and then the store overwrites its value. (This is likely: the
 * evaluation loop counts where it first touches its frame. And with levels of
 * 512 bytes it is the same place on every page, so another try at the next
 * page would not help.) So the handler only requests a check: it replaces the
 * function that evaluates frames (PEP 523), a pointer that no code changes by
 * load and store, until C code next calls a Python function. This happens
 * soon, on the same thread and never in the middle of counting; there the
 * budget ends, the call fails, and some of the budget is returned to the code
 * that handles or reports the error.
 *
 * On 3.13 a thread that does not hold the GIL cannot replace the function. But
 * such a thread is not in the middle of counting, so the handler writes the
 * counter. C code that recurses without calling a Python function is not
 * caught by the check; it reaches the lower half of the reserve, and there the
 * handler writes the counter after all.
 */
#include "python/switch/overflow.h"

#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/task/fiber.h"

#include "engine/stack/overflow.h"

#ifndef _WIN32
#include <unistd.h>
#endif

static pf_stack *
current_stack(void)
{
    PfThread *t = pf_thread_peek();
    return t == NULL ? NULL : t->engine.current->stack;
}

/* The requested check, on the fiber's thread: if the stack reaches into its
 * reserve, ends the budget. Returns whether it had not ended already. */
static bool
end_budget(PfThread *t, const char *sp)
{
    FiberObject *self = CURRENT(t);
    pf_stack *stack = self->fiber.stack;
    if (stack == NULL || !pf_stack_reserve_is_open(stack)) {
        return false;
    }
    pf_thread_pend(t, PF_PENDING_RESERVE); /* as the handler's may be lost */
    return pf_stack_runs_in_reserve(stack, sp) &&
           pystate_exhaust(t->tstate, self->saved, stack->area.size);
}

static bool
anybody_watched(void)
{
    pf_mutex_lock(&pf_threads_lock);
    PfThread *t = pf_threads;
    while (t != NULL && !pf_load(&t->watched)) {
        t = t->next;
    }
    pf_mutex_unlock(&pf_threads_lock);
    return t != NULL;
}

/* Called when C code calls a Python function, on any thread. (A handler here,
 * or on a thread without the GIL, sets "watched" and then reads the evaluating
 * function; here the order is reversed, so at least one of the two sees the
 * other's write.) */
static PyState *
python_entered(PyThreadState *ts, size_t *left)
{
    PfThread *t = pf_thread_current;
    bool watched = t != NULL && pf_take(&t->watched);
    pystate_watch_calls(ts, NULL);
    if (anybody_watched()) {
        pystate_watch_calls(ts, python_entered);
    }
    char here = 0;
    if (!watched || !end_budget(t, &here)) {
        return NULL;
    }
    *left = (size_t)(&here - CURRENT(t)->fiber.stack->area.low);
    return CURRENT(t)->saved;
}

void
pf_overflow_end_watch(PfThread *t, const char *sp)
{
    if (pf_take(&t->watched)) {
        (void)end_budget(t, sp);
    }
}

static bool
reserve_reached(bool last)
{
    PfThread *t = pf_thread_peek();
    FiberObject *self = CURRENT(t);
    pf_thread_pend(t, PF_PENDING_RESERVE);
    pf_store(&t->watched, 1);
    if (!pystate_watch_calls(t->tstate, python_entered) || last) {
        bool ended = pystate_exhaust(t->tstate, self->saved,
                                     self->fiber.stack->area.size);
        if (ended && !last) {
            /* One unit, so that the next Python function can run, and gets the
             * error. */
            pystate_lend(t->tstate, self->saved, PF_DEAREST_UNIT);
        }
    }
    return true;
}

/* Copies a str; characters that are not plain ASCII become '?'. Returns the
 * length. */
static size_t
copy_text(PyObject *text, char *buffer, size_t size)
{
    size_t length = (size_t)PyUnicode_GET_LENGTH(text);
    if (length > size) {
        length = size;
    }
    for (size_t i = 0; i < length; i++) {
        Py_UCS4 c = PyUnicode_READ_CHAR(text, (Py_ssize_t)i);
        buffer[i] = c >= 0x20 && c < 0x7F ? (char)c : '?';
    }
    return length;
}

static size_t
fiber_name(char *buffer, size_t size)
{
    FiberObject *fiber = CURRENT(pf_thread_peek());
    PyObject *name = fiber->name;
    if (name == NULL && fiber->target != NULL &&
        PyFunction_Check(fiber->target)) {
        name = ((PyFunctionObject *)fiber->target)->func_qualname;
    }
    if (name == NULL || !PyUnicode_Check(name)) {
        return 0;
    }
    return copy_text(name, buffer, size);
}

static void
traceback(int fd)
{
    pystate_dump_traceback(pf_thread_peek()->tstate, fd);
}

#ifdef _WIN32

void
pf_overflow_print_fiber(void)
{
}

#else

static void
put(const char *text, size_t size)
{
    ssize_t written = write(STDERR_FILENO, text, size);
    (void)written;
}

void
pf_overflow_print_fiber(void)
{
    char name[128];
    size_t length = fiber_name(name, sizeof name);
    put("fiber '", 7);
    put(name, length);
    put("'\n", 2);
    traceback(STDERR_FILENO);
}

#endif

int
pf_overflow_python_init(void)
{
    static const pf_overflow_host host = {
        .current = current_stack,
        .on_reserve = reserve_reached,
        .name = fiber_name,
        .traceback = traceback,
    };
    int rc = pf_overflow_install(&host);
    if (rc < 0) {
        PyErr_Format(PyExc_OSError,
                     "cannot install the stack overflow handler: error %d",
                     -rc);
        return -1;
    }
    return 0;
}
