/* Searches the threads of this process, including threads that a C library has
 * made.  Needs no GIL; any thread may call these functions. */
#ifndef PF_OS_THREADS_H
#define PF_OS_THREADS_H

#include <stdbool.h>
#include <stdint.h>

/* A predicate for a thread.  `number` is the system's number of the thread
 * (Linux: gettid, Apple: pthread_threadid_np, Windows: GetCurrentThreadId). */
typedef bool (*pf_os_thread_fn)(uint64_t number, void *data);

/* Calls matches(number, data) for each thread of this process, the calling one
 * included, until a call returns true.  Returns 1 if one did, 0 if none did,
 * and -1 if the system cannot list the threads, or not all of them.  The
 * result may be out of date at once, because threads begin and end
 * meanwhile. */
int pf_os_threads_any(pf_os_thread_fn matches, void *data);

/* Waits for two milliseconds.  The caller checks again whether a thread that
 * is ending has ended, or whether other threads have freed memory. */
void pf_os_thread_pause(void);

#endif
