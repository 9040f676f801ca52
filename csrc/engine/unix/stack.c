/* Stacks as slots of mmap'ed slabs.
 *
 * A slab keeps its free slots in a LIFO array of indices; slots that were
 * never used have no guard yet and are taken in order after those.  A slab is
 * in the pool's list of open slabs exactly while it has a free slot; the most
 * recently used slab is first.  A full slab is known only to its stacks.
 */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* MAP_ANONYMOUS, madvise */
#endif
#if defined(__APPLE__) && !defined(_DARWIN_C_SOURCE)
#define _DARWIN_C_SOURCE
#endif

#include "engine/stack/stack.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/base/atomics.h"
#include "engine/base/clock.h"
#include "engine/stack/guard.h"
#include "engine/base/memory.h"
#include "engine/stack/testing.h"

#if PF_VALGRIND
#include <valgrind/valgrind.h>
#endif

#if !defined(MAP_NORESERVE)
#define MAP_NORESERVE 0
#endif
#if !defined(MAP_STACK) || defined(__FreeBSD__) /* grows by itself there */
#define SLAB_MAP_STACK 0
#else
#define SLAB_MAP_STACK MAP_STACK
#endif
#if !defined(MAP_ANONYMOUS)
#define MAP_ANONYMOUS MAP_ANON
#endif
#if defined(__APPLE__)
#define DISCARD MADV_FREE
#else
#define DISCARD MADV_DONTNEED
#endif

/* The first slab has few slots, as most programs need few; each next slab has
 * twice as many, so a million stacks take a few thousand mmap calls.
 * SLAB_BYTES keeps a slab of huge stacks from taking a large part of the
 * address space (or of RLIMIT_AS). */
#if defined(PYFIBER_HARDTEST)
#define FIRST_SLOTS 1
#define MOST_SLOTS 1
#define MOST_AT_HAND 0
#else
#define FIRST_SLOTS 16
#define MOST_SLOTS 256
#define MOST_AT_HAND 8 /* each may keep a slab from being spare */
#endif
#define SLAB_BYTES ((size_t)256 << 20)

/* The part of the header's page above the lowest place of a header: 384 bytes
 * for colours, 80 for the header, the rest for the room's first bytes.  The
 * 2,816 bytes below, of a 4 KiB page, are for C frames: a fiber that parks
 * from Python uses 1.0 KiB of them on CPython 3.11 to 3.13 and 1.6 on 3.14 and
 * 3.15, and 0.7 more if it starts the next one. */
#define ABOVE_HEADER 1280
#define COLOURS 4
#define COLOUR_STEP 128

#define LEAST_C_STACK ((size_t)16 << 10) /* a signal frame alone takes 3-11 */

/* About one release in 256 returns the deep part of its stack, all but
 * KEEP_TOP bytes, to the system: one deep recursion must not hold its memory
 * for ever, and the other releases pay only a decrement. */
#define TRIM_EVERY 256
#define KEEP_TOP ((size_t)16 << 10)

/* Entirely free slabs are kept while the load of the last PERIOD, or of the
 * one before, would need them: to map a stack, guard it and touch it for the
 * first time costs some 5 us, to take a free one 0.05.  So a fluctuating load
 * pays once, and the slabs that a peak left behind are returned a second or
 * two later.  This work is spread: one release returns at most two slabs. */
#define PERIOD INT64_C(1000000000) /* ns */
#define AT_ONCE 2

/* ... and this many even without any load. */
#define ALWAYS_SPARE 16

struct pf_slab {
    pf_stack_pool *pool;
    pf_slab *next; /* among the open ones */
    pf_slab *previous;
    char *base;
    uint32_t count; /* slots */
    uint32_t fresh; /* slots from here on were never used, have no guard */
    uint32_t live;
    uint32_t split;      /* slots whose guard is a mapping of its own */
    uint32_t free_count; /* == fresh - live */
    uint32_t discarded;  /* how many of these, the first, hold no memory */
    uint32_t free[];     /* indices; the last one is reused first */
};

