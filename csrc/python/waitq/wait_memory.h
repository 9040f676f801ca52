/* Memory for what others point to while a fiber waits.
 *
 * The C stack of a suspended fiber may be moved out at any time, and another
 * fiber's bytes then lie at its addresses.  So a place in a queue, a place in
 * line for a descriptor and the like are not variables on the stack: they lie
 * in memory that is taken when the wait begins and freed when it ends.  A
 * thread keeps freed pieces for its next waits.
 */
#ifndef PF_WAITQ_WAIT_MEMORY_H
#define PF_WAITQ_WAIT_MEMORY_H

#include "python/core/pyinclude.h"

#include "python/core/compiler.h"
#include "python/core/thread.h"

/* What a piece of PF_SPARE_SMALL_WAITS has room for: 64 bytes in glibc's heap. */
#define PF_WAIT_BYTES 56

/* `kind`: PF_SPARE_SMALL_WAITS or PF_SPARE_WAITS.  A piece that is free, to be
 * given to pf_wait_memory_keep; NULL: there is none, take it from the heap. */
static inline void *
pf_wait_memory_spare(PfThread *t, PfSpareKind kind)
{
    PfSpare *spare = &t->spare[kind];
    void **memory = spare->first;
    if (PF_LIKELY(memory != NULL)) {
        spare->first = *memory;
        spare->count--;
    }
    return memory;
}

/* It came from that, or from PyMem_RawMalloc. */
static inline void
pf_wait_memory_keep(PfThread *t, PfSpareKind kind, void *memory)
{
    PfSpare *spare = &t->spare[kind];
    if (PF_UNLIKELY(spare->count == PF_MOST_SPARE)) {
        PyMem_RawFree(memory);
        return;
    }
    *(void **)memory = spare->first;
    spare->first = memory;
    spare->count++;
}

/* PF_WAIT_BYTES; NULL with MemoryError. */
void *pf_wait_memory_slow(void);
static inline void *
pf_wait_memory(PfThread *t)
{
    void *memory = pf_wait_memory_spare(t, PF_SPARE_SMALL_WAITS);
    return PF_LIKELY(memory != NULL) ? memory : pf_wait_memory_slow();
}

static inline void
pf_wait_memory_free(PfThread *t, void *memory)
{
    pf_wait_memory_keep(t, PF_SPARE_SMALL_WAITS, memory);
}

void pf_wait_memory_clear(PfThread *t); /* no more is kept */

#endif
