/* Runs every test; the last line is "N passed, N failed". */
#include "check.h"

#if PF_VALGRIND
#include <valgrind/valgrind.h>
#endif

#include <errno.h>

#include "engine/io/poller.h"
#include "fakes.h"

const char *poller_kind; /* the poller under test; NULL: the default one */

static int failures; /* checks that failed in the running test */
static const char *skipped;

void
check_failed(const char *file, int line, const char *text)
{
    failures++;
    fprintf(stderr, "%s:%d: %s\n", file, line, text);
}

void
check_skip(const char *reason)
{
    skipped = reason;
}

bool
running_on_valgrind(void)
{
#if PF_VALGRIND
    return RUNNING_ON_VALGRIND;
#else
    return false;
#endif
}

int
many(void)
{
    if (PF_WITH_TSAN || running_on_valgrind()) {
        return 500;
    }
    return PF_WITH_ASAN ? 2000 : 20000;
}

/* The tests of pollers run once with each poller that the system has. */
static const struct {
    const test *tests;
    bool of_pollers;
} groups[] = {
    {context_tests, false},   {stack_tests, false},
    {timer_tests, false},     {inbox_tests, false},
    {scheduler_tests, false}, {thread_tests, true},
    {wakeup_tests, false},    {waiting_tests, false},
    {afd_tests, false},       {poller_tests, true},
    {turn_tests, false},      {task_tests, false},
    {pool_tests, false},      {overflow_tests, false},
    {memory_tests, false},    {ccontext_tests, false},
    {refusal_tests, false},   {reactor_tests, false},
    {descriptor_tests, true}, {watch_tests, true},
    {record_tests, false},    {mutex_tests, false},
    {inmemory_tests, false},  {interrupt_tests, false},
    {pack_tests, false},      {slot_tests, false},
    {lending_tests, false},   {spin_tests, false},
    {transit_tests, false},
};

static int argc;
static char **argv;
static int passed, failed;

static bool
wanted(const test *t)
{
    for (int i = 1; i < argc; i++) {
        if (strstr(t->name, argv[i]) != NULL) {
            return true;
        }
    }
    return argc < 2;
}

#if defined(__linux__)

static int
know_nothing_new(long number)
{
    errno = ENOSYS;
    return number == 441 ? -1 : 0; /* epoll_pwait2 */
}

/* Makes epoll_pwait2 fail before an older Valgrind does, which prints a long
 * warning each time. */
static void
spare_valgrind(void)
{
    if (running_on_valgrind()) {
        fake_syscall = know_nothing_new;
    }
}

#else
#define spare_valgrind() ((void)0)
#endif

static void
run_one(const test *t)
{
    char kind[32] = "";
    if (poller_kind != NULL) {
        snprintf(kind, sizeof kind, " (%s)", poller_kind);
    }
    failures = 0;
    skipped = NULL;
    spare_valgrind();
    t->run();
    if (skipped != NULL && failures == 0) {
        printf("skip %s%s: %s\n", t->name, kind, skipped);
        return;
    }
    printf("%s %s%s\n", failures == 0 ? "ok  " : "FAIL", t->name, kind);
    passed += failures == 0;
    failed += failures != 0;
}

static void
run_all(const test *t)
{
    for (; t->name != NULL; t++) {
        if (wanted(t)) {
            run_one(t);
        }
    }
}

#if defined(_WIN32)

/* Windows has one poller, for two kinds of descriptors. */
static void
run_with_each_poller(const test *tests)
{
    poller_kind = "handles";
    run_all(tests);
    poller_kind = "sockets";
    run_all(tests);
    poller_kind = NULL;
}

#else

static bool
has_poller(const char *kind)
{
    int error;
    setenv("PYFIBER_POLLER", kind, 1);
    pf_poller *one = pf_poller_new_default(&error);
    if (one != NULL) {
        one->ops->close(one);
    }
    return error != -ENOSYS;
}

static void
run_with_each_poller(const test *tests)
{
    /* libkqueue's thread closes descriptors some time later, so other pollers
     * are not tested beside it. */
#if defined(PF_LIBKQUEUE)
    static const char *const kinds[] = {"kqueue"};
#else
    static const char *const kinds[] = {"epoll", "kqueue", "poll"};
#endif
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (has_poller(kinds[i])) {
            poller_kind = kinds[i];
            run_all(tests);
        }
    }
    poller_kind = NULL;
    unsetenv("PYFIBER_POLLER");
}

#endif

/* With arguments, runs only the tests whose names contain one of them. */
int
main(int count, char **arguments)
{
    argc = count;
    argv = arguments;
    /* A child of a fork would print what is left in a buffer once more. */
    setvbuf(stdout, NULL, _IONBF, 0);
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        if (groups[i].of_pollers) {
            run_with_each_poller(groups[i].tests);
        } else {
            run_all(groups[i].tests);
        }
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
