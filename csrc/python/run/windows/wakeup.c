/* The interpreter sets an event for Ctrl-C. */
#include "python/run/wakeup.h"

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

/* Exported by every version, declared by 3.11's and 3.12's headers only. */
PyAPI_FUNC(void *) _PyOS_SigintEvent(void);

const PfPart pf_wakeup_part = {0}; /* no fork there */

int
pf_wakeup_begin(PyObject *signals, long *old, intptr_t *descriptor)
{
    (void)signals;
    void *event = _PyOS_SigintEvent();
    *old = PF_WAKEUP_UNTOUCHED;
    *descriptor = event == NULL ? PF_NO_DESCRIPTOR : (intptr_t)event;
    return 0;
}

void
pf_wakeup_end(PyObject *signals, long old)
{
    (void)signals;
    (void)old;
}

/* The event stays set until somebody resets it: the loop would spin. */
void
pf_wakeup_drain(void)
{
    ResetEvent((HANDLE)_PyOS_SigintEvent());
}
