/* Tests the default poller: its own descriptors, its errors, and signals. */
#include "check.h"

#include "engine/base/atomics.h"
#include "engine/base/clock.h"
#include "engine/core/timers.h"
#include "listeners.h"

#if !defined(_WIN32)

#include "fakes.h"
#include "threads.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <unistd.h>

#define SECOND ((int64_t)1000000000)

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
    open_poller();
    int with_one = lowest_descriptor();
    CHECK(with_one > before);
    CHECK_EQUAL(poller->ops->after_fork(poller), 0);
    if (!is_kind("kqueue")) { /* a child inherits no kqueue */
        CHECK_EQUAL(lowest_descriptor(), with_one);
    }
    CHECK(poller->ops->fileno(poller) >= before);
    close_poller();
    if (!is_kind("kqueue")) {
        CHECK_EQUAL(lowest_descriptor(), before);
    }
}

/* The process has no descriptor left, or too few. */
static void
poller_without_descriptors_is_refused(void)
{
    int error = 0, lowest = lowest_descriptor();
    if (is_emulated()) {
        SKIP("libkqueue's thread closes descriptors, some time later");
    }
    open_poller();
    int most = lowest_descriptor();
    for (int limit = lowest; limit < most; limit++) {
        close_poller();
        rlim_t before = limit_descriptors((rlim_t)limit);
        for (int i = 0; i < 20; i++) { /* a sanitizer finds leaks */
            CHECK(pf_poller_new_default(&error) == NULL);
            CHECK_EQUAL(error, -EMFILE);
        }
        CHECK_EQUAL(lowest_descriptor(), limit == lowest ? -1 : lowest);
        limit_descriptors(before);
        open_poller();
        before = limit_descriptors((rlim_t)limit);
        CHECK_EQUAL(poller->ops->after_fork(poller), -EMFILE);
        CHECK_EQUAL(poller->ops->fileno(poller), -1);
        if (!is_kind("poll")) {
            CHECK_EQUAL(poller->ops->wait(poller, 0), -EBADF);
        }
        poller->ops->wake(poller);
        limit_descriptors(before);
    }
    close_poller();
}

static void
poller_that_fails_says_why(void)
{
    if (is_emulated()) {
        SKIP("libkqueue has other errors");
    }
    open_poller();
    if (running_on_valgrind()) {
        SKIP("valgrind has a limit and numbers of its own");
    }
    if (is_kind("poll")) {
        rlim_t before = limit_descriptors(0);
        CHECK_EQUAL(poller->ops->wait(poller, 0), -EINVAL);
        limit_descriptors(before);
        CHECK_EQUAL(poller->ops->wait(poller, 0), 0);
    } else {
        close(poller->ops->fileno(poller));
        CHECK_EQUAL(poller->ops->wait(poller, 0), -EBADF);
    }
    close_poller();
}

static void
on_alarm(int number)
{
    (void)number;
}

/* The timer fires again and again, because a signal may come before the
 * wait. */
static void
signal_ends_the_wait(void)
{
    struct sigaction action = {.sa_handler = on_alarm}, before;
    struct itimerval often = {{0, 5000}, {0, 5000}}, never = {{0, 0}, {0, 0}};
    open_poller();
    sigaction(SIGALRM, &action, &before);
    setitimer(ITIMER_REAL, &often, NULL);
    int64_t start = pf_clock_monotonic();
    CHECK_EQUAL(poller->ops->wait(poller, 60 * SECOND), 0);
    CHECK(pf_clock_monotonic() - start < 30 * SECOND);
    setitimer(ITIMER_REAL, &never, NULL);
    signal(SIGALRM, SIG_IGN); /* drops a signal that is pending */
    sigaction(SIGALRM, &before, NULL);
    close_poller();
}

/* Waits, and returns how long that took (nanoseconds). */
static int64_t
waited(int64_t timeout_ns)
{
    int64_t start = pf_clock_monotonic();
    CHECK_EQUAL(poller->ops->wait(poller, timeout_ns), 0);
    return pf_clock_monotonic() - start;
}

