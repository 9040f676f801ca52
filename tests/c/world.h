/* A thread with a scheduler, for tests, and fibers that run a function. */
#ifndef PF_TEST_WORLD_H
#define PF_TEST_WORLD_H

#include "engine/core/scheduler.h"

typedef struct world world;
typedef struct worker worker;
typedef void (*work_fn)(worker *w);

/* A test's fiber, freed when it is reaped unless `keep` is set. */
struct worker {
    union {
        pf_fiber fiber;
        pf_task task; /* the first part of the fiber */
    };
    world *world;
    work_fn work;
    long value;
    worker *other;
    pf_fiber *then; /* runs after this worker; NULL: the next one in order */
    bool keep;
};

struct world {
    pf_thread thread; /* first */
    pf_scheduler scheduler;
    int reaped;
    int switches;
    unsigned posted; /* all bits that arrived */
    int posts;       /* how often bits arrived */
    long trace[4096];
    int traced;
    int64_t time; /* what the fake clock shows */
};

extern const pf_task_ops worker_ops;

bool world_open(world *w);
void world_close(world *w);
void world_use_fake_clock(world *w);

/* Returns a prepared fiber, or NULL without memory. */
worker *world_worker(world *w, work_fn work, long value);
/* The same; the fiber is in the ready queue. */
worker *world_spawn(world *w, work_fn work, long value);
/* The same; the fiber gets its stack when it first runs. */
worker *world_spawn_lazily(world *w, work_fn work, long value);

/* A task that never has a stack.  In its turn, pf_scheduler_next does its
 * `work` on the caller's stack. */
typedef struct errand errand;
struct errand {
    pf_task task;
    world *world;
    void (*work)(errand *e);
    long value;
    const char *reads; /* what its turn will read */
    pf_fiber *then;    /* runs in its turn; NULL: the next one in order */
    int turns;
    unsigned posted; /* all bits that arrived */
};
void errand_init(errand *e, world *w, void (*work)(errand *e), long value);

void trace(world *w, long value);

#endif
