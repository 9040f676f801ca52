/* What cl.exe says of itself, after headers.h and ahead of a file of ours:
 * whatever in that still uses a word of gcc's, or of a header that Windows
 * does not have, is an error. */
#undef __GNUC__
#undef __GNUC_MINOR__
#undef __MINGW32__
#undef __MINGW64__
#undef __clang__
#undef __has_attribute
#undef __has_feature
#define _MSC_VER 1940
#define __STDC_NO_ATOMICS__ 1 /* without /experimental:c11atomics */

#pragma GCC poison __attribute__ __asm__ __thread __typeof__
#pragma GCC poison __builtin_expect __builtin_prefetch __builtin_unreachable
#pragma GCC poison __builtin_frame_address clock_gettime nanosleep strcasecmp
#if !defined(WITH_PYTHON)
#pragma GCC poison ssize_t
#endif