/* However often the poller was woken, the next wait returns and the one after
 * that does not.  wake() leaves errno alone, since a signal handler may call
 * it. */
static void
wake_is_remembered_once(void)
{
    if (is_emulated()) {
        SKIP("its number is not readable");
    }
    open_poller();
    int fd = poller->ops->fileno(poller);
#if defined(__linux__)
    if (is_kind("poll")) {
        const uint64_t full = UINT64_MAX - 1; /* the most an eventfd holds */
        CHECK_EQUAL(write(fd, &full, sizeof full), sizeof full);
    }
#endif
    for (int round = 0; round < 3; round++) {
        CHECK(round > 0 || is_readable(fd) == is_kind("poll"));
        for (int i = 0; i < 100; i++) {
            errno = 77;
            poller->ops->wake(poller);
            CHECK_EQUAL(errno, 77);
            CHECK(is_readable(fd));
        }
        CHECK(waited(60 * SECOND) < 30 * SECOND);
        CHECK(!is_readable(fd));
        CHECK(waited(SECOND / 100) >= SECOND / 100);
    }
    close_poller();
}

enum { WAKERS = 3 };

static struct {
    PF_ATOMIC(size_t) woken;
    PF_ATOMIC(size_t) taken;
} race;

static size_t
wakes_of_each(void)
{
    return (size_t)many() / 4;
}

/* Wakes the poller often; after every other wake it waits until the poller has
 * noticed. */
THREAD_FN(wake_often)
{
    (void)arg;
    for (size_t i = 0; i < wakes_of_each(); i++) {
        size_t mine = pf_fetch_add(&race.woken, 1) + 1;
        poller->ops->wake(poller);
        while (i % 2 == 0 && pf_load(&race.taken) < mine) {
            thread_yield();
        }
    }
    THREAD_END;
}

static void
no_wake_is_lost_among_threads(void)
{
    test_thread threads[WAKERS];
    size_t total = WAKERS * wakes_of_each();
    bool lost = false;
    pf_store(&race.woken, 0);
    pf_store(&race.taken, 0);
    open_poller();
    for (int i = 0; i < WAKERS; i++) {
        thread_start(&threads[i], wake_often, NULL);
    }
    while (!lost && pf_load(&race.taken) < total) {
        lost = waited(60 * SECOND) > 30 * SECOND;
        pf_store(&race.taken, pf_load(&race.woken));
    }
    CHECK(!lost);
    pf_store(&race.taken, total);
    for (int i = 0; i < WAKERS; i++) {
        thread_join(threads[i]);
    }
    close_poller();
}

static void
wait_takes_the_time_that_it_was_given(void)
{
    open_poller();
    CHECK(waited(0) < SECOND);
    CHECK(waited(-SECOND) < SECOND);
    CHECK(waited(1500000) >= 1500000);
    CHECK(waited(1) < SECOND);
    close_poller();
}

/* ------------------------------------------------ another loop's host --- */

/* The descriptor of poll(2)'s poller becomes readable by wake() only. */
static void
descriptor_tells_a_host_of_everything_that_a_wait_would_find(void)
{
    source s[2];
    listener edge, level;
    if (is_kind("poll") || is_emulated()) {
        SKIP("its descriptor tells of less");
    }
    open_poller();
    int fd = poller->ops->fileno(poller);
    CHECK_EQUAL(add(&edge, source_open(&s[0]), PF_IO_READ | PF_IO_EDGE), 0);
    CHECK_EQUAL(add(&level, source_open(&s[1]), PF_IO_READ), 0);
    CHECK(!is_readable(fd));
    source_set(&s[0]);
    CHECK(is_readable(fd));
    CHECK(is_readable(fd));
    CHECK_EQUAL(look(), 1);
    CHECK(!is_readable(fd));
    source_set(&s[1]);
    for (int i = 1; i < 4; i++) {
        CHECK(is_readable(fd));
        CHECK_EQUAL(look(), 1);
        CHECK_EQUAL(level.told, i);
    }
    poller->ops->wake(poller);
    CHECK(is_readable(fd));
    CHECK_EQUAL(take_out(&level), 0);
    CHECK_EQUAL(look(), 0);
    CHECK(!is_readable(fd));
    CHECK_EQUAL(edge.told, 1);
    source_close(&s[0]);
    source_close(&s[1]);
    close_poller();
}

