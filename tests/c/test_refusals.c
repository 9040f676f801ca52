/* Tests a system that refuses, lies or answers nothing: how stacks are
 * guarded, and which limit is named. */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE
#endif

#include "check.h"

#if defined(__linux__)

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "child.h"
#include "engine/stack/stack.h"
#include "engine/stack/testing.h"
#include "fakes.h"
#include "world.h"

#define STACK_SIZE ((size_t)256 << 10)
#define GUARD_INSTALL 102 /* MADV_GUARD_INSTALL */

/* ---------------------------------------------------------- guards --- */

/* Acts as an emulator that accepts advice which it ignores. */
static int
say_yes(void *low, size_t size, int advice)
{
    (void)low, (void)size, (void)advice;
    return 0;
}

/* Acts as a kernel from before 6.13. */
static int
refuse_advice(void *low, size_t size, int advice)
{
    (void)low, (void)size, (void)advice;
    errno = EINVAL;
    return -1;
}

/* Acts as a kernel with guard regions, whatever the real one is. */
static int
guard_when_advised(void *low, size_t size, int advice)
{
    return advice == GUARD_INSTALL ? mprotect(low, size, PROT_NONE) : 0;
}

static pf_guard_kind
probe_with(int (*madvise)(void *, size_t, int))
{
    pf_stack_force_guard(PF_GUARD_NONE);
    fake_madvise = madvise;
    errno = EFAULT; /* left by an earlier call; the probe must ignore it */
    pf_guard_kind kind = pf_stack_guard_kind();
    fake_madvise = NULL;
    pf_stack_force_guard(PF_GUARD_NONE);
    return kind;
}

static void
guards_are_advice_only_where_it_is_obeyed(void)
{
    if (running_on_valgrind()) {
        SKIP("nothing is probed");
    }
    CHECK_EQUAL(probe_with(guard_when_advised), PF_GUARD_MADVISE);
    CHECK_EQUAL(probe_with(say_yes), PF_GUARD_MPROTECT);
    CHECK_EQUAL(probe_with(refuse_advice), PF_GUARD_MPROTECT);
}

static void
probe_leaves_nothing_behind(void)
{
    if (running_on_valgrind()) {
        SKIP("nothing is probed");
    }
    count_unmapped();
    (void)probe_with(guard_when_advised);
    CHECK_EQUAL(unmapped(), pf_stack_page_size());
}

static void
guard_that_is_forced_is_used(void)
{
    pf_stack_force_guard(PF_GUARD_MADVISE);
    CHECK_EQUAL(pf_stack_guard_kind(), PF_GUARD_MADVISE);
    pf_stack_force_guard(PF_GUARD_MPROTECT);
    CHECK_EQUAL(pf_stack_guard_kind(), PF_GUARD_MPROTECT);
    pf_stack_force_guard(PF_GUARD_NONE);
}

/* The probe has succeeded, but the advice for this guard is refused. */
static void
guard_without_advice_is_a_mapping(void)
{
    pf_stack *stack;
    pf_stack_pool *pool = pf_stack_pool_new(STACK_SIZE, 0);
    pf_stack_force_guard(PF_GUARD_MADVISE);
    fake_madvise = refuse_advice;
    CHECK_EQUAL(pf_stack_acquire(pool, &stack), 0);
    fake_madvise = NULL;
    char *guard = stack->area.low - 1;
    CHECK_EQUAL(write(STDOUT_FILENO, guard, 1), -1);
    CHECK_EQUAL(errno, EFAULT);
    pf_stack_release(stack);
    pf_stack_pool_free(pool);
    pf_stack_force_guard(PF_GUARD_NONE);
}

/* ---------------------------------------------------------- limits --- */

/* What the fake system says about itself. */
static struct {
    const char *mappings; /* /proc/sys/vm/max_map_count; NULL: unreadable */
    const char *used;     /* /proc/self/statm */
    rlim_t limit;         /* RLIMIT_AS */
} says;

static const char *file_text;

static int
open_file(const char *path, int flags)
{
    bool mappings = strstr(path, "max_map_count") != NULL;
    file_text = mappings ? says.mappings : says.used;
    return __real_open("/dev/null", flags);
}

/* A read that fails may have written to the buffer nevertheless. */
static ssize_t
read_file(int fd, void *bytes, size_t size)
{
    (void)fd;
    memset(bytes, '9', size);
    if (file_text == NULL) {
        errno = EIO;
        return -1;
    }
    memcpy(bytes, file_text, strlen(file_text));
    return (ssize_t)strlen(file_text);
}

static int
tell_limit(int resource, struct rlimit *limit)
{
    CHECK_EQUAL(resource, RLIMIT_AS);
    *limit = (struct rlimit){says.limit, says.limit};
    return 0;
}

static void *
no_mapping(void *low, size_t size, int protection, int flags, int fd,
           off_t offset)
{
    (void)low, (void)size, (void)protection, (void)flags, (void)fd;
    (void)offset;
    errno = ENOMEM;
    return MAP_FAILED;
}

static void
begin_to_refuse(const char *mappings, const char *used, rlim_t limit)
{
    says.mappings = mappings;
    says.used = used;
    says.limit = limit;
    fake_mmap = no_mapping;
    fake_open = open_file;
    fake_read = read_file;
    fake_getrlimit = tell_limit;
}

