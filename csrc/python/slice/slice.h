/* slice/: time slices. A fiber that has run longer than its scheduler's slice
 * while another one could run is switched away from.
 *
 *   ticker.c  a thread that finds such fibers and arms their threads
 *   arm.c     how a thread is armed: the next jump, call or return of the
 *             fiber's Python code calls pf_slice_over()
 *   entry.c   may the fiber be left where it is?
 *   slice.c   the line in which preempted fibers wait, and how one gets there
 *
 * All of it needs the GIL: a build without one refuses a time slice
 * (task/scheduler.c).
 */
#ifndef PF_PYTHON_SLICE_H
#define PF_PYTHON_SLICE_H

#include "python/core/pyinclude.h"

#include "python/core/parts.h"
#include "python/core/thread.h"
#include "python/task/fiber.h"
#include "python/task/scheduler.h"

/* What a scheduler with a time slice keeps. Only the GIL's holder uses it,
 * except for the fields of the ticker. */
typedef struct PfSlice {
    PfWaitq line;    /* the preempted fibers, first come, first served */
    uint64_t served; /* core.switches when the line was served last */
    PyObject *armed; /* the code object, or on 3.11 the frame, whose next event
                        preempts; owned; NULL: none */
    uint64_t armed_at;          /* core.switches at that time */
    const FiberObject *cut_off; /* the thread of the program that was over its
                                   slice last while it was cut off; compared
                                   only */
    unsigned overtime;          /* how often `cut_off` was over its slice */
    bool open;                  /* counted by pf_ticker_open */
    uint64_t progress; /* the ticker's: core.switches at its last look */
    int64_t since;     /* the ticker's: since when, in nanoseconds */
} PfSlice;

PfSlice *pf_slice_of(const SchedulerObject *s);

/* Could another fiber run, or be woken by a timer or a descriptor, or does one
 * wait for the end of a fiber that it unwinds? Reads single words, so the
 * ticker asks without the GIL, too. */
bool pf_slice_others(const SchedulerObject *s);

/* May the running fiber of the thread be preempted at all? Runs no code. */
bool pf_slice_may(const PfThread *t, const SchedulerObject *s);

/* Called in the fiber when an armed event happens. 0, or -1 with FiberExit:
 * the fiber is unwound. Abandons a thread of the program that is being cut off
 * and has been over its slice too often. */
int pf_slice_over(PfThread *t);

/* --- ticker.c --- */
/* A scheduler with a time slice begins, or ends, to be watched. The first one
 * starts the ticker's thread, the last one ends it. 0, or -1 with an
 * exception. */
int pf_ticker_open(SchedulerObject *s);
void pf_ticker_close(SchedulerObject *s);
void pf_ticker_poke(void); /* a loop goes on that has slept */
void pf_ticker_stop(void); /* the interpreter exits */
int pf_ticker_after_fork(const PfThread *t); /* NULL: no record */
int pf_ticker_init(void);

/* --- arm.c --- */
/* Begin, or end, to use the interpreter's means; twice is fine. 0, or -1 with
 * RuntimeError if other tools use all of them. The GIL is held throughout. */
int pf_arm_begin(void);
void pf_arm_end(void);
/* Let the next event of the thread's running code call pf_slice_over(). The
 * thread is this one, or waits for the GIL. Runs no Python code. */
void pf_arm_thread(PfThread *t, SchedulerObject *s);
/* The same for calls of `code` alone. On 3.11 this does nothing: the ticker
 * tries again. */
void pf_arm_code(SchedulerObject *s, PyCodeObject *code);
void pf_arm_clear(SchedulerObject *s);
int pf_arm_init(PyObject *module);

/* --- entry.c --- */
/* Looks for a call from C code, below which the running fiber must not be
 * preempted. Returns 0: there is none; 1: there is one, and *below is the code,
 * borrowed, that goes on when the call is over, or NULL; or -1 with an
 * exception. May run Python code of pyfiber. */
int pf_entry_find(PfThread *t, PyCodeObject **below);
/* Is it code of pyfiber itself? */
bool pf_entry_is_own(const PyCodeObject *code);
/* Import what the functions above need: 0, or -1 with an exception. */
int pf_entry_load(void);
int pf_entry_init(PyObject *module);

extern const PfPart pf_slice_part;
int pf_slice_init(PyObject *module);

#endif