#if defined(__linux__)

static int
events_of(int epoll)
{
    struct epoll_event e[4];
    return epoll_wait(epoll, e, 4, 0);
}

static void
descriptor_is_watched_by_another_epoll(void)
{
    source s;
    listener l;
    if (is_emulated()) {
        SKIP("its number is not readable");
    }
    struct epoll_event level = {.events = EPOLLIN};
    struct epoll_event edge = {.events = EPOLLIN | EPOLLET};
    int host = epoll_create1(0), sharp = epoll_create1(0);
    open_poller();
    int fd = poller->ops->fileno(poller);
    CHECK_EQUAL(epoll_ctl(host, EPOLL_CTL_ADD, fd, &level), 0);
    CHECK_EQUAL(epoll_ctl(sharp, EPOLL_CTL_ADD, fd, &edge), 0);
    for (int i = 0; i < 3; i++) {
        CHECK_EQUAL(events_of(host), 0);
        poller->ops->wake(poller);
        CHECK_EQUAL(events_of(host), 1);
        CHECK_EQUAL(events_of(host), 1);
        CHECK_EQUAL(events_of(sharp), 1);
        CHECK_EQUAL(events_of(sharp), 0);
        CHECK_EQUAL(look(), 0);
    }
    CHECK_EQUAL(add(&l, source_open(&s), PF_IO_READ | PF_IO_EDGE), 0);
    CHECK_EQUAL(events_of(host), 0);
    source_set(&s);
    CHECK_EQUAL(events_of(host), is_kind("poll") ? 0 : 1);
    CHECK_EQUAL(look(), 1);
    CHECK_EQUAL(events_of(host), 0);
    close(host);
    close(sharp);
    source_close(&s);
    close_poller();
}

/* -------------------------------------------------- what Linux answers --- */

#define PWAIT2 441 /* epoll_pwait2 */

static int refusal; /* errno of a refused call; 0: calls are made */
static int calls, others;

static int
refuse_pwait2(long number)
{
    calls += number == PWAIT2;
    if (number == PWAIT2 && refusal != 0) {
        errno = refusal;
        return -1;
    }
    return 0;
}

static ssize_t
count_read(int fd, void *bytes, size_t size)
{
    others++;
    return __real_read(fd, bytes, size);
}

static int
count_epoll_ctl(int epoll, int operation, int fd, struct epoll_event *event)
{
    others++;
    return __real_epoll_ctl(epoll, operation, fd, event);
}

/* Kernels before 5.11 lack it, and so do some valgrinds and emulators. */
static bool
system_has_pwait2(void)
{
    return syscall(PWAIT2, -1L, NULL, 1L, NULL, NULL, 0L) == -1 &&
           errno != ENOSYS && errno != EPERM;
}

/* Counts epoll_pwait2, and the calls that a poller might make besides. */
static void
wait_is_one_system_call_whoever_ends_it(void)
{
    source s;
    listener l;
    if (!is_kind("epoll")) {
        SKIP("only epoll keeps that promise to wakers, too");
    }
    if (running_on_valgrind() || !system_has_pwait2()) {
        SKIP("no epoll_pwait2 here");
    }
    open_poller();
    CHECK_EQUAL(add(&l, source_open(&s), PF_IO_READ | PF_IO_EDGE), 0);
    refusal = calls = others = 0;
    fake_syscall = refuse_pwait2;
    fake_read = count_read;
    fake_epoll_ctl = count_epoll_ctl;
    errno = ENOSYS; /* as if an earlier call of other code had failed */
    CHECK_EQUAL(poller->ops->wait(poller, 1000), 0);
    CHECK_EQUAL(calls, 1);
    poller->ops->wake(poller);
    CHECK_EQUAL(look(), 0);
    CHECK_EQUAL(calls, 2);
    source_set(&s);
    CHECK_EQUAL(look(), 1);
    CHECK_EQUAL(calls, 3);
    CHECK_EQUAL(others, 0);
    fake_syscall = NULL;
    fake_read = NULL;
    fake_epoll_ctl = NULL;
    source_close(&s);
    close_poller();
}

