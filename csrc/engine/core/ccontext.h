/* Contexts for C programs: coroutines without a scheduler and without a host
 * language.
 *
 * They are the fibers of scheduler.h with a host of their own: one pf_thread
 * per operating-system thread, made with the first context and given back
 * with the last.  The thread's own stack is the main context.  "Own stack" is
 * the stack that the caller was on when it left: that of a binding's fiber,
 * for instance, which for this file is just another part of the thread.
 *
 * All functions return 0 or -errno.
 */
#ifndef PF_CCONTEXT_H
#define PF_CCONTEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "context/context.h"

typedef struct pf_ccontext pf_ccontext;

/* `value` comes with the first switch; the result goes to the context that
 * switched here last. */
typedef void *(*pf_ccontext_body)(void *arg, void *value);

/* 0: the default. */
#define PF_CCONTEXT_STACK ((size_t)256 << 10)
int pf_ccontext_create(pf_ccontext **context, pf_ccontext_body body, void *arg,
                       size_t stack_size);

/* -EINVAL no context; -EPERM another thread's; -ESRCH finished; -EBUSY the
 * host has something on the running context's stack; -ENOMEM. */
int pf_ccontext_switch(pf_ccontext *to, void **value);

pf_ccontext *pf_ccontext_current(void);
pf_ccontext *pf_ccontext_main(void);

/* 1 or 0; -EINVAL, -EPERM. */
int pf_ccontext_done(const pf_ccontext *context);

/* -EPERM; -EBUSY the running one; -EINVAL the main one. */
int pf_ccontext_destroy(pf_ccontext *context);

/* The host's own nesting on this thread: two of them are equal if nothing that
 * was pushed in between is still there. */
typedef struct pf_nesting {
    const void *marks[3];
} pf_nesting;

/* For a language whose interpreter keeps a stack per thread beside the C
 * stack.  If its code runs on a context (called back from the body), that
 * context must not be left before it has returned. */
typedef struct pf_ccontext_host {
    void (*nesting)(pf_nesting *now);
    /* The thread is about to run on `area`; NULL: on the stack from which it
     * left the main context. */
    void (*moved)(const pf_area *area);
} pf_ccontext_host;

/* Once per process, before the first context; the caller keeps the struct. */
void pf_ccontext_set_host(const pf_ccontext_host *host);

#endif