/* Invariants: `spare` counts the slabs with no live stack, all of them open;
 * slots and mapped are sums over all slabs; the slabs count as live both
 * `live` and the stacks at hand. */
struct pf_stack_pool {
    pf_slab *open;
    pf_stack *at_hand; /* released, still set up */
    uint32_t hand_count;
    size_t slot_size;
    size_t stride; /* from slot to slot; see stride_of */
    size_t reserve;
    size_t tail;         /* from the header of colour 0 to the slot's end */
    uint32_t next_count; /* slots of the next slab */
    uint32_t until_trim;
    size_t slabs;
    size_t spare;
    size_t peak_now;     /* slabs in use at once, in this period */
    size_t peak_last;    /* ... in the one before */
    int64_t period_ends; /* on the monotonic clock; 0: none has begun */
    pf_limit limit;
    bool abandoned; /* freed while stacks were live */
    size_t slots;
    size_t live;
    size_t peak;
    uint64_t acquired;
    uint64_t trims;
};

static PF_ATOMIC(size_t) split_guards; /* mprotect'ed ones, whole process */

/* `unit` is a power of two: no division on the way to a stack. */
static inline size_t
round_up(size_t n, size_t unit)
{
    return (n + unit - 1) & ~(unit - 1);
}

size_t
pf_page_size(void)
{
    static PF_ATOMIC(size_t) known; /* the same for all threads */
    size_t size = pf_load_relaxed(&known);
    if (size == 0) {
        size = (size_t)sysconf(_SC_PAGESIZE);
        pf_store(&known, size);
    }
    return size;
}

/* ---------------------------------------------------------- limits --- */

/* The first number in a /proc file; 0 if there is none. */
static size_t
read_number(const char *path)
{
    char text[32];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return 0;
    }
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = '\0';
    return (size_t)strtoull(text, NULL, 10);
}

/* mmap reports ENOMEM for several reasons: which one was it? */
static pf_limit
diagnose(size_t wanted)
{
    size_t maps = read_number("/proc/sys/vm/max_map_count");
    if (maps != 0 && pf_load(&split_guards) * 2 > maps / 2) {
        return PF_LIMIT_MAP_COUNT;
    }
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
        return PF_LIMIT_MEMORY;
    }
    size_t used = read_number("/proc/self/statm") * pf_page_size();
    if (used != 0 && used + wanted <= limit.rlim_cur) {
        return PF_LIMIT_MEMORY;
    }
    return PF_LIMIT_ADDRESS_SPACE;
}

/* ----------------------------------------------------------- slabs --- */

static void
open_slab(pf_stack_pool *pool, pf_slab *slab)
{
    slab->previous = NULL;
    slab->next = pool->open;
    if (pool->open != NULL) {
        pool->open->previous = slab;
    }
    pool->open = slab;
}

static void
close_slab(pf_stack_pool *pool, pf_slab *slab)
{
    if (slab->previous == NULL) {
        pool->open = slab->next;
    } else {
        slab->previous->next = slab->next;
    }
    if (slab->next != NULL) {
        slab->next->previous = slab->previous;
    }
}

static char *
map_slab(size_t bytes)
{
    if (pf_refused()) {
        return NULL;
    }
    char *base = mmap(
        NULL, bytes, PROT_READ | PROT_WRITE,
        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | SLAB_MAP_STACK, -1, 0);
    if (base == MAP_FAILED) {
        return NULL;
    }
#if defined(MADV_NOHUGEPAGE)
    /* One touched page must not become 2 MiB. */
    (void)madvise(base, bytes, MADV_NOHUGEPAGE);
#endif
    return base;
}

static uint32_t
most_slots(const pf_stack_pool *pool)
{
    size_t most = SLAB_BYTES / pool->stride;
    return most < 1 ? 1 : most < MOST_SLOTS ? (uint32_t)most : MOST_SLOTS;
}

