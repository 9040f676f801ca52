/* Calls a function when a thread ends: by a thread-local destructor where the
 * C library lets C code add one (glibc, FreeBSD), elsewhere by the destructor
 * of a pthread key.  The thread-local destructor is better: it runs while all
 * keys of the thread still have values, and the host may need its own key to
 * recognize the thread. */
#include "engine/core/thread_end.h"

#include "engine/base/atomics.h"

#include <pthread.h>
#include <stddef.h>

#if defined(__ELF__) && !defined(PF_NO_THREAD_ATEXIT)
extern int __cxa_thread_atexit_impl(void (*)(void *), void *, void *)
    __attribute__((weak));
#define HAS_THREAD_ATEXIT (__cxa_thread_atexit_impl != NULL)
#else
#define HAS_THREAD_ATEXIT 0
#define __cxa_thread_atexit_impl(run, argument, library) ((void)0)
#endif

/* Shared, one word: all threads store the same function. */
typedef void (*end_fn)(void);
static PF_ATOMIC(end_fn) call_at_end;
static pthread_key_t key;
static int key_error;

static void
run_at_end(void *set)
{
    (void)set;
    pf_load_acquire (&call_at_end)();
}

static void
make_key(void)
{
    key_error = pthread_key_create(&key, run_at_end);
}

void
pf_thread_end_watch(void (*at_end)(void))
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pf_store(&call_at_end, at_end);
    if (HAS_THREAD_ATEXIT) {
        (void)__cxa_thread_atexit_impl(run_at_end, NULL, &call_at_end);
    } else if (pthread_once(&once, make_key) == 0 && key_error == 0) {
        (void)pthread_setspecific(key, &key);
    }
}
