/* Where the engine gets memory, and where a test makes it fail.
 *
 * A PYFIBER_HARDTEST build counts every request down and refuses the one that
 * reaches zero; a test that repeats its scenario with 1, 2, 3, ... has seen
 * every path that a lack of memory can take.
 */
#ifndef PF_MEMORY_H
#define PF_MEMORY_H

#include <stdbool.h>
#include <stdlib.h>

#if defined(PYFIBER_HARDTEST)

/* Which request fails, counted from now on: 1 the next one; 0: none. */
extern long pf_fail_allocation;

static inline bool
pf_refused(void)
{
    return pf_fail_allocation > 0 && --pf_fail_allocation == 0;
}

#else

static inline bool
pf_refused(void)
{
    return false;
}

#endif

static inline void *
pf_malloc(size_t size)
{
    return pf_refused() ? NULL : malloc(size);
}

static inline void *
pf_calloc(size_t count, size_t size)
{
    return pf_refused() ? NULL : calloc(count, size);
}

static inline void *
pf_realloc(void *memory, size_t size)
{
    return pf_refused() ? NULL : realloc(memory, size);
}

#endif
