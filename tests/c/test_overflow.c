/* A fiber that runs out of stack: the reserve, the line, the handler that was
 * there before.  Each in a child process. */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif

#include "check.h"

#include "context/context.h"

#if !defined(_WIN32)

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "child.h"
#include "engine/overflow.h"
#include "engine/testing.h"
#include "threads.h"
#include "world.h"

#define CHECK_EXIT(end, code)                                                 \
    do {                                                                      \
        bool exited = WIFEXITED((end).status);                                \
        CHECK_EQUAL(exited ? WEXITSTATUS((end).status) : -(end).status,       \
                    code);                                                    \
    } while (0)

static world the_world;
static volatile sig_atomic_t reserve_asked; /* how often the host was */
static volatile sig_atomic_t stop;          /* the recursion must end */
static bool host_lends;

static pf_fiber *
current_fiber(void)
{
    return the_world.thread.current;
}

static size_t
fiber_name(pf_fiber *fiber, char *buffer, size_t size)
{
    const char name[] = "deep thought";
    (void)fiber;
    size_t n = sizeof name - 1 < size ? sizeof name - 1 : size;
    memcpy(buffer, name, n);
    return n;
}

static void
host_traceback(pf_fiber *fiber, int fd)
{
    const char text[] = "traceback of the host\n";
    (void)fiber;
    ssize_t ignored = write(fd, text, sizeof text - 1);
    (void)ignored;
}

static bool
on_reserve(pf_fiber *fiber, bool last)
{
    (void)fiber, (void)last;
    reserve_asked++;
    stop = 1;
    return host_lends;
}

static const pf_overflow_host the_host = {
    .on_reserve = on_reserve,
    .current = current_fiber,
    .name = fiber_name,
    .traceback = host_traceback,
};

/* The handler "installed before" ours. */
static void
handler_before(int signal_number)
{
    const char text[] = "handler from before\n";
    (void)signal_number;
    ssize_t ignored = write(STDERR_FILENO, text, sizeof text - 1);
    (void)ignored;
    _exit(42);
}

static void
install_before(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler_before;
    action.sa_flags = SA_ONSTACK;
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
}

/* Not a tail call, and the frames are really used. */
static int
recurse(int depth, volatile char *above)
{
    volatile char frame[512];
    frame[0] = (char)depth;
    frame[511] = *above;
    if (stop || depth > 1000000) {
        return depth;
    }
    return recurse(depth + 1, frame) + (frame[0] & 0);
}

static void
go_deep(worker *w)
{
    volatile char top = 0;
    w->world->trace[0] = recurse(0, &top);
}

/* With a host that lends the reserve, a recursion that stops on request
 * comes back, again and again; one that does not ends the process. */
static int
overflow(void *arg)
{
    bool lends = arg != NULL;
    install_before();
    host_lends = lends;
    if (!world_open(&the_world) || pf_overflow_install(&the_host) != 0 ||
        pf_overflow_thread_init() != 0) {
        return 1;
    }
    for (int i = 1; i <= 3; i++) {
        stop = 0;
        world_spawn(&the_world, go_deep, 0);
        pf_scheduler_run(&the_world.scheduler);
        if (reserve_asked != i || the_world.trace[0] < 50) {
            return 2;
        }
    }
    pf_overflow_thread_finish();
    world_close(&the_world);
    return 7;
}

static int
overflow_mprotect(void *arg)
{
    pf_stack_force_guard(PF_GUARD_MPROTECT);
    return overflow(arg);
}

static int
overflow_by_default(void *arg)
{
    signal(SIGSEGV, SIG_DFL);
    signal(SIGBUS, SIG_DFL);
    (void)arg;
    if (!world_open(&the_world) || pf_overflow_install(&the_host) != 0 ||
        pf_overflow_thread_init() != 0) {
        return 1;
    }
    world_spawn(&the_world, go_deep, 0);
    pf_scheduler_run(&the_world.scheduler);
    return 7;
}

/* What the host does at first does not end the recursion. */
static bool
stop_when_asked_again(pf_fiber *fiber, bool last)
{
    (void)fiber;
    reserve_asked++;
    stop = last;
    return true;
}

static int
overflow_stopped_late(void *arg)
{
    pf_overflow_host host = the_host;
    (void)arg;
    host.on_reserve = stop_when_asked_again;
    if (!world_open(&the_world) || pf_overflow_install(&host) != 0 ||
        pf_overflow_thread_init() != 0) {
        return 1;
    }
    for (int i = 1; i <= 3; i++) {
        stop = 0;
        world_spawn(&the_world, go_deep, 0);
        pf_scheduler_run(&the_world.scheduler);
        if (reserve_asked != 2 * i) {
            return 2;
        }
    }
    pf_overflow_thread_finish();
    world_close(&the_world);
    return 7;
}

/* The host lends its reserve, but the recursion goes on. */
static bool
lend_in_vain(pf_fiber *fiber, bool last)
{
    (void)fiber, (void)last;
    reserve_asked++;
    return true;
}

