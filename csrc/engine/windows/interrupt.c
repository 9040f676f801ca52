/* Looks at other threads: Windows has no signals. */
#include "engine/base/interrupt.h"

#include <errno.h>

uintptr_t
pf_this_native_thread(void)
{
    return 0;
}

void
pf_refuse_signals(void)
{
}

int
pf_interrupt_install(void)
{
    return -ENOSYS;
}

void
pf_interrupt_uninstall(void)
{
}

bool
pf_interrupt(uintptr_t thread, void (*look)(void *data), void *data,
             int64_t patience)
{
    (void)thread;
    (void)look;
    (void)data;
    (void)patience;
    return false;
}

size_t
pf_native_stack(void **places, size_t most)
{
    (void)places;
    (void)most;
    return 0;
}

size_t
pf_native_name(void *place, char *text, size_t size)
{
    (void)place;
    (void)text;
    (void)size;
    return 0;
}
