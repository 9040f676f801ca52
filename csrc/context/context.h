/* Contexts: leaving one C stack for another.
 *
 * This is the whole interface of the directory: nothing outside it knows how a
 * stack is switched, and nothing inside it knows what a fiber is.  Four
 * backends implement the same few functions; exactly one is compiled in:
 *
 *   x86_64_sysv.S    x86-64, System V ABI (Linux, macOS, BSD)
 *   aarch64_aapcs.S  AArch64, AAPCS64 (Linux, macOS)
 *   ucontext.c       every other POSIX system, and PYFIBER_CONTEXT=ucontext
 *   winfiber.c       the Windows Fiber API
 *
 * context.c holds what the backends share: the first C function on a stack and
 * the annotations for AddressSanitizer and ThreadSanitizer.
 */
#ifndef PF_CONTEXT_H
#define PF_CONTEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "context/sanitizers.h"

#if defined(PYFIBER_CONTEXT_UCONTEXT)
#define PF_CONTEXT_BACKEND "ucontext"
#elif defined(_WIN32)
#define PF_CONTEXT_WINFIBER 1
#define PF_CONTEXT_BACKEND "winfiber"
#elif defined(__x86_64__)
#define PF_CONTEXT_ASSEMBLY 1
#define PF_CONTEXT_BACKEND "x86_64-sysv"
#elif defined(__aarch64__)
#define PF_CONTEXT_ASSEMBLY 1
#define PF_CONTEXT_BACKEND "aarch64-aapcs"
#else
#define PYFIBER_CONTEXT_UCONTEXT 1
#define PF_CONTEXT_BACKEND "ucontext"
#endif

/* A suspended (or running) flow of control.  Invariants:
 * - `handle` is valid only while the context is suspended (assembly: the saved
 *   stack pointer), except in the backends that keep an object behind it
 *   (ucontext: the ucontext_t on the stack; Windows: the fiber).
 * - only the thread that created a context enters the context.
 */
typedef struct pf_context {
    void *handle;
#if PF_WITH_ASAN
    void *asan_fake_stack;
    const void *asan_bottom;
    size_t asan_size;
#endif
#if PF_WITH_TSAN
    void *tsan_fiber;
#endif
} pf_context;

/* The memory that a context runs on.  `os` belongs to the backend and stays
 * with the memory while that is pooled (Windows: the record of the operating
 * system's fiber, whose stack replaces low/size; NULL elsewhere). */
typedef struct pf_area {
    char *low;   /* lowest usable byte; a guard lies below it */
    size_t size; /* bytes from low to the end where the stack begins */
    void *os;
} pf_area;

/* The function that a context runs.  Returns the context to switch to when the
 * function ends.  Neither longjmp nor a C++ exception may leave the function.
 */
typedef pf_context *(*pf_entry)(void *arg);

/* Make `context` ready to run entry(arg) on `area` at the first switch.
 * 0, or -errno (only Windows can fail: the system makes the stack there). */
int pf_context_init(pf_context *context, pf_area *area, pf_entry entry,
                    void *arg);

/* Returns where the first C frame of a context on this area begins.  No frame
 * ever lies above. */
char *pf_context_top(const pf_area *area);

/* Make a context of the stack that the calling thread is on, which can then be
 * left and resumed.  0, or -errno.  pf_context_forget undoes this. */
int pf_context_adopt(pf_context *context);
void pf_context_forget(pf_context *context);

/* Leave `from`, which must be the running context, for `to`.  Returns when
 * something switches to `from` again. */
void pf_context_switch(pf_context *from, pf_context *to);

/* 1 if pf_context_low knows how far a suspended context's stack is in use. */
#if defined(PF_CONTEXT_ASSEMBLY) ||                                           \
    (defined(__linux__) &&                                                    \
     (defined(__x86_64__) || defined(__aarch64__) || defined(__riscv)))
#define PF_CONTEXT_TELLS_LOW 1
#else
#define PF_CONTEXT_TELLS_LOW 0
#endif
/* Returns the lowest byte of its stack that a suspended context needs; NULL
 * where that is unknown.  The bytes from there to the end of the context's
 * area may be copied elsewhere, and must be back in the same place before the
 * context is resumed. */
char *pf_context_low(const pf_context *context);
/* Returns the handle of a context that was left with the lowest byte `low`, on
 * an area that ends at `end`. */
void *pf_context_handle(char *end, const char *low);

/* For signal handlers: is the calling thread between two stacks, so that its
 * frames cannot be unwound?  The assembly has frame information for each of
 * its instructions; a C library's swapcontext does not. */
#if defined(PYFIBER_CONTEXT_UCONTEXT)
bool pf_context_between(void);
#else
static inline bool
pf_context_between(void)
{
    return false;
}
#endif

/* Free what the sanitizers hold for a context whose entry has returned and
 * which the thread has left.  The area may then serve a new context. */
void pf_context_finish(pf_context *context);

/* Free what the backend and the sanitizers hold for the area, before its
 * memory is unmapped or used for anything but a context. */
void pf_area_dispose(pf_area *area);

#endif
