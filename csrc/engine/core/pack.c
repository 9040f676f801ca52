/* Moves the bytes of stacks into images and back; see pack.h.  homes.c decides
 * which fibers are packed, images.c makes the images. */
#include "engine/core/pack.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/memory.h"
#include "engine/core/packer.h"
#include "engine/core/scheduler.h"

#if PF_VALGRIND
#include <valgrind/valgrind.h>
#endif

/* Bytes of the mover's stack; a signal alone needs up to 11 KB. */
#define MOVER_STACK ((size_t)64 << 10)
/* Bytes: more than the functions between pf_pack_bring_home and the switch use
 * of the stack. */
#define UNTIL_SWITCH 4096

const char *
pf_pack_refused(void)
{
#if PF_WITH_ASAN || PF_WITH_TSAN
    return "the sanitizer must know where stacks are";
#else
#if PF_VALGRIND
    if (RUNNING_ON_VALGRIND) {
        return "valgrind must know where stacks are";
    }
#endif
    return PF_CONTEXT_TELLS_LOW
               ? NULL
               : "the system does not tell how much of a stack is in use";
#endif
}

/* ------------------------------------------------------------------- packing
 */

/* Returns the bytes in use.  If the fiber was left while it ran on another
 * stack than its own, in a context of the C API, it is unknown how far its own
 * stack is in use: then all of it counts. */
static pf_span
span_of(const pf_fiber *fiber, const pf_packing *packing)
{
    const pf_stack *stack = fiber->stack;
    char *low = pf_context_low(&fiber->context);
    if (low < stack->area.low || low >= (char *)stack) {
        low = stack->area.low + stack->guarded;
    }
    return (pf_span){low, packing->room_end};
}

static pf_image *
make_whole(pf_packer *packer, pf_fiber *fiber, const pf_span *span)
{
    size_t bytes = pf_span_bytes(span);
    pf_whole *whole = pf_whole_new(bytes);
    if (whole == NULL) {
        whole = packer->reserve;
        if (whole == NULL || whole->capacity < bytes) {
            return NULL;
        }
        packer->reserve = NULL;
    }
    pf_whole_fill(whole, fiber, span);
    whole->opened = pf_stack_opened(fiber->stack);
    return &whole->image;
}

static pf_image *
make_image(pf_packer *packer, pf_fiber *fiber, const pf_packing *packing,
           const pf_span *span)
{
    const pf_stack *stack = fiber->stack;
    bool inside = span->low == pf_context_low(&fiber->context);
    bool small =
        !packing->exposed && inside && !pf_stack_reserve_is_open(stack);
    if (small && packer->view == NULL) {
        packer->view = pf_whole_new(PF_MOST_SMALL_BYTES);
    }
    pf_image *image = small && packer->view != NULL
                          ? pf_image_small(&packer->forms, fiber, span)
                          : NULL;
    return image != NULL ? image : make_whole(packer, fiber, span);
}

/* Reports to the host where the fiber's bytes are from now on, because code
 * that looks at the fiber, or at what its frames refer to, must find the
 * image. */
static void
report_packed(pf_packer *packer, pf_fiber *fiber, const pf_span *span)
{
    pf_whole *whole = pf_image_whole(fiber->context.handle);
    if (whole == NULL) {
        packer->host->packed(fiber);
    } else {
        packer->host->moved(fiber, span->low, span->room_end,
                            pf_whole_distance(whole, fiber->stack));
    }
}

bool
pf_packer_pack(pf_packer *packer, pf_pack_store *store, pf_fiber *fiber,
               const pf_packing *packing)
{
    pf_stack *stack = fiber->stack;
    pf_span span = span_of(fiber, packing);
    pf_image *image = make_image(packer, fiber, packing, &span);
    if (image == NULL) {
        return false;
    }
    const pf_scheduler *s = fiber->task.scheduler;
    image->packed_at = s == NULL ? 0 : (uint32_t)s->switches;
    image->store = (uint16_t)(store - packer->stores);
    fiber->context.handle = image;
    fiber->task.has_stack = false;
    report_packed(packer, fiber, &span);
    store->packed++;
    store->packed_bytes += pf_image_size(image);
    packer->packings++;
    pf_image_poison(fiber, &span);
    pf_stack_leave(stack);
    pf_stack_trim_below(stack, span.low);
    return true;
}

int
pf_packer_clear(pf_thread *thread, pf_pack_store *store, const pf_stack *stack,
                bool anyhow)
{
    pf_fiber *fiber = stack->user;
    if (fiber == NULL) {
        return 0;
    }
    assert(fiber != thread->current && fiber->stack == stack);
    if (pf_fiber_is_over(fiber)) { /* about to be reaped: needs no image */
        pf_stack_leave(fiber->stack);
        return 0;
    }
    pf_packing packing = {0};
    thread->packer->host->look(thread, fiber, &packing);
    if (packing.pinned && !anyhow) {
        return -EBUSY;
    }
    return pf_packer_pack(thread->packer, store, fiber, &packing) ? 0
                                                                  : -ENOMEM;
}

