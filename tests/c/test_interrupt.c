/* Tests pf_interrupt: a function that runs on another thread. */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif

#include "check.h"

#include <errno.h>

#include "context/context.h"
#include "engine/base/atomics.h"
#include "engine/base/interrupt.h"
#include "engine/stack/stack.h"
#include "threads.h"

#if defined(_WIN32)

const test interrupt_tests[] = {END_OF_TESTS};

#else

#include <pthread.h>
#include <signal.h>
#include <string.h>
#if defined(__linux__)
#include <sys/auxv.h>
#endif

#define PATIENCE INT64_C(20000000000) /* ns; enough for a slow machine */

typedef struct subject {
    PF_ATOMIC(uint8_t) ready, stop;
    uintptr_t thread;
    bool deaf; /* to signals */
} subject;

/* A separate function, so that the stack has its name. */
static __attribute__((noinline)) void
spin_until_stopped(subject *self)
{
    pf_store(&self->ready, 1);
    while (!pf_load(&self->stop)) {
    }
}

THREAD_FN(spin)
{
    subject *self = arg;
    self->thread = pf_interrupt_this_thread();
    if (self->deaf) {
        pf_interrupt_refuse_signals();
    }
    spin_until_stopped(self);
    THREAD_END;
}

static void
begin(subject *self, test_thread *thread)
{
    thread_start(thread, spin, self);
    while (!pf_load(&self->ready)) {
        thread_yield();
    }
}

static void
end(subject *self, test_thread thread)
{
    pf_store(&self->stop, 1);
    thread_join(thread);
}

typedef struct view {
    pthread_t thread;
    void *places[32];
    size_t count;
} view;

static void
look(void *data)
{
    view *v = data;
    v->thread = pthread_self();
    v->count = pf_interrupt_native_stack(v->places, 32);
}

static void
look_runs_on_the_other_thread(void)
{
    subject self = {.deaf = false};
    test_thread thread;
    view v = {.count = 0};
    begin(&self, &thread);
    CHECK_EQUAL(pf_interrupt_install(), 0);
    for (int i = 0; i < 100; i++) {
        CHECK(pf_interrupt(self.thread, look, &v, PATIENCE));
        CHECK(pthread_equal(v.thread, (pthread_t)self.thread));
    }
    pf_interrupt_uninstall();
    end(&self, thread);
}

/* Returns why the unwinder does not get from a handler to the interrupted
 * code, or NULL if it does. */
static const char *
why_not_unwound(void)
{
#if !defined(__GLIBC__)
    return "no unwinder in signal handlers";
#elif PF_WITH_TSAN
    return "ThreadSanitizer keeps signals back until a call that it knows";
#elif defined(__powerpc64__)
    return "the unwinder does not know qemu's frames of signals";
#else
    return NULL;
#endif
}

/* The first frame is the interrupted one, not one of the handler. */
static void
stack_begins_where_the_thread_was_interrupted(void)
{
    if (why_not_unwound() != NULL) {
        SKIP(why_not_unwound());
    }
    subject self = {.deaf = false};
    test_thread thread;
    view v = {.count = 0};
    begin(&self, &thread);
    CHECK_EQUAL(pf_interrupt_install(), 0);
    CHECK(pf_interrupt(self.thread, look, &v, PATIENCE));
    pf_interrupt_uninstall();
    end(&self, thread);
    CHECK(v.count >= 2);
    char *first = v.places[0];
    char *function = (char *)(uintptr_t)spin_until_stopped;
    CHECK(first >= function);
    CHECK(first < function + 4096);
}

static void
library_of_a_place_is_named(void)
{
#if defined(__GLIBC__) && defined(__linux__)
    char name[200];
    if (getauxval(AT_BASE) == 0) {
        SKIP("linked statically: there are no libraries");
    }
    CHECK(pf_interrupt_native_name((void *)(uintptr_t)sched_yield, name,
                                   sizeof name) > 0);
    CHECK_CONTAINS(name, "libc");
#else
    SKIP("it has other names");
#endif
}

