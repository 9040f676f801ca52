/* The stack that Windows gives a fiber has a guard of its own, and the system
 * reports an overflow: there is nothing to install. */
#include "engine/stack/overflow.h"

int
pf_overflow_install(const pf_overflow_host *host)
{
    (void)host;
    return 0;
}

void
pf_overflow_renew(void)
{
}

void
pf_overflow_keep(void)
{
}

int
pf_overflow_thread_init(void)
{
    return 0;
}

void
pf_overflow_thread_finish(void)
{
}