/* Near a limit a smaller slab may still fit. */
static char *
map_slots(pf_stack_pool *pool, uint32_t *count)
{
    for (; *count > 0; *count /= 2) {
        char *base = map_slab(*count * pool->stride);
        if (base != NULL) {
            return base;
        }
    }
    return NULL;
}

static pf_slab *
slab_new(pf_stack_pool *pool)
{
    uint32_t most = most_slots(pool);
    uint32_t count = pool->next_count < most ? pool->next_count : most;
    pf_slab *slab = pf_malloc(sizeof *slab + count * sizeof slab->free[0]);
    if (slab == NULL) {
        pool->limit = PF_LIMIT_MEMORY;
        return NULL;
    }
    char *base = map_slots(pool, &count);
    if (base == NULL) {
        pool->limit = diagnose(pool->stride);
        free(slab);
        return NULL;
    }
    *slab = (pf_slab){.pool = pool, .base = base, .count = count};
    open_slab(pool, slab);
    pool->next_count = count * 2;
    pool->slabs++;
    pool->spare++;
    pool->slots += count;
    return slab;
}

/* Only a spare slab. */
static void
slab_free(pf_stack_pool *pool, pf_slab *slab)
{
    size_t bytes = slab->count * pool->stride;
    pf_area whole = {slab->base, bytes, NULL};
    pf_area_dispose(&whole);
    munmap(slab->base, bytes);
    pf_fetch_sub(&split_guards, slab->split);
    close_slab(pool, slab);
    pool->slabs--;
    pool->spare--;
    pool->slots -= slab->count;
    free(slab);
}

/* ------------------------------------------------------------ pool --- */

static size_t
tail_size(size_t room_size)
{
    size_t lead = pf_page_size() - ABOVE_HEADER;
    size_t above = lead + (COLOURS - 1) * COLOUR_STEP +
                   round_up(sizeof(pf_stack), 16) + room_size;
    return round_up(above, pf_page_size()) - lead;
}

/* An eighth: enough for the code between the fault and the exception (the
 * host's handler), and small enough not to be missed. */
static size_t
reserve_size(size_t slot_size)
{
    size_t size = slot_size / 8;
    size_t most = (size_t)64 << 10;
    return (size < most ? size : most) / pf_page_size() * pf_page_size();
}

size_t
pf_stack_min(size_t room_size)
{
    size_t page = pf_page_size();
    size_t rest = page + LEAST_C_STACK + tail_size(room_size);
    return round_up(rest + rest / 7, page); /* the rest is seven eighths */
}

size_t
pf_stack_slot_size(size_t slot_size, size_t room_size)
{
    size_t least = pf_stack_min(room_size);
    return round_up(slot_size < least ? least : slot_size, pf_page_size());
}

/* An odd number of pages.  A switch touches the first page of every fiber; at
 * a distance of 256 KiB all of these would compete for one set of the
 * translation cache (16 sets of 4): 9 ns a switch in a ring of 16 fibers
 * instead of 5.  The extra page, if any, becomes part of the guard. */
static size_t
stride_of(size_t slot_size)
{
    size_t page = pf_page_size();
    return slot_size / page % 2 == 1 ? slot_size : slot_size + page;
}

static size_t
guard_size(const pf_stack_pool *pool)
{
    return pool->stride - pool->slot_size + pf_page_size();
}

pf_stack_pool *
pf_stack_pool_new(size_t slot_size, size_t room_size)
{
    pf_stack_pool *pool = pf_calloc(1, sizeof *pool);
    if (pool == NULL) {
        return NULL;
    }
    pool->slot_size = pf_stack_slot_size(slot_size, room_size);
    pool->stride = stride_of(pool->slot_size);
    pool->reserve = reserve_size(pool->slot_size);
    pool->tail = tail_size(room_size);
    pool->next_count = FIRST_SLOTS;
    pool->until_trim = TRIM_EVERY;
    return pool;
}

