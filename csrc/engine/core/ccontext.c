/* Contexts for C programs: see ccontext.h. */
#include "engine/core/ccontext.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/core/fiber.h"

#if defined(_MSC_VER)
#define THREAD_LOCAL __declspec(thread)
#else
#define THREAD_LOCAL _Thread_local
#endif

/* A context.  Invariants:
 * - `fiber` is &own, or the engine thread's root for the main context.
 * - `resumer` is set while the context runs: the context that switched to this
 *   one last, which is suspended; NULL if that was destroyed.  Then the main
 *   context takes its place.
 */
struct pf_ccontext {
    pf_fiber *fiber;
    pf_ccontext *resumer;
    pf_ccontext_body body;
    void *arg;
    size_t serial; /* record.serial of the context's thread */
    pf_fiber own;
};

/* The record of a thread.  `serial` distinguishes threads whose records had
 * the same address, one after the other; 0: not assigned yet. */
typedef struct record {
    pf_thread engine;
    pf_ccontext main;
    pf_ccontext *current;
    void *value;        /* the value of the present switch */
    pf_nesting nesting; /* when the main context was left */
    size_t serial;
    size_t count; /* contexts besides main */
} record;

/* The stack pool of the thread that most recently destroyed its last context,
 * for the next thread that makes its first one: code that makes contexts one
 * at a time would otherwise map and unmap a slab for each. */
static PF_ATOMIC(pf_stack_pool *) spare_pool;

static THREAD_LOCAL record this_thread;
static PF_ATOMIC(size_t) last_serial;
static const pf_ccontext_host *the_host;

void
pf_ccontext_set_host(const pf_ccontext_host *host)
{
    the_host = host;
}

static record *
get_record(void)
{
    record *r = &this_thread;
    if (r->serial == 0) {
        r->serial = pf_fetch_add(&last_serial, 1) + 1;
        r->main.serial = r->serial;
        r->main.fiber = &r->engine.root;
        r->current = &r->main;
    }
    return r;
}

/* ------------------------------------------------- the engine's host --- */

static pf_ccontext *
context_of(pf_fiber *fiber)
{
    return (pf_ccontext *)(void *)((char *)fiber - offsetof(pf_ccontext, own));
}

/* The `run` operation: runs the body, and returns the fiber to go to. */
static pf_fiber *
run(pf_thread *thread, pf_fiber *self)
{
    record *r = &this_thread;
    pf_ccontext *context = context_of(self);
    (void)thread;
    r->value = context->body(context->arg, r->value);
    r->current = context->resumer == NULL ? &r->main : context->resumer;
    r->current->fiber->task.state = PF_RUNNING;
    return r->current->fiber;
}

/* The area that is passed to the host excludes the reserve, which is never
 * opened for a context. */
static void
on_switch(pf_thread *thread, pf_fiber *from, pf_fiber *to)
{
    (void)thread, (void)from;
    if (the_host == NULL) {
        return;
    }
    if (to->stack == NULL) {
        the_host->moved(NULL);
        return;
    }
    pf_area usable = to->stack->area;
    if (usable.low != NULL) {
        usable.low += to->stack->reserve;
        usable.size -= to->stack->reserve;
    }
    the_host->moved(&usable);
}

static const pf_host context_host = {.on_switch = on_switch};
static const pf_task_ops context_ops = {.run = run};

/* ---------------------------------------------------- birth and death --- */

static void
keep_spare(pf_stack_pool *pool)
{
    pf_stack_pool *last = pf_exchange(&spare_pool, pool);
    if (last != NULL) {
        pf_stack_pool_free(last);
    }
}

/* Initializes the thread before its first context.  0 or -errno. */
static int
open_record(record *r)
{
    if (r->count > 0) {
        return 0;
    }
    int error = pf_thread_init(&r->engine, &context_host, 0);
    pf_stack_pool *pool =
        error != 0 ? NULL : pf_exchange(&spare_pool, (pf_stack_pool *)NULL);
    if (pool != NULL && pf_thread_add_pool(&r->engine, pool) != 0) {
        pf_stack_pool_free(pool); /* the first stack will fail and report it */
    }
    return error;
}

/* Finishes the thread after its last context, so that nothing is left to do at
 * the thread's end. */
static void
close_record(record *r)
{
    if (r->count > 0) {
        return;
    }
    pf_stack_pool *pool = pf_thread_take_pool(&r->engine);
    pf_thread_finish(&r->engine);
    if (pool != NULL) {
        keep_spare(pool);
    }
}

