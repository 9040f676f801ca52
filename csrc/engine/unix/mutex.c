/* Locks of POSIX threads: see mutex.h. */
#include "engine/base/mutex.h"

void
pf_mutex_lock(pf_mutex *mutex)
{
    pthread_mutex_lock(&mutex->posix);
}

void
pf_mutex_unlock(pf_mutex *mutex)
{
    pthread_mutex_unlock(&mutex->posix);
}
