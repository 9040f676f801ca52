/* The seam between context.c and the four backends; no other file includes it.
 *
 * In plain assembly builds a switch needs nothing else, so pf_context_switch
 * is the assembly routine itself.  Everywhere else it is a C function in
 * context.c around the backend's pf_context_jump.
 */
#ifndef PF_CONTEXT_BACKEND_H
#define PF_CONTEXT_BACKEND_H

#include "context/context.h"

#if defined(PF_CONTEXT_ASSEMBLY) && !PF_WITH_ASAN && !PF_WITH_TSAN
#define PF_CONTEXT_PLAIN 1
#endif

/* How a context begins.  It is stored at the very top of the context's own
 * stack (Windows: beside the system's fiber). */
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

/* The first C function on a stack.  Returns the context that the entry
 * returned, for the assembly to continue with.  Where the assembly is not the
 * whole switch, this function switches to that context itself, and returns
 * only on Windows, where the system's fiber is reused. */
PF_INTERNAL pf_context *pf_context_main(pf_start *start);

/* The bare switch. */
PF_INTERNAL void pf_context_jump(pf_context *from, pf_context *to);

/* The backend's part of the functions of context.h: pf_backend_init belongs to
 * pf_context_init, and so on. */
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
/* In the assembly file: push a frame below `top` (16-byte aligned).  A switch
 * to the stack pointer returned calls pf_context_main(start), with the
 * caller's floating-point control words. */
PF_INTERNAL void *pf_context_lay(char *top, pf_start *start);
#endif

#endif
