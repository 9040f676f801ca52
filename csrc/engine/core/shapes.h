/* Which suspended stacks may be moved.
 *
 * A stack may be moved if nothing outside of it points into it but what the
 * engine and its host know of.  Code that is not ours could have told anybody
 * where its variables are: so every call on the stack must be one in our own
 * code, or in a function that the host has allowed.
 *
 * To find the calls of a stack takes microseconds, and only the running stack
 * can be asked.  So it is done for a few stacks, which is called to learn, and
 * the others are compared with these: a shape is the depth of a stack and all
 * its return addresses at their places.  If a stack has the same words at the
 * same places, it has the same calls: the innermost return address is at a
 * known place, the function it leads to has there, at that instruction, a
 * frame of one size, which tells the place of the next, and so on.  (Frames
 * whose size varies are in functions that allocate on the stack; neither ours
 * nor those that are allowed do.)
 *
 * A thread's own; the functions allowed are the process's.
 */
#ifndef PF_SHAPES_H
#define PF_SHAPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/calls.h"
#include "engine/core/fiber.h"

typedef struct pf_form pf_form;

typedef struct pf_shape {
    struct pf_shape *next; /* in its bucket */
    pf_form *forms;        /* images.c's, the one used last first */
    uint32_t form_count;   /* in this list */
    uint32_t used_forms;   /* twice as many as were in use not long ago */
    uint32_t depth;        /* words from the handle to the header */
    uint32_t count;
    struct {
        uintptr_t word;
        uint32_t place; /* words from the handle */
    } calls[];
} pf_shape;

#define PF_SHAPE_BUCKETS 64
#define PF_MOST_SHAPES 4096

typedef struct pf_shapes {
    pf_shape *buckets[PF_SHAPE_BUCKETS];
    uint32_t count;
    uint32_t unknown;     /* met since the last one was learned */
    uint32_t patience;    /* so many are ignored before one is learned */
    uint32_t tries;       /* fibers that are left and may teach one; 0: none */
    const pf_fiber *read; /* its calls are known, it is just being left */
    uint64_t read_at;     /* the scheduler's count of switches then */
    pf_calls calls;
} pf_shapes;

void pf_shapes_init(pf_shapes *shapes);
/* `forget` frees a shape's forms. */
void pf_shapes_finish(pf_shapes *shapes, void (*forget)(pf_shape *shape));

/* The shape of a suspended fiber's stack, NULL: unknown, or may not be moved.
 */
pf_shape *pf_shapes_find(const pf_shapes *shapes, const pf_fiber *fiber);

/* A stack was not known: perhaps the next one should be learned.  True: it
 * should, so pf_shapes_look must be called wherever a fiber is left. */
bool pf_shapes_miss(pf_shapes *shapes);

/* The running fiber may be about to be left.  True: call again at the next
 * switch. */
bool pf_shapes_look(pf_shapes *shapes, const pf_fiber *running,
                    uint64_t switches);

/* This fiber loses its stack. */
static inline void
pf_shapes_forget(pf_shapes *shapes, const pf_fiber *fiber)
{
    if (shapes->read == fiber) {
        shapes->read = NULL;
    }
}

/* Calls in this function, as pf_calls_function names it, are harmless: 0 or
 * -ENOMEM.  At import only. */
int pf_shapes_allow(void *function);
bool pf_shapes_allowed(void *function);

#endif