static int
overflow_through_the_reserve(void *arg)
{
    pf_overflow_host host = the_host;
    (void)arg;
    install_before();
    host.on_reserve = lend_in_vain;
    if (!world_open(&the_world) || pf_overflow_install(&host) != 0 ||
        pf_overflow_thread_init() != 0) {
        return 1;
    }
    world_spawn(&the_world, go_deep, 0);
    pf_scheduler_run(&the_world.scheduler);
    return 7;
}

static void
check_report(int (*fn)(void *))
{
    child_end end;
    child_run(fn, NULL, &end);
    CHECK_CONTAINS(end.errors, "stack overflow in fiber 'deep thought'");
    CHECK_CONTAINS(end.errors, "(stack size 128 KiB)\n");
    CHECK_CONTAINS(end.errors, "traceback of the host\n");
    CHECK_CONTAINS(end.errors, "handler from before\n");
    CHECK_EXIT(end, 42);
}

static void
overflow_is_reported(void)
{
    check_report(overflow);
    check_report(overflow_mprotect);
}

static void
overflow_through_the_reserve_is_reported(void)
{
    check_report(overflow_through_the_reserve);
}

static void
overflow_without_other_handlers_kills(void)
{
    child_end end;
    child_run(overflow_by_default, NULL, &end);
    CHECK_CONTAINS(end.errors, "stack overflow in fiber 'deep thought'");
    CHECK(WIFSIGNALED(end.status));
}

static void
reserve_saves_a_recursion(void)
{
    child_end end;
    child_run(overflow, "lend", &end);
    CHECK_EXIT(end, 7);
    child_run(overflow_mprotect, "lend", &end);
    CHECK_EXIT(end, 7);
}

static void
reserve_is_lent_in_two_steps(void)
{
    child_end end;
    child_run(overflow_stopped_late, NULL, &end);
    CHECK_EXIT(end, 7);
}

/* -------------------------------------------------------- not ours --- */

static int
fault_elsewhere(void *arg)
{
    char *page = mmap(NULL, pf_page_size(), PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    (void)arg;
    install_before();
    if (!world_open(&the_world) || pf_overflow_install(&the_host) != 0 ||
        pf_overflow_thread_init() != 0) {
        return 1;
    }
    *(volatile char *)page = 1;
    return 7;
}

static int
signal_sent(void *arg)
{
    int handler = *(int *)arg;
    if (handler == 1) {
        install_before();
    } else {
        signal(SIGSEGV, handler == 2 ? SIG_IGN : SIG_DFL);
    }
    if (!world_open(&the_world) || pf_overflow_install(&the_host) != 0) {
        return 1;
    }
    raise(SIGSEGV);
    return 7;
}

static void
other_faults_go_to_the_handler_before(void)
{
    child_end end;
    child_run(fault_elsewhere, NULL, &end);
    CHECK_CONTAINS(end.errors, "handler from before\n");
    CHECK(strstr(end.errors, "stack overflow in fiber") == NULL);
    CHECK_EXIT(end, 42);
}

static void
sent_signals_do_what_they_did_before(void)
{
    child_end end;
    int handler = 0;
    child_run(signal_sent, &handler, &end);
    CHECK(WIFSIGNALED(end.status));
    handler = 1;
    child_run(signal_sent, &handler, &end);
    CHECK_EXIT(end, 42);
    handler = 2;
    child_run(signal_sent, &handler, &end);
    CHECK_EXIT(end, 7);
}

/* ------------------------------------------------- alternate stack --- */

THREAD_FN(use_alternate_stack)
{
    stack_t before, during, after;
    (void)arg;
    sigaltstack(NULL, &before);
    CHECK_EQUAL(pf_overflow_thread_init(), 0);
    CHECK_EQUAL(pf_overflow_thread_init(), 0); /* twice does no harm */
    sigaltstack(NULL, &during);
    CHECK(!(during.ss_flags & SS_DISABLE));
    pf_overflow_thread_finish();
    pf_overflow_thread_finish();
    sigaltstack(NULL, &after);
    CHECK_EQUAL(after.ss_flags, before.ss_flags);
    THREAD_END;
}

static void
alternate_stack_comes_and_goes(void)
{
    test_thread thread;
    thread_start(&thread, use_alternate_stack, NULL);
    thread_join(thread);
}

const test overflow_tests[] = {
    TEST(overflow_is_reported),
    TEST(overflow_through_the_reserve_is_reported),
    TEST(overflow_without_other_handlers_kills),
    TEST(reserve_saves_a_recursion),
    TEST(reserve_is_lent_in_two_steps),
    TEST(other_faults_go_to_the_handler_before),
    TEST(sent_signals_do_what_they_did_before),
    TEST(alternate_stack_comes_and_goes),
    END_OF_TESTS,
};

#else

const test overflow_tests[] = {END_OF_TESTS};

#endif