static void
free_spare_slabs(pf_stack_pool *pool, size_t count)
{
    for (pf_slab *slab = pool->open, *next; slab != NULL && count > 0;
         slab = next) {
        next = slab->next;
        if (slab->live == 0) {
            slab_free(pool, slab);
            pool->trims++;
            count--;
        }
    }
}

/* ---------------------------------------------------------- stacks --- */

static char *
slot_address(const pf_slab *slab, uint32_t slot)
{
    return slab->base + slot * slab->pool->stride;
}

/* The stack of a slot, with everything in its header. */
static pf_stack *
set_up(pf_slab *slab, uint32_t slot)
{
    pf_stack_pool *pool = slab->pool;
    char *low = slot_address(slab, slot);
    char *end = low + pool->stride;
    pf_stack *stack =
        (pf_stack *)(end - pool->tail + slot % COLOURS * COLOUR_STEP);
    low += guard_size(pool);
    stack->area = (pf_area){low, (size_t)((char *)stack - low), NULL};
    stack->slab = slab;
    stack->slot = slot;
    stack->reserve = (uint32_t)pool->reserve;
    stack->guarded = stack->reserve;
    stack->room = (char *)stack + round_up(sizeof *stack, 16);
    stack->room_size = (uint32_t)(end - stack->room);
    stack->user = NULL;
#if PF_VALGRIND
    stack->valgrind_id = VALGRIND_STACK_REGISTER(low, (char *)stack);
#endif
    return stack;
}

/* A slot of this slab, or slab->count if a guard is refused. */
static uint32_t
take_slot(pf_slab *slab)
{
    if (slab->free_count > 0) {
        slab->free_count--;
        if (slab->discarded > slab->free_count) {
            slab->discarded = slab->free_count;
        }
        return slab->free[slab->free_count];
    }
    size_t size = guard_size(slab->pool) + slab->pool->reserve;
    switch (pf_guard(slot_address(slab, slab->fresh), size)) {
    case PF_GUARD_NONE:
        slab->pool->limit = PF_LIMIT_MAP_COUNT;
        return slab->count;
    case PF_GUARD_MPROTECT:
        slab->split++;
        pf_fetch_add(&split_guards, 1);
        break;
    default:
        break;
    }
    return slab->fresh++;
}

/* The first open slab cannot get a new guard: find a slot that has one. */
static pf_slab *
slab_with_guarded_slot(const pf_stack_pool *pool)
{
    pf_slab *slab = pool->open;
    while (slab != NULL && slab->free_count == 0) {
        slab = slab->next;
    }
    return slab;
}

static void
note_taken(pf_stack_pool *pool, pf_slab *slab)
{
    if (slab->live++ == 0) {
        pool->spare--;
        size_t used = pool->slabs - pool->spare;
        if (used > pool->peak_now) {
            pool->peak_now = used;
        }
    }
    if (slab->live == slab->count) {
        close_slab(pool, slab);
    }
}

/* Take one from a slab; NULL: there is none. */
static pf_stack *
take_stack(pf_stack_pool *pool)
{
    pf_slab *slab = pool->open;
    if (slab == NULL && (slab = slab_new(pool)) == NULL) {
        return NULL;
    }
    uint32_t slot = take_slot(slab);
    if (slot == slab->count) {
        slab = slab_with_guarded_slot(pool);
        if (slab == NULL) {
            return NULL;
        }
        slot = take_slot(slab);
    }
    note_taken(pool, slab);
    return set_up(slab, slot);
}

int
pf_stack_acquire(pf_stack_pool *pool, pf_stack **stack)
{
    pf_stack *taken = pool->at_hand;
    if (taken != NULL) {
        pool->at_hand = taken->next;
        pool->hand_count--;
        taken->user = NULL;
    } else if ((taken = take_stack(pool)) == NULL) {
        *stack = NULL;
        return -ENOMEM;
    }
    pool->acquired++;
    if (++pool->live > pool->peak) {
        pool->peak = pool->live;
    }
    *stack = taken;
    return 0;
}

