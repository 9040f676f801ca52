/* Windows: the system's own fibers.
 *
 * Any other way would have to imitate what the system keeps in the thread
 * block (stack limits, exception chain, fiber-local storage).  The system also
 * makes the stack, so a fiber stays with its area while that is pooled: its
 * function runs one entry after another.
 */
#include "context/backend.h"

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include <errno.h>
#include <stdlib.h>

/* Behind area->os.  `busy` from the start of an entry to its end: a fiber
 * abandoned in the middle cannot run another one. */
typedef struct os_fiber {
    void *fiber;
    void *maker; /* runs it to measure its stack; NULL later on */
    pf_area *area;
    size_t size; /* asked for */
    pf_start start;
    bool busy;
} os_fiber;

#if defined(_MSC_VER)
#define THREAD_LOCAL __declspec(thread)
#else
#define THREAD_LOCAL _Thread_local
#endif

/* A thread may be adopted several times.  If the first adoption had to convert
 * it to a fiber, the last one to end undoes that. */
static THREAD_LOCAL unsigned adopted;
static THREAD_LOCAL bool converted;

/* The bounds of this stack can be found only on the stack itself.  The part
 * that the system keeps for handling an overflow is not ours; and if it gave
 * more than was asked for, the rest stays unused, for the same depth
 * everywhere. */
static void
measure(os_fiber *os)
{
    ULONG_PTR low, high;
    ULONG kept = 0; /* a query: a guarantee never shrinks */
    GetCurrentThreadStackLimits(&low, &high);
    if (SetThreadStackGuarantee(&kept)) {
        low += kept;
    }
    if (high - low > os->size) {
        low = high - os->size;
    }
    os->area->low = (char *)low;
    os->area->size = (size_t)(high - low);
}

/* A fiber function that returned would end the thread. */
static void CALLBACK
fiber_main(void *arg)
{
    os_fiber *os = arg;
    measure(os);
    if (os->maker != NULL) {
        SwitchToFiber(os->maker);
    }
    for (;;) {
        os->busy = true;
        pf_context_main(&os->start); /* comes back for the next entry */
    }
}

static int
make_fiber(pf_area *area)
{
    os_fiber *os = malloc(sizeof *os);
    if (os == NULL) {
        return -ENOMEM;
    }
    os->busy = false;
    os->area = area;
    os->size = area->size;
    os->maker = IsThreadAFiber() ? GetCurrentFiber() : NULL;
    os->fiber =
        CreateFiberEx(0, area->size, FIBER_FLAG_FLOAT_SWITCH, fiber_main, os);
    if (os->fiber == NULL) {
        free(os);
        return -ENOMEM;
    }
    if (os->maker != NULL) {
        SwitchToFiber(os->fiber); /* it measures its stack and comes back */
        os->maker = NULL;
    }
    area->os = os;
    return 0;
}

int
pf_backend_init(pf_context *context, pf_area *area, const pf_start *start)
{
    os_fiber *os = area->os;
    if (os != NULL && os->busy) {
        area->size = os->size;
        pf_backend_dispose(area);
    }
    if (area->os == NULL) {
        int error = make_fiber(area);
        if (error != 0) {
            return error;
        }
    }
    os = area->os;
    os->start = *start;
    context->handle = os->fiber;
    return 0;
}

/* The entry is over: before the fiber is left for the last time. */
void
pf_backend_ended(pf_start *start)
{
    os_fiber *os = CONTAINING_RECORD(start, os_fiber, start);
    os->busy = false;
}

int
pf_backend_adopt(pf_context *context)
{
    if (IsThreadAFiber()) {
        context->handle = GetCurrentFiber();
    } else {
        context->handle =
            ConvertThreadToFiberEx(NULL, FIBER_FLAG_FLOAT_SWITCH);
        if (context->handle == NULL) {
            return -ENOMEM;
        }
        converted = true;
    }
    adopted++;
    return 0;
}

void
pf_backend_forget(pf_context *context)
{
    context->handle = NULL;
    if (--adopted == 0 && converted) {
        converted = false;
        ConvertFiberToThread();
    }
}

void
pf_backend_dispose(pf_area *area)
{
    os_fiber *os = area->os;
    if (os != NULL) {
        DeleteFiber(os->fiber);
        free(os);
        area->os = NULL;
    }
}

/* The code that is left may have moved on to a fiber of another library since
 * it was entered.  A thread that switches to the fiber it is already on would
 * be lost. */
void
pf_context_jump(pf_context *from, pf_context *to)
{
    if (from != to) {
        from->handle = GetCurrentFiber();
        SwitchToFiber(to->handle);
    }
}

/* The system keeps each fiber's stack. */
char *
pf_context_low(const pf_context *context)
{
    (void)context;
    return NULL;
}

void *
pf_context_handle(char *end, const char *low)
{
    (void)end, (void)low;
    return NULL;
}
