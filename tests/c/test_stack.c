/* Tests stacks: their layout, reuse, guards, and when memory is returned. */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* mincore */
#endif

#include "check.h"

#include <errno.h>

#include "child.h"
#include "engine/base/clock.h"
#include "engine/stack/stack.h"
#include "engine/stack/testing.h"

#if !defined(_WIN32)
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#endif

#define KIB ((size_t)1 << 10)

static pf_stack *
take(pf_stack_pool *pool)
{
    pf_stack *stack;
    CHECK_EQUAL(pf_stack_acquire(pool, &stack), 0);
    return stack;
}

static void
fill(char *low, const char *high)
{
    memset(low, 0x5a, (size_t)(high - low));
}

static void
stack_is_writable(void)
{
    pf_stack_pool *pool = pf_stack_pool_new(256 * KIB, 10000);
    pf_stack *stack = take(pool);
    CHECK(stack->room_size >= 10000);
    CHECK_EQUAL((uintptr_t)stack->room % 16, 0);
    fill(stack->room, stack->room + stack->room_size);
    if (stack->area.low != NULL) { /* on Windows, unknown before it runs */
        char *end = stack->area.low + stack->area.size;
        CHECK_EQUAL((uintptr_t)end % 16, 0);
        fill(stack->area.low + stack->reserve, end);
    }
    pf_stack_release(stack);
    pf_stack_pool_free(pool);
}

static void
stack_is_reused_last_in_first_out(void)
{
    pf_stack_pool *pool = pf_stack_pool_new(64 * KIB, 0);
    pf_stack *a = take(pool), *b = take(pool);
#if defined(PYFIBER_HARDTEST)
    pf_stack_release(a), pf_stack_release(b);
    pf_stack_pool_free(pool);
    SKIP("each stack is a slab and may go when it is free");
#endif
    CHECK(a != b);
    pf_stack_release(b);
    CHECK(take(pool) == b);
    pf_stack_release(a);
    pf_stack_release(b);
    CHECK(take(pool) == b);
    pf_stack_release(b);
    pf_stack_pool_free(pool);
}

static void
statistics_count(void)
{
    pf_stack_stats stats;
    pf_stack *stacks[40];
    pf_stack_pool *pool = pf_stack_pool_new(100 * KIB + 1, 0);
    pf_stack_pool_stats(pool, &stats);
    CHECK_EQUAL(stats.mapped, 0);
    CHECK_EQUAL(stats.stack_size % pf_stack_page_size(), 0);
    CHECK(stats.stack_size > 100 * KIB);
    CHECK_EQUAL(stats.stack_size, pf_stack_pool_slot_size(pool));
    CHECK_EQUAL(stats.stack_size, pf_stack_slot_size(100 * KIB + 1, 0));
    for (int i = 0; i < 40; i++) {
        stacks[i] = take(pool);
    }
    for (int i = 0; i < 39; i++) {
        pf_stack_release(stacks[i]);
    }
    pf_stack_pool_stats(pool, &stats);
    CHECK_EQUAL(stats.acquired, 40);
    CHECK_EQUAL(stats.live, 1);
    CHECK_EQUAL(stats.peak, 40);
    CHECK(stats.slots >= 1);
    CHECK(stats.mapped >= stats.slots * stats.stack_size);
    pf_stack_release(stacks[39]);
    pf_stack_pool_free(pool);
}

#if !defined(_WIN32) /* there the number of releases counts, not time */
static size_t
mapped(const pf_stack_pool *pool)
{
    pf_stack_stats stats;
    pf_stack_pool_stats(pool, &stats);
    return stats.mapped;
}

static void
take_and_release(pf_stack_pool *pool, pf_stack **stacks, int n)
{
    for (int i = 0; i < n; i++) {
        stacks[i] = take(pool);
        stacks[i]->room[0] = 1;
    }
    for (int i = 0; i < n; i++) {
        pf_stack_release(stacks[i]);
    }
}