static void
next_period(pf_stack_pool *pool, int64_t now)
{
    size_t used = pool->slabs - pool->spare;
    if (now >= pool->period_ends) {
        bool just = now < pool->period_ends + PERIOD;
        pool->peak_last = just ? pool->peak_now : used;
        pool->peak_now = used;
        pool->period_ends = now + PERIOD;
    }
}

/* How many spare slabs does the load not need? */
static size_t
superfluous(const pf_stack_pool *pool)
{
    size_t used = pool->slabs - pool->spare;
    size_t load =
        pool->peak_now > pool->peak_last ? pool->peak_now : pool->peak_last;
    size_t keep = load > used ? load - used : 0;
    size_t always = 1 + load / 4;
    if (always > ALWAYS_SPARE) {
        always = ALWAYS_SPARE;
    }
    if (keep < always) {
        keep = always;
    }
    return pool->spare > keep ? pool->spare - keep : 0;
}

static void
give_back(pf_stack_pool *pool, size_t most)
{
    size_t count = superfluous(pool);
    free_spare_slabs(pool, count < most ? count : most);
}

/* The slab has no live stack left: keep it or return it? */
static void
slab_spared(pf_stack_pool *pool, pf_slab *slab)
{
    pool->spare++;
    if (!pool->abandoned) {
        next_period(pool, pf_monotonic());
        give_back(pool, AT_ONCE);
        return;
    }
    slab_free(pool, slab);
    if (pool->live == 0) {
        free(pool);
    }
}

/* To the front of the open slabs: its slots are the warmest. */
static void
prefer(pf_stack_pool *pool, pf_slab *slab, bool was_full)
{
    if (pool->open == slab) {
        return;
    }
    if (!was_full) {
        close_slab(pool, slab);
    }
    open_slab(pool, slab);
}

/* Return it to its slab.  An abandoned pool may be gone afterwards. */
static void
put_stack_back(pf_stack *stack)
{
    pf_slab *slab = stack->slab;
    pf_stack_pool *pool = slab->pool;
#if PF_VALGRIND
    VALGRIND_STACK_DEREGISTER(stack->valgrind_id);
#endif
    bool was_full = slab->live == slab->count;
    slab->free[slab->free_count++] = stack->slot;
    prefer(pool, slab, was_full);
    if (--slab->live == 0) {
        slab_spared(pool, slab);
    }
}

/* Return all stacks at hand, the most recently released one last: it is the
 * first to be reused. */
static void
put_back(pf_stack_pool *pool)
{
    pf_stack *stack = pool->at_hand;
    pf_stack *last_first = NULL;
    pool->at_hand = NULL;
    pool->hand_count = 0;
    while (stack != NULL) {
        pf_stack *next = stack->next;
        stack->next = last_first;
        last_first = stack;
        stack = next;
    }
    while (last_first != NULL) {
        stack = last_first;
        last_first = stack->next;
        put_stack_back(stack);
    }
}

void
pf_stack_pool_free(pf_stack_pool *pool)
{
    put_back(pool);
    free_spare_slabs(pool, SIZE_MAX);
    if (pool->live == 0) {
        free(pool);
    } else {
        pool->abandoned = true; /* goes with its last stack, if ever */
    }
}

int64_t
pf_stack_pool_decay(pf_stack_pool *pool, int64_t now)
{
    put_back(pool);
    if (pool->spare <= 1) {
        return INT64_MAX;
    }
    next_period(pool, now);
    give_back(pool, SIZE_MAX);
    size_t used = pool->slabs - pool->spare;
    bool at_rest = pool->peak_now <= used && pool->peak_last <= used;
    return at_rest ? INT64_MAX : pool->period_ends;
}

void
pf_stack_pool_load_over(pf_stack_pool *pool)
{
    put_back(pool);
    pool->peak_now = pool->peak_last = pool->slabs - pool->spare;
    give_back(pool, SIZE_MAX);
}

/* The sample: return the deep part of this stack, and slabs that an earlier
 * load left. */
