/* Set by testing/: see explore.h. */
#include "python/fiber/explore.h"

const PfExplorerOps *pf_explorer_ops;
uint32_t pf_exploring;
