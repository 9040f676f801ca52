/* Waits for a descriptor: see waiting.h. */
#include "python/io/waiting.h"

#include "engine/base/clock.h"
#include "engine/io/net.h"
#include "python/core/compiler.h"
#include "python/core/state.h"
#include "python/switch/pending.h"
#include "python/switch/unwind.h"
#include "python/task/scheduler.h"
#include "python/wait/wait.h"
#include "python/waitq/wait_memory.h"

#include <errno.h>
#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <winsock2.h>
#endif

/* So many operations in a row may a fiber do before other fibers run.  With
 * less, switches would cost time where data come quickly.  With more, a fiber
 * that reads from a fast peer would keep all others waiting (curio once
 * starved its loop in this way). */
#define MOST_IN_A_ROW 64

/* Not on the C stack: the descriptor's record points to it while the fiber
 * waits. */
typedef struct Wait {
    pf_io_wait wait; /* first */
    FiberObject *fiber;
} Wait;
_Static_assert(sizeof(Wait) <= PF_WAIT_BYTES, "a wait needs more memory");

/* In a no-switch region only a thread that is being cut off gets as far as to
 * the wait, which abandons it. */
static PF_NEVER_INLINE pf_scheduler *
scheduler_in_region(const PfThread *t)
{
    SchedulerObject *s = t->scheduler;
    return pf_unwind_cuts_off(t) && !s->blocks ? &s->core : NULL;
}

pf_scheduler *
pf_io_scheduler(PfThread *t)
{
    SchedulerObject *s = t->scheduler;
    if (s == NULL) {
        return NULL;
    }
    if (PF_UNLIKELY((t->pending & PF_PENDING_NO_SWITCH) != 0)) {
        return scheduler_in_region(t);
    }
    bool stays = t->collecting == t->engine.current || s->blocks;
    return stays ? NULL : &s->core;
}

int
pf_io_charge(PfThread *t, bool patched)
{
    pf_scheduler *s = &t->scheduler->core;
    pf_descriptors *table = &s->descriptors;
    if (table->counted_at != s->switches) {
        table->counted_at = s->switches;
        table->operations = 0;
    }
    if (PF_LIKELY(++table->operations <= MOST_IN_A_ROW)) {
        return 0;
    }
    bool before = pf_io_patched_begin(t, patched);
    int rc = pf_wait_yield(t);
    pf_io_patched_end(t, before);
    return rc < 0 ? -1 : 1;
}

#if defined(_WIN32)

/* Python uses Winsock's number for an error that has a number in C as well.
 * (Winsock's numbers are above 10000.) */
static int
number_of_winsock(int number)
{
    switch (number) {
    case EAGAIN:
        return WSAEWOULDBLOCK;
    case EOPNOTSUPP:
        return WSAEOPNOTSUPP;
    case ECONNRESET:
        return WSAECONNRESET;
    case ENOTCONN:
        return WSAENOTCONN;
    case ENOBUFS:
        return WSAENOBUFS;
    default:
        return number;
    }
}

/* Does not set errno: the interpreter may use another C library, with an errno
 * at another address. */
static void
set_error(int number)
{
    number = number_of_winsock(number);
    if (number > WSABASEERR) {
        PyErr_SetExcFromWindowsErr(PyExc_OSError, number);
        return;
    }
    PyObject *error =
        PyObject_CallFunction(PyExc_OSError, "is", number, strerror(number));
    if (error != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_DECREF(error);
    }
}

#else

static void
set_error(int number)
{
    errno = number;
    PyErr_SetFromErrno(PyExc_OSError);
}

#endif

int
pf_io_error(int64_t error)
{
    set_error((int)-error);
    return -1;
}

static bool
wake(pf_io_wait *wait, pf_scheduler *s)
{
    FiberObject *fiber = ((Wait *)wait)->fiber;
    return pf_scheduler_wake(s, &fiber->core, PF_WAKE_NORMAL);
}

bool
pf_io_stands(const FiberObject *fiber, const pf_descriptor *at,
             pf_direction *direction)
{
    for (int d = 0; d < PF_DIRECTIONS; d++) {
        const pf_io_wait *w = at->waiting[d];
        for (; w != NULL; w = w->next) {
            if (w->wake == wake && ((const Wait *)w)->fiber == fiber) {
                *direction = (pf_direction)d;
                return true;
            }
        }
    }
    return false;
}

static int
refuse_closed(pf_direction direction)
{
    PyObject *error = PyObject_CallFunction(
        PyExc_OSError, "is", EBADF,
        direction == PF_READING
            ? "closed by another fiber while this one waited to read"
            : "closed by another fiber while this one waited to write");
    if (error != NULL) {
        PyErr_SetObject(PyExc_OSError, error);
        Py_DECREF(error);
    }
    return -1;
}

/* Makes the wait of the running fiber.  pf_pending_before_wait() may run code
 * that closes the descriptor.  So it is called before the fiber is queued, and
 * pf_wait(), which calls it as well, finds nothing to do. */
