/* Does nothing: Windows reports a thread's end under the loader's lock, where
 * no code may wait for the GIL, so the host's function is never called. */
#include "engine/core/thread_end.h"

void
pf_thread_end_watch(void (*at_end)(void))
{
    (void)at_end;
}
