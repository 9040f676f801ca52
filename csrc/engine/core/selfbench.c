/* Rings of contexts, timed. */
#include "engine/core/selfbench.h"

#include <stdbool.h>
#include <stdlib.h>

#include "context/context.h"
#include "engine/base/memory.h"
#include "engine/core/scheduler.h"
#include "engine/stack/stack.h"

/* `handle` is the first field of a context; the bare switch needs only that.
 */
typedef struct node {
    pf_context context;
    struct node *next;
    uint64_t rounds; /* only the thread's own count down to 0 */
    pf_stack *stack;
} node;

/* The same frame as in the assembly files, so this code can also enter a
 * context prepared by pf_context_init. */
#if defined(PF_CONTEXT_ASSEMBLY) && !PF_WITH_ASAN && !PF_WITH_TSAN
#define HAVE_BARE 1

#if defined(__APPLE__)
#define BARE_NAME "_pf_bare_switch"
#define HIDE_BARE ".private_extern " BARE_NAME "\n"
#else
#define BARE_NAME "pf_bare_switch"
#define HIDE_BARE ".hidden " BARE_NAME "\n"
#endif

void pf_bare_switch(pf_context *from, pf_context *to);

#if defined(__x86_64__)
__asm__(".text\n"
        ".p2align 6\n"
        ".globl " BARE_NAME "\n" HIDE_BARE BARE_NAME ":\n"
        "pushq %rbp\n pushq %rbx\n"
        "pushq %r15\n pushq %r14\n pushq %r13\n pushq %r12\n"
        "subq $8, %rsp\n stmxcsr (%rsp)\n fnstcw 4(%rsp)\n"
        "movq %rsp, (%rdi)\n"
        "movq (%rsi), %rsp\n"
        "fldcw 4(%rsp)\n ldmxcsr (%rsp)\n addq $8, %rsp\n"
        "popq %r12\n popq %r13\n popq %r14\n popq %r15\n"
        "popq %rbx\n popq %rbp\n"
        "ret\n");
#else
__asm__(".text\n"
        ".p2align 6\n"
        ".globl " BARE_NAME "\n" HIDE_BARE BARE_NAME ":\n"
        "sub sp, sp, #176\n"
        "stp x19, x20, [sp]\n stp x21, x22, [sp, #16]\n"
        "stp x23, x24, [sp, #32]\n stp x25, x26, [sp, #48]\n"
        "stp x27, x28, [sp, #64]\n stp x29, x30, [sp, #80]\n"
        "stp d8, d9, [sp, #96]\n stp d10, d11, [sp, #112]\n"
        "stp d12, d13, [sp, #128]\n stp d14, d15, [sp, #144]\n"
        "mrs x9, fpcr\n str x9, [sp, #160]\n"
        "mov x10, sp\n str x10, [x0]\n"
        "ldr x10, [x1]\n mov sp, x10\n"
        "ldp x19, x20, [sp]\n ldp x21, x22, [sp, #16]\n"
        "ldp x23, x24, [sp, #32]\n ldp x25, x26, [sp, #48]\n"
        "ldp x27, x28, [sp, #64]\n ldp x29, x30, [sp, #80]\n"
        "ldp d8, d9, [sp, #96]\n ldp d10, d11, [sp, #112]\n"
        "ldp d12, d13, [sp, #128]\n ldp d14, d15, [sp, #144]\n"
        "ldr x10, [sp, #160]\n cmp x9, x10\n b.eq 1f\n"
        "msr fpcr, x10\n"
        "1: add sp, sp, #176\n"
        "ret\n");
#endif
#endif

/* The thread and the contexts run the same code.  So there is one return
 * address and its prediction is right, as for fibers that all wait in one
 * function. */
static pf_context *
go_round(void *arg)
{
    node *self = arg;
    for (uint64_t i = self->rounds; i > 0; i--) {
        pf_context_switch(&self->context, &self->next->context);
    }
    return &self->next->context;
}

#if defined(HAVE_BARE)

static pf_context *
go_round_bare(void *arg)
{
    node *self = arg;
    for (uint64_t i = self->rounds; i > 0; i--) {
        pf_bare_switch(&self->context, &self->next->context);
    }
    return &self->next->context;
}

#endif

static double
time_rounds(node *first, uint64_t rounds, pf_entry entry)
{
    int64_t start = pf_monotonic();
    first->rounds = rounds;
    (void)entry(first);
    return (double)(pf_monotonic() - start) * 1e-9;
}

/* Nodes 1 .. k-1 get stacks; node 0 is the thread itself.  False: no memory.
 */
static bool
link_ring(node *nodes, unsigned k, pf_stack_pool *pool, pf_entry entry)
{
    for (unsigned i = 0; i < k; i++) {
        node *n = &nodes[i];
        n->next = &nodes[(i + 1) % k];
        n->rounds = UINT64_MAX;
        if (i > 0 &&
            (pf_stack_acquire(pool, &n->stack) != 0 ||
             pf_context_init(&n->context, &n->stack->area, entry, n) != 0)) {
            return false;
        }
    }
    return true;
}

/* The contexts are simply abandoned: they own nothing. */
static void
break_ring(node *nodes, unsigned k)
{
    for (unsigned i = 1; i < k; i++) {
        if (nodes[i].context.handle != NULL) {
            pf_context_finish(&nodes[i].context);
        }
        if (nodes[i].stack != NULL) {
            pf_stack_release(nodes[i].stack);
        }
    }
}

static double
time_ring(unsigned k, uint64_t n, pf_entry entry)
{
    double seconds = -1;
    if (k < 2) {
        return seconds;
    }
    node *nodes = pf_calloc(k, sizeof *nodes);
    pf_stack_pool *pool = pf_stack_pool_new((size_t)64 << 10, 0);
    if (nodes != NULL && pool != NULL &&
        pf_context_adopt(&nodes[0].context) == 0) {
        if (link_ring(nodes, k, pool, entry)) {
            (void)time_rounds(nodes, 1, entry); /* all of them have begun */
            seconds = time_rounds(nodes, n / k, entry);
        }
        break_ring(nodes, k);
        pf_context_forget(&nodes[0].context);
    }
    if (pool != NULL) {
        pf_stack_pool_free(pool);
    }
    free(nodes);
    return seconds;
}

double
pf_bench_switch(uint64_t n)
{
    return time_ring(2, n, go_round);
}

double
pf_bench_ring(unsigned k, uint64_t n)
{
    return time_ring(k, n, go_round);
}

double
pf_bench_bare(uint64_t n)
{
    return pf_bench_bare_ring(2, n);
}

double
pf_bench_bare_ring(unsigned k, uint64_t n)
{
#if defined(HAVE_BARE)
    return time_ring(k, n, go_round_bare);
#else
    (void)k, (void)n;
    return -1;
#endif
}
