/* Tests contexts: what survives a switch and what must not leak through
 * one. */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif

#include "check.h"

#include <fenv.h>

#include "context/context.h"
#include "engine/stack/stack.h"
#include "threads.h"

#if defined(__GLIBC__)
#include <execinfo.h>
#endif
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif
#if !defined(_WIN32)
#include <signal.h>
#endif
#if defined(PYFIBER_CONTEXT_UCONTEXT)
#include <ucontext.h>
#endif

#define STACK_SIZE ((size_t)256 << 10)

/* The thread's own context and another one: there() switches to the other, and
 * here() back. */
typedef struct pair {
    pf_context home;
    pf_context away;
    pf_stack_pool *pool;
    pf_stack *stack;
    long value; /* passed from one context to the other */
    bool done;
} pair;

static void
there(pair *p)
{
    pf_context_switch(&p->home, &p->away);
}

static void
here(pair *p)
{
    pf_context_switch(&p->away, &p->home);
}

static bool
pair_open(pair *p, pf_entry entry)
{
    memset(p, 0, sizeof *p);
    p->pool = pf_stack_pool_new(STACK_SIZE, 4096);
    if (p->pool == NULL || pf_stack_acquire(p->pool, &p->stack) != 0 ||
        pf_context_adopt(&p->home) != 0 ||
        pf_context_init(&p->away, &p->stack->area, entry, p) != 0) {
        CHECK(!"a context could not be made");
        return false;
    }
    return true;
}

static void
pair_close(pair *p)
{
    pf_context_finish(&p->away);
    pf_stack_release(p->stack);
    pf_stack_pool_free(p->pool);
    pf_context_forget(&p->home);
}

static pf_context *
add_one(void *arg)
{
    pair *p = arg;
    for (int i = 0; i < 1000; i++) {
        p->value++;
        here(p);
    }
    p->done = true;
    return &p->home;
}

static void
switch_passes_values(void)
{
    pair p;
    if (!pair_open(&p, add_one)) {
        return;
    }
    for (long i = 0; i < 1000; i++) {
        p.value = i * 7;
        there(&p);
        CHECK_EQUAL(p.value, i * 7 + 1);
    }
    CHECK(!p.done);
    there(&p);
    CHECK(p.done);
    pair_close(&p);
}

/* Has more live values than there are callee-saved registers. */
static long
many_locals(pair *p, void (*leave)(pair *), long n)
{
    long a = n, b = n * 3, c = n ^ 5, d = n + 7, e = n - 9, f = n * 11;
    long g = n ^ 13, h = n + 15, i = n - 17, j = n * 19, k = n ^ 21;
    double x = (double)n * 1.5, y = (double)n + 0.25;
    for (int round = 0; round < 100; round++) {
        leave(p);
        a += b, b += c, c += d, d += e, e += f, f += g, g += h;
        h += i, i += j, j += k, k += a;
        a %= 100003, b %= 100003, c %= 100003, d %= 100003;
        e %= 100003, f %= 100003, g %= 100003, h %= 100003;
        x += y * 0.5, y -= 0.125;
    }
    return a + b + c + d + e + f + g + h + i + j + k + (long)(x + y);
}

static void
stay(pair *p)
{
    (void)p;
}

static pf_context *
keep_locals(void *arg)
{
    pair *p = arg;
    p->value = many_locals(p, here, 12345);
    p->done = true;
    return &p->home;
}

static void
switch_keeps_registers(void)
{
    pair p;
    if (!pair_open(&p, keep_locals)) {
        return;
    }
    long mine = many_locals(&p, there, 777);
    there(&p);
    CHECK(p.done);
    CHECK_EQUAL(p.value, many_locals(&p, stay, 12345));
    CHECK_EQUAL(mine, many_locals(&p, stay, 777));
    pair_close(&p);
}

/* -------------------------------------------------- floating point --- */

/* Windows switches the control words of its fibers, Wine does not. */
static bool
running_on_wine(void)
{
#if defined(_WIN32)
    HMODULE ntdll = GetModuleHandleA("ntdll.dll");
    return ntdll != NULL && GetProcAddress(ntdll, "wine_get_version") != NULL;
#else
    return false;
#endif
}