typedef struct switcher {
    subject subject;
    pf_context home, away;
} switcher;

static pf_context *
go_back(void *arg)
{
    switcher *self = arg;
    for (int i = 0; i < 10; i++) {
        pf_context_switch(&self->away, &self->home);
    }
    return &self->home;
}

/* Begins, leaves, resumes and ends contexts, and does nothing else. */
THREAD_FN(switch_all_the_time)
{
    switcher *self = arg;
    pf_stack_pool *pool = pf_stack_pool_new((size_t)64 << 10, 4096);
    pf_stack *stack = NULL;
    self->subject.thread = pf_interrupt_this_thread();
    CHECK_EQUAL(pf_stack_acquire(pool, &stack), 0);
    CHECK_EQUAL(pf_context_adopt(&self->home), 0);
    pf_store(&self->subject.ready, 1);
    while (!pf_load(&self->subject.stop)) {
        pf_context_init(&self->away, &stack->area, go_back, self);
        for (int i = 0; i < 11; i++) {
            pf_context_switch(&self->home, &self->away);
        }
        pf_context_finish(&self->away);
    }
    pf_context_forget(&self->home);
    pf_stack_release(stack);
    pf_stack_pool_free(pool);
    THREAD_END;
}

/* The unwinder finds the stack whichever instruction of a switch was
 * interrupted. */
static void
stack_is_found_in_the_middle_of_a_switch(void)
{
#if PF_WITH_TSAN
    SKIP("ThreadSanitizer keeps signals back until a call that it knows");
#endif
    switcher self = {.subject = {.deaf = false}};
    test_thread thread;
    view v = {.count = 0};
    thread_start(&thread, switch_all_the_time, &self);
    while (!pf_load(&self.subject.ready)) {
        thread_yield();
    }
    CHECK_EQUAL(pf_interrupt_install(), 0);
    for (int i = many() / 2; i > 0; i--) {
        CHECK(pf_interrupt(self.subject.thread, look, &v, PATIENCE));
    }
    pf_interrupt_uninstall();
    end(&self.subject, thread);
}

static void
thread_that_refuses_signals_is_given_up(void)
{
    subject self = {.deaf = true};
    test_thread thread;
    view v = {.count = 0};
    begin(&self, &thread);
    CHECK_EQUAL(pf_interrupt_install(), 0);
    CHECK(!pf_interrupt(self.thread, look, &v, 1000000));
    pf_interrupt_uninstall();
    end(&self, thread);
}

static void
on_own(int number)
{
    (void)number;
}

static void
handler_of_the_program_stays(void)
{
    view v = {.count = 0};
    void (*before)(int) = signal(SIGURG, on_own);
    CHECK_EQUAL(pf_interrupt_install(), -EBUSY);
    CHECK(!pf_interrupt(pf_interrupt_this_thread(), look, &v, PATIENCE));
    pf_interrupt_uninstall();
    CHECK(signal(SIGURG, before) == on_own);
}

static void
name_that_does_not_fit_is_cut(void)
{
    char name[8];
    size_t n = pf_interrupt_native_name((void *)(uintptr_t)sched_yield, name,
                                        sizeof name);
    CHECK_EQUAL(n, sizeof name - 1);
    CHECK_EQUAL(strlen(name), n);
}

const test interrupt_tests[] = {
    TEST(look_runs_on_the_other_thread),
    TEST(stack_begins_where_the_thread_was_interrupted),
    TEST(library_of_a_place_is_named),
    TEST(stack_is_found_in_the_middle_of_a_switch),
    TEST(thread_that_refuses_signals_is_given_up),
    TEST(handler_of_the_program_stays),
    TEST(name_that_does_not_fit_is_cut),
    END_OF_TESTS,
};

#endif
