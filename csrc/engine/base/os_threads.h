/* The threads of this process as the system knows them: also those that a C
 * library has made. */
#ifndef PF_OS_THREADS_H
#define PF_OS_THREADS_H

#include <stdbool.h>
#include <stdint.h>

/* `number`: what the system calls the thread (Linux: gettid, Apple:
 * pthread_threadid_np, Windows: GetCurrentThreadId). */
typedef bool (*pf_os_thread_fn)(uint64_t number, void *data);

/* Whether `is(number, data)` holds for one of them: 1 or 0; -1: the system does
 * not tell which threads there are.  Threads may begin and end meanwhile. */
int pf_os_threads_any(pf_os_thread_fn is, void *data);

/* Wait for two milliseconds: so that a thread that is just ending has ended, or
 * others have freed memory. */
void pf_os_thread_pause(void);

#endif
