/* Searches the threads of this process, also those that Python does not know.
 * Linux lists them in /proc/self/task, macOS through Mach.  Other systems have
 * no such list, so the search fails with -1 there.  help.c uses this to decide
 * whether a thread of a C library could still wake a fiber. */
#if !defined(_POSIX_C_SOURCE) && !defined(__APPLE__)
#define _POSIX_C_SOURCE 200809L /* nanosleep; mach.h needs more */
#endif

#include "engine/base/os_threads.h"

#include <time.h>

/* A signal may end the pause early, which does no harm: the caller only checks
 * again a little sooner. */
void
pf_os_thread_pause(void)
{
    struct timespec pause = {.tv_nsec = 2000000};
    (void)nanosleep(&pause, NULL);
}

#if defined(__linux__)

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>

/* Returns the next entry, which *error 0 and NULL end; *error is an errno if
 * the directory could not be read. */
static struct dirent *
next_entry(DIR *directory, int *error)
{
    errno = 0; /* readdir sets it only if it fails */
    struct dirent *entry = readdir(directory);
    *error = entry == NULL ? errno : 0;
    return entry;
}

int
pf_os_threads_any(pf_os_thread_fn matches, void *data)
{
    DIR *tasks = opendir("/proc/self/task");
    if (tasks == NULL) {
        return -1;
    }
    bool found = false;
    int error = 0;
    struct dirent *entry;
    while (!found && (entry = next_entry(tasks, &error)) != NULL) {
        if (entry->d_name[0] != '.') { /* not "." and ".." */
            found = matches(strtoull(entry->d_name, NULL, 10), data);
        }
    }
    closedir(tasks);
    return error != 0 ? -1 : found;
}

#elif defined(__APPLE__)

#include <mach/mach.h>

/* Returns true if `matches` is true for the thread.  A thread that has ended
 * meanwhile, so that the system reports nothing about it, does not match. */
static bool
thread_matches(thread_act_t thread, pf_os_thread_fn matches, void *data)
{
    thread_identifier_info_data_t info;
    mach_msg_type_number_t size = THREAD_IDENTIFIER_INFO_COUNT;
    return thread_info(thread, THREAD_IDENTIFIER_INFO, (thread_info_t)&info,
                       &size) == KERN_SUCCESS &&
           matches(info.thread_id, data);
}

int
pf_os_threads_any(pf_os_thread_fn matches, void *data)
{
    thread_act_array_t threads;
    mach_msg_type_number_t count;
    if (task_threads(mach_task_self(), &threads, &count) != KERN_SUCCESS) {
        return -1;
    }
    bool found = false;
    for (mach_msg_type_number_t i = 0; i < count; i++) {
        found = found || thread_matches(threads[i], matches, data);
        mach_port_deallocate(mach_task_self(), threads[i]);
    }
    vm_deallocate(mach_task_self(), (vm_address_t)threads,
                  count * sizeof *threads);
    return found;
}

#else

int
pf_os_threads_any(pf_os_thread_fn matches, void *data)
{
    (void)matches;
    (void)data;
    return -1;
}

#endif