static pf_context *
round_upward(void *arg)
{
    pair *p = arg;
    fesetround(FE_UPWARD);
    here(p);
    p->value = fegetround() == FE_UPWARD;
    return &p->home;
}

static void
rounding_mode_stays_with_its_context(void)
{
    pair p;
    if (running_on_wine()) {
        SKIP("Wine does not switch it");
    }
    if (!pair_open(&p, round_upward)) {
        return;
    }
    there(&p);
    CHECK_EQUAL(fegetround(), FE_TONEAREST);
    fesetround(FE_DOWNWARD);
    there(&p);
    CHECK_EQUAL(fegetround(), FE_DOWNWARD);
    CHECK(p.value);
    fesetround(FE_TONEAREST);
    pair_close(&p);
}

static pf_context *
tell_rounding(void *arg)
{
    pair *p = arg;
    p->value = fegetround();
    return &p->home;
}

static void
new_context_inherits_rounding_mode(void)
{
    pair p;
#if defined(PF_CONTEXT_WINFIBER)
    SKIP("the system starts its fibers with the default");
#endif
    fesetround(FE_TOWARDZERO);
    if (pair_open(&p, tell_rounding)) {
        fesetround(FE_TONEAREST);
        there(&p);
        CHECK_EQUAL(p.value, FE_TOWARDZERO);
        CHECK_EQUAL(fegetround(), FE_TONEAREST);
        pair_close(&p);
    }
    fesetround(FE_TONEAREST);
}

/* A row of contexts.  The end of each one begins the next; the last one ends
 * in `home`. */
#define ROW 3
typedef struct row {
    pf_context home;
    pf_context context[ROW];
    int modes[ROW];
    int seen;
} row;

static pf_context *
pass_on(void *arg)
{
    row *r = arg;
    r->modes[r->seen++] = fegetround();
    fesetround(FE_UPWARD); /* the next context must not inherit this */
    return r->seen < ROW ? &r->context[r->seen] : &r->home;
}

static void
context_that_ends_begins_another(void)
{
    static const int modes[ROW] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD};
    row r = {.seen = 0};
    pf_stack *stacks[ROW];
#if defined(PF_CONTEXT_WINFIBER)
    SKIP("the system starts its fibers with the default");
#endif
    pf_stack_pool *pool = pf_stack_pool_new(64 << 10, 0);
    CHECK(pf_context_adopt(&r.home) == 0);
    for (int i = 0; i < ROW; i++) {
        fesetround(modes[i]);
        CHECK(pf_stack_acquire(pool, &stacks[i]) == 0);
        CHECK(pf_context_init(&r.context[i], &stacks[i]->area, pass_on, &r) ==
              0);
    }
    fesetround(FE_TONEAREST);
    pf_context_switch(&r.home, &r.context[0]);
    CHECK_EQUAL(fegetround(), FE_TONEAREST);
    CHECK_EQUAL(r.seen, ROW);
    for (int i = 0; i < ROW; i++) {
        CHECK_EQUAL(r.modes[i], modes[i]);
        pf_context_finish(&r.context[i]);
        pf_stack_release(stacks[i]);
    }
    pf_stack_pool_free(pool);
    pf_context_forget(&r.home);
}

#if defined(__x86_64__)

static unsigned
x87_control(void)
{
    unsigned short word;
    __asm__ volatile("fnstcw %0" : "=m"(word));
    return word;
}

static void
set_x87_control(unsigned value)
{
    unsigned short word = (unsigned short)value;
    __asm__ volatile("fldcw %0" : : "m"(word));
}

static pf_context *
single_precision(void *arg)
{
    pair *p = arg;
    unsigned word = x87_control() & ~0x300u;
    set_x87_control(word);
    here(p);
    p->value = x87_control() == word;
    return &p->home;
}

static void
x87_precision_stays_with_its_context(void)
{
    pair p;
    unsigned before = x87_control();
    if (running_on_valgrind()) {
        SKIP("valgrind does not model the x87 control word");
    }
    if (running_on_wine()) {
        SKIP("Wine does not switch it");
    }
    if (!pair_open(&p, single_precision)) {
        return;
    }
    there(&p);
    CHECK_EQUAL(x87_control(), before);
    there(&p);
    CHECK_EQUAL(x87_control(), before);
    CHECK(p.value);
    pair_close(&p);
}

