/* Tests fibers that run out of stack: the reserve, the message, and the
 * handlers of other code.  Each test runs in a child process. */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif

#include "check.h"

#include "context/context.h"

#if !defined(_WIN32)

#include <errno.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "child.h"
#include "engine/stack/overflow.h"
#include "engine/stack/testing.h"
#include "fakes.h"
#include "threads.h"
#include "world.h"

#define CHECK_EXIT(end, code)                                                 \
    do {                                                                      \
        bool exited = WIFEXITED((end).status);                                \
        CHECK_EQUAL(exited ? WEXITSTATUS((end).status) : -(end).status,       \
                    code);                                                    \
    } while (0)

static world the_world;
static volatile sig_atomic_t reserve_asked; /* calls of on_reserve */
static volatile sig_atomic_t stop;          /* the recursion must end */
static bool host_lends;

static pf_stack *
current_stack(void)
{
    return the_world.thread.current->stack;
}

static size_t
fiber_name(char *buffer, size_t size)
{
    const char name[] = "deep thought";
    size_t n = sizeof name - 1 < size ? sizeof name - 1 : size;
    memcpy(buffer, name, n);
    return n;
}

static void
host_traceback(int fd)
{
    const char text[] = "traceback of the host\n";
    ssize_t ignored = write(fd, text, sizeof text - 1);
    (void)ignored;
}

static bool
on_reserve(bool last)
{
    (void)last;
    reserve_asked++;
    stop = 1;
    return host_lends;
}

static const pf_overflow_host the_host = {
    .on_reserve = on_reserve,
    .current = current_stack,
    .name = fiber_name,
    .traceback = host_traceback,
};

/* The handler that was installed before the engine's. */
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

/* Recurses without a tail call, in frames that are really used. */
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

/* Recurses three times until the host asks the recursion to stop.  If the host
 * refuses the reserve (`arg` NULL), the first overflow ends the process. */
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

