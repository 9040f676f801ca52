/* A lock for a few instructions: code that holds it must not wait and must not
 * call the host. */
#ifndef PF_MUTEX_H
#define PF_MUTEX_H

#if defined(_WIN32)

typedef struct pf_mutex {
    void *srw; /* an SRWLOCK, without windows.h */
} pf_mutex;
#define PF_MUTEX_INIT {0}

#else

#include <pthread.h>

typedef struct pf_mutex {
    pthread_mutex_t posix;
} pf_mutex;
#define PF_MUTEX_INIT {PTHREAD_MUTEX_INITIALIZER}

#endif

void pf_mutex_lock(pf_mutex *mutex);
void pf_mutex_unlock(pf_mutex *mutex);

#endif
