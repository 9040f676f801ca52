/* See engine/base/calls.h. */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* dladdr */
#endif
#if defined(__APPLE__) && !defined(_DARWIN_C_SOURCE)
#define _DARWIN_C_SOURCE
#endif

#include "engine/base/calls.h"

#include "context/context.h"

#if PF_CONTEXT_MOVES

#include <dlfcn.h>
#include <unwind.h>

static _Unwind_Reason_Code
note(struct _Unwind_Context *context, void *data)
{
    pf_calls *calls = data;
    if (_Unwind_GetIP(context) == 0) {
        return _URC_NORMAL_STOP; /* the outermost function's caller */
    }
    if (calls->until != NULL &&
        (char *)_Unwind_GetCFA(context) >= calls->until) {
        return _URC_NORMAL_STOP;
    }
    if (calls->count == PF_MOST_CALLS) {
        calls->whole = false;
        return _URC_NORMAL_STOP;
    }
    calls->calls[calls->count++] = (pf_one_call){
        (uintptr_t)_Unwind_GetIP(context),
        (char *)_Unwind_GetCFA(context),
    };
    return _URC_NO_REASON;
}

void
pf_calls_read(pf_calls *calls, const char *until)
{
    calls->until = until;
    calls->count = 0;
    calls->whole = true;
    (void)_Unwind_Backtrace(note, calls);
}

/* The address is that of the instruction after the call, which may be the next
 * function's first. */
void *
pf_calls_function(uintptr_t back)
{
    return _Unwind_FindEnclosingFunction((void *)(back - 1));
}

static const void *
image_of(uintptr_t address)
{
    Dl_info info;
    return dladdr((void *)address, &info) != 0 ? info.dli_fbase : NULL;
}

bool
pf_calls_together(uintptr_t back, uintptr_t function)
{
    const void *image = image_of(back - 1);
    return image != NULL && image == image_of(function);
}

bool
pf_calls_own(uintptr_t back)
{
    return pf_calls_together(back, (uintptr_t)pf_calls_own);
}

#endif
