/* The table of parts: see parts.h. */
#include "python/core/parts.h"

const PfPart *const *pf_parts; /* constant after import */
const PfRootOps *pf_root_ops;  /* constant after import */

void
pf_parts_set(const PfPart *const *parts)
{
    pf_parts = parts;
    PF_EACH_PART(part, root) {
        pf_root_ops = part->root;
    }
}