static void
pool_keeps_what_the_load_of_a_second_ago_needed(void)
{
    const int n = many();
    const int64_t second = 1000000000;
    pf_stack **stacks = calloc((size_t)n, sizeof *stacks);
    pf_stack_pool *pool = pf_stack_pool_new(64 * KIB, 1000);
    int64_t now = pf_clock_monotonic();
    CHECK(pf_stack_pool_decay(pool, now) == INT64_MAX);
    take_and_release(pool, stacks, n);
    size_t full = mapped(pool);
    CHECK(full >= (size_t)n * 64 * KIB);
    int64_t again = pf_stack_pool_decay(pool, now);
    CHECK(again > now && again <= pf_clock_monotonic() + second);
    CHECK_EQUAL(mapped(pool), full);
    now = again;
    again = pf_stack_pool_decay(pool, now); /* the load is a period ago */
    CHECK(again == now + second);
    CHECK_EQUAL(mapped(pool), full);
    CHECK(pf_stack_pool_decay(pool, again) == INT64_MAX);
    CHECK(mapped(pool) <= full / 2);
    take_and_release(pool, stacks, n); /* the pool grows again */
    CHECK(mapped(pool) >= (size_t)n * 64 * KIB);
    CHECK(pf_stack_pool_decay(pool, again + 10 * second) == INT64_MAX);
    CHECK(mapped(pool) <= full / 2);
    pf_stack_pool_free(pool);
    free(stacks);
}

static void
releases_give_back_what_an_earlier_load_left(void)
{
    const int n = many();
    const int64_t second = 1000000000;
    pf_stack **stacks = calloc((size_t)n, sizeof *stacks);
    pf_stack_pool *pool = pf_stack_pool_new(64 * KIB, 1000);
    take_and_release(pool, stacks, n);
    size_t full = mapped(pool);
    pf_stack *one = take(pool);
    /* Within about 256 releases one puts the stack at hand back and looks;
     * each release after that returns two slabs. */
    const int releases = 300 + (int)pf_stack_pool_slabs(pool);
    for (int round = 0; round < 2; round++) { /* one for each period */
        pf_stack_pool_age(pool, 5 * second);
        for (int i = 0; i < releases; i++) {
            pf_stack_release(take(pool));
        }
    }
    CHECK(mapped(pool) <= full / 2);
    CHECK(pf_stack_pool_slabs(pool) <= 3);
    pf_stack_release(one);
    pf_stack_pool_free(pool);
    free(stacks);
}
#endif

static void
pool_gives_memory_back(void)
{
    const int n = many();
    pf_stack_stats full, after;
    pf_stack **stacks = calloc((size_t)n, sizeof *stacks);
    pf_stack_pool *pool = pf_stack_pool_new(64 * KIB, 1000);
    for (int i = 0; i < n; i++) {
        stacks[i] = take(pool);
        stacks[i]->room[0] = 1;
    }
    pf_stack_pool_stats(pool, &full);
    CHECK(full.slots >= (size_t)n);
    for (int i = 0; i < n; i++) {
        pf_stack_release(stacks[i]);
    }
    pf_stack_pool_load_over(pool);
    pf_stack_pool_stats(pool, &after);
    CHECK_EQUAL(after.live, 0);
    CHECK(after.mapped <= full.mapped / 2);
    size_t given = pf_stack_pool_trim(pool);
    CHECK(given > 0 || after.mapped == 0);
    pf_stack_pool_stats(pool, &after);
    CHECK_EQUAL(after.mapped, 0);
    CHECK_EQUAL(pf_stack_pool_slabs(pool), 0);
    pf_stack_release(take(pool)); /* the pool can still grow */
    pf_stack_pool_free(pool);
    free(stacks);
}

static void
pool_survives_random_use(void)
{
    enum { MOST = 600 };
    static pf_stack *stacks[MOST];
    uint64_t random = 4101842887655102017u;
    pf_stack_stats stats;
    pf_stack_pool *pool = pf_stack_pool_new(64 * KIB, 500);
    int live = 0;
    for (int step = 0; step < 20000; step++) {
        bool grow = random_next(&random) % 100 < (step / 4000 % 2 ? 35 : 65);
        if (grow && live < MOST) {
            stacks[live] = take(pool);
            memset(stacks[live]->room, live & 0xff, 500);
            stacks[live]->user = &stacks[live];
            live++;
        } else if (!grow && live > 0) {
            int i = (int)(random_next(&random) % (uint64_t)live);
            CHECK(stacks[i]->user == &stacks[i]);
            CHECK_EQUAL((unsigned char)stacks[i]->room[499], i & 0xff);
            pf_stack_release(stacks[i]);
            if (i != --live) {
                stacks[i] = stacks[live];
                stacks[i]->user = &stacks[i];
                memset(stacks[i]->room, i & 0xff, 500);
            }
        }
        if (step % 5000 == 0) {
            pf_stack_pool_trim(pool);
        }
        pf_stack_pool_stats(pool, &stats);
        CHECK_EQUAL(stats.live, live);
        CHECK(stats.slots >= stats.live);
    }
    while (live > 0) {
        pf_stack_release(stacks[--live]);
    }
    pf_stack_pool_free(pool);
}

