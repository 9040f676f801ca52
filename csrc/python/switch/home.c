/* Entering packed fibers: see home.h. */
#include "python/switch/home.h"

#include <errno.h>

#include "python/core/state.h"

pf_fiber *
pf_home_come(PfThread *t, FiberObject *fiber)
{
    int error;
    pf_fiber *to = pf_pack_bring_home(&t->engine, &fiber->fiber, &error);
    if (to == NULL && error == -ENOMEM) {
        PyErr_NoMemory();
    } else if (to == NULL) {
        PyErr_SetString(pf.fiber_error,
                        "the fiber cannot be entered while the garbage "
                        "collector runs on another one, which is where its "
                        "own stack has to be");
    }
    return to;
}
