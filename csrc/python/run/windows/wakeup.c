/* wakeup.h for Windows: the loop waits for the event that the interpreter sets
 * for Ctrl-C.  Other signals do not wake it. */
#include "python/run/wakeup.h"

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

/* Every version exports this function; only 3.11's and 3.12's headers declare
 * it. */
PyAPI_FUNC(void *) _PyOS_SigintEvent(void);

const PfPart pf_wakeup_part = {0}; /* Windows has no fork */

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

/* Without this the event would stay set, and the loop would spin. */
void
pf_wakeup_drain(void)
{
    ResetEvent((HANDLE)_PyOS_SigintEvent());
}
