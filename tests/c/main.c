/* Runs every test; the last line is "N passed, N failed". */
#include "check.h"

#if PF_VALGRIND
#include <valgrind/valgrind.h>
#endif

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

static const test *const groups[] = {
    context_tests,   stack_tests,      timer_tests,    inbox_tests,
    scheduler_tests, thread_tests,     wakeup_tests,   waiting_tests,
    poller_tests,    turn_tests,       task_tests,     pool_tests,
    overflow_tests,  memory_tests,     ccontext_tests, refusal_tests,
    reactor_tests,   descriptor_tests, record_tests,   mutex_tests,
};

static bool
wanted(const test *t, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strstr(t->name, argv[i]) != NULL) {
            return true;
        }
    }
    return argc < 2;
}

/* 1 passed, -1 failed, 0 skipped. */
static int
run_one(const test *t)
{
    failures = 0;
    skipped = NULL;
    t->run();
    if (skipped != NULL && failures == 0) {
        printf("skip %s: %s\n", t->name, skipped);
        return 0;
    }
    printf("%s %s\n", failures == 0 ? "ok  " : "FAIL", t->name);
    return failures == 0 ? 1 : -1;
}

/* With arguments: the tests whose names contain one of them. */
int
main(int argc, char **argv)
{
    int passed = 0, failed = 0;
    setvbuf(stdout, NULL, _IONBF, 0); /* children must not print it twice */
    for (size_t g = 0; g < sizeof groups / sizeof *groups; g++) {
        for (const test *t = groups[g]; t->name != NULL; t++) {
            if (wanted(t, argc, argv)) {
                int result = run_one(t);
                passed += result > 0;
                failed += result < 0;
            }
        }
    }
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
