/* Records which cancellations have been raised in a fiber.  cancel.c finds the
 * fibers that a cancellation reaches, cancelled.c raises the exception.
 *
 * pyfiber's own waits raise Cancelled each time that the fiber would park, as
 * long as the fiber itself, or a scope or fiber around its code, is cancelled.
 * Code that was written for threads does not expect this: its `finally` may
 * take a lock or talk to a server, and a second Cancelled there would skip the
 * rest of the clean-up.  So the calls that patch() has changed raise each
 * cancellation only once: after one of them has raised it, none of them raises
 * it again in that fiber.
 *
 * Each cancel(), and each deadline that passes, gets a number.  The scope or
 * fiber that is cancelled stores it (`cancelled_at`).  When Cancelled is
 * raised, the fiber stores the latest number that has been given out
 * (`delivered`, the note): every cancellation that reaches the fiber at this
 * moment counts as raised.  For example, a timeout gets number 7 and raises
 * Cancelled, which notes 7.  A call in a `finally` block then waits, because 7
 * is not greater than the note.  A cancel() gets number 8 and wakes that call,
 * which raises Cancelled and notes 8.
 *
 * If there is a shield around the fiber's code, the innermost shield stores
 * the note, not the fiber.  What has been raised outside of a shield has not
 * been raised inside of it, and the other way round.
 *
 * The function of a FiberGenerator runs on a fiber, its body.  While the
 * generator's user waits for the next value, the user's fiber is the puller of
 * the body (see sync/generator.c).  For cancellation, the body's code then
 * counts as a call of the puller: it has the puller's note, and what cancels
 * the puller cancels the body.
 *
 * If there is no memory for a note, the next call raises Cancelled again.
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

/* Returns the place of the fiber's note: in the innermost shield around its
 * code, or in the fiber.  A fiber's memory for rare fields contains the place;
 * if the fiber has none and `make` is true, this allocates it.  Returns NULL,
 * without an exception, if there is none.  (A body has no base, so only its
 * pullers are around it.) */
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
cancel_of_fiber_is_new(const FiberObject *fiber, size_t delivered)
{
    size_t number = pf_fiber_rare(fiber)->cancelled_at;
    return fiber->cancel_called && (number == 0 || number > delivered);
}

/* Walks outward from the fiber's code: its scopes, the fiber itself, the scope
 * that it was born in (its base) or else its puller, and so on up to the first
 * shield.  The last match, the outermost, is the result.  An inner scope would
 * absorb its own Cancelled, and the code after it would go on although more
 * around it is cancelled.  Compares all numbers with the note of the fiber
 * that the walk began with. */
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
        if (cancel_of_fiber_is_new(fiber, delivered)) {
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

/* Also true if nothing that reaches the fiber is cancelled. */
bool
pf_delivery_all(const FiberObject *fiber)
{
    return pf_delivery_find_news(fiber) == NULL;
}
