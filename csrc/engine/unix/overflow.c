/* The signal handler for faults in a stack's guard or reserve: see overflow.h.
 * Inside the handler, code uses only reads, write(2), sigaction, raise, the
 * system calls that open a reserve, and the host's functions. */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* sigaltstack, MAP_ANON */
#endif
#if defined(__APPLE__) && !defined(_DARWIN_C_SOURCE)
#define _DARWIN_C_SOURCE
#endif

#include "engine/stack/overflow.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/* Room for the host's traceback and for a previous handler's own. */
#define ALTERNATE_SIZE ((size_t)64 << 10)

static pf_overflow_host the_host;
static bool installed;
static struct sigaction previous_segv; /* replaced by the latest install */
static struct sigaction previous_bus;
static struct sigaction original_segv; /* replaced by the first install */
static struct sigaction original_bus;
static volatile sig_atomic_t faulted; /* a fault went to another handler */
/* The signal stack that this file gave the thread; NULL: none. */
static _Thread_local void *alternate;

static struct sigaction *
previous_of(int signal_number)
{
    return signal_number == SIGBUS ? &previous_bus : &previous_segv;
}

static struct sigaction *
original_of(int signal_number)
{
    return signal_number == SIGBUS ? &original_bus : &original_segv;
}

/* --------------------------------------------------------- message --- */

typedef struct line {
    char text[256];
    size_t length;
} line;

static void
add_text(line *l, const char *text)
{
    while (*text != '\0' && l->length < sizeof l->text) {
        l->text[l->length++] = *text++;
    }
}

static void
add_number(line *l, size_t n)
{
    char digits[24];
    size_t i = sizeof digits;
    digits[--i] = '\0';
    do {
        digits[--i] = (char)('0' + n % 10);
        n /= 10;
    } while (n != 0);
    add_text(l, digits + i);
}

static void
add_name(line *l)
{
    const size_t most = 128;
    if (the_host.name == NULL) {
        add_text(l, "?");
        return;
    }
    size_t n = the_host.name(l->text + l->length, most);
    l->length += n < most ? n : most;
}

static void
report(const pf_stack *stack)
{
    line l = {.length = 0};
    size_t bytes = pf_stack_size(stack);
    add_text(&l, "Fatal pyfiber error: stack overflow in fiber '");
    add_name(&l);
    add_text(&l, "' (stack size ");
    add_number(&l, bytes >> 10);
    add_text(&l, " KiB)\n");
    ssize_t ignored = write(STDERR_FILENO, l.text, l.length);
    (void)ignored;
    if (the_host.traceback != NULL) {
        the_host.traceback(STDERR_FILENO);
    }
}

/* --------------------------------------------------------- handler --- */

/* Whether kill() or a similar call sent the signal, instead of a fault.  Linux
 * marks that with codes below 1, macOS and the BSDs with 0x10001 and up. */
static bool
was_sent(const siginfo_t *info)
{
    return info->si_code <= 0 || (SI_USER > 0 && info->si_code >= SI_USER);
}

/* Handles any other fault or signal as the previous handler would.  A default
 * or ignored disposition is restored: a real fault then happens again and ends
 * the process; a signal from kill() must be sent again. */
static void
pass_on(int signal_number, siginfo_t *info, void *registers)
{
    const struct sigaction *previous = previous_of(signal_number);
    bool sent = was_sent(info);
    if (!sent) {
        faulted = 1;
    } else if (faulted) {
        /* A handler that was installed after this one has run, restored this
         * one, which it had replaced, and raised the signal again. */
        previous = original_of(signal_number);
    }
    if (previous->sa_flags & SA_SIGINFO) {
        previous->sa_sigaction(signal_number, info, registers);
        return;
    }
    if (previous->sa_handler == SIG_IGN && sent) {
        return;
    }
    if (previous->sa_handler != SIG_DFL && previous->sa_handler != SIG_IGN) {
        previous->sa_handler(signal_number);
        return;
    }
    sigaction(signal_number, previous, NULL);
    if (sent) {
        raise(signal_number); /* delivered when this handler returns */
    }
}

