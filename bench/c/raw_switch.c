/* Times one context switch in C, without Python: the engine's, bare assembly
 * (the least that is possible), the C library's and, where its library is
 * found, Boost's.
 *
 *     make -C bench/c run
 *     raw_switch SUBJECT RING SWITCHES     prints the nanoseconds of a switch
 *
 * The contexts of a ring, the main one among them, pass control each to the
 * next; a ring of two is a ping-pong.  All members run the same loop.  The
 * main one counts its rounds; the others are abandoned at the end.  So each
 * subject has one return address, which the processor predicts rightly, as in
 * a program whose fibers all wait in one function.
 *
 * The subjects take turns and the best of a few repetitions counts, so that a
 * busy moment of the machine affects all of them.
 */
#include <limits.h>
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

#define NOT_INLINED __attribute__((noinline)) static

static char *stacks[RING_MAX];

/* The measured ring.  Member 0 is the main context.  The others are entered in
 * order, so each gets its number by counting the earlier ones. */
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

NOT_INLINED void
engine_run(int self, long rounds)
{
    pf_context *from = &engine[self], *to = &engine[after(self)];
    for (; rounds > 0; rounds--) {
        pf_context_switch(from, to);
    }
}

static pf_context *
engine_member(void *arg)
{
    engine_run(enter(), LONG_MAX);
    return arg;
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

/* swapcontext of the C library, which also switches the signal mask. */

static ucontext_t library[RING_MAX];

NOT_INLINED void
library_run(int self, long rounds)
{
    ucontext_t *from = &library[self], *to = &library[after(self)];
    for (; rounds > 0; rounds--) {
        swapcontext(from, to);
    }
}

static void
library_member(void)
{
    library_run(enter(), LONG_MAX);
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

/* Bare assembly, without and with the floating-point control words. */

#if defined(__x86_64__)

void bare_switch(void **from, void *to);
void bare_switch_fp(void **from, void *to);

static void *bare[RING_MAX];

NOT_INLINED void
bare_run(int self, long rounds)
{
    void **from = &bare[self], **to = &bare[after(self)];
    for (; rounds > 0; rounds--) {
        bare_switch(from, *to);
    }
}

static void
bare_member(void)
{
    bare_run(enter(), LONG_MAX);
}

NOT_INLINED void
bare_fp_run(int self, long rounds)
{
    void **from = &bare[self], **to = &bare[after(self)];
    for (; rounds > 0; rounds--) {
        bare_switch_fp(from, *to);
    }
}

static void
bare_fp_member(void)
{
    bare_fp_run(enter(), LONG_MAX);
}

/* Writes a first frame: registers of no meaning, and the function to return
 * into. */
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

#endif

/* Boost.Context: the jump passes a pointer, here the address of the caller's
 * slot. */

#if defined(HAVE_FCONTEXT)

typedef struct {
    void *context;
    void *data;
} transfer_t;

transfer_t jump_fcontext(void *to, void *data);
void *make_fcontext(void *top, size_t size, void (*function)(transfer_t));

static void *boost[RING_MAX];

/* A jump returns the context that jumped here, at the place where it is
 * suspended; `data` is the address of that context's slot, which must be
 * updated. */
NOT_INLINED void
boost_run(int self, long rounds)
{
    void **own = &boost[self], **to = &boost[after(self)];
    for (; rounds > 0; rounds--) {
        transfer_t from = jump_fcontext(*to, own);
        *(void **)from.data = from.context;
    }
}

static void
boost_member(transfer_t from)
{
    *(void **)from.data = from.context;
    boost_run(enter(), LONG_MAX);
}

static void
boost_prepare(void)
{
    for (int i = 1; i < members; i++) {
        char *top = stacks[i] + STACK_SIZE;
        boost[i] = make_fcontext(top, STACK_SIZE, boost_member);
    }
}

#endif

/* Measuring. */

typedef struct subject {
    const char *name;
    void (*prepare)(void);
    void (*run)(int self, long rounds);
    long switches; /* in one repetition */
} subject;

static const subject subjects[] = {
    {"pyfiber", engine_prepare, engine_run, 20000000},
#if defined(__x86_64__)
    {"bare assembly", bare_fp_prepare, bare_fp_run, 20000000},
    {"... of registers only", bare_prepare, bare_run, 20000000},
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

/* Returns the nanoseconds of one switch. */
static double
measure(const subject *s, int ring, long switches)
{
    long rounds = (switches + ring - 1) / ring;
    members = ring;
    entered = 0;
    s->prepare();
    s->run(0, 1); /* so that every member has been entered */
    double start = now();
    s->run(0, rounds);
    return (now() - start) / (double)(rounds * ring);
}

static void
compare(const char *title, int ring)
{
    double best[SUBJECTS] = {0};
    for (int i = 0; i < REPETITIONS; i++) {
        for (size_t s = 0; s < SUBJECTS; s++) {
            double time = measure(&subjects[s], ring, subjects[s].switches);
            best[s] = i == 0 || time < best[s] ? time : best[s];
        }
    }
    printf("%s [ns a switch], pyfiber by " PF_CONTEXT_BACKEND "\n", title);
    for (size_t s = 0; s < SUBJECTS; s++) {
        printf("  %-26s %8.2f  %6.2fx\n", subjects[s].name, best[s],
               best[s] / best[0]);
    }
}

static int
measure_one(const char *name, int ring, long switches)
{
    if (ring < 2 || ring > RING_MAX || switches < 1) {
        fprintf(stderr, "a ring has 2 to %d contexts\n", RING_MAX);
        return EXIT_FAILURE;
    }
    for (size_t s = 0; s < SUBJECTS; s++) {
        if (strcmp(subjects[s].name, name) == 0) {
            printf("%.4f\n", measure(&subjects[s], ring, switches));
            return EXIT_SUCCESS;
        }
    }
    fprintf(stderr, "there is no %s for this processor\n", name);
    return EXIT_FAILURE;
}

int
main(int argc, char **argv)
{
    for (int i = 0; i < RING_MAX; i++) {
        /* Tops at different offsets in a page: equal ones would share cache
         * sets. */
        char *memory = aligned_alloc(4096, STACK_SIZE + 4096);
        if (memory == NULL) {
            return EXIT_FAILURE;
        }
        stacks[i] = memory + (size_t)128 * (size_t)i;
    }
    if (argc == 4) {
        return measure_one(argv[1], atoi(argv[2]), atol(argv[3]));
    }
    compare("ping-pong", 2);
    compare("ring of 16", RING_MAX);
    return EXIT_SUCCESS;
}
