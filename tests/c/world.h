/* A thread with a scheduler, and fibers that run a function. */
#ifndef PF_TEST_WORLD_H
#define PF_TEST_WORLD_H

#include "engine/core/scheduler.h"

typedef struct world world;
typedef struct worker worker;
typedef void (*work_fn)(worker *w);

/* A fiber of the tests.  Freed when it is reaped unless `keep` is set. */
struct worker {
    union {
        pf_fiber fiber;
        pf_task task; /* its first part */
    };
    world *world;
    work_fn work;
    long value;
    worker *other;
    pf_fiber *then; /* who runs after it; NULL: whoever is next */
    bool keep;
};

struct world {
    pf_thread thread; /* first */
    pf_scheduler scheduler;
    int reaped;
    int switches;
    unsigned posted; /* bits that arrived */
    int posts;       /* times some did */
    long trace[4096];
    int traced;
    int64_t time; /* what the fake clock shows */
};

extern const pf_task_ops worker_ops;

bool world_open(world *w);
void world_close(world *w);
void world_use_fake_clock(world *w);

/* A prepared fiber; NULL: no memory. */
worker *world_worker(world *w, work_fn work, long value);
/* ... in the ready queue. */
worker *world_spawn(world *w, work_fn work, long value);
/* ... whose stack comes with its first run. */
worker *world_spawn_lazily(world *w, work_fn work, long value);

/* A task that never has a stack: `work` is done in its turn, by whoever looks
 * for the next one to run. */
typedef struct errand errand;
struct errand {
    pf_task task;
    world *world;
    void (*work)(errand *e);
    long value;
    const char *reads; /* what its turn will read */
    pf_fiber *then;    /* who runs in its turn; NULL: whoever is next */
    int turns;
    unsigned posted; /* bits that arrived */
};
void errand_init(errand *e, world *w, void (*work)(errand *e), long value);

void trace(world *w, long value);

#endif
