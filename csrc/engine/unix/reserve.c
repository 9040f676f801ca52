/* Opens and closes a stack's reserve: its lowest part, which stays guarded
 * until the rest is used up.  overflow.c opens it from the fault handler;
 * stack.h describes the functions. */
#include "engine/stack/guard.h"

static bool
reaches_reserve(const pf_stack *stack, const void *address)
{
    uintptr_t low = (uintptr_t)stack->area.low;
    uintptr_t place = (uintptr_t)address;
    return place >= low && place < low + stack->reserve;
}

bool
pf_stack_in_reserve(const pf_stack *stack, const void *address)
{
    return reaches_reserve(stack, address) &&
           (uintptr_t)address < (uintptr_t)stack->area.low + stack->guarded;
}

/* Returns how many bytes of the reserve stay guarded after a fault at
 * `address`: its lower half, or 0 if the address lies in that. */
static uint32_t
guarded_after(const pf_stack *stack, const void *address)
{
    size_t page = pf_stack_page_size();
    size_t half = stack->reserve / 2 / page * page;
    return (uintptr_t)address < (uintptr_t)stack->area.low + half
               ? 0
               : (uint32_t)half;
}

bool
pf_stack_is_last_reserve(const pf_stack *stack, const void *address)
{
    return guarded_after(stack, address) == 0;
}

bool
pf_stack_open_reserve(pf_stack *stack, const void *address)
{
    uint32_t rest = guarded_after(stack, address);
    if (!pf_guard_remove(stack->area.low + rest, stack->guarded - rest)) {
        return false;
    }
    stack->guarded = rest;
    return true;
}

/* Guarding the reserve returns its memory to the system, too.  If the system
 * refuses, the reserve stays open and only the guard below it is left. */
void
pf_guard_reserve(pf_stack *stack)
{
    if (pf_guard(stack->area.low, stack->reserve) != PF_GUARD_NONE) {
        stack->guarded = stack->reserve;
    }
}

bool
pf_stack_runs_in_reserve(const pf_stack *stack, const void *sp)
{
    return reaches_reserve(stack, sp) ||
           reaches_reserve(stack, (const char *)sp - pf_stack_page_size());
}

void
pf_stack_close_reserve(pf_stack *stack, const void *sp)
{
    if (pf_stack_reserve_is_open(stack) &&
        !pf_stack_runs_in_reserve(stack, sp)) {
        pf_guard_reserve(stack);
    }
}