/* Memory is returned, and counted, although a live stack keeps the slab. */
static void
trim_counts_what_it_gives_once(void)
{
    pf_stack_pool *pool = pf_stack_pool_new(64 * KIB, 0);
    pf_stack *kept = take(pool), *other = take(pool);
    pf_stack_release(other);
    size_t given = pf_stack_pool_trim(pool);
    CHECK(given > 0);
    CHECK_EQUAL(pf_stack_pool_trim(pool), 0);
    other = take(pool); /* holds memory again */
    pf_stack *fresh = take(pool);
    pf_stack_release(fresh);
    pf_stack_release(other);
    CHECK(pf_stack_pool_trim(pool) >= given);
    CHECK_EQUAL(pf_stack_pool_trim(pool), 0);
    pf_stack_release(kept);
    pf_stack_pool_free(pool);
}

static uint64_t
trims(const pf_stack_pool *pool)
{
    pf_stack_stats stats;
    pf_stack_pool_stats(pool, &stats);
    return stats.trims;
}

static void
trim_is_counted_if_it_gives_something(void)
{
    pf_stack_pool *pool = pf_stack_pool_new(64 * KIB, 0);
    CHECK_EQUAL(pf_stack_pool_slabs(pool), 0);
    pf_stack *kept = take(pool), *other = take(pool);
    size_t slabs = pf_stack_pool_slabs(pool);
#if defined(_WIN32) || defined(PYFIBER_HARDTEST)
    CHECK_EQUAL(slabs, 2); /* a slab holds one stack */
#else
    CHECK_EQUAL(slabs, 1);
#endif
    CHECK_EQUAL(pf_stack_pool_trim(pool), 0);
    CHECK_EQUAL(trims(pool), 0);
    pf_stack_release(other);
    CHECK(pf_stack_pool_trim(pool) > 0);
    /* The call counts one, and each slab that was freed. */
    CHECK_EQUAL(trims(pool), 1 + slabs - pf_stack_pool_slabs(pool));
    uint64_t before = trims(pool);
    CHECK_EQUAL(pf_stack_pool_trim(pool), 0);
    CHECK_EQUAL(trims(pool), before);
    pf_stack_release(kept);
    pf_stack_pool_free(pool);
}

static void
abandoned_pool_goes_with_its_last_stack(void)
{
    pf_stack_pool *pool = pf_stack_pool_new(64 * KIB, 0);
    pf_stack *a = take(pool), *b = take(pool);
    pf_stack_pool_free(pool);
    a->room[0] = b->room[0] = 1; /* both stacks are still mapped */
    pf_stack_release(a);
    b->room[0] = 2;
    pf_stack_release(b); /* frees the pool; a sanitizer would find a leak */
}

static void
names_are_known(void)
{
    CHECK_CONTAINS(pf_stack_guard_name(PF_GUARD_MADVISE), "madvise");
    CHECK_CONTAINS(pf_stack_guard_name(PF_GUARD_MPROTECT), "mprotect");
    CHECK_CONTAINS(pf_limit_name(PF_LIMIT_MAP_COUNT), "vm.max_map_count");
    CHECK_CONTAINS(pf_limit_name(PF_LIMIT_ADDRESS_SPACE), "RLIMIT_AS");
    CHECK(pf_stack_guard_kind() != PF_GUARD_NONE);
}

/* ---------------------------------------------------- POSIX layout --- */

#if !defined(_WIN32)

static uintptr_t
page_of(const void *address)
{
    return (uintptr_t)address / pf_stack_page_size();
}

static void
parked_fiber_needs_one_page(void)
{
    pf_stack *stacks[16];
    pf_stack_pool *pool = pf_stack_pool_new(256 * KIB, 16 * KIB);
    int colours = 0;
    for (int i = 0; i < 16; i++) {
        pf_stack *s = stacks[i] = take(pool);
        char *top = s->area.low + s->area.size;
        CHECK_EQUAL(page_of(top - 2200), page_of(s));
        CHECK_EQUAL(page_of(s->room + 600), page_of(s));
        CHECK_EQUAL((uintptr_t)s->area.low % pf_stack_page_size(), 0);
        CHECK(s->area.size > 200 * KIB);
        CHECK(s->room_size >= 16 * KIB);
        colours += (uintptr_t)s % pf_stack_page_size() !=
                   (uintptr_t)stacks[0] % pf_stack_page_size();
    }
#if defined(PYFIBER_HARDTEST) /* slabs of one slot: all have one colour */
    CHECK_EQUAL(colours, 0);
#else
    CHECK(colours >= 8);
#endif
    for (int i = 0; i < 16; i++) {
        pf_stack_release(stacks[i]);
    }
    pf_stack_pool_free(pool);
}

