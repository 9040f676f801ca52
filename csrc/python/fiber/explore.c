/* Set by testing/: see explore.h. */
#include "python/fiber/explore.h"

const PfExplorerOps *pf_explorer_ops; /* constant after import */
PF_ATOMIC(size_t) pf_exploring;       /* shared, one word */
