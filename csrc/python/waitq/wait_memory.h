/* Memory for objects that other code points to while a fiber waits.
 *
 * The C stack of a suspended fiber may be moved out at any time, and another
 * fiber's bytes then lie at its addresses.  So a place in a queue, or in the
 * list of those that wait for a descriptor, is not a variable on the stack.
 * The place lies in memory that is taken when the wait begins and freed when
 * the wait ends.  A thread keeps freed pieces for its next waits.
 */
#ifndef PF_WAITQ_WAIT_MEMORY_H
#define PF_WAITQ_WAIT_MEMORY_H

#include "python/core/pyinclude.h"

#include "python/core/compiler.h"
#include "python/core/thread.h"

/* Size of a piece of PF_SPARE_SMALL_WAITS, which takes 64 bytes of glibc's
 * heap. */
#define PF_WAIT_BYTES 56

/* Returns a piece that this thread has kept, or NULL if it has none: then take
 * one from PyMem_RawMalloc.  `kind` is PF_SPARE_SMALL_WAITS or PF_SPARE_WAITS.
 * Give the piece back with pf_wait_memory_keep. */
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

/* Keeps `memory` for later waits, or frees it if enough pieces are kept.
 * `memory` is from pf_wait_memory_spare or PyMem_RawMalloc. */
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

/* Returns PF_WAIT_BYTES bytes, to be freed by pf_wait_memory_free; or NULL
 * with MemoryError. */
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

/* Frees what the thread keeps; from then on it keeps nothing. */
void pf_wait_memory_clear(PfThread *t);

#endif