static void
smallest_stack_has_sixteen_kib(void)
{
    for (size_t room = 0; room < 40 * KIB; room += 1000) {
        pf_stack_pool *pool = pf_stack_pool_new(1, room);
        pf_stack *s = take(pool);
        size_t slot = pf_stack_pool_slot_size(pool);
        CHECK(slot >= pf_stack_min(room));
        CHECK(slot <= pf_stack_min(room) + pf_stack_page_size());
        CHECK_EQUAL(pf_stack_slot_size(slot, room), slot);
        CHECK(s->area.size - s->reserve >= 16 * KIB);
        CHECK(s->room_size >= room);
        fill(s->area.low + s->reserve, s->area.low + s->area.size);
        pf_stack_release(s);
        pf_stack_pool_free(pool);
    }
}

static void
huge_stacks_come_singly(void)
{
    pf_stack_stats stats;
    pf_stack_pool *pool = pf_stack_pool_new(KIB * KIB * KIB, 0);
    if (running_on_valgrind() || PF_WITH_TSAN) {
        SKIP("address space is scarce under this checker");
    }
    pf_stack *s = take(pool);
    if (s != NULL) {
        s->area.low[s->area.size - 1] = 1;
        pf_stack_release(s);
    }
    pf_stack_pool_stats(pool, &stats);
    CHECK(stats.slots <= 1);
    pf_stack_pool_free(pool);
}

#if defined(__linux__)

static size_t
resident_pages(char *low, size_t size)
{
    static unsigned char pages[1024];
    size_t n = size / pf_stack_page_size(), resident = 0;
    if (n > sizeof pages || mincore(low, size, pages) != 0) {
        CHECK(!"mincore works");
        return 0;
    }
    for (size_t i = 0; i < n; i++) {
        resident += pages[i] & 1;
    }
    return resident;
}

/* After one deep use, many shallow ones return the deep memory. */
static void
deep_memory_is_given_back(void)
{
    pf_stack_pool *pool = pf_stack_pool_new(1024 * KIB, 0);
    pf_stack *s = take(pool);
    char *low = s->area.low + s->reserve;
    size_t size = (size_t)(s->area.low + s->area.size - low) /
                  pf_stack_page_size() * pf_stack_page_size();
    fill(low, low + size);
    if (resident_pages(low, size) != size / pf_stack_page_size()) {
        pf_stack_release(s);
        pf_stack_pool_free(pool);
        SKIP("mincore does not tell here");
    }
    for (int i = 0; i < 1000; i++) {
        pf_stack_release(s);
        s = take(pool);
    }
    CHECK(resident_pages(low, size) <= 16 * KIB / pf_stack_page_size());
    pf_stack_release(s);
    pf_stack_pool_free(pool);
}

static void
trimmed_slots_hold_nothing(void)
{
    pf_stack_pool *pool = pf_stack_pool_new(256 * KIB, 0);
    pf_stack *a = take(pool), *b = take(pool);
    char *page = (char *)(uintptr_t)(page_of(b) * pf_stack_page_size());
    char *kept = (char *)(uintptr_t)(page_of(a) * pf_stack_page_size());
    (void)resident_pages(page, pf_stack_page_size());
#if defined(PYFIBER_HARDTEST)
    pf_stack_release(a), pf_stack_release(b);
    pf_stack_pool_free(pool);
    SKIP("the slab itself is gone");
#endif
    pf_stack_release(b);
    CHECK(pf_stack_pool_trim(pool) > 0);
    if (resident_pages(kept, pf_stack_page_size()) == 1) {
        CHECK_EQUAL(resident_pages(page, pf_stack_page_size()), 0);
    }
    pf_stack_release(a);
    pf_stack_pool_free(pool);
}

#endif

/* ---------------------------------------------------------- guards --- */

