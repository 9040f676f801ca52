/* What the fault handler of the engine asks.  Everything here runs inside a
 * signal handler: it reads, and writes with write(2).
 */
#include "python/binding.h"

#include "engine/overflow.h"

#ifndef _WIN32
#include <unistd.h>
#endif

static pf_fiber *
current_fiber(void)
{
    PfThread *t = pf_thread_peek();
    return t == NULL ? NULL : t->engine.current;
}

static bool
reserve_reached(pf_fiber *core)
{
    PfThread *t = FIBER_OF(core)->thread;
    pystate_exhaust(t->tstate, FIBER_OF(core)->saved, core->stack->area.size);
    t->attention |= PF_ATT_RESERVE;
    return true;
}

/* The characters of a str that are plain ASCII; '?' for others. */
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
fiber_name(pf_fiber *core, char *buffer, size_t size)
{
    FiberObject *fiber = FIBER_OF(core);
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
traceback(pf_fiber *core, int fd)
{
    pystate_dump_traceback(FIBER_OF(core)->thread->tstate, fd);
}

int
pf_python_overflow_init(void)
{
    static const pf_overflow_host host = {
        .on_reserve = reserve_reached,
        .current = current_fiber,
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
