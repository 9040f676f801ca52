/* The interface between context.c and the four backends.  No other file
 * includes this header.
 *
 * In an assembly build without sanitizers pf_context_switch is the assembly
 * routine itself.  In every other build pf_context_switch is a C function in
 * context.c that wraps the backend's pf_context_jump.
 */
#ifndef PF_CONTEXT_BACKEND_H
#define PF_CONTEXT_BACKEND_H

#include "context/context.h"

#if defined(PF_CONTEXT_ASSEMBLY) && !PF_WITH_ASAN && !PF_WITH_TSAN
#define PF_CONTEXT_PLAIN 1
#endif

/* What a context runs first.  Stored at the very top of the context's own
 * stack (Windows: beside the system's fiber, in its os_fiber). */
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

/* The first C function on a new stack: runs the entry of `start`.  Returns the
 * context that the entry returned, to which the assembly then switches.  Where
 * the assembly is not the whole switch, this function switches to that context
 * itself, and returns only on Windows, where the system's fiber is reused. */
PF_INTERNAL pf_context *pf_context_main(pf_start *start);

/* The switch alone, without annotations for the sanitizers. */
PF_INTERNAL void pf_context_jump(pf_context *from, pf_context *to);

/* The backend's part of the functions of context.h: pf_backend_init belongs to
 * pf_context_init, and so on. */
PF_INTERNAL int pf_backend_init(pf_context *context, pf_area *area,
                                const pf_start *start);
PF_INTERNAL int pf_backend_adopt(pf_context *context);
PF_INTERNAL void pf_backend_forget(pf_context *context);
PF_INTERNAL void pf_backend_dispose(pf_area *area);

#if defined(PF_CONTEXT_WINFIBER)
/* Records that the entry has returned: the next switch leaves the context for
 * good, and its system fiber can run another entry. */
void pf_backend_ended(pf_start *start);
#endif

#if defined(PF_CONTEXT_ASSEMBLY)
/* In the assembly file: writes the first frame of a stack below `top` (16-byte
 * aligned) and returns the new stack pointer.  A switch to that stack pointer
 * calls pf_context_main(start), with the floating-point control words of
 * pf_context_lay's caller. */
PF_INTERNAL void *pf_context_lay(char *top, pf_start *start);
#endif

#endif