static void
end_refusing(void)
{
    fake_mmap = NULL;
    fake_open = NULL;
    fake_read = NULL;
    fake_getrlimit = NULL;
}

/* Returns the limit that the pool names when the system refuses a stack and
 * says this about itself. */
static pf_limit
limit_named(const char *mappings, const char *used, rlim_t limit)
{
    pf_stack *stack;
    pf_stack_pool *pool = pf_stack_pool_new(STACK_SIZE, 0);
    begin_to_refuse(mappings, used, limit);
    int error = pf_stack_acquire(pool, &stack);
    end_refusing();
    CHECK_EQUAL(error, -ENOMEM);
    CHECK(stack == NULL);
    pf_limit named = pf_stack_pool_limit(pool);
    pf_stack_pool_free(pool);
    return named;
}

enum { SPLIT = 5 };

/* Acquires SPLIT stacks whose guards are mappings. */
static pf_stack_pool *
split_mappings(pf_stack *stacks[SPLIT])
{
    pf_stack_pool *pool = pf_stack_pool_new(STACK_SIZE, 0);
    pf_stack_force_guard(PF_GUARD_MPROTECT);
    for (int i = 0; i < SPLIT; i++) {
        CHECK_EQUAL(pf_stack_acquire(pool, &stacks[i]), 0);
    }
    pf_stack_force_guard(PF_GUARD_NONE);
    return pool;
}

static void
join_mappings(pf_stack_pool *pool, pf_stack *stacks[SPLIT])
{
    for (int i = 0; i < SPLIT; i++) {
        pf_stack_release(stacks[i]);
    }
    pf_stack_pool_free(pool);
}

/* The guards of split_mappings() need more than half of the mappings that the system allows.  A
 * number may have one digit. */
static void
mapping_limit_is_recognised(void)
{
    pf_stack *stacks[SPLIT];
    pf_stack_pool *pool = split_mappings(stacks);
    CHECK_EQUAL(limit_named("9", "1", RLIM_INFINITY), PF_LIMIT_MAP_COUNT);
    CHECK_EQUAL(limit_named("10\n", "1", RLIM_INFINITY), PF_LIMIT_MAP_COUNT);
    CHECK_EQUAL(limit_named("65530\n", "1", RLIM_INFINITY), PF_LIMIT_MEMORY);
    join_mappings(pool, stacks);
}

static void
address_space_limit_is_recognised(void)
{
    rlim_t pages = 1000000;
    rlim_t limit = pages * pf_stack_page_size();
    CHECK_EQUAL(limit_named("65530\n", "1000000 5 5\n", limit),
                PF_LIMIT_ADDRESS_SPACE);
    CHECK_EQUAL(limit_named("65530\n", "999990 5 5\n", limit),
                PF_LIMIT_ADDRESS_SPACE);
    CHECK_EQUAL(limit_named("65530\n", "900000 5 5\n", limit),
                PF_LIMIT_MEMORY);
    CHECK_EQUAL(limit_named("65530\n", NULL, limit), PF_LIMIT_ADDRESS_SPACE);
}

/* Without /proc, or with one that cannot be read, no limit is assumed. */
static void
limits_that_cannot_be_read_are_not_blamed(void)
{
    pf_stack *stacks[SPLIT];
    pf_stack_pool *pool = split_mappings(stacks);
    CHECK_EQUAL(limit_named(NULL, NULL, RLIM_INFINITY), PF_LIMIT_MEMORY);
    CHECK_EQUAL(limit_named("", "", RLIM_INFINITY), PF_LIMIT_MEMORY);
    join_mappings(pool, stacks);
}

static void
fiber_without_a_stack_is_told_the_limit(void)
{
    static world the_world;
    pf_fiber fiber = {.task.state = PF_NEW};
    pf_limit named = PF_LIMIT_NONE;
    CHECK(world_open(&the_world));
    begin_to_refuse("65530\n", "1000000\n", 65536);
    CHECK_EQUAL(
        pf_fiber_prepare(&the_world.thread, &fiber, STACK_SIZE, false, &named),
        -ENOMEM);
    end_refusing();
    CHECK_EQUAL(named, PF_LIMIT_ADDRESS_SPACE);
    world_close(&the_world);
}

static int
limit_without_standard_input(void *arg)
{
    pf_stack *stacks[SPLIT];
    (void)arg;
    split_mappings(stacks);
    close(STDIN_FILENO); /* so that the next open returns 0 */
    return limit_named("9", "1", RLIM_INFINITY) == PF_LIMIT_MAP_COUNT ? 7 : 1;
}

static void
limits_are_read_without_standard_input_too(void)
{
    child_end end;
    child_run(limit_without_standard_input, NULL, &end);
    CHECK(WIFEXITED(end.status));
    CHECK_EQUAL(WEXITSTATUS(end.status), 7);
}

const test refusal_tests[] = {
    TEST(guards_are_advice_only_where_it_is_obeyed),
    TEST(probe_leaves_nothing_behind),
    TEST(guard_that_is_forced_is_used),
    TEST(guard_without_advice_is_a_mapping),
    TEST(mapping_limit_is_recognised),
    TEST(address_space_limit_is_recognised),
    TEST(limits_that_cannot_be_read_are_not_blamed),
    TEST(fiber_without_a_stack_is_told_the_limit),
    TEST(limits_are_read_without_standard_input_too),
    END_OF_TESTS,
};

#else

const test refusal_tests[] = {END_OF_TESTS};

#endif
