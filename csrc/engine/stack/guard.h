/* Memory that must not be touched, on POSIX systems. */
#ifndef PF_GUARD_H
#define PF_GUARD_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/stack/stack.h"

/* Guard whole pages; their contents are lost.  PF_GUARD_NONE: refused. */
pf_guard_kind pf_guard(char *low, size_t size);

/* The same for several places at once, `stride` bytes apart: so many have
 * guards of the kind PF_GUARD_MADVISE then, the first ones; the others are as
 * they were.  (0 where it cannot be done; pf_guard may do it.) */
#define PF_MOST_GUARDS 16
size_t pf_guard_several(char *low, size_t size, size_t stride, size_t count);

/* Make them usable, however they were guarded.  Safe in a signal handler.
 * False if the system refuses. */
bool pf_unguard(char *low, size_t size);

/* Close the stack's open reserve, which is no longer in use. */
void pf_guard_reserve(pf_stack *stack);

#endif