/* ----------------------------------------------------------------- unpacking
 */

/* Opens at least as much of the reserve as was open when the fiber was packed.
 * False if the system refuses; then nothing has changed. */
static bool
open_reserve(pf_stack *stack, const pf_whole *whole)
{
    uint32_t opened = whole == NULL ? 0 : whole->opened;
    return opened <= pf_stack_opened(stack) ||
           pf_stack_open_reserve(stack,
                                 stack->area.low + stack->reserve - opened);
}

/* Closes the reserve if it was closed when the fiber was packed. */
static void
close_reserve(pf_stack *stack, const pf_whole *whole)
{
    if (whole == NULL || whole->opened == 0) {
        pf_stack_close_reserve(stack, stack);
    }
}

/* Subtracts an image that is about to be freed from the counts of its store,
 * and returns that. */
static pf_pack_store *
uncount(pf_packer *packer, pf_image *image)
{
    pf_pack_store *store = &packer->stores[image->store];
    store->packed--;
    store->packed_bytes -= pf_image_size(image);
    return store;
}

/* Puts the bytes of a packed fiber back into its home, which must be vacant.
 * 0 or -ENOMEM. */
static int
unpack(pf_packer *packer, pf_fiber *fiber)
{
    pf_image *image = fiber->context.handle;
    pf_whole *whole = pf_image_whole(image);
    pf_stack *stack = fiber->stack;
    if (!pf_stack_bring_back(packer->stores[image->store].pool, stack) ||
        !open_reserve(stack, whole)) {
        return -ENOMEM;
    }
    close_reserve(stack, whole);
    pf_image_restore(image, fiber);
    pf_stack_enter(stack, fiber);
    fiber->task.has_stack = true;
    if (whole == NULL) {
        packer->host->unpacked(fiber);
    } else {
        packer->host->moved(fiber, whole->base,
                            whole->base + whole->below + whole->above,
                            -pf_whole_distance(whole, stack));
    }
    packer->unpackings++;
    uncount(packer, image);
    pf_image_free(image);
    return 0;
}

int
pf_pack_show(pf_thread *thread, pf_fiber *fiber)
{
    pf_image *image = pf_pack_is_packed(fiber) ? fiber->context.handle : NULL;
    if (image == NULL || pf_image_whole(image) != NULL) {
        return 0;
    }
    pf_packer *packer = thread->packer;
    pf_whole *whole = pf_whole_new(pf_image_small_bytes(image));
    if (whole == NULL) {
        return -ENOMEM;
    }
    pf_whole_expand(whole, fiber, image);
    packer->stores[image->store].packed_bytes +=
        pf_image_size(&whole->image) - pf_image_size(image);
    fiber->context.handle = whole;
    char *low = (char *)fiber->stack - whole->below;
    packer->host->moved(fiber, low, low + whole->below + whole->above,
                        pf_whole_distance(whole, fiber->stack));
    pf_image_free(image);
    return 0;
}

char *
pf_pack_peek(const pf_thread *thread, const pf_fiber *fiber, const char **low,
             const char **high)
{
    pf_image *image = fiber->context.handle;
    pf_whole *whole = thread->packer->view;
    pf_whole_expand(whole, fiber, image);
    *low = (const char *)fiber->stack - whole->below;
    *high = *low + whole->below + whole->above;
    return whole->base + whole->below;
}

pf_stack_pool *
pf_pack_drop_image(pf_thread *thread, pf_fiber *fiber)
{
    pf_image *image = fiber->context.handle;
    pf_packer *packer = thread == NULL ? NULL : thread->packer;
    pf_stack_pool *pool = packer == NULL ? NULL : uncount(packer, image)->pool;
    pf_image_free(image);
    fiber->context.handle = NULL;
    return pool;
}

void
pf_pack_orphan(pf_thread *thread, pf_fiber *fiber)
{
    if (pf_pack_is_packed(fiber)) {
        pf_pack_store *store = uncount(thread->packer, fiber->context.handle);
        if (store->pool != NULL) {
            pf_stack_release_home(store->pool, fiber->stack);
        }
    }
}

/* ----------------------------------------------------------------- the mover
 *
 * The mover runs where the fiber that is left and the fiber that is entered
 * have the same home: neither stack can be used while the bytes change.  The
 * mover never runs the user's code, and between two uses only the frame of
 * `move` is on its stack. */

