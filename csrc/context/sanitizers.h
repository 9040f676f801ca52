/* Macros that say for which memory checker the build is made.
 *
 * PF_WITH_ASAN and PF_WITH_TSAN are 0 or 1 and change the layout of a
 * pf_context, so all files of one build must see the same values.  PF_VALGRIND
 * is 1 if the client requests of valgrind are compiled in; they cost a few
 * instructions when no valgrind runs, so only debug builds have them.
 * This header holds only preprocessor lines, because the assembly files
 * include it, too.
 */
#ifndef PF_SANITIZERS_H
#define PF_SANITIZERS_H

#if defined(__SANITIZE_ADDRESS__)
#define PF_WITH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PF_WITH_ASAN 1
#endif
#endif

#if defined(__SANITIZE_THREAD__)
#define PF_WITH_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define PF_WITH_TSAN 1
#endif
#endif

#ifndef PF_WITH_ASAN
#define PF_WITH_ASAN 0
#endif
#ifndef PF_WITH_TSAN
#define PF_WITH_TSAN 0
#endif

#if defined(PYFIBER_VALGRIND)
#define PF_VALGRIND 1
#elif !defined(NDEBUG) && defined(__has_include)
#if __has_include(<valgrind/valgrind.h>)
#define PF_VALGRIND 1
#endif
#endif
#ifndef PF_VALGRIND
#define PF_VALGRIND 0
#endif

#endif