/* Asks for a slot with an eighth more, because the pool uses up to an eighth
 * of the slot for the reserve. */
static int
prepare(record *r, pf_ccontext *context, size_t stack_size)
{
    pf_limit limit;
    size_t slot_size = stack_size + stack_size / 7;
    return pf_fiber_prepare(&r->engine, &context->own, slot_size, true,
                            &limit);
}

int
pf_ccontext_create(pf_ccontext **context, pf_ccontext_body body, void *arg,
                   size_t stack_size)
{
    stack_size = stack_size == 0 ? PF_CCONTEXT_STACK : stack_size;
    if (context == NULL || body == NULL || stack_size < pf_stack_min(0)) {
        return -EINVAL;
    }
    record *r = get_record();
    pf_ccontext *made = pf_memory_calloc(1, sizeof *made);
    if (made == NULL) {
        return -ENOMEM;
    }
    int error = open_record(r);
    if (error == 0) {
        error = prepare(r, made, stack_size);
        if (error != 0) {
            close_record(r);
        }
    }
    if (error != 0) {
        free(made);
        return error;
    }
    made->fiber = &made->own;
    made->body = body;
    made->arg = arg;
    made->serial = r->serial;
    made->own.task.state = PF_SUSPENDED;
    pf_task_set_ops(&made->own.task, &context_ops);
    r->count++;
    *context = made;
    return 0;
}

static int
check(const record *r, const pf_ccontext *context)
{
    if (context == NULL) {
        return -EINVAL;
    }
    return context->serial == r->serial ? 0 : -EPERM;
}

int
pf_ccontext_destroy(pf_ccontext *context)
{
    record *r = get_record();
    if (context == NULL) {
        return 0;
    }
    if (check(r, context) != 0) {
        return -EPERM;
    }
    if (context == &r->main) {
        return -EINVAL;
    }
    if (context == r->current) {
        return -EBUSY;
    }
    if (r->current->resumer == context) {
        r->current->resumer = NULL;
    }
    if (context->own.stack != NULL) {
        pf_fiber_over(&context->own);
        pf_fiber_reap(&r->engine, &context->own);
    }
    free(context);
    r->count--;
    close_record(r);
    return 0;
}

/* ---------------------------------------------------------- switching --- */

/* Adopts the thread's present stack as the main context, which may have been
 * adopted on another stack before.  On Windows, and for ThreadSanitizer, a
 * context records its stack. */
static int
adopt_anew(pf_context *main)
{
    pf_context fresh;
    int error = pf_context_adopt(&fresh);
    if (error == 0) {
        pf_context_forget(main);
        *main = fresh;
    }
    return error;
}

/* Prepares to leave the running context.  0; -EBUSY: it must not be left; or
 * another error. */
static int
may_leave(record *r)
{
    if (r->current == &r->main) {
        if (the_host != NULL) {
            the_host->nesting(&r->nesting);
        }
        return adopt_anew(&r->engine.root.context);
    }
    if (the_host != NULL) {
        pf_nesting now;
        the_host->nesting(&now);
        if (memcmp(&now, &r->nesting, sizeof now) != 0) {
            return -EBUSY;
        }
    }
    return 0;
}

static void
transfer(record *r, pf_ccontext *to)
{
    pf_ccontext *from = r->current;
    to->resumer = from;
    r->current = to;
    from->fiber->task.state = PF_SUSPENDED;
    to->fiber->task.state = PF_RUNNING;
    pf_fiber_switch(&r->engine, to->fiber);
}

int
pf_ccontext_switch(pf_ccontext *to, void **value)
{
    record *r = get_record();
    int error = check(r, to);
    if (error != 0 || to == r->current) {
        return error;
    }
    if (to->fiber->task.state == PF_DONE) {
        return -ESRCH;
    }
    error = may_leave(r);
    if (error != 0) {
        return error;
    }
    r->value = value == NULL ? NULL : *value;
    transfer(r, to);
    if (value != NULL) {
        *value = r->value;
    }
    r->value = NULL;
    return 0;
}

/* --------------------------------------------------------- inspection --- */

pf_ccontext *
pf_ccontext_current(void)
{
    return get_record()->current;
}

pf_ccontext *
pf_ccontext_main(void)
{
    return &get_record()->main;
}

int
pf_ccontext_done(const pf_ccontext *context)
{
    int error = check(get_record(), context);
    return error != 0 ? error : context->fiber->task.state == PF_DONE;
}
