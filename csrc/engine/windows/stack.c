/* Pools stacks that Windows makes.  A pf_stack is a header with a room and a
 * fiber of the system, which the context backend makes at the first use and
 * which stays with the header in the pool.  Windows guards the C stack.  What
 * stack.h describes and Windows lacks is in alone.h. */
#include "engine/stack/stack.h"

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include <errno.h>

#include "engine/base/memory.h"
#include "engine/stack/testing.h"

/* Bytes: the granularity with which the system allocates addresses. */
#define LEAST_C_STACK ((size_t)64 << 10)

/* A pool keeps so many free stacks, and a quarter of the recent peak. */
#define LEAST_SPARE 16

/* A block holds one stack; free ones are linked, the latest first. */
struct pf_slab {
    pf_stack_pool *pool;
    pf_slab *next;
    pf_stack stack;
};

struct pf_stack_pool {
    pf_slab *free_blocks;
    size_t slot_size;
    size_t room_size;
    size_t blocks;
    size_t live;
    size_t peak;
    size_t recent_peak; /* of `live`; releases lower it step by step */
    uint64_t acquired;
    uint64_t trims;
    pf_limit limit;
    void *owner;
    bool abandoned; /* freed while stacks were live */
};

/* `unit` is a power of two. */
static size_t
round_up(size_t n, size_t unit)
{
    return (n + unit - 1) & ~(unit - 1);
}

size_t
pf_stack_page_size(void)
{
    SYSTEM_INFO info;
    GetSystemInfo(&info);
    return info.dwPageSize;
}

pf_guard_kind
pf_stack_guard_kind(void)
{
    return PF_GUARD_SYSTEM;
}

void
pf_stack_force_guard(pf_guard_kind kind)
{
    (void)kind;
}

size_t
pf_stack_min(size_t room_size)
{
    (void)room_size; /* the room is no part of the stack here */
    return LEAST_C_STACK;
}

size_t
pf_stack_slot_size(size_t slot_size, size_t room_size)
{
    size_t least = pf_stack_min(room_size);
    return round_up(slot_size < least ? least : slot_size,
                    pf_stack_page_size());
}

pf_stack_pool *
pf_stack_pool_new(size_t slot_size, size_t room_size)
{
    pf_stack_pool *pool = pf_memory_calloc(1, sizeof *pool);
    if (pool != NULL) {
        pool->slot_size = pf_stack_slot_size(slot_size, room_size);
        pool->room_size = round_up(room_size, 16);
    }
    return pool;
}

static pf_slab *
block_new(pf_stack_pool *pool)
{
    size_t header = round_up(sizeof(pf_slab), 16);
    pf_slab *block = pf_memory_malloc(header + pool->room_size);
    if (block == NULL) {
        pool->limit = PF_LIMIT_MEMORY;
        return NULL;
    }
    block->pool = pool;
    block->stack = (pf_stack){
        .area = {NULL, pool->slot_size, NULL},
        .slab = block,
        .room = (char *)block + header,
        .room_size = (uint32_t)pool->room_size,
    };
    pool->blocks++;
    return block;
}

static void
block_free(pf_slab *block)
{
    block->pool->blocks--;
    pf_area_dispose(&block->stack.area);
    free(block);
}

static size_t
free_all_blocks(pf_stack_pool *pool)
{
    size_t bytes = 0;
    while (pool->free_blocks != NULL) {
        pf_slab *block = pool->free_blocks;
        pool->free_blocks = block->next;
        bytes += pool->slot_size + pool->room_size;
        block_free(block);
    }
    return bytes;
}

void
pf_stack_pool_free(pf_stack_pool *pool)
{
    free_all_blocks(pool);
    if (pool->live == 0) {
        free(pool);
    } else {
        pool->owner = NULL;
        pool->abandoned = true; /* freed with its last stack, if ever */
    }
}

static void
note_taken(pf_stack_pool *pool)
{
    pool->acquired++;
    if (++pool->live > pool->peak) {
        pool->peak = pool->live;
    }
    if (pool->live > pool->recent_peak) {
        pool->recent_peak = pool->live;
    }
}

int
pf_stack_acquire(pf_stack_pool *pool, pf_stack **stack)
{
    pf_slab *block = pool->free_blocks;
    *stack = NULL;
    if (block != NULL) {
        pool->free_blocks = block->next;
    } else {
        block = block_new(pool);
        if (block == NULL) {
            return -ENOMEM;
        }
    }
    block->stack.user = NULL;
    note_taken(pool);
    *stack = &block->stack;
    return 0;
}

void
pf_stack_release(pf_stack *stack)
{
    pf_slab *block = stack->slab;
    pf_stack_pool *pool = block->pool;
    if (--pool->live < pool->recent_peak) {
        pool->recent_peak -= pool->acquired % 8 == 0;
    }
    size_t keep = LEAST_SPARE + pool->recent_peak / 4;
    if (pool->abandoned || pool->blocks - pool->live > keep) {
        block_free(block);
        pool->trims++;
    } else {
        block->next = pool->free_blocks;
        pool->free_blocks = block;
    }
    if (pool->abandoned && pool->live == 0) {
        free(pool);
    }
}

void
pf_stack_pool_own(pf_stack_pool *pool, void *owner)
{
    pool->owner = owner;
}

void *
pf_stack_owner(const pf_stack *stack)
{
    return stack->slab->pool->owner;
}

size_t
pf_stack_pool_live(const pf_stack_pool *pool)
{
    return pool->live;
}

pf_stack_pool *
pf_stack_pool_of(const pf_stack *stack)
{
    return stack->slab->pool;
}

size_t
pf_stack_pool_trim(pf_stack_pool *pool)
{
    size_t before = pool->blocks;
    size_t bytes = free_all_blocks(pool);
    pool->recent_peak = pool->live;
    /* As on POSIX: one for each block that was freed, and one for the call. */
    pool->trims += before - pool->blocks + (bytes != 0);
    return bytes;
}

void
pf_stack_pool_stats(const pf_stack_pool *pool, pf_stack_stats *stats)
{
    *stats = (pf_stack_stats){
        .stack_size = pool->slot_size,
        .mapped = pool->blocks * pool->slot_size,
        .slots = pool->blocks,
        .live = pool->live,
        .peak = pool->peak,
        .acquired = pool->acquired,
        .trims = pool->trims,
    };
}

size_t
pf_stack_pool_slabs(const pf_stack_pool *pool)
{
    return pool->blocks;
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
