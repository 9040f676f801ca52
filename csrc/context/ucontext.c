/* Contexts by getcontext, makecontext and swapcontext: for POSIX systems that
 * have no assembly file here, and for PYFIBER_CONTEXT=ucontext.
 *
 * This is slow (swapcontext makes a system call for the signal mask, which
 * only this backend switches), but every such C library has these functions.
 * The ucontext_t is stored on the stack that it describes, so a context needs
 * no other memory; only that of an adopted context is allocated.
 */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif

#include "context/backend.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <ucontext.h>

typedef struct root {
    pf_start start;
    ucontext_t registers;
} root;

/* 1 while the thread has begun to leave a stack and has not yet landed on the
 * other one. */
static _Thread_local volatile sig_atomic_t between;

bool
pf_context_between(void)
{
    return between != 0;
}

/* makecontext passes only ints, so the pointer comes in two halves. */
static void
begin(unsigned high, unsigned low)
{
    between = 0;
    uintptr_t address = ((uintptr_t)high << 16 << 16) | low;
    pf_context_main((pf_start *)address);
}

static root *
root_of(char *end)
{
    return (root *)(((uintptr_t)end - sizeof(root)) & ~(uintptr_t)63);
}

/* swapcontext resumes with the stack pointer that it has saved.  The 128 bytes
 * below are included, because they could be the red zone of its caller. */
char *
pf_context_low(const pf_context *context)
{
#if PF_CONTEXT_TELLS_LOW
    const ucontext_t *registers = context->handle;
#if defined(__x86_64__)
    uintptr_t low = (uintptr_t)registers->uc_mcontext.gregs[REG_RSP];
#elif defined(__aarch64__)
    uintptr_t low = (uintptr_t)registers->uc_mcontext.sp;
#else
    uintptr_t low = (uintptr_t)registers->uc_mcontext.__gregs[REG_SP];
#endif
    return (char *)((low - 128) & ~(uintptr_t)15);
#else
    (void)context;
    return NULL;
#endif
}

void *
pf_context_handle(char *end, const char *low)
{
    (void)low;
    return &root_of(end)->registers;
}

int
pf_backend_init(pf_context *context, pf_area *area, const pf_start *start)
{
    root *top = root_of(area->low + area->size);
    top->start = *start;
    ucontext_t *registers = &top->registers;
    if (getcontext(registers) != 0) {
        return -errno;
    }
    registers->uc_stack.ss_sp = area->low;
    registers->uc_stack.ss_size = (size_t)((char *)top - area->low);
    registers->uc_link = NULL;
    uintptr_t address = (uintptr_t)&top->start;
    makecontext(registers, (void (*)(void))begin, 2,
                (unsigned)(address >> 16 >> 16), (unsigned)address);
    context->handle = registers;
    return 0;
}

int
pf_backend_adopt(pf_context *context)
{
    context->handle = malloc(sizeof(ucontext_t));
    return context->handle == NULL ? -ENOMEM : 0;
}

void
pf_backend_forget(pf_context *context)
{
    free(context->handle);
    context->handle = NULL;
}

void
pf_backend_dispose(pf_area *area)
{
    (void)area;
}

/* A switch of a context to itself would load its signal mask before the mask
 * is saved. */
void
pf_context_jump(pf_context *from, pf_context *to)
{
    if (from == to) {
        return;
    }
    between = 1;
    if (swapcontext(from->handle, to->handle) != 0) {
        abort(); /* cannot happen: the stack was checked at its creation */
    }
    between = 0;
}