/* Ends the recursion only when asked for the second half of the reserve. */
static bool
stop_when_asked_again(bool last)
{
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

/* Lets the engine open the reserve, but does not end the recursion. */
static bool
lend_in_vain(bool last)
{
    (void)last;
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

/* ----------------------------------------- other faults and signals --- */

static int
fault_elsewhere(void *arg)
{
    char *page = mmap(NULL, pf_stack_page_size(), PROT_NONE,
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

/* A signal that is sent, and the handler from before the engine's. */
typedef struct sending {
    int number;
    bool by_kill; /* else by raise; their signals have different codes */
    void (*before)(int);
} sending;

static int
signal_sent(void *arg)
{
    const sending *s = arg;
    signal(s->number, s->before);
    if (!world_open(&the_world) || pf_overflow_install(&the_host) != 0) {
        return 1;
    }
    if (s->by_kill) {
        kill(getpid(), s->number);
    } else {
        raise(s->number);
    }
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
    static const int numbers[] = {SIGSEGV, SIGBUS};
    for (int i = 0; i < 4; i++) {
        sending s = {numbers[i / 2], i % 2 == 0, SIG_DFL};
        child_end end;
        child_run(signal_sent, &s, &end);
        CHECK(WIFSIGNALED(end.status));
        CHECK_EQUAL(WTERMSIG(end.status), s.number);
        s.before = handler_before;
        child_run(signal_sent, &s, &end);
        CHECK_EXIT(end, 42);
        s.before = SIG_IGN;
        child_run(signal_sent, &s, &end);
        CHECK_EXIT(end, 7);
    }
}

static volatile sig_atomic_t counted;

static void
count_signal(int signal_number)
{
    (void)signal_number;
    counted++;
}

static bool
is_in_front(int signal_number, const struct sigaction *handler)
{
    struct sigaction now;
    sigaction(signal_number, NULL, &now);
    return now.sa_sigaction == handler->sa_sigaction;
}

/* The engine's handler stays in place, however often the signal is sent. */
static int
signals_sent(void *arg)
{
    const sending *s = arg;
    struct sigaction ours;
    signal(s->number, s->before);
    if (!world_open(&the_world) || pf_overflow_install(&the_host) != 0) {
        return 1;
    }
    sigaction(s->number, NULL, &ours);
    for (int i = 0; i < 3; i++) {
        kill(getpid(), s->number);
    }
    if (counted != (s->before == SIG_IGN ? 0 : 3)) {
        return 2;
    }
    return is_in_front(s->number, &ours) ? 7 : 3;
}

static void
sent_signals_leave_the_handler_in_place(void)
{
    child_end end;
    sending s = {SIGSEGV, true, SIG_IGN};
    child_run(signals_sent, &s, &end);
    CHECK_EXIT(end, 7);
    s.before = count_signal;
    child_run(signals_sent, &s, &end);
    CHECK_EXIT(end, 7);
}

/* ------------------------------------------- handlers that come later --- */

static struct sigaction found; /* what handler_after replaced */

static void
bus_handler_before(int signal_number)
{
    (void)signal_number;
    _exit(43);
}

/* Restores the handler that it replaced and raises the signal again, as
 * faulthandler does. */
static void
handler_after(int signal_number)
{
    if (counted++ > 0) {
        _exit(44);
    }
    sigaction(signal_number, &found, NULL);
    raise(signal_number);
}

static void
install_after(int signal_number)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler_after;
    action.sa_flags = SA_ONSTACK;
    sigaction(signal_number, &action, &found);
}

static int
fault_with_a_handler_after(void *arg)
{
    char *page = mmap(NULL, pf_stack_page_size(), PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    (void)arg;
    install_before();
    signal(SIGBUS, bus_handler_before);
    if (!world_open(&the_world) || pf_overflow_install(&the_host) != 0 ||
        pf_overflow_thread_init() != 0) {
        return 1;
    }
    install_after(SIGSEGV);
    pf_overflow_renew();
    *(volatile char *)page = 1;
    return 7;
}

/* The fault goes to the engine's handler, then to the later one, which
 * restores the engine's.  The engine's then calls the handler from before. */
static void
fault_reaches_every_handler_once(void)
{
    child_end end;
    child_run(fault_with_a_handler_after, NULL, &end);
    CHECK_EXIT(end, 42);
}

static int
renew(void *arg)
{
    int number = *(int *)arg;
    struct sigaction ours;
    if (pf_overflow_install(&the_host) != 0) {
        return 1;
    }
    sigaction(number, NULL, &ours);
    install_after(number);
    if (is_in_front(number, &ours)) {
        return 2;
    }
    pf_overflow_renew();
    return is_in_front(number, &ours) ? 7 : 3;
}

static void
renewed_handler_is_in_front_again(void)
{
    int number = SIGSEGV;
    child_end end;
    child_run(renew, &number, &end);
    CHECK_EXIT(end, 7);
    number = SIGBUS;
    child_run(renew, &number, &end);
    CHECK_EXIT(end, 7);
}

#if defined(__linux__)
/* -------------------------------------------------- a system that refuses */

static int refused_number;

static int
refuse_sigaction(int number, const struct sigaction *action,
                 struct sigaction *before)
{
    if (number == refused_number && action != NULL) {
        errno = EPERM;
        return -1;
    }
    return __real_sigaction(number, action, before);
}

static int
install_refused(void *arg)
{
    struct sigaction before, now;
    install_before();
    sigaction(SIGSEGV, NULL, &before);
    refused_number = *(int *)arg;
    fake_sigaction = refuse_sigaction;
    int error = pf_overflow_install(&the_host);
    fake_sigaction = NULL;
    sigaction(SIGSEGV, NULL, &now);
    if (error != -EPERM) {
        return 1;
    }
    if (now.sa_handler != before.sa_handler) {
        return 2;
    }
    return pf_overflow_install(&the_host) == 0 ? 7 : 3;
}

static void
install_that_is_refused_changes_nothing(void)
{
    int number = SIGSEGV;
    child_end end;
    child_run(install_refused, &number, &end);
    CHECK_EXIT(end, 7);
    number = SIGBUS;
    child_run(install_refused, &number, &end);
    CHECK_EXIT(end, 7);
}

THREAD_FN(finish_without_alternate_stack)
{
    (void)arg;
    count_unmapped();
    pf_overflow_thread_finish();
    CHECK_EQUAL(unmapped(), 0);
    THREAD_END;
}

static void
thread_without_alternate_stack_gives_none_back(void)
{
    test_thread thread;
    thread_start(&thread, finish_without_alternate_stack, NULL);
    thread_join(thread);
}
#endif

/* ------------------------------------------------- alternate stack --- */

THREAD_FN(use_alternate_stack)
{
    stack_t before, during, after;
    (void)arg;
    sigaltstack(NULL, &before);
    CHECK_EQUAL(pf_overflow_thread_init(), 0);
    CHECK_EQUAL(pf_overflow_thread_init(), 0); /* a second call does no harm */
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
    TEST(sent_signals_leave_the_handler_in_place),
    TEST(fault_reaches_every_handler_once),
    TEST(renewed_handler_is_in_front_again),
#if defined(__linux__)
    TEST(install_that_is_refused_changes_nothing),
    TEST(thread_without_alternate_stack_gives_none_back),
#endif
    TEST(alternate_stack_comes_and_goes),
    END_OF_TESTS,
};

#else

const test overflow_tests[] = {END_OF_TESTS};

#endif
