/* The threads of this process as the system knows them, including threads that
 * a C library has made. */
#ifndef PF_OS_THREADS_H
#define PF_OS_THREADS_H

#include <stdbool.h>
#include <stdint.h>

/* A predicate for a thread.  `number` is the system's number of the thread
 * (Linux: gettid, Apple: pthread_threadid_np, Windows: GetCurrentThreadId). */
typedef bool (*pf_os_thread_fn)(uint64_t number, void *data);

/* Returns 1 if is(number, data) is true for any thread of this process, or 0;
 * -1: the system cannot list the threads.  Threads may begin and end
 * meanwhile. */
int pf_os_threads_any(pf_os_thread_fn is, void *data);

/* Waits for two milliseconds.  The caller checks again whether a thread that
 * is ending has ended, or whether other threads have freed memory. */
void pf_os_thread_pause(void);

#endif
