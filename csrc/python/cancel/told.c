/* What a fiber has been told: which cancellations have been raised in it.
 *
 * pyfiber's own waits raise Cancelled each time, as long as the fiber is below
 * something that is cancelled. Code that was written for threads does not
 * expect this: its `finally` may take a lock or talk to a server, and a second
 * Cancelled there would skip the rest of the clean-up. So a call that patch()
 * has changed raises Cancelled only if the fiber has not been told yet.
 *
 * Each cancel(), and each deadline that passes, gets a number, which is kept in
 * the scope or fiber that it cancels. When Cancelled is raised, the latest number
 * is noted: everything that reaches the fiber now has been told. The note is
 * kept in the innermost shield around the fiber's code, if there is one, because
 * what is outside the shield has not been told inside of it; else in the
 * fiber. A generator's body counts as being where its puller is.
 *
 * If there is no memory for a note, Cancelled is raised again.
 */
#include "python/cancel/scope.h"

static PF_ATOMIC(size_t) latest; /* shared, one word */

size_t
pf_told_next_number(void)
{
    return pf_fetch_add(&latest, 1) + 1;
}

static ScopeObject *
innermost_shield(const FiberObject *fiber)
{
    ScopeObject *scope = fiber->scope;
    while (scope != NULL && !scope->shield) {
        scope = scope->outer;
    }
    return scope;
}

/* Where it is noted what has been raised in the fiber.  NULL: there is no room,
 * unless `make` could make it, without an exception. */
static size_t *
note_of(FiberObject *fiber, bool make)
{
    ScopeObject *shield;
    while ((shield = innermost_shield(fiber)) == NULL &&
           pf_fiber_rare(fiber)->puller != NULL) {
        fiber = fiber->rare->puller;
    }
    if (shield != NULL) {
        return &shield->told;
    }
    PfRare *rare = make ? pf_fiber_rare_of(fiber) : fiber->rare;
    if (rare == NULL) {
        if (make) {
            PyErr_Clear();
        }
        return NULL;
    }
    return &rare->told;
}

void
pf_told_note(FiberObject *fiber, size_t number)
{
    size_t *note = note_of(fiber, number != 0);
    if (note != NULL) {
        *note = number;
    }
}

size_t
pf_told_latest(void)
{
    return pf_load(&latest);
}

/* A fiber that was cancelled when there was no memory for the number has not
 * been told. */
static bool
fiber_is_news(const FiberObject *fiber, size_t told)
{
    size_t number = pf_fiber_rare(fiber)->cancelled_at;
    return fiber->cancel_called && (number == 0 || number > told);
}

PyObject *
pf_told_find_news(const FiberObject *fiber)
{
    const size_t *note = note_of((FiberObject *)fiber, false);
    size_t told = note == NULL ? 0 : *note;
    ScopeObject *scope = fiber->scope;
    const void *found = NULL;
    while (fiber != NULL) {
        for (; scope != NULL; scope = scope->outer) {
            if (scope->cancelled && scope->cancelled_at > told) {
                found = scope;
            }
            if (scope->shield) {
                return (PyObject *)found;
            }
        }
        if (fiber_is_news(fiber, told)) {
            found = fiber;
        }
        scope = fiber->base;
        fiber = scope != NULL ? scope->fiber : pf_fiber_rare(fiber)->puller;
        if (scope == NULL && fiber != NULL) {
            scope = fiber->scope;
        }
    }
    return (PyObject *)found;
}

bool
pf_told_all(const FiberObject *fiber)
{
    return pf_told_find_news(fiber) == NULL;
}
