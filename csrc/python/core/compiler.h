/* Compiler features beyond standard C. */
#ifndef PF_COMPILER_H
#define PF_COMPILER_H

#if defined(__GNUC__)
#define PF_UNLIKELY(x) __builtin_expect(!!(x), 0)
#define PF_LIKELY(x) __builtin_expect(!!(x), 1)
#else
#define PF_UNLIKELY(x) (x)
#define PF_LIKELY(x) (x)
#endif

/* Thread-local variables. glibc keeps spare static TLS for libraries that are
 * loaded late; elsewhere (musl) the initial-exec model would make the library
 * impossible to load. */
#if defined(__GLIBC__)
#define PF_TLS _Thread_local __attribute__((tls_model("initial-exec")))
#elif defined(_MSC_VER)
#define PF_TLS __declspec(thread)
#else
#define PF_TLS _Thread_local
#endif

#endif
