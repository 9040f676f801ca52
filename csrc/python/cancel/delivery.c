/* Which cancellations have been raised in a fiber.
 *
 * pyfiber's own waits raise Cancelled each time, as long as the fiber is below
 * something that is cancelled.  Code that was written for threads does not
 * expect this: its `finally` may take a lock or talk to a server, and a second
 * Cancelled there would skip the rest of the clean-up.  So a call that patch()
 * has changed raises each cancellation only once.
 *
 * Each cancel(), and each deadline that passes, gets a number, which is kept
 * in the scope or fiber that it cancels (`cancelled_at`).  When Cancelled is
 * raised, the latest number is noted (`delivered`): every cancellation that reaches
 * the fiber now counts as raised.  If there is a shield around the fiber's
 * code, the note is kept in the innermost one, because a cancellation from
 * outside the shield has not been raised inside of it; otherwise in the fiber.
 * A generator's body counts as being where its puller is.
 *
 * If there is no memory for a note, Cancelled is raised again.
 */
#include "python/cancel/scope.h"

/* The number of the latest cancellation in the process. */
static PF_ATOMIC(size_t) latest; /* shared, one word */

size_t
pf_delivery_next_number(void)
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

/* Returns the place of the fiber's note, which is made if there is none and
 * `make` is true.  Returns NULL, without an exception, if there is none, or no
 * memory to make one. */
static size_t *
note_of(FiberObject *fiber, bool make)
{
    ScopeObject *shield;
    while ((shield = innermost_shield(fiber)) == NULL &&
           pf_fiber_rare(fiber)->puller != NULL) {
        fiber = fiber->rare->puller;
    }
    if (shield != NULL) {
        return &shield->delivered;
    }
    PfRare *rare = make ? pf_fiber_rare_of(fiber) : fiber->rare;
    if (rare == NULL) {
        if (make) {
            PyErr_Clear();
        }
        return NULL;
    }
    return &rare->delivered;
}

void
pf_delivery_note(FiberObject *fiber, size_t number)
{
    size_t *note = note_of(fiber, number != 0);
    if (note != NULL) {
        *note = number;
    }
}

size_t
pf_delivery_latest(void)
{
    return pf_load(&latest);
}

/* Returns true if the fiber itself was cancelled and this has not been raised
 * yet.  A cancellation without a number, for lack of memory, counts as not
 * raised. */
static bool
fiber_is_news(const FiberObject *fiber, size_t delivered)
{
    size_t number = pf_fiber_rare(fiber)->cancelled_at;
    return fiber->cancel_called && (number == 0 || number > delivered);
}

PyObject *
pf_delivery_find_news(const FiberObject *fiber)
{
    const size_t *note = note_of((FiberObject *)fiber, false);
    size_t delivered = note == NULL ? 0 : *note;
    ScopeObject *scope = fiber->scope;
    const void *found = NULL;
    while (fiber != NULL) {
        for (; scope != NULL; scope = scope->outer) {
            if (scope->cancelled && scope->cancelled_at > delivered) {
                found = scope;
            }
            if (scope->shield) {
                return (PyObject *)found;
            }
        }
        if (fiber_is_news(fiber, delivered)) {
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
pf_delivery_all(const FiberObject *fiber)
{
    return pf_delivery_find_news(fiber) == NULL;
}