/* Which byte of which stack the child writes to. */
typedef struct probe {
    pf_guard_kind kind;
    long offset;   /* from area.low */
    bool trimmed;  /* the slot was released, trimmed and taken again */
    bool reopened; /* the reserve was opened, then the stack released */
    int others;    /* how many stacks were taken before this one */
} probe;

static int
write_at(void *arg)
{
    const probe *p = arg;
    pf_stack *s;
    pf_stack_force_guard(p->kind);
    pf_stack_pool *pool = pf_stack_pool_new(256 * KIB, 0);
    signal(SIGSEGV, SIG_DFL); /* in place of a sanitizer's handler */
    signal(SIGBUS, SIG_DFL);
    for (int i = 0; i <= p->others; i++) {
        pf_stack_acquire(pool, &s);
    }
    if (p->reopened) {
        pf_stack_open_reserve(s, s->area.low);
        s->area.low[0] = 1;
    }
    if (p->trimmed || p->reopened) {
        pf_stack *other;
        pf_stack_acquire(pool, &other); /* keeps the slab */
        pf_stack_release(s);
        if (p->trimmed) {
            pf_stack_pool_trim(pool);
        }
        pf_stack_acquire(pool, &s);
    }
    *(volatile char *)(s->area.low + p->offset) = 1;
    return 7;
}

static void
check_fault(pf_guard_kind kind, long offset, bool faults)
{
    child_end end;
    for (int i = 0; i < 5; i++) {
        static const int others[] = {0, 0, 0, 3, 14};
        probe p = {kind, offset, i == 1, i == 2, others[i]};
        child_run(write_at, &p, &end);
        if (faults) {
            CHECK(WIFSIGNALED(end.status) &&
                  (WTERMSIG(end.status) == SIGSEGV ||
                   WTERMSIG(end.status) == SIGBUS));
        } else {
            CHECK(WIFEXITED(end.status));
            CHECK_EQUAL(WEXITSTATUS(end.status), 7);
        }
    }
}

static void
check_guards(pf_guard_kind kind)
{
    pf_stack_pool *pool = pf_stack_pool_new(256 * KIB, 0);
    pf_stack *s = take(pool);
    long page = (long)pf_stack_page_size(), reserve = (long)s->reserve;
    CHECK_EQUAL(reserve, 32 * KIB);
    CHECK(pf_stack_guards(s, s->area.low - 1));
    CHECK(pf_stack_guards(s, s->area.low - page));
    /* The guard is two pages here: see pf_layout_stride. */
    CHECK(pf_stack_guards(s, s->area.low - 2 * page));
    CHECK(!pf_stack_guards(s, s->area.low - 2 * page - 1));
    CHECK(!pf_stack_guards(s, s->area.low));
    CHECK(pf_stack_in_reserve(s, s->area.low));
    CHECK(pf_stack_in_reserve(s, s->area.low + reserve - 1));
    CHECK(!pf_stack_in_reserve(s, s->area.low + reserve));
    pf_stack_release(s);
    pf_stack_pool_free(pool);
    check_fault(kind, -1, true);
    check_fault(kind, -page, true);
    check_fault(kind, 0, true);
    check_fault(kind, reserve - 1, true);
    check_fault(kind, reserve, false);
}

static void
guard_of_the_system_stops_overflow(void)
{
    check_guards(PF_GUARD_NONE); /* the kind that the probe finds */
}

static void
guard_by_mprotect_stops_overflow(void)
{
    check_guards(PF_GUARD_MPROTECT);
}

static void
open_and_close_reserve(pf_guard_kind kind)
{
    pf_stack_force_guard(kind);
    pf_stack_pool *pool = pf_stack_pool_new(256 * KIB, 0);
    pf_stack *s = take(pool);
    char *above = s->area.low + s->reserve;
    char *middle = s->area.low + s->reserve / 2;
    for (int i = 0; i < 3; i++) {
        CHECK(!pf_stack_reserve_is_open(s));
        CHECK(!pf_stack_is_last_reserve(s, middle));
        CHECK(pf_stack_open_reserve(s, middle));
        CHECK(pf_stack_reserve_is_open(s));
        CHECK(!pf_stack_in_reserve(s, middle));
        CHECK(pf_stack_in_reserve(s, middle - 1));
        fill(middle, above);
        CHECK(pf_stack_is_last_reserve(s, middle - 1));
        CHECK(pf_stack_open_reserve(s, middle - 1));
        CHECK(!pf_stack_in_reserve(s, s->area.low));
        fill(s->area.low, above);
        pf_stack_close_reserve(s, above - 1); /* in use, so it stays open */
        CHECK(pf_stack_reserve_is_open(s));
        pf_stack_close_reserve(s, above + pf_stack_page_size());
        CHECK(!pf_stack_reserve_is_open(s));
        CHECK(pf_stack_in_reserve(s, s->area.low));
    }
    CHECK(pf_stack_open_reserve(s, s->area.low)); /* both halves at once */
    fill(s->area.low, above);
    pf_stack_release(s);
    s = take(pool);
    CHECK(!pf_stack_reserve_is_open(s));
    pf_stack_release(s);
    pf_stack_pool_free(pool);
    pf_stack_force_guard(PF_GUARD_NONE);
}

