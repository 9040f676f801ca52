/* A test runner small enough to read.
 *
 * A test is a function without arguments, named subject_condition.  A check
 * that fails prints both values and lets the test go on, since a test may be
 * on any stack; the test has then failed.  A test that cannot run here calls
 * SKIP with the reason and is counted neither way.
 */
#ifndef PF_TEST_CHECK_H
#define PF_TEST_CHECK_H

#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* tests, unlike the engine, use what strict C11 hides */
#endif

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "context/sanitizers.h"

typedef struct test {
    const char *name;
    void (*run)(void);
} test;

/* Versions of clang-format disagree about these. */
/* clang-format off */
#define TEST(name) {#name, name}
#define END_OF_TESTS {NULL, NULL}
/* clang-format on */

extern const test context_tests[];
extern const test ccontext_tests[];
extern const test stack_tests[];
extern const test timer_tests[];
extern const test inbox_tests[];
extern const test scheduler_tests[];
extern const test mutex_tests[];
extern const test interrupt_tests[];
extern const test thread_tests[];
extern const test wakeup_tests[];
extern const test waiting_tests[];
extern const test poller_tests[];
extern const test afd_tests[];
extern const test reactor_tests[];
extern const test descriptor_tests[];
extern const test record_tests[];
extern const test inmemory_tests[];
extern const test transit_tests[];
extern const test watch_tests[];
extern const test turn_tests[];
extern const test task_tests[];
extern const test pool_tests[];
extern const test pack_tests[];
extern const test slot_tests[];
extern const test lending_tests[];
extern const test spin_tests[];
extern const test overflow_tests[];
extern const test memory_tests[];
extern const test refusal_tests[];

/* main.c */
extern const char *poller_kind;
void check_failed(const char *file, int line, const char *text);
void check_skip(const char *reason);

#define CHECK(condition)                                                      \
    do {                                                                      \
        if (!(condition)) {                                                   \
            check_failed(__FILE__, __LINE__, #condition);                     \
        }                                                                     \
    } while (0)

/* Takes integers and booleans of any type. */
#define CHECK_EQUAL(a, b)                                                     \
    do {                                                                      \
        intmax_t check_a = (intmax_t)(a), check_b = (intmax_t)(b);            \
        if (check_a != check_b) {                                             \
            char check_text[256];                                             \
            snprintf(check_text, sizeof check_text,                           \
                     "%s == %s: %" PRIdMAX " and %" PRIdMAX, #a, #b, check_a, \
                     check_b);                                                \
            check_failed(__FILE__, __LINE__, check_text);                     \
        }                                                                     \
    } while (0)

/* Checks that `text` contains `part`. */
#define CHECK_CONTAINS(text, part)                                            \
    do {                                                                      \
        if (strstr((text), (part)) == NULL) {                                 \
            char check_text[2048];                                            \
            snprintf(check_text, sizeof check_text, "\"%s\" in \"%.1500s\"",  \
                     (part), (text));                                         \
            check_failed(__FILE__, __LINE__, check_text);                     \
        }                                                                     \
    } while (0)

#define SKIP(reason)                                                          \
    do {                                                                      \
        check_skip(reason);                                                   \
        return;                                                               \
    } while (0)

/* Returns pseudo-random numbers, the same ones on every run. */
static inline uint64_t
random_next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* Returns a large count for tests with many objects.  The count is smaller
 * under checkers, which are slow; ThreadSanitizer has room for 8,000 fibers in
 * the life of a process. */
int many(void);

bool running_on_valgrind(void);

#endif