/* A kernel before 5.11 answers ENOSYS, some sandboxes EPERM. */
static void
wait_without_nanoseconds_rounds_up(void)
{
    static const int errors[] = {ENOSYS, EPERM};
    if (!is_kind("epoll")) {
        SKIP("epoll's fallback");
    }
    for (int i = 0; i < 2; i++) {
        open_poller();
        refusal = errors[i];
        calls = 0;
        fake_syscall = refuse_pwait2;
        CHECK(waited(1500000) >= 1500000);
        CHECK(waited(1) >= 1);
        CHECK_EQUAL(waited(0) < SECOND, 1);
        poller->ops->wake(poller);
        CHECK(waited(PF_NEVER) < 30 * SECOND);
        CHECK_EQUAL(calls, 1); /* the poller tries epoll_pwait2 only once */
        fake_syscall = NULL;
        close_poller();
    }
    open_poller();
    refusal = EBADF;
    fake_syscall = refuse_pwait2;
    CHECK_EQUAL(poller->ops->wait(poller, 0), -EBADF);
    refusal = EINTR;
    CHECK_EQUAL(poller->ops->wait(poller, 0), 0);
    fake_syscall = NULL;
    close_poller();
}

static int
refuse_epoll(int flags)
{
    (void)flags;
    errno = refusal;
    return -1;
}

static int
refuse_waker(int epoll, int operation, int fd, struct epoll_event *event)
{
    (void)epoll, (void)operation, (void)fd, (void)event;
    errno = ENOSPC;
    return -1;
}

static void
system_without_epoll_gets_poll_and_other_errors_are_told(void)
{
    int error, before = lowest_descriptor();
    const char *kind = poller_kind;
    if (!is_kind("epoll")) {
        SKIP("the choice is the same for all");
    }
    unsetenv("PYFIBER_POLLER");
    fake_epoll_create1 = refuse_epoll;
    refusal = ENOSYS;
    open_poller();
    CHECK(poller->ops->rearms); /* the poller of poll(2) */
    close_poller();
    refusal = ENFILE;
    CHECK(pf_poller_new_default(&error) == NULL);
    CHECK_EQUAL(error, -ENFILE);
    fake_epoll_create1 = NULL;
    fake_epoll_ctl = refuse_waker;
    CHECK(pf_poller_new_default(&error) == NULL);
    CHECK_EQUAL(error, -ENOSPC);
    fake_epoll_ctl = NULL;
    CHECK_EQUAL(lowest_descriptor(), before);
    setenv("PYFIBER_POLLER", "", 1);
    open_poller();
    CHECK(!poller->ops->rearms);
    close_poller();
    setenv("PYFIBER_POLLER", kind, 1);
}

#endif

static void
poller_that_no_system_has_is_refused(void)
{
    int error = 0;
    setenv("PYFIBER_POLLER", "pol", 1);
    CHECK(pf_poller_new_default(&error) == NULL);
    CHECK_EQUAL(error, -ENOSYS);
    setenv("PYFIBER_POLLER", poller_kind, 1);
}

const test poller_tests[] = {
    TEST(poller_leaves_no_descriptors),
    TEST(poller_without_descriptors_is_refused),
    TEST(poller_that_fails_says_why),
    TEST(poller_that_no_system_has_is_refused),
    TEST(signal_ends_the_wait),
    TEST(wake_is_remembered_once),
    TEST(no_wake_is_lost_among_threads),
    TEST(wait_takes_the_time_that_it_was_given),
    TEST(descriptor_tells_a_host_of_everything_that_a_wait_would_find),
#if defined(__linux__)
    TEST(descriptor_is_watched_by_another_epoll),
    TEST(wait_is_one_system_call_whoever_ends_it),
    TEST(wait_without_nanoseconds_rounds_up),
    TEST(system_without_epoll_gets_poll_and_other_errors_are_told),
#endif
    END_OF_TESTS,
};

#else

const test poller_tests[] = {
    END_OF_TESTS,
};

#endif
