/* Between context.c and the four backends; nobody else includes this.
 *
 * Plain assembly builds have nothing to do around a switch, so there
 * pf_context_switch is the assembly routine itself.  Everywhere else it is a
 * C function in context.c around the backend's pf_context_jump.
 */
#ifndef PF_CONTEXT_BACKEND_H
#define PF_CONTEXT_BACKEND_H

#include "context/context.h"

#if defined(PF_CONTEXT_ASSEMBLY) && !PF_WITH_ASAN && !PF_WITH_TSAN
#define PF_CONTEXT_PLAIN 1
#endif

/* How a context begins.  It lies at the very top of the context's own stack
 * (Windows: beside the system's fiber). */
typedef struct pf_start {
    pf_entry entry;
    void *arg;
    pf_context *context;
} pf_start;

#if defined(_WIN32)
#define PF_INTERNAL
#else
#define PF_INTERNAL __attribute__((visibility("hidden")))
#endif

/* The first C function on a stack.  Returns whom the entry returned, for the
 * assembly to go on with.  Where that is not the whole switch it leaves for it
 * itself, and comes back only on Windows, where the system's fiber is used
 * again. */
PF_INTERNAL pf_context *pf_context_main(pf_start *start);

/* The bare switch. */
PF_INTERNAL void pf_context_jump(pf_context *from, pf_context *to);

/* What the functions of context.h without "backend" in their name ask for. */
PF_INTERNAL int pf_backend_init(pf_context *context, pf_area *area,
                                const pf_start *start);
PF_INTERNAL int pf_backend_adopt(pf_context *context);
PF_INTERNAL void pf_backend_forget(pf_context *context);
PF_INTERNAL void pf_backend_dispose(pf_area *area);

#if defined(PF_CONTEXT_WINFIBER)
/* The entry has returned; the next switch leaves for good. */
void pf_backend_ended(pf_start *start);
#endif

#if defined(PF_CONTEXT_ASSEMBLY)
/* In the assembly file: push a frame below `top` (16-byte aligned) such that
 * a switch to the stack pointer returned calls pf_context_main(start).  The
 * floating-point control words are the caller's. */
PF_INTERNAL void *pf_context_lay(char *top, pf_start *start);
#endif

#endif