/* Opens the reserve if the host can end the recursion.  Otherwise the stack
 * would just overflow a little later. */
static bool
open_reserve(pf_stack *stack, const void *address)
{
    return pf_stack_in_reserve(stack, address) &&
           the_host.on_reserve != NULL &&
           the_host.on_reserve(pf_stack_is_last_reserve(stack, address)) &&
           pf_stack_open_reserve(stack, address);
}

static void
end_process(int signal_number, const pf_stack *stack)
{
    report(stack);
    faulted = 1;
    sigaction(signal_number, previous_of(signal_number), NULL);
}

static bool
used_up(const pf_stack *stack, const void *address)
{
    return pf_stack_guards(stack, address) ||
           pf_stack_in_reserve(stack, address);
}

static void
on_fault(int signal_number, siginfo_t *info, void *registers)
{
    int saved = errno;
    pf_stack *stack = the_host.current();
    void *address = info->si_addr;
    if (stack == NULL || was_sent(info) || !used_up(stack, address)) {
        pass_on(signal_number, info, registers);
    } else if (!open_reserve(stack, address)) {
        end_process(signal_number, stack);
    }
    errno = saved;
}

static int
install_one(int signal_number)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&action.sa_mask);
    int rc = sigaction(signal_number, &action, previous_of(signal_number));
    return rc == 0 ? 0 : -errno;
}

int
pf_overflow_install(const pf_overflow_host *host)
{
    the_host = *host;
    if (installed) {
        return 0;
    }
    int error = install_one(SIGSEGV);
    if (error != 0) {
        return error;
    }
    error = install_one(SIGBUS);
    if (error != 0) {
        sigaction(SIGSEGV, &previous_segv, NULL);
        return error;
    }
    original_segv = previous_segv;
    original_bus = previous_bus;
    installed = true;
    return 0;
}

static void
renew_one(int signal_number)
{
    struct sigaction now;
    if (sigaction(signal_number, NULL, &now) == 0 &&
        !((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == on_fault)) {
        (void)install_one(signal_number);
    }
}

void
pf_overflow_renew(void)
{
    if (installed && !faulted) {
        renew_one(SIGSEGV);
        renew_one(SIGBUS);
    }
}

#if defined(CLOCK_MONOTONIC_COARSE)
#define CHEAP_CLOCK CLOCK_MONOTONIC_COARSE /* 6 ns; ticks of 1 to 4 ms */
#else
#define CHEAP_CLOCK CLOCK_MONOTONIC
#endif
#define KEEP_INTERVAL 1000000 /* nanoseconds */

void
pf_overflow_keep(void)
{
    static _Thread_local int64_t looked;
    struct timespec now;
    clock_gettime(CHEAP_CLOCK, &now);
    int64_t ns = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    if (ns - looked >= KEEP_INTERVAL) {
        looked = ns;
        pf_overflow_renew();
    }
}

/* ------------------------------------------------------ per thread --- */

int
pf_overflow_thread_init(void)
{
    stack_t now;
    if (sigaltstack(NULL, &now) != 0) {
        return -errno;
    }
    if (!(now.ss_flags & SS_DISABLE)) {
        return 0; /* other code has set one, or an earlier call */
    }
    void *memory = mmap(NULL, ALTERNATE_SIZE, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANON, -1, 0);
    if (memory == MAP_FAILED) {
        return -errno;
    }
    stack_t ours = {.ss_sp = memory, .ss_size = ALTERNATE_SIZE};
    if (sigaltstack(&ours, NULL) != 0) {
        int error = -errno;
        munmap(memory, ALTERNATE_SIZE);
        return error;
    }
    alternate = memory;
    return 0;
}

void
pf_overflow_thread_finish(void)
{
    stack_t now;
    if (alternate == NULL) {
        return;
    }
    if (sigaltstack(NULL, &now) == 0 && now.ss_sp == alternate) {
        stack_t none = {.ss_flags = SS_DISABLE, .ss_size = ALTERNATE_SIZE};
        sigaltstack(&none, NULL);
    }
    munmap(alternate, ALTERNATE_SIZE);
    alternate = NULL;
}