static Wait *
new_wait(PfThread *t)
{
    if (PF_UNLIKELY(t->pending != 0) && pf_pending_before_wait(t) < 0) {
        return NULL;
    }
    Wait *wait = pf_wait_memory(t);
    if (wait != NULL) {
        *wait = (Wait){.wait.wake = wake, .fiber = CURRENT(t)};
    }
    return wait;
}

/* Ends a wait that has not been queued. */
static int
end_wait(PfThread *t, Wait *wait, int rc)
{
    pf_wait_memory_free(t, wait);
    return rc < 0 ? pf_io_error(rc) : 0;
}

/* Parks the fiber, which is queued. */
static int
park(PfThread *t, Wait *wait, int64_t deadline, PyObject *what)
{
    pf_scheduler_prefetch_next(&t->scheduler->core);
    int rc = pf_wait(t, deadline, what);
    pf_io_wait_end(&wait->wait);
    bool closed = wait->wait.error != 0 && rc >= 0;
    pf_direction direction = wait->wait.direction;
    pf_wait_memory_free(t, wait);
    return closed ? refuse_closed(direction) : rc;
}

int
pf_io_park(PfThread *t, pf_descriptor *at, pf_direction direction, bool every,
           int64_t deadline, PyObject *what)
{
    Wait *wait = new_wait(t);
    if (wait == NULL) {
        return -1;
    }
    wait->wait.every = every;
    pf_scheduler *s = &t->scheduler->core;
    int rc = pf_descriptor_wait(at, &wait->wait, direction);
    if (rc != 0) {
        return end_wait(t, wait, rc);
    }
    uint64_t owner = at->owner;
    rc = park(t, wait, deadline, what);
    if (rc != 0 && at->owner == owner) {
        pf_descriptor_pass_on(at, s, direction);
    }
    return rc;
}

static int
begin_foreign(pf_scheduler *s, Wait *wait, intptr_t number,
              pf_direction direction)
{
    int rc = pf_net_check(number);
    return rc < 0 ? rc
                  : pf_descriptor_wait_foreign(&s->descriptors, s, number,
                                               &wait->wait, direction);
}

int
pf_io_park_foreign(PfThread *t, intptr_t number, pf_direction direction,
                   int64_t deadline, PyObject *what)
{
    Wait *wait = new_wait(t);
    if (wait == NULL) {
        return -1;
    }
    pf_scheduler *s = &t->scheduler->core;
    int rc = begin_foreign(s, wait, number, direction);
    return rc != 0 ? end_wait(t, wait, rc) : park(t, wait, deadline, what);
}

/* A closed end never becomes ready, as a closed descriptor does not in the
 * system's epoll. */
static int
begin_at_end(Wait *wait, pf_end *end, pf_direction direction)
{
    if (end->closed) {
        return 0;
    }
    if (!pf_end_blocks(end, direction)) {
        return 1;
    }
    wait->wait.every = true;
    pf_descriptor_blocked(&end->at, direction);
    return pf_descriptor_wait(&end->at, &wait->wait, direction);
}

static int
begin_any(pf_scheduler *s, Wait *wait, const PfAwaited *what)
{
    return what->end != NULL
               ? begin_at_end(wait, what->end, what->direction)
               : begin_foreign(s, wait, what->number, what->direction);
}

/* A descriptor that is closed meanwhile ends the wait, too. */
int
pf_io_park_any(PfThread *t, const PfAwaited *list, size_t count,
               int64_t deadline, PyObject *what)
{
    if (PF_UNLIKELY(t->pending != 0) && pf_pending_before_wait(t) < 0) {
        return -1;
    }
    Wait *waits = PyMem_Calloc(count, sizeof *waits);
    if (waits == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    int rc = 0;
    size_t begun = 0;
    for (; begun < count && rc == 0; begun++) {
        waits[begun].wait.wake = wake;
        waits[begun].fiber = CURRENT(t);
        rc = begin_any(&t->scheduler->core, &waits[begun], &list[begun]);
    }
    rc = rc == 0 ? pf_wait(t, deadline, what) : rc == 1 ? 0 : pf_io_error(rc);
    for (size_t i = 0; i < begun; i++) {
        pf_io_wait_end(&waits[i].wait);
    }
    PyMem_Free(waits);
    return rc;
}

int
pf_io_block(intptr_t number, pf_direction direction, int64_t deadline)
{
    int rc = -EINTR;
    while (rc == -EINTR) {
        int64_t left = PF_NEVER;
        if (deadline != PF_NEVER) {
            left = deadline - pf_clock_monotonic();
        }
        Py_BEGIN_ALLOW_THREADS;
        rc = pf_net_poll(number, direction, left);
        Py_END_ALLOW_THREADS;
        if (rc == -EINTR && PyErr_CheckSignals() < 0) {
            return -1;
        }
    }
    return rc < 0 ? pf_io_error(rc) : rc == 0;
}
