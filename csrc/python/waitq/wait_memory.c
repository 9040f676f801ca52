/* Memory that lasts as long as a fiber's wait: see wait_memory.h. */
#include "python/waitq/wait_memory.h"

void *
pf_wait_memory_slow(void)
{
    void *memory = PyMem_RawMalloc(PF_WAIT_BYTES);
    return memory != NULL ? memory : PyErr_NoMemory();
}

static void
clear(PfThread *t, PfSpareKind kind)
{
    void **memory = pf_thread_empty_spare(t, kind);
    while (memory != NULL) {
        void **next = *memory;
        PyMem_RawFree(memory);
        memory = next;
    }
}

void
pf_wait_memory_clear(PfThread *t)
{
    clear(t, PF_SPARE_SMALL_WAITS);
    clear(t, PF_SPARE_WAITS);
}