static void
reserve_opens_and_closes(void)
{
    open_and_close_reserve(PF_GUARD_NONE);
    open_and_close_reserve(PF_GUARD_MPROTECT);
}

/* ---------------------------------------------------------- limits --- */

static int
exhaust(pf_stack_pool *pool, int most)
{
    pf_stack *stack;
    int n = 0;
    while (n < most && pf_stack_acquire(pool, &stack) == 0) {
        n++;
    }
    if (n == most) {
        return 1;
    }
    fprintf(stderr, "after %d: %s\n", n,
            pf_limit_name(pf_stack_pool_limit(pool)));
    return stack == NULL ? 0 : 2;
}

static int
exhaust_address_space(void *arg)
{
    struct rlimit limit = {(rlim_t)1 << 30, (rlim_t)1 << 30};
    (void)arg;
    setrlimit(RLIMIT_AS, &limit);
    return exhaust(pf_stack_pool_new(1024 * KIB, 0), 2000);
}

static int
exhaust_mappings(void *arg)
{
    (void)arg;
    pf_stack_force_guard(PF_GUARD_MPROTECT);
    return exhaust(pf_stack_pool_new(1, 0), 40000);
}

static void
address_space_limit_is_named(void)
{
    child_end end;
    if (PF_WITH_ASAN || PF_WITH_TSAN || running_on_valgrind()) {
        SKIP("the checker itself needs the address space");
    }
    child_run(exhaust_address_space, NULL, &end);
    if (WIFEXITED(end.status) && WEXITSTATUS(end.status) == 1) {
        SKIP("RLIMIT_AS is not enforced here");
    }
    CHECK_EQUAL(end.status, 0);
    CHECK_CONTAINS(end.errors, "RLIMIT_AS");
}

static void
mapping_limit_is_named(void)
{
    child_end end;
    if (PF_WITH_ASAN || PF_WITH_TSAN || running_on_valgrind()) {
        SKIP("slow, and the checker has mappings of its own");
    }
    child_run(exhaust_mappings, NULL, &end);
    if (WIFEXITED(end.status) && WEXITSTATUS(end.status) == 1) {
        SKIP("40,000 mappings are allowed here");
    }
    CHECK_EQUAL(end.status, 0);
    CHECK_CONTAINS(end.errors, "vm.max_map_count");
}

#endif

const test stack_tests[] = {
    TEST(stack_is_writable),
#if !defined(_WIN32) && UINTPTR_MAX > UINT32_MAX
#endif
    TEST(stack_is_reused_last_in_first_out),
    TEST(statistics_count),
    TEST(pool_gives_memory_back),
#if !defined(_WIN32)
    TEST(pool_keeps_what_the_load_of_a_second_ago_needed),
    TEST(releases_give_back_what_an_earlier_load_left),
#endif
    TEST(pool_survives_random_use),
    TEST(trim_counts_what_it_gives_once),
    TEST(trim_is_counted_if_it_gives_something),
    TEST(abandoned_pool_goes_with_its_last_stack),
    TEST(names_are_known),
#if !defined(_WIN32)
    TEST(parked_fiber_needs_one_page),
    TEST(smallest_stack_has_sixteen_kib),
    TEST(huge_stacks_come_singly),
#if defined(__linux__)
    TEST(deep_memory_is_given_back),
    TEST(trimmed_slots_hold_nothing),
#endif
    TEST(guard_of_the_system_stops_overflow),
    TEST(guard_by_mprotect_stops_overflow),
    TEST(reserve_opens_and_closes),
    TEST(address_space_limit_is_named),
    TEST(mapping_limit_is_named),
#endif
    END_OF_TESTS,
};
