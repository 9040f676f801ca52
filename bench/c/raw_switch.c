/* One context switch in C, without Python: the engine's beside the least that
 * is possible, the C library's and, where its library is found, Boost's.
 *
 *     make -C bench/c run
 *
 * A ring of contexts, the main one among them, pass control each to the next;
 * a ring of two is a ping-pong.  All subjects take turns and the best of a few
 * repetitions counts, so that a busy moment of the machine meets all alike.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucontext.h>

#include "context/context.h"

#define STACK_SIZE ((size_t)64 * 1024)
#define RING_MAX 16
#define REPETITIONS 7

static char *stacks[RING_MAX];

/* The ring being measured.  Member 0 is the main context; the others are
 * entered in order, so each learns its number from how many came before. */
static int members;
static int entered;

static int
enter(void)
{
    return ++entered;
}

static int
after(int member)
{
    return (member + 1) % members;
}

/* The engine: pf_context_switch, as the extension calls it. */

static pf_context engine[RING_MAX];
static pf_area areas[RING_MAX];

static pf_context *
engine_member(void *arg)
{
    (void)arg;
    int self = enter();
    pf_context *from = &engine[self], *to = &engine[after(self)];
    for (;;) {
        pf_context_switch(from, to);
    }
    return NULL;
}

static void
engine_prepare(void)
{
    pf_context_adopt(&engine[0]);
    for (int i = 1; i < members; i++) {
        areas[i] = (pf_area){stacks[i], STACK_SIZE, NULL};
        pf_context_init(&engine[i], &areas[i], engine_member, NULL);
    }
}

static void
engine_run(long rounds)
{
    for (long i = 0; i < rounds; i++) {
        pf_context_switch(&engine[0], &engine[1]);
    }
}

/* swapcontext of the C library, which also switches the signal mask. */

static ucontext_t library[RING_MAX];

static void
library_member(void)
{
    int self = enter();
    ucontext_t *from = &library[self], *to = &library[after(self)];
    for (;;) {
        swapcontext(from, to);
    }
}

static void
library_prepare(void)
{
    for (int i = 1; i < members; i++) {
        getcontext(&library[i]);
        library[i].uc_stack.ss_sp = stacks[i];
        library[i].uc_stack.ss_size = STACK_SIZE;
        library[i].uc_link = NULL;
        makecontext(&library[i], library_member, 0);
    }
}

static void
library_run(long rounds)
{
    for (long i = 0; i < rounds; i++) {
        swapcontext(&library[0], &library[1]);
    }
}

/* Bare assembly, without and with the floating-point control words. */

#if defined(__x86_64__)

void bare_switch(void **from, void *to);
void bare_switch_fp(void **from, void *to);

static void *bare[RING_MAX];

static void
bare_member(void)
{
    int self = enter();
    void **from = &bare[self], **to = &bare[after(self)];
    for (;;) {
        bare_switch(from, *to);
    }
}

static void
bare_fp_member(void)
{
    int self = enter();
    void **from = &bare[self], **to = &bare[after(self)];
    for (;;) {
        bare_switch_fp(from, *to);
    }
}

/* A first frame: registers of no meaning and the function to return into. */
static uintptr_t *
first_frame(char *stack, void (*function)(void))
{
    uintptr_t *top = (uintptr_t *)(stack + STACK_SIZE);
    *--top = 0; /* where the function would return to */
    *--top = (uintptr_t)function;
    for (int i = 0; i < 6; i++) {
        *--top = 0;
    }
    return top;
}

static void
bare_prepare(void)
{
    for (int i = 1; i < members; i++) {
        bare[i] = first_frame(stacks[i], bare_member);
    }
}

static void
bare_fp_prepare(void)
{
    for (int i = 1; i < members; i++) {
        uintptr_t *words = first_frame(stacks[i], bare_fp_member) - 1;
        __asm__("stmxcsr (%0)\n\tfnstcw 4(%0)" : : "r"(words) : "memory");
        bare[i] = words;
    }
}

static void
bare_run(long rounds)
{
    for (long i = 0; i < rounds; i++) {
        bare_switch(&bare[0], bare[1]);
    }
}

static void
bare_fp_run(long rounds)
{
    for (long i = 0; i < rounds; i++) {
        bare_switch_fp(&bare[0], bare[1]);
    }
}

#endif

/* Boost.Context: the jump hands a pointer over, here the caller's own slot. */

#if defined(HAVE_FCONTEXT)

typedef struct {
    void *context;
    void *data;
} transfer_t;

transfer_t jump_fcontext(void *to, void *data);
void *make_fcontext(void *top, size_t size, void (*function)(transfer_t));

static void *boost[RING_MAX];

/* Whoever jumped here is told where it was suspended by the one it jumped
 * to; `data` says whose slot that is. */
static void
boost_jump(int to, void **own)
{
    transfer_t from = jump_fcontext(boost[to], own);
    *(void **)from.data = from.context;
}

static void
boost_member(transfer_t from)
{
    *(void **)from.data = from.context;
    int self = enter();
    for (;;) {
        boost_jump(after(self), &boost[self]);
    }
}

static void
boost_prepare(void)
{
    for (int i = 1; i < members; i++) {
        char *top = stacks[i] + STACK_SIZE;
        boost[i] = make_fcontext(top, STACK_SIZE, boost_member);
    }
}

static void
boost_run(long rounds)
{
    for (long i = 0; i < rounds; i++) {
        boost_jump(1, &boost[0]);
    }
}

#endif

/* Measuring. */

typedef struct subject {
    const char *name;
    void (*prepare)(void);
    void (*run)(long rounds);
    long switches; /* in one repetition */
} subject;

static const subject subjects[] = {
    {"pyfiber (" PF_CONTEXT_BACKEND ")", engine_prepare, engine_run, 20000000},
#if defined(__x86_64__)
    {"bare assembly", bare_prepare, bare_run, 20000000},
    {"bare + fp control words", bare_fp_prepare, bare_fp_run, 20000000},
#endif
#if defined(HAVE_FCONTEXT)
    {"Boost fcontext", boost_prepare, boost_run, 20000000},
#endif
    {"swapcontext", library_prepare, library_run, 1000000},
};
#define SUBJECTS (sizeof subjects / sizeof *subjects)

static double
now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

/* Nanoseconds for one switch. */
static double
measure(const subject *s)
{
    long rounds = s->switches / members;
    entered = 0;
    s->prepare();
    s->run(1); /* every member has been entered */
    double start = now();
    s->run(rounds);
    return (now() - start) / (double)(rounds * members);
}

static void
compare(const char *title, int ring)
{
    double best[SUBJECTS] = {0};
    members = ring;
    for (int i = 0; i < REPETITIONS; i++) {
        for (size_t s = 0; s < SUBJECTS; s++) {
            double time = measure(&subjects[s]);
            best[s] = i == 0 || time < best[s] ? time : best[s];
        }
    }
    printf("%s [ns a switch]\n", title);
    for (size_t s = 0; s < SUBJECTS; s++) {
        printf("  %-26s %8.2f  %6.2fx\n", subjects[s].name, best[s],
               best[s] / best[0]);
    }
}

int
main(void)
{
    for (int i = 0; i < RING_MAX; i++) {
        /* Tops of different colour: equal ones would share cache sets. */
        char *memory = aligned_alloc(4096, STACK_SIZE + 4096);
        if (memory == NULL) {
            return EXIT_FAILURE;
        }
        stacks[i] = memory + (size_t)128 * (size_t)i;
    }
    compare("ping-pong", 2);
    compare("ring of 16", RING_MAX);
    return EXIT_SUCCESS;
}