#define FLUSH_TO_ZERO 0x8000u

static pf_context *
flush_to_zero(void *arg)
{
    pair *p = arg;
    _mm_setcsr(_mm_getcsr() | FLUSH_TO_ZERO);
    here(p);
    p->value = (_mm_getcsr() & FLUSH_TO_ZERO) != 0;
    return &p->home;
}

static void
mxcsr_stays_with_its_context(void)
{
    pair p;
    if (running_on_valgrind()) {
        SKIP("valgrind models the rounding mode of mxcsr only");
    }
    if (running_on_wine()) {
        SKIP("Wine does not switch it");
    }
    if (!pair_open(&p, flush_to_zero)) {
        return;
    }
    there(&p);
    CHECK_EQUAL(_mm_getcsr() & FLUSH_TO_ZERO, 0);
    there(&p);
    CHECK_EQUAL(_mm_getcsr() & FLUSH_TO_ZERO, 0);
    CHECK(p.value);
    pair_close(&p);
}

#elif defined(__aarch64__)

static uint64_t
fpcr(void)
{
    uint64_t word;
    __asm__ volatile("mrs %0, fpcr" : "=r"(word));
    return word;
}

static void
set_fpcr(uint64_t word)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(word));
}

#define FLUSH_TO_ZERO ((uint64_t)1 << 24)

static pf_context *
flush_to_zero(void *arg)
{
    pair *p = arg;
    set_fpcr(fpcr() | FLUSH_TO_ZERO);
    here(p);
    p->value = (fpcr() & FLUSH_TO_ZERO) != 0;
    return &p->home;
}

static void
fpcr_stays_with_its_context(void)
{
    pair p;
    if (!pair_open(&p, flush_to_zero)) {
        return;
    }
    there(&p);
    CHECK_EQUAL(fpcr() & FLUSH_TO_ZERO, 0);
    there(&p);
    CHECK_EQUAL(fpcr() & FLUSH_TO_ZERO, 0);
    CHECK(p.value);
    pair_close(&p);
}

#endif

/* ---------------------------------------------------------- stacks --- */

static pf_context *
note_alignment(void *arg)
{
    pair *p = arg;
    char text[64];
    /* Formatting doubles uses vector moves that need alignment. */
    snprintf(text, sizeof text, "%.3f %.3f", 1.5, (double)p->value);
    p->value = (long)((uintptr_t)__builtin_frame_address(0) % 16);
    p->done = strcmp(text, "1.500 0.000") == 0;
    return &p->home;
}

static void
entry_has_an_aligned_stack(void)
{
    pair p;
    if (!pair_open(&p, note_alignment)) {
        return;
    }
    there(&p);
    CHECK(p.done);
    CHECK_EQUAL(p.value, 0);
    pair_close(&p);
}

static pf_context *
tell_place(void *arg)
{
    pair *p = arg;
    char here_it_is;
    const char *place = &here_it_is;
#if PF_WITH_ASAN /* locals may lie in a fake frame */
    place = __builtin_frame_address(0);
#endif
    p->done = place >= p->stack->area.low &&
              place < p->stack->area.low + p->stack->area.size;
    return &p->home;
}

static void
entry_runs_on_its_area(void)
{
    pair p;
    if (!pair_open(&p, tell_place)) {
        return;
    }
    there(&p);
    CHECK(p.done);
    pair_close(&p);
}

static void
area_serves_many_contexts(void)
{
    pair p;
    if (!pair_open(&p, tell_place)) {
        return;
    }
    for (int i = 0; i < 1000; i++) {
        p.done = false;
        there(&p);
        CHECK(p.done);
        pf_context_finish(&p.away);
        CHECK_EQUAL(pf_context_init(&p.away, &p.stack->area, tell_place, &p),
                    0);
    }
    pair_close(&p);
}

/* A context that has not ended may be dropped together with its area. */
static void
area_survives_an_abandoned_context(void)
{
    pair p;
    if (!pair_open(&p, add_one)) {
        return;
    }
    there(&p);
    CHECK_EQUAL(p.value, 1);
    pf_context_finish(&p.away);
    CHECK_EQUAL(pf_context_init(&p.away, &p.stack->area, tell_place, &p), 0);
    there(&p);
    CHECK(p.done);
    pair_close(&p);
}

