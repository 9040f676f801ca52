/* The table of parts: see parts.h. */
#include "python/core/parts.h"

const PfPart *const *pf_parts;                    /* constant after import */
PfHooks pf_parts_hooks;                           /* constant after import */
size_t pf_parts_of_thread, pf_parts_of_scheduler; /* constant after import */

static void
place(PfKeeps *keeps, size_t *total)
{
    if (keeps != NULL) {
        keeps->at = *total;
        *total += (keeps->size + 15) & ~(size_t)15;
    }
}

#define TAKE(hook)                                                            \
    if (hooks->hook != NULL) {                                                \
        pf_parts_hooks.hook = hooks->hook;                                    \
    }

static void
take_hooks(const PfHooks *hooks)
{
    TAKE(root);
    TAKE(cancelling);
    TAKE(explorer);
    TAKE(migrate);
    TAKE(turns);
    TAKE(plain_fiber);
    TAKE(await);
    TAKE(view_done);
    TAKE(main_program);
}

void
pf_parts_set(const PfPart *const *parts)
{
    pf_parts = parts;
    pf_parts_of_thread = pf_parts_of_scheduler = 0;
    for (; *parts != NULL; parts++) {
        take_hooks(&(*parts)->hooks);
        place((*parts)->of_thread, &pf_parts_of_thread);
        place((*parts)->of_scheduler, &pf_parts_of_scheduler);
    }
}
