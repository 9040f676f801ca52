/* What the backends share: the beginning and the end of a context, and the
 * annotations by which AddressSanitizer and ThreadSanitizer learn which stack
 * the thread is on. */
#include "context/backend.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if PF_WITH_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if PF_WITH_TSAN
#include <sanitizer/tsan_interface.h>
#endif

#if defined(PF_CONTEXT_PLAIN)

/* No annotations are needed: the assembly is the whole switch. */

pf_context *
pf_context_main(pf_start *start)
{
    return start->entry(start->arg);
}

#else

/* Marks functions that are entered on one stack and left on another.  If they
 * were instrumented, they would unbalance ThreadSanitizer's record of calls,
 * and AddressSanitizer would check a stack that it does not know yet. */
#if defined(__has_attribute)
#if __has_attribute(disable_sanitizer_instrumentation)
#define NOT_INSTRUMENTED __attribute__((disable_sanitizer_instrumentation))
#endif
#endif
#if !defined(NOT_INSTRUMENTED) && defined(__GNUC__)
#define NOT_INSTRUMENTED                                                      \
    __attribute__((no_sanitize_address, no_sanitize_thread))
#elif !defined(NOT_INSTRUMENTED)
#define NOT_INSTRUMENTED
#endif

#if PF_WITH_ASAN
/* The context that this thread's last switch left.  AddressSanitizer reports
 * the bounds of the stack that was left.  An adopted context learns the bounds
 * of its stack in this way, because no portable system call returns them. */
static _Thread_local pf_context *left;
#endif

/* Announces a switch to the sanitizers: the last call on the stack of `from`.
 * AddressSanitizer frees the fake stack of a context that is `dying`. */
NOT_INSTRUMENTED static inline void
leaving(pf_context *from, pf_context *to, bool dying)
{
#if PF_WITH_ASAN
    left = from;
    __sanitizer_start_switch_fiber(dying ? NULL : &from->asan_fake_stack,
                                   to->asan_bottom, to->asan_size);
#endif
#if PF_WITH_TSAN
    __tsan_switch_to_fiber(to->tsan_fiber, 0);
#endif
    (void)from, (void)to, (void)dying;
}

/* Completes the announcement of `leaving`: the first call on the new stack.
 * `fake` is the fake stack that this context had when it was left; NULL for a
 * context that begins. */
NOT_INSTRUMENTED static inline void
landed(void *fake)
{
#if PF_WITH_ASAN
    __sanitizer_finish_switch_fiber(fake, &left->asan_bottom,
                                    &left->asan_size);
#endif
    (void)fake;
}

/* Switches, with annotations.  A context's switch to itself stays on its stack
 * and has none: an adopted context that was never left does not know the
 * bounds of its stack yet. */
NOT_INSTRUMENTED static void
leave(pf_context *from, pf_context *to, bool dying)
{
    bool moves = from != to;
    if (moves) {
        leaving(from, to, dying);
    }
    pf_context_jump(from, to);
    if (moves) {
#if PF_WITH_ASAN
        landed(from->asan_fake_stack);
#else
        landed(NULL);
#endif
    }
}

NOT_INSTRUMENTED static void
landed_first(pf_context *self)
{
    landed(NULL);
    (void)self;
}

NOT_INSTRUMENTED void
pf_context_switch(pf_context *from, pf_context *to)
{
    leave(from, to, false);
}

NOT_INSTRUMENTED pf_context *
pf_context_main(pf_start *start)
{
    pf_context *self = start->context;
    landed_first(self);
    pf_context *to = start->entry(start->arg);
#if defined(PF_CONTEXT_WINFIBER)
    pf_backend_ended(start);
#endif
    leave(self, to, true);
#if !defined(PF_CONTEXT_WINFIBER)
    abort(); /* a switch to a context that has ended */
#endif
    return to;
}

#endif

char *
pf_context_top(const pf_area *area)
{
    uintptr_t end = (uintptr_t)(area->low + area->size);
    return (char *)((end - sizeof(pf_start)) & ~(uintptr_t)15);
}

int
pf_context_init(pf_context *context, pf_area *area, pf_entry entry, void *arg)
{
    const pf_start start = {entry, arg, context};
#if PF_WITH_ASAN
    /* The frames of the last context on this memory never returned, so their
     * variables are still poisoned. */
    __asan_unpoison_memory_region(area->low, area->size);
    context->asan_fake_stack = NULL;
    context->asan_bottom = area->low;
    context->asan_size = area->size;
#endif
    int error = pf_backend_init(context, area, &start);
#if PF_WITH_TSAN
    if (error == 0) {
        context->tsan_fiber = __tsan_create_fiber(0);
    }
#endif
    return error;
}

int
pf_context_adopt(pf_context *context)
{
    memset(context, 0, sizeof *context);
#if PF_WITH_TSAN
    context->tsan_fiber = __tsan_get_current_fiber();
#endif
    return pf_backend_adopt(context);
}

void
pf_context_forget(pf_context *context)
{
    pf_backend_forget(context);
}

void
pf_context_finish(pf_context *context)
{
#if PF_WITH_TSAN
    __tsan_destroy_fiber(context->tsan_fiber);
    context->tsan_fiber = NULL;
#endif
    context->handle = NULL;
}

void
pf_area_dispose(pf_area *area)
{
#if PF_WITH_ASAN
    __asan_unpoison_memory_region(area->low, area->size);
#endif
    pf_backend_dispose(area);
}

#if defined(PF_CONTEXT_ASSEMBLY)

/* The assembly needs only a first frame on the new stack. */

int
pf_backend_init(pf_context *context, pf_area *area, const pf_start *start)
{
    pf_start *top = (pf_start *)(void *)pf_context_top(area);
    *top = *start;
    context->handle = pf_context_lay((char *)top, top);
    return 0;
}

int
pf_backend_adopt(pf_context *context)
{
    context->handle = NULL; /* written when the context is left */
    return 0;
}

void
pf_backend_forget(pf_context *context)
{
    (void)context;
}

/* The saved stack pointer is the lowest byte in use.  The switch pushes what
 * it preserves and calls nothing, and its caller has no red zone there, since
 * only a function that calls nothing may use one. */
char *
pf_context_low(const pf_context *context)
{
    return context->handle;
}

void *
pf_context_handle(char *end, const char *low)
{
    (void)end;
    return (void *)(uintptr_t)low;
}

void
pf_backend_dispose(pf_area *area)
{
    (void)area;
}

#endif
