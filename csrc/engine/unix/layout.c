/* See layout.h. */
#include "engine/unix/layout.h"

#include <unistd.h>

#include "engine/base/atomics.h"
#include "engine/stack/stack.h"

/* The bytes of the header's page from the lowest place of a header upwards:
 * 768 bytes for the colours, 64 for the header (80 with Valgrind's field), the
 * rest for the room's first bytes.  The other 2,432 bytes of a 4 KiB page are
 * for C frames.  A fiber that parks from Python uses 1.0 KiB of them on
 * CPython 3.11 to 3.13 and 1.6 KiB on 3.14 and 3.15, and 0.7 KiB more if it
 * starts the next fiber. */
#define ABOVE_HEADER 1664

/* Bytes.  A signal frame alone takes 3 to 11 KiB. */
#define LEAST_C_STACK ((size_t)16 << 10)

size_t
pf_stack_page_size(void)
{
    static PF_ATOMIC(size_t) known; /* all threads store the same value */
    size_t size = pf_load_relaxed(&known);
    if (size == 0) {
        size = (size_t)sysconf(_SC_PAGESIZE);
        pf_store(&known, size);
    }
    return size;
}

size_t
pf_layout_tail_size(size_t room_size)
{
    size_t lead = pf_stack_page_size() - ABOVE_HEADER;
    size_t above = lead + (PF_COLOURS - 1) * PF_COLOUR_STEP +
                   pf_layout_round_up(sizeof(pf_stack), 16) + room_size;
    return pf_layout_round_up(above, pf_stack_page_size()) - lead;
}

/* An eighth of the slot, 64 KiB at most: enough for the code that runs between
 * the fault and the exception (the host's handler), and little enough that the
 * stack does not miss it. */
size_t
pf_layout_reserve_size(size_t slot_size)
{
    size_t size = slot_size / 8;
    size_t most = (size_t)64 << 10;
    return (size < most ? size : most) / pf_stack_page_size() *
           pf_stack_page_size();
}

size_t
pf_stack_min(size_t room_size)
{
    size_t page = pf_stack_page_size();
    size_t rest = page + LEAST_C_STACK + pf_layout_tail_size(room_size);
    /* The reserve is an eighth of the slot, `rest` the other seven. */
    return pf_layout_round_up(rest + rest / 7, page);
}

size_t
pf_stack_slot_size(size_t slot_size, size_t room_size)
{
    size_t least = pf_stack_min(room_size);
    return pf_layout_round_up(slot_size < least ? least : slot_size,
                              pf_stack_page_size());
}

/* The stride is an odd number of pages.  A switch touches the first page of
 * each fiber, and pages that lie 256 KiB apart all compete for one set of the
 * TLB (16 sets of 4 entries): a switch in a ring of 16 fibers then takes 9 ns
 * instead of 5.  The extra page, if there is one, is part of the guard. */
size_t
pf_layout_stride(size_t slot_size)
{
    size_t page = pf_stack_page_size();
    return slot_size / page % 2 == 1 ? slot_size : slot_size + page;
}