static void
trim_one(pf_stack_pool *pool, const pf_stack *stack)
{
    size_t page = pf_page_size();
    uintptr_t top = round_up((uintptr_t)stack, page);
    char *keep = (char *)(top - (KEEP_TOP > page ? KEEP_TOP : page));
    /* The interval varies: a host may start fibers in rounds of 256. */
    pool->until_trim = TRIM_EVERY + (uint32_t)(pool->trims % 7);
    if (pool->spare > 1) {
        next_period(pool, pf_monotonic());
        give_back(pool, AT_ONCE);
        if (superfluous(pool) > 0) {
            pool->until_trim = 1; /* the next release continues this */
        }
    }
    char *low = stack->area.low + stack->reserve; /* guarded: holds nothing */
    if (keep > low) {
        (void)madvise(low, (size_t)(keep - low), DISCARD);
        pool->trims++;
    }
}

void
pf_stack_release(pf_stack *stack)
{
    pf_stack_pool *pool = stack->slab->pool;
    if (pf_stack_reserve_is_open(stack)) {
        pf_guard_reserve(stack);
    }
    pool->live--;
    if (--pool->until_trim == 0) {
        put_back(pool); /* they keep their slabs from being freed */
        trim_one(pool, stack);
    }
    /* (After a peak, each slab that empties is a chance to return some.) */
    if (pool->hand_count != MOST_AT_HAND && pool->spare <= ALWAYS_SPARE &&
        !pool->abandoned) {
        stack->next = pool->at_hand;
        pool->at_hand = stack;
        pool->hand_count++;
    } else {
        put_stack_back(stack);
    }
}

/* Trims the slots used since the last time; returns their bytes. */
static size_t
discard_free_slots(pf_slab *slab)
{
    size_t guards = guard_size(slab->pool);
    size_t bytes = slab->pool->stride - guards;
    uint32_t count = slab->free_count - slab->discarded;
    for (uint32_t i = slab->discarded; i < slab->free_count; i++) {
        char *low = slot_address(slab, slab->free[i]) + guards;
        (void)madvise(low, bytes, DISCARD);
    }
    slab->discarded = slab->free_count;
    return count * bytes;
}

size_t
pf_stack_pool_trim(pf_stack_pool *pool)
{
    put_back(pool);
    size_t before = pool->slots * pool->stride;
    free_spare_slabs(pool, SIZE_MAX);
    size_t given = before - pool->slots * pool->stride;
    for (pf_slab *slab = pool->open; slab != NULL; slab = slab->next) {
        given += discard_free_slots(slab);
    }
    pool->peak_now = pool->peak_last = pool->slabs;
    pool->trims += given != 0;
    return given;
}

void
pf_stack_pool_stats(const pf_stack_pool *pool, pf_stack_stats *stats)
{
    *stats = (pf_stack_stats){
        .stack_size = pool->slot_size,
        .mapped = pool->slots * pool->stride,
        .slots = pool->slots,
        .live = pool->live,
        .peak = pool->peak,
        .acquired = pool->acquired,
        .trims = pool->trims,
    };
}

size_t
pf_stack_pool_slabs(const pf_stack_pool *pool)
{
    return pool->slabs;
}

void
pf_stack_pool_age(pf_stack_pool *pool, int64_t ns)
{
    pool->period_ends -= ns;
}

size_t
pf_stack_size(const pf_stack *stack)
{
    return stack->slab->pool->slot_size;
}

size_t
pf_stack_pool_slot_size(const pf_stack_pool *pool)
{
    return pool->slot_size;
}

pf_limit
pf_stack_pool_limit(const pf_stack_pool *pool)
{
    return pool->limit;
}

bool
pf_stack_guards(const pf_stack *stack, const void *address)
{
    uintptr_t low = (uintptr_t)stack->area.low;
    uintptr_t place = (uintptr_t)address;
    return place < low && place >= low - guard_size(stack->slab->pool);
}