static pf_context *
move(void *arg)
{
    pf_thread *thread = arg;
    pf_packer *packer = thread->packer;
    pf_fiber *mover = packer->mover;
    for (;;) {
        pf_fiber *to = packer->comes;
        const pf_image *image = to->context.handle;
        pf_pack_store *store = &packer->stores[image->store];
        if (pf_packer_clear(thread, store, to->stack, true) != 0 ||
            unpack(packer, to) != 0) {
            abort(); /* cannot happen: by_mover has made sure */
        }
        thread->current = to;
        if (packer->host->on_arrival != NULL) {
            packer->host->on_arrival(thread, mover, to);
        }
        pf_context_switch(&mover->context, &to->context);
    }
    return NULL;
}

static bool
prepare_mover(pf_thread *thread)
{
    pf_packer *packer = thread->packer;
    if (packer->mover != NULL) {
        return true;
    }
    pf_fiber *mover = packer->host->new_mover(thread);
    pf_area area = {pf_memory_malloc(MOVER_STACK), MOVER_STACK, NULL};
    if (mover == NULL || area.low == NULL ||
        pf_context_init(&mover->context, &area, move, thread) != 0) {
        packer->host->free_mover(mover);
        free(area.low);
        return false;
    }
    mover->task.has_stack = true;
    mover->task.state = PF_RUNNING;
    packer->mover = mover;
    packer->mover_stack = area.low;
    return true;
}

/* Makes the reserve image, which must have room for the bytes that the running
 * fiber will have on its stack when it is left. */
static bool
prepare_reserve(pf_thread *thread, pf_packing *packing)
{
    pf_packer *packer = thread->packer;
    const pf_stack *stack = thread->current->stack;
    char here = 0, *low = &here;
    if (low < stack->area.low || low >= (char *)stack) {
        low = stack->area.low + stack->guarded;
    }
    size_t bytes = (size_t)(packing->room_end - low) + UNTIL_SWITCH;
    if (packer->reserve == NULL || packer->reserve->capacity < bytes) {
        free(packer->reserve);
        packer->reserve = pf_whole_new(bytes);
    }
    return packer->reserve != NULL;
}

/* Does everything that could fail, and returns the mover.  (A reserve that
 * this opens stays open until the mover has unpacked `to`.) */
static pf_fiber *
by_mover(pf_thread *thread, pf_fiber *to, bool anyhow, int *error)
{
    pf_packer *packer = thread->packer;
    pf_fiber *from = thread->current;
    const pf_whole *whole = pf_image_whole(to->context.handle);
    pf_packing packing = {0};
    *error = -ENOMEM;
    if (!prepare_mover(thread) || !open_reserve(to->stack, whole)) {
        return NULL;
    }
    packer->host->look(thread, from, &packing);
    if (packing.pinned && !anyhow) {
        *error = -EBUSY;
        return NULL;
    }
    if (!prepare_reserve(thread, &packing)) {
        return NULL;
    }
    packer->comes = to;
    *error = 0;
    return packer->mover;
}

static pf_fiber *
bring_home(pf_thread *thread, pf_fiber *fiber, bool anyhow, int *error)
{
    pf_packer *packer = thread->packer;
    const pf_image *image = fiber->context.handle;
    assert(pf_pack_is_packed(fiber) && fiber != thread->current);
    if (fiber->stack->user == thread->current) {
        return by_mover(thread, fiber, anyhow, error);
    }
    pf_pack_store *store = &packer->stores[image->store];
    *error = pf_packer_clear(thread, store, fiber->stack, anyhow);
    *error = *error != 0 ? *error : unpack(packer, fiber);
    return *error == 0 ? fiber : NULL;
}

pf_fiber *
pf_pack_bring_home(pf_thread *thread, pf_fiber *fiber, int *error)
{
    return bring_home(thread, fiber, false, error);
}

pf_fiber *
pf_pack_bring_home_anyhow(pf_thread *thread, pf_fiber *fiber)
{
    int error;
    pf_fiber *to;
    while ((to = bring_home(thread, fiber, true, &error)) == NULL) {
        thread->packer->host->pause(); /* others may free some memory */
    }
    return to;
}

pf_fiber *
pf_pack_next(pf_scheduler *s, pf_fiber *fiber)
{
    pf_packer *packer = s->thread->packer;
    int error;
    pf_fiber *to = pf_pack_bring_home(s->thread, fiber, &error);
    if (to != NULL) {
        packer->starved = 0;
        return to;
    }
    pf_queue_push(&s->ready, &fiber->task);
    if (++packer->starved >
        s->ready.count) { /* each ready task has had its turn in vain */
        packer->starved = 0;
        packer->host->pause();
    }
    return pf_scheduler_hub(s);
}

void
pf_pack_finish(pf_thread *thread)
{
    pf_packer *packer = thread->packer;
    if (packer == NULL) {
        return;
    }
    if (packer->mover != NULL) {
        pf_context_finish(&packer->mover->context);
        packer->host->free_mover(packer->mover);
        free(packer->mover_stack);
    }
    pf_forms_free(&packer->forms);
    free(packer->reserve);
    free(packer->view);
    free(packer);
    thread->packer = NULL;
}
