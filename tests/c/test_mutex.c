/* Tests the lock: one thread at a time holds it. */
#include "check.h"

#include "engine/base/mutex.h"
#include "threads.h"

static struct {
    pf_mutex lock;
    long sum; /* protected by the lock */
} shared = {.lock = PF_MUTEX_INIT};

THREAD_FN(add_often)
{
    int n = *(int *)arg;
    for (int i = 0; i < n; i++) {
        pf_mutex_lock(&shared.lock);
        long before = shared.sum;
        if (i % 64 == 0) {
            thread_yield();
        }
        shared.sum = before + 1;
        pf_mutex_unlock(&shared.lock);
    }
    THREAD_END;
}

static void
mutex_loses_no_addition_of_any_thread(void)
{
    enum { THREADS = 4 };
    test_thread threads[THREADS];
    int each = many();
    shared.sum = 0;
    for (int i = 0; i < THREADS; i++) {
        thread_start(&threads[i], add_often, &each);
    }
    for (int i = 0; i < THREADS; i++) {
        thread_join(threads[i]);
    }
    CHECK_EQUAL(shared.sum, (long)THREADS * each);
}

const test mutex_tests[] = {
    TEST(mutex_loses_no_addition_of_any_thread),
    END_OF_TESTS,
};
