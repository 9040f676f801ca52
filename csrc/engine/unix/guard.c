/* Guards memory in one of two ways: mprotect splits a mapping off, madvise
 * marks pages without a split (Linux 6.13 and later).  Finds out once which of
 * them works here. */
#if !defined(_GNU_SOURCE)
#define _GNU_SOURCE /* MAP_ANONYMOUS, madvise */
#endif
#if defined(__APPLE__) && !defined(_DARWIN_C_SOURCE)
#define _DARWIN_C_SOURCE
#endif

#include "engine/stack/guard.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/utsname.h>

#include "engine/base/atomics.h"
#include "engine/base/memory.h"
#include "engine/stack/testing.h"

#if PF_VALGRIND
#include <valgrind/valgrind.h>
#endif

#if !defined(MAP_ANONYMOUS)
#define MAP_ANONYMOUS MAP_ANON
#endif
#if defined(__linux__)
#define GUARD_INSTALL 102 /* MADV_GUARD_INSTALL, Linux 6.13 */
#define GUARD_REMOVE 103  /* MADV_GUARD_REMOVE */
#endif

static PF_ATOMIC(uint8_t) guard_kind; /* 0: not probed yet */

#if defined(GUARD_INSTALL)

static bool
install_guard_region(char *low, size_t size)
{
    return madvise(low, size, GUARD_INSTALL) == 0;
}

static void
remove_guard_region(char *low, size_t size)
{
    (void)madvise(low, size, GUARD_REMOVE);
}

/* Whether an access to the page would fault.  uname() writes to the address it
 * is given, and fails with EFAULT if it cannot. */
static bool
guards(char *page)
{
    return uname((struct utsname *)(void *)page) != 0 && errno == EFAULT;
}

/* Installs a guard and checks that it works.  The kernel's version would not
 * answer this: filters refuse what the kernel can do, and emulators accept
 * advice that they ignore. */
static pf_guard_kind
probe_guard_kind(void)
{
    size_t size = pf_stack_page_size();
#if PF_VALGRIND
    /* Valgrind reads stacks, and of guards it understands only mprotect. */
    if (RUNNING_ON_VALGRIND) {
        return PF_GUARD_MPROTECT;
    }
#endif
    char *page = mmap(NULL, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) {
        return PF_GUARD_MPROTECT;
    }
    bool works = install_guard_region(page, size) && guards(page);
    munmap(page, size);
    return works ? PF_GUARD_MADVISE : PF_GUARD_MPROTECT;
}

#else

static bool
install_guard_region(char *low, size_t size)
{
    (void)low, (void)size;
    return false;
}

static void
remove_guard_region(char *low, size_t size)
{
    (void)low, (void)size;
}

static pf_guard_kind
probe_guard_kind(void)
{
    return PF_GUARD_MPROTECT;
}

#endif

pf_guard_kind
pf_stack_guard_kind(void)
{
    uint8_t kind = pf_load_relaxed(&guard_kind);
    if (kind == PF_GUARD_NONE) {
        kind = (uint8_t)probe_guard_kind();
        pf_store(&guard_kind, kind);
    }
    return (pf_guard_kind)kind;
}

void
pf_stack_force_guard(pf_guard_kind kind)
{
    pf_store(&guard_kind, (uint8_t)kind);
}

/* The system may refuse madvise although the probe worked (if the process
 * locked its memory).  This one slot is then guarded by mprotect. */
pf_guard_kind
pf_guard(char *low, size_t size)
{
    if (pf_stack_guard_kind() == PF_GUARD_MADVISE &&
        install_guard_region(low, size)) {
        return PF_GUARD_MADVISE;
    }
    if (pf_memory_refused() || mprotect(low, size, PROT_NONE) != 0) {
        return PF_GUARD_NONE;
    }
    return PF_GUARD_MPROTECT;
}

/* Undoes both kinds of guard: each call is harmless if the other kind was
 * used. */
bool
pf_guard_remove(char *low, size_t size)
{
    if (pf_stack_guard_kind() == PF_GUARD_MADVISE) {
        remove_guard_region(low, size);
    }
    return mprotect(low, size, PROT_READ | PROT_WRITE) == 0;
}
