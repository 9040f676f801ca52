/* Contexts for C programs: coroutines without a scheduler and without a host
 * language.
 *
 * A context is a fiber (fiber.h) with a separate host: one pf_thread per
 * operating-system thread, made with the first context and freed with the
 * last.  The main context is the stack that the thread was on when it left for
 * another context.  For this file the stack of a binding's fiber, for
 * instance, is just another part of the thread.
 *
 * Functions with an int result return 0 or -errno.
 */
#ifndef PF_CCONTEXT_H
#define PF_CCONTEXT_H

#include <stdbool.h>
#include <stddef.h>

#include "context/context.h"

typedef struct pf_ccontext pf_ccontext;

/* Runs as the body of a context.  `value` comes with the first switch to the
 * context; the result goes to the context that switched to this one last. */
typedef void *(*pf_ccontext_body)(void *arg, void *value);

/* The default size of a context's stack, in bytes. */
#define PF_CCONTEXT_STACK ((size_t)256 << 10)
/* Create a context and store it in *context.  `stack_size` in bytes; 0: the
 * default.  -EINVAL: no body, or a stack too small; -ENOMEM. */
int pf_ccontext_create(pf_ccontext **context, pf_ccontext_body body, void *arg,
                       size_t stack_size);

/* Leave the running context for `to` and pass *value; after the switch back,
 * *value is what was passed to this context.  `value` may be NULL.  -EINVAL:
 * `to` is NULL; -EPERM: `to` belongs to another thread; -ESRCH: `to` is
 * finished; -EBUSY: host code is on the running context's stack; -ENOMEM. */
int pf_ccontext_switch(pf_ccontext *to, void **value);

pf_ccontext *pf_ccontext_current(void);
pf_ccontext *pf_ccontext_main(void);

/* Has the context's body returned?  1 or 0; -EINVAL, -EPERM. */
int pf_ccontext_done(const pf_ccontext *context);

/* Free a context; NULL is allowed.  -EPERM; -EBUSY: `context` is running;
 * -EINVAL: `context` is the main one. */
int pf_ccontext_destroy(pf_ccontext *context);

/* The position in the host's own stack of this thread.  Two positions are
 * equal if nothing that was pushed between them is left on that stack. */
typedef struct pf_nesting {
    const void *marks[3];
} pf_nesting;

/* A host language whose interpreter has a stack per thread beside the C stack.
 * If host code runs on a context (called back from the body), that context
 * must not be left before the host code has returned. */
typedef struct pf_ccontext_host {
    void (*nesting)(pf_nesting *now);
    /* The thread is about to run on `area`; NULL: on the stack from which the
     * thread left the main context. */
    void (*moved)(const pf_area *area);
} pf_ccontext_host;

/* Set the host, once per process and before the first context.  `host` must
 * stay valid. */
void pf_ccontext_set_host(const pf_ccontext_host *host);

#endif
