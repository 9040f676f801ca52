/* Contexts on Windows: the fibers of the operating system.
 *
 * Any other way would have to imitate what the system keeps in the thread
 * block (stack limits, exception chain, fiber-local storage).  The system also
 * makes the stack, so a system fiber stays with its area while that is pooled
 * and runs one entry after another.
 */
#include "context/backend.h"

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include <errno.h>
#include <stdlib.h>

/* A system fiber; area->os points to this. */
typedef struct os_fiber {
    void *fiber;
    void *maker; /* the fiber to return to after the stack is measured; NULL
                    afterwards, or if the thread was no fiber */
    pf_area *area;
    size_t size; /* of the stack, in bytes, as asked for */
    pf_start start;
    bool busy; /* from the start of an entry to its end; a fiber abandoned in
                  between cannot run another entry */
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

/* Stores the bounds of the running stack in its area; only code on the stack
 * itself can find them.  The part that the system keeps for handling an
 * overflow does not count.  If the system gave more than was asked for, the
 * rest stays unused, so that recursion is equally deep everywhere. */
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

/* The function of every system fiber.  Must not return, which would end the
 * thread. */
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
        pf_context_main(&os->start); /* returns for the next entry */
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
        SwitchToFiber(os->fiber); /* measures its stack and switches back */
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

/* Called after the entry has returned, before the system fiber is left. */
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

/* Asks for the current fiber, because the code of `from` may have moved to a
 * fiber of another library since it was entered.  A thread that switched to
 * the fiber it is already on would be lost, so a switch of a context to itself
 * does nothing. */
void
pf_context_jump(pf_context *from, pf_context *to)
{
    if (from != to) {
        from->handle = GetCurrentFiber();
        SwitchToFiber(to->handle);
    }
}

/* Unknown here: the system manages each fiber's stack. */
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
