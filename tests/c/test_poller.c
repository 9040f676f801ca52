/* The default poller: its descriptors, its errors, signals. */
#include "check.h"

#include "engine/base/clock.h"
#include "engine/io/poller.h"
#include "engine/core/timers.h"

#if !defined(_WIN32)

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#define SECOND ((int64_t)1000000000)

static pf_poller *
poller_new(void)
{
    int error;
    pf_poller *poller = pf_default_poller_new(&error);
    CHECK_EQUAL(error, 0);
    return poller;
}

/* The next descriptor that the system will hand out. */
static int
lowest_descriptor(void)
{
    int fd = dup(0);
    close(fd);
    return fd;
}

static rlim_t
limit_descriptors(rlim_t limit)
{
    struct rlimit now;
    getrlimit(RLIMIT_NOFILE, &now);
    rlim_t before = now.rlim_cur;
    now.rlim_cur = limit;
    CHECK_EQUAL(setrlimit(RLIMIT_NOFILE, &now), 0);
    return before;
}

static void
poller_leaves_no_descriptors(void)
{
    int before = lowest_descriptor();
    pf_poller *poller = poller_new();
    int with_one = lowest_descriptor();
    CHECK(with_one > before);
    CHECK_EQUAL(poller->ops->after_fork(poller), 0);
    CHECK_EQUAL(lowest_descriptor(), with_one);
    CHECK(poller->ops->fileno(poller) >= before);
    poller->ops->close(poller);
    CHECK_EQUAL(lowest_descriptor(), before);
}

static void
poller_without_descriptors_is_refused(void)
{
    int error = 0;
    pf_poller *poller = poller_new();
    rlim_t before = limit_descriptors((rlim_t)poller->ops->fileno(poller));
    for (int i = 0; i < 20; i++) { /* what leaks is found by a sanitizer */
        CHECK(pf_default_poller_new(&error) == NULL);
        CHECK_EQUAL(error, -EMFILE);
    }
    CHECK_EQUAL(poller->ops->after_fork(poller), -EMFILE);
    limit_descriptors(before);
    poller->ops->close(poller);
}

static void
poller_that_fails_says_why(void)
{
    pf_poller *poller = poller_new();
    rlim_t before = limit_descriptors(0);
    CHECK_EQUAL(poller->ops->wait(poller, 0), -EINVAL);
    limit_descriptors(before);
    CHECK_EQUAL(poller->ops->wait(poller, 0), 0);
    poller->ops->close(poller);
}

static void
on_alarm(int number)
{
    (void)number;
}

/* The timer fires again and again: one may come before the wait. */
static void
signal_ends_the_wait(void)
{
    struct sigaction action = {.sa_handler = on_alarm}, before;
    struct itimerval often = {{0, 5000}, {0, 5000}}, never = {{0, 0}, {0, 0}};
    pf_poller *poller = poller_new();
    sigaction(SIGALRM, &action, &before);
    setitimer(ITIMER_REAL, &often, NULL);
    int64_t start = pf_monotonic();
    CHECK_EQUAL(poller->ops->wait(poller, 60 * SECOND), 0);
    CHECK(pf_monotonic() - start < 30 * SECOND);
    setitimer(ITIMER_REAL, &never, NULL);
    sigaction(SIGALRM, &before, NULL);
    poller->ops->close(poller);
}

/* However often it was woken, the next wait returns and the one after does
 * not.  Waking leaves errno alone: a signal handler may do it. */
static void
wake_is_remembered_once(void)
{
    pf_poller *poller = poller_new();
    int fd = poller->ops->fileno(poller);
#if defined(__linux__)
    const uint64_t full = UINT64_MAX - 1; /* then an eventfd takes no more */
    CHECK_EQUAL(write(fd, &full, sizeof full), sizeof full);
#endif
    for (int i = 0; i < 100; i++) {
        errno = 77;
        poller->ops->wake(poller);
        CHECK_EQUAL(errno, 77);
    }
    int64_t start = pf_monotonic();
    CHECK_EQUAL(poller->ops->wait(poller, 60 * SECOND), 0);
    CHECK(pf_monotonic() - start < 30 * SECOND);
    char bytes[8];
    CHECK(read(fd, bytes, sizeof bytes) < 0);
    start = pf_monotonic();
    CHECK_EQUAL(poller->ops->wait(poller, SECOND / 100), 0);
    CHECK(pf_monotonic() - start >= SECOND / 100);
    poller->ops->close(poller);
}

const test poller_tests[] = {
    TEST(poller_leaves_no_descriptors),
    TEST(poller_without_descriptors_is_refused),
    TEST(poller_that_fails_says_why),
    TEST(signal_ends_the_wait),
    TEST(wake_is_remembered_once),
    END_OF_TESTS,
};

#else

const test poller_tests[] = {
    END_OF_TESTS,
};

#endif
