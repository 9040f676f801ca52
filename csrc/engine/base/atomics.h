/* The few atomic operations the engine needs, by type of object:
 *
 *   all types  pf_load_relaxed, pf_load_acquire, pf_load, pf_store; an int64_t
 *              has only these
 *   pointers   pf_exchange, pf_cas_weak
 *   uint8_t    pf_fetch_or, pf_take (exchange with 0), pf_swap_byte,
 *              pf_cas_byte (never fails spuriously)
 *   size_t     pf_fetch_add, pf_fetch_sub
 *
 * and for plain objects, which their owner also reads without these functions:
 *
 *   uint8_t    pf_publish_byte (release), pf_published_byte (acquire)
 *   uint32_t   pf_fetch_or32, pf_fetch_and32
 *   pointers   pf_claim_pointer (stores if NULL; returns whether it did),
 *              pf_unclaim_pointer (stores NULL), pf_claimed_pointer (loads)
 *
 * An operation without a memory order in its name or here is sequentially
 * consistent: a producer pushes and then checks whether the loop sleeps, the
 * loop sets "sleeping" and then checks for messages, and each must see the
 * other's store.
 */
#ifndef PF_ATOMICS_H
#define PF_ATOMICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if !defined(PF_INTERLOCKED) && defined(_MSC_VER) &&                          \
    defined(__STDC_NO_ATOMICS__)
#define PF_INTERLOCKED 1
#endif

#if !defined(PF_INTERLOCKED)

#include <stdatomic.h>

#define PF_ATOMIC(T) _Atomic(T)
#define pf_load_relaxed(p) atomic_load_explicit((p), memory_order_relaxed)
#define pf_load_acquire(p) atomic_load_explicit((p), memory_order_acquire)
#define pf_load(p) atomic_load(p)
#define pf_store(p, value) atomic_store((p), (value))
#define pf_exchange(p, value) atomic_exchange((p), (value))
#define pf_cas_weak(p, expected, desired)                                     \
    atomic_compare_exchange_weak((p), (expected), (desired))
#define pf_fetch_or(p, bits) atomic_fetch_or((p), (uint8_t)(bits))
#define pf_fetch_or32(p, bits)                                                \
    ((void)atomic_fetch_or((_Atomic(uint32_t) *)(void *)(p), (bits)))
#define pf_fetch_and32(p, bits)                                               \
    ((void)atomic_fetch_and((_Atomic(uint32_t) *)(void *)(p), (bits)))
#define pf_claim_pointer(p, value)                                            \
    atomic_compare_exchange_strong((_Atomic(void *) *)(void *)(p),            \
                                   &(void *){NULL}, (void *)(value))
#define pf_unclaim_pointer(p)                                                 \
    atomic_store((_Atomic(void *) *)(void *)(p), NULL)
#define pf_claimed_pointer(p) atomic_load((_Atomic(void *) *)(void *)(p))
#define pf_take(p) atomic_exchange((p), (uint8_t)0)
#define pf_swap_byte(p, value) atomic_exchange((p), (uint8_t)(value))
#define pf_cas_byte(p, expected, desired)                                     \
    atomic_compare_exchange_strong((p), (expected), (uint8_t)(desired))
#define pf_publish_byte(p, value)                                             \
    atomic_store_explicit((_Atomic(uint8_t) *)(void *)(p), (uint8_t)(value),  \
                          memory_order_release)
#define pf_published_byte(p)                                                  \
    atomic_load_explicit((const _Atomic(uint8_t) *)(const void *)(p),         \
                         memory_order_acquire)
#define pf_fetch_add(p, n) atomic_fetch_add((p), (size_t)(n))
#define pf_fetch_sub(p, n) atomic_fetch_sub((p), (size_t)(n))

#else /* 64-bit Windows with a compiler that has no C11 atomics */

#include <intrin.h>

#define PF_ATOMIC(T) T volatile
#define pf_load_relaxed(p) (*(p))

/* A volatile read is atomic but, on Arm, not ordered. */
#if defined(_M_ARM64)
#define pf_after_load() __dmb(0xb)
#else
#define pf_after_load() _ReadWriteBarrier()
#endif

