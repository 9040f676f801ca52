/* Locks by the SRWLOCK of Windows: see mutex.h. */
#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include "engine/base/mutex.h"

_Static_assert(sizeof(pf_mutex) == sizeof(SRWLOCK), "no SRWLOCK fits in");

void
pf_mutex_lock(pf_mutex *mutex)
{
    AcquireSRWLockExclusive((SRWLOCK *)mutex);
}

void
pf_mutex_unlock(pf_mutex *mutex)
{
    ReleaseSRWLockExclusive((SRWLOCK *)mutex);
}
