/* The owners of locks, also those that have ended: see owner.h. */
#include "python/waitq/owner.h"

#include "engine/base/mutex.h"
#include "python/core/thread.h"
#include "python/core/world.h"

/* The number that a fiber got last: see PfOwner. */
static PF_ATOMIC(size_t) last_number; /* shared, one word */

uint32_t
pf_owner_number(FiberObject *fiber)
{
    uint32_t number;
    do {
        number = (uint32_t)(pf_fetch_add(&last_number, 1) + 1);
    } while (number == 0);
    fiber->number = number;
    return number;
}

static FiberObject *
find_on(PfThread *t, const PfOwner *owner)
{
    if (pf_owner_is(owner, t->root)) {
        return t->root;
    }
    FiberObject *f = t->live;
    while (f != NULL && !pf_owner_is(owner, f)) {
        f = f->next;
    }
    return f;
}

/* Returns a new reference to the owner, or NULL if it has ended.  Compares the
 * pointer with those of the live fibers, and follows it only if it is one of
 * these. */
static FiberObject *
find_owner(const PfOwner *owner)
{
    FiberObject *found = NULL;
    if (owner->fiber == NULL) {
        return NULL;
    }
    bool stopped = pf_world_stop(NULL);
    pf_mutex_lock(&pf_threads_lock);
    for (PfThread *t = pf_threads; t != NULL && found == NULL; t = t->next) {
        found = find_on(t, owner);
    }
    found = found != NULL && pf_world_has(found)
                ? (FiberObject *)Py_NewRef((PyObject *)found)
                : NULL;
    pf_mutex_unlock(&pf_threads_lock);
    pf_world_start(stopped);
    return found;
}

#define GONE_PLACES 256
/* The names of owners that have ended.  An owner's number, modulo
 * GONE_PLACES, is its place; a later owner with the same place replaces it.
 * Shared, behind gone_lock. */
static struct {
    uint32_t number;
    PyObject *name;
} gone[GONE_PLACES];
static pf_mutex gone_lock = PF_MUTEX_INIT;

void
pf_owner_ends(FiberObject *fiber)
{
    PyObject *name = Py_XNewRef(fiber->name);
    uint32_t number = fiber->number;
    pf_mutex_lock(&gone_lock);
    PyObject *before = gone[number % GONE_PLACES].name;
    gone[number % GONE_PLACES].number = number;
    gone[number % GONE_PLACES].name = name;
    pf_mutex_unlock(&gone_lock);
    Py_XDECREF(before);
}

PyObject *
pf_owner_gone(const PfOwner *owner)
{
    FiberObject *alive = find_owner(owner);
    if (owner->fiber == NULL || alive != NULL) {
        Py_XDECREF(alive);
        Py_RETURN_NONE;
    }
    uint32_t place = owner->number % GONE_PLACES;
    PyObject *name = NULL;
    pf_mutex_lock(&gone_lock);
    if (gone[place].number == owner->number) {
        name = Py_XNewRef(gone[place].name);
    }
    pf_mutex_unlock(&gone_lock);
    return name != NULL ? name : PyUnicode_FromString("?");
}

PyObject *
pf_owner_list(const PfOwner *owners, int count)
{
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && i < count; i++) {
        FiberObject *fiber = find_owner(&owners[i]);
        if (fiber != NULL && PyList_Append(list, (PyObject *)fiber) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(fiber);
    }
    return list;
}