static inline uint8_t
pf_load_byte(const volatile uint8_t *p)
{
    uint8_t value = *p;
    pf_after_load();
    return value;
}

static inline size_t
pf_load_size(const volatile size_t *p)
{
    size_t value = *p;
    pf_after_load();
    return value;
}

static inline void *
pf_load_pointer(void *const volatile *p)
{
    void *value = *p;
    pf_after_load();
    return value;
}

/* The type of *(p) selects the function.  The result for pointers is void *,
 * which converts to every object pointer in C. */
/* clang-format off */
#define pf_load(p)                                                            \
    _Generic(*(p),                                                            \
        uint8_t: pf_load_byte((const volatile uint8_t *)(p)),                 \
        size_t: pf_load_size((const volatile size_t *)(p)),                   \
        int64_t: (int64_t)pf_load_size((const volatile size_t *)(p)),         \
        default: pf_load_pointer((void *const volatile *)(p)))
#define pf_load_acquire(p) pf_load(p)

#define pf_store(p, value)                                                    \
    _Generic(*(p),                                                            \
        uint8_t: (void)_InterlockedExchange8((volatile char *)(p),            \
                                             (char)(value)),                  \
        size_t: (void)_InterlockedExchange64((volatile __int64 *)(p),         \
                                             (__int64)(value)),               \
        int64_t: (void)_InterlockedExchange64((volatile __int64 *)(p),        \
                                              (__int64)(value)))
/* clang-format on */

#define pf_exchange(p, value)                                                 \
    _InterlockedExchangePointer((void *volatile *)(p), (value))

static inline bool
pf_cas_pointer(void *volatile *p, void **expected, void *desired)
{
    void *seen = _InterlockedCompareExchangePointer(p, desired, *expected);
    bool same = seen == *expected;
    *expected = seen;
    return same;
}
#define pf_cas_weak(p, expected, desired)                                     \
    pf_cas_pointer((void *volatile *)(p), (void **)(expected), (desired))

#define pf_fetch_or(p, bits)                                                  \
    ((uint8_t)_InterlockedOr8((volatile char *)(p), (char)(bits)))
#define pf_fetch_or32(p, bits)                                                \
    ((void)_InterlockedOr((volatile long *)(p), (long)(bits)))
#define pf_fetch_and32(p, bits)                                               \
    ((void)_InterlockedAnd((volatile long *)(p), (long)(bits)))
#define pf_claim_pointer(p, value)                                            \
    (_InterlockedCompareExchangePointer((void *volatile *)(void *)(p),        \
                                        (void *)(value), NULL) == NULL)
#define pf_unclaim_pointer(p)                                                 \
    ((void)_InterlockedExchangePointer((void *volatile *)(void *)(p), NULL))
#define pf_claimed_pointer(p) pf_load_pointer((void *volatile *)(void *)(p))
#define pf_take(p) ((uint8_t)_InterlockedExchange8((volatile char *)(p), 0))
#define pf_swap_byte(p, value)                                                \
    ((uint8_t)_InterlockedExchange8((volatile char *)(p), (char)(value)))
#define pf_publish_byte(p, value)                                             \
    ((void)_InterlockedExchange8((volatile char *)(void *)(p), (char)(value)))
#define pf_published_byte(p)                                                  \
    pf_load_byte((const volatile uint8_t *)(const void *)(p))

static inline bool
pf_cas_byte(volatile uint8_t *p, uint8_t *expected, uint8_t desired)
{
    uint8_t seen = (uint8_t)_InterlockedCompareExchange8(
        (volatile char *)p, (char)desired, (char)*expected);
    bool same = seen == *expected;
    *expected = seen;
    return same;
}
#define pf_fetch_add(p, n)                                                    \
    ((size_t)_InterlockedExchangeAdd64((volatile __int64 *)(p), (__int64)(n)))
#define pf_fetch_sub(p, n)                                                    \
    ((size_t)_InterlockedExchangeAdd64((volatile __int64 *)(p), -(__int64)(n)))

#endif

#endif
