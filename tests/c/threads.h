/* Starts and joins threads for the tests, on POSIX and Windows. */
#ifndef PF_TEST_THREADS_H
#define PF_TEST_THREADS_H

#if defined(_WIN32)

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

typedef HANDLE test_thread;
#define THREAD_FN(name) static DWORD WINAPI name(void *arg)
#define THREAD_END return 0

static inline void
thread_start(test_thread *thread, DWORD(WINAPI *fn)(void *), void *arg)
{
    *thread = CreateThread(NULL, 0, fn, arg, 0, NULL);
}

static inline void
thread_join(test_thread thread)
{
    WaitForSingleObject(thread, INFINITE);
    CloseHandle(thread);
}

static inline void
thread_rest(int milliseconds)
{
    Sleep((DWORD)milliseconds);
}

static inline void
thread_yield(void)
{
    SwitchToThread();
}

#else

#include <pthread.h>
#include <sched.h>
#include <time.h>

typedef pthread_t test_thread;
#define THREAD_FN(name) static void *name(void *arg)
#define THREAD_END return NULL

static inline void
thread_start(test_thread *thread, void *(*fn)(void *), void *arg)
{
    pthread_create(thread, NULL, fn, arg);
}

static inline void
thread_join(test_thread thread)
{
    pthread_join(thread, NULL);
}

static inline void
thread_rest(int milliseconds)
{
    struct timespec time = {milliseconds / 1000,
                            milliseconds % 1000 * 1000000L};
    nanosleep(&time, NULL);
}

static inline void
thread_yield(void)
{
    sched_yield();
}

#endif

#endif
