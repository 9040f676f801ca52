/* Guards on POSIX systems: pages that fault when they are touched. */
#ifndef PF_GUARD_H
#define PF_GUARD_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/stack/stack.h"

/* Guard whole pages; their contents are lost.  Returns how they are guarded;
 * PF_GUARD_NONE: the system refuses. */
pf_guard_kind pf_guard(char *low, size_t size);

/* Make guarded pages usable, however they were guarded.  Safe in a signal
 * handler.  False if the system refuses. */
bool pf_guard_remove(char *low, size_t size);

/* Close the stack's open reserve, which must not be in use any more, and
 * return its memory.  If the system refuses, the reserve stays open. */
void pf_guard_reserve(pf_stack *stack);

#endif
