/* Looks for what could wake a fiber when all fibers of a run wait.  help.h
 * says what counts. */
#include "python/run/help.h"

#include "engine/base/mutex.h"
#include "engine/base/os_threads.h"
#include "python/core/facade.h"
#include "python/core/thread.h"
#include "python/core/tstate.h"
#include "python/task/scheduler.h"

#include <string.h>

static bool
part_has_helpers(SchedulerObject *s)
{
    PF_EACH_PART(part, has_helpers) {
        if (part->has_helpers(s)) {
            return true;
        }
    }
    return false;
}

/* --------------------------------------------------------- pyfiber's threads */

#define MOST_OWN 4

/* system numbers, 0: free; shared, behind own_lock */
static uint64_t own_threads[MOST_OWN];
static pf_mutex own_lock = PF_MUTEX_INIT;

/* Replaces the first `old` by `number`.  Returns false if there is no `old`. */
static bool
replace_own(uint64_t old, uint64_t number)
{
    pf_mutex_lock(&own_lock);
    int i = 0;
    while (i < MOST_OWN && own_threads[i] != old) {
        i++;
    }
    if (i < MOST_OWN) {
        own_threads[i] = number;
    }
    pf_mutex_unlock(&own_lock);
    return i < MOST_OWN;
}

/* If the table is full, the thread counts as one that may wake a fiber. */
void
pf_help_thread_begins(void)
{
    (void)replace_own(0, PyThread_get_thread_native_id());
}

void
pf_help_thread_ends(void)
{
    (void)replace_own(PyThread_get_thread_native_id(), 0);
}

void
pf_help_after_fork(void)
{
    own_lock =
        (pf_mutex)PF_MUTEX_INIT; /* a thread of the parent may hold it */
    memset(own_threads, 0, sizeof own_threads);
}

void
pf_help_locks_free(PyThread_type_lock *locks, int count)
{
    for (int i = 0; i < count; i++) {
        PyThread_release_lock(locks[i]);
        PyThread_free_lock(locks[i]);
    }
}

bool
pf_help_locks_make(PyThread_type_lock *locks, int count)
{
    for (int i = 0; i < count; i++) {
        locks[i] = PyThread_allocate_lock();
        if (locks[i] == NULL) {
            pf_help_locks_free(locks, i);
            return false;
        }
        PyThread_acquire_lock(locks[i], WAIT_LOCK);
    }
    return true;
}

/* ------------------------------------------------------------ other threads */

/* Is the thread neither the caller, nor one of pyfiber's, nor one of Python's?
 * To replace a number by itself finds it and changes nothing. */
static bool
is_unknown(uint64_t number, void *caller)
{
    return number != *(uint64_t *)caller && !replace_own(number, number) &&
           !pystate_knows_native(number);
}

static bool
look_for_unknown(void)
{
    uint64_t caller = PyThread_get_thread_native_id();
    /* -1, the system cannot list threads, counts as "there is one". */
    return pf_os_threads_any(is_unknown, &caller) != 0;
}

/* Looks twice, because a system thread outlives its Python thread by some
 * microseconds. */
PyObject *
pf_help_unknown_threads(PyObject *module, PyObject *ignored)
{
    (void)module;
    (void)ignored;
    bool found = look_for_unknown();
    if (found) {
        Py_BEGIN_ALLOW_THREADS;
        pf_os_thread_pause();
        Py_END_ALLOW_THREADS;
        found = look_for_unknown();
    }
    return PyBool_FromLong(found);
}

bool
pf_help_is_possible(SchedulerObject *s)
{
    if (part_has_helpers(s)) {
        return true;
    }
    if (pf_facade.could_be_woken == NULL) {
        return false;
    }
    pf_thread_no_switch_begin(s->thread,
                              "while a run looks for who could wake it");
    PyObject *answer = PyObject_CallNoArgs(pf_facade.could_be_woken);
    bool possible = answer != Py_False;
    if (answer == NULL) {
        PyErr_WriteUnraisable((PyObject *)s); /* may run code, too */
    }
    Py_XDECREF(answer);
    pf_thread_no_switch_end(s->thread);
    return possible;
}
