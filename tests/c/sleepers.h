/* Fibers for tests of packing: they wait in a line, and their places in it lie
 * on their stacks, or move with them. */
#ifndef PF_TEST_SLEEPERS_H
#define PF_TEST_SLEEPERS_H

#include "engine/base/calls.h"
#include "engine/core/pack.h"
#include "world.h"

#if PF_CONTEXT_MOVES

#define STACK_SIZE ((size_t)64 << 10)
#define FEW 4     /* slots: their number is fixed */
#define ENOUGH 16 /* slots: there may be more for a while */
#define OUT_OF_LINE __attribute__((noinline))
/* The compiler does not know where it comes from, and cannot find it again. */
#define REMEMBER(variable) __asm__("" : "+r"(variable))

/* A static program does not know which code is its own: it learns nothing. */
#define SKIP_WHERE_CODE_IS_UNKNOWN()                                          \
    do {                                                                      \
        if (!pf_calls_own((uintptr_t)sleeper_wait + 1)) {                     \
            SKIP("own code is not known as such here");                       \
        }                                                                     \
    } while (0)

#define SKIP_WHERE_STACKS_STAY()                                              \
    do {                                                                      \
        if (!pf_can_pack()) {                                                 \
            SKIP("stacks cannot be moved here");                              \
        }                                                                     \
        SKIP_WHERE_CODE_IS_UNKNOWN();                                         \
    } while (0)

/* On the stack of who waits, and known to others. */
typedef struct place place;
typedef struct sleeper {
    worker worker; /* first */
    size_t stack_size;
    place *place;   /* in the line, now; NULL: not there */
    void *at;       /* what is on its stack */
    bool stays;     /* the host says so */
    int kept, left; /* calls of the host: it moved; it could not be packed */
} sleeper;

struct place {
    place *next;
    place *previous;
    sleeper *sleeper;
};

extern world sleepers_world; /* large; one test at a time */
extern place sleepers_line;  /* of all who wait */
extern int sleepers_finished;
extern int sleepers_lost;      /* for lack of a stack */
extern bool sleepers_all_stay; /* the host says so */
extern const pf_pack_host sleepers_host;

/* With so many slots. */
world *sleepers_open(size_t slots);
/* Without any; false: no memory. */
bool sleepers_try_to_open(void);
/* Lets all so many end, and nothing is left behind. */
void sleepers_close(int fibers);

/* In the ready queue; they get their stacks as they begin. */
sleeper *sleeper_spawn(work_fn work, long value);
sleeper *sleeper_spawn_sized(work_fn work, long value, size_t stack_size);
void sleepers_spawn(work_fn work, int count);

/* For their work: wait in line until woken; the line is right afterwards. */
void sleeper_wait(sleeper *self);
/* Work: waits three times, and finds all its variables as they were. */
void sleeper_keep_locals(worker *w);

/* Until none is ready. */
void sleepers_run(void);
/* Wake all in the line: how many. */
int sleepers_wake(void);
void sleepers_run_to_the_end(void);

pf_stack_pool *sleepers_pool(size_t stack_size);
/* Of the pool of STACK_SIZE. */
pf_pack_stats sleepers_stats(void);
size_t sleepers_live(void);
/* The first in line that has no stack; NULL: they all have. */
sleeper *sleepers_packed_one(void);

#endif

#endif
