/* Memory that must not be touched, on POSIX systems. */
#ifndef PF_GUARD_H
#define PF_GUARD_H

#include <stdbool.h>
#include <stddef.h>

#include "engine/stack/stack.h"

/* Guard whole pages; their contents are lost.  PF_GUARD_NONE: refused. */
pf_guard_kind pf_guard(char *low, size_t size);

/* Make them usable, however they were guarded.  Safe in a signal handler.
 * False if the system refuses. */
bool pf_guard_remove(char *low, size_t size);

/* Close the stack's open reserve, which is no longer in use. */
void pf_guard_reserve(pf_stack *stack);

#endif
