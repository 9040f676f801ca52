/* Windows tells a library of a thread's end under the loader's lock, where no
 * code may wait for the interpreter's: nobody is told. */
#include "engine/core/thread_end.h"

void
pf_watch_thread_end(void (*at_end)(void))
{
    (void)at_end;
}
