/* The calls that are in progress on the running stack, by the tables that C++
 * exceptions and debuggers use.  For who must know what code a stack is full
 * of before it may be moved. */
#ifndef PF_CALLS_H
#define PF_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PF_MOST_CALLS 96

typedef struct pf_one_call {
    uintptr_t back; /* the address in the caller that it returns to */
    char *frame;    /* where the caller's frame ends: its stack pointer */
} pf_one_call;

typedef struct pf_calls {
    unsigned count;
    pf_one_call calls[PF_MOST_CALLS]; /* innermost first */
    bool whole;                       /* not cut off for lack of space */
    const char *until;
} pf_calls;

/* Up to the one whose caller's frame ends at `until` or beyond; NULL: all.
 * Allocates nothing, but takes the dynamic loader's lock. */
void pf_calls_read(pf_calls *calls, const char *until);

/* Which function is this address in?  NULL: no table knows. */
void *pf_calls_function(uintptr_t back);

/* Is the address in the code that pyfiber itself was linked from? */
bool pf_calls_own(uintptr_t back);
/* Is it in the code that holds this function? */
bool pf_calls_together(uintptr_t back, uintptr_t function);

#endif