static void
switch_to_itself_returns(void)
{
    pf_context home;
    CHECK_EQUAL(pf_context_adopt(&home), 0);
    pf_context_switch(&home, &home);
    pf_context_forget(&home);
}

#if PF_WITH_ASAN
/* AddressSanitizer reports the bounds of an adopted context when it is left.
 * A switch to itself used to record an empty stack, in which the leak checker
 * then found no pointers. */
static void
switch_to_itself_leaves_the_checker_its_stack(void)
{
    pair p;
    switch_to_itself_returns();
    if (pair_open(&p, add_one)) {
        there(&p);
        CHECK(p.home.asan_bottom != NULL);
        CHECK(p.home.asan_size > 0);
        pair_close(&p);
    }
}
#endif

#if !defined(_WIN32)
/* ucontext switches the signal mask as well, so it must have saved the mask
 * that it restores. */
static void
switch_to_itself_keeps_the_signal_mask(void)
{
    pf_context home;
    sigset_t before, after;
    sigprocmask(SIG_SETMASK, NULL, &before);
    CHECK_EQUAL(pf_context_adopt(&home), 0);
#if defined(PYFIBER_CONTEXT_UCONTEXT)
    memset(home.handle, 0xFF, sizeof(ucontext_t));
#endif
    pf_context_switch(&home, &home);
    pf_context_forget(&home);
    sigprocmask(SIG_SETMASK, NULL, &after);
    for (int n = 1; n < NSIG; n++) {
        CHECK_EQUAL(sigismember(&after, n), sigismember(&before, n));
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
}
#endif

static void
thread_can_be_adopted_again(void)
{
    pf_context outer, inner;
    CHECK_EQUAL(pf_context_adopt(&outer), 0);
    CHECK_EQUAL(pf_context_adopt(&inner), 0);
    pf_context_forget(&inner);
    pf_context_switch(&outer, &outer);
    pf_context_forget(&outer);
    switch_passes_values();
}

THREAD_FN(pass_values)
{
    (void)arg;
    switch_passes_values();
    THREAD_END;
}

static void
contexts_run_on_other_threads(void)
{
    test_thread threads[4];
    for (int i = 0; i < 4; i++) {
        thread_start(&threads[i], pass_values, NULL);
    }
    for (int i = 0; i < 4; i++) {
        thread_join(threads[i]);
    }
}

#if defined(__GLIBC__)

static int
count_frames(int depth)
{
    void *frames[200];
    return depth > 0 ? count_frames(depth - 1) + 0 * depth
                     : backtrace(frames, 200);
}

static pf_context *
unwind(void *arg)
{
    pair *p = arg;
    p->value = count_frames(10);
    here(p);
    p->value = count_frames(20);
    return &p->home;
}

static void
backtrace_ends_at_the_root(void)
{
    pair p;
    if (!pair_open(&p, unwind)) {
        return;
    }
    there(&p);
    CHECK(p.value > 2);
    CHECK(p.value < 100);
    there(&p);
    CHECK(p.value > 2);
    CHECK(p.value < 100);
    pair_close(&p);
}

#endif

const test context_tests[] = {
    TEST(switch_passes_values),
    TEST(switch_keeps_registers),
    TEST(rounding_mode_stays_with_its_context),
    TEST(new_context_inherits_rounding_mode),
    TEST(context_that_ends_begins_another),
#if defined(__x86_64__)
    TEST(x87_precision_stays_with_its_context),
    TEST(mxcsr_stays_with_its_context),
#elif defined(__aarch64__)
    TEST(fpcr_stays_with_its_context),
#endif
    TEST(entry_has_an_aligned_stack),
    TEST(entry_runs_on_its_area),
    TEST(area_serves_many_contexts),
    TEST(area_survives_an_abandoned_context),
    TEST(switch_to_itself_returns),
#if PF_WITH_ASAN
    TEST(switch_to_itself_leaves_the_checker_its_stack),
#endif
#if !defined(_WIN32)
    TEST(switch_to_itself_keeps_the_signal_mask),
#endif
    TEST(thread_can_be_adopted_again),
    TEST(contexts_run_on_other_threads),
#if defined(__GLIBC__)
    TEST(backtrace_ends_at_the_root),
#endif
    END_OF_TESTS,
};
