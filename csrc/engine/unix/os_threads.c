/* Lists the threads of this process by the system's own numbers: /proc on
 * Linux, Mach on macOS; elsewhere the list is not available. */
#if !defined(_POSIX_C_SOURCE) && !defined(__APPLE__)
#define _POSIX_C_SOURCE 200809L /* nanosleep; mach.h needs more */
#endif

#include "engine/base/os_threads.h"

#include <time.h>

void
pf_os_thread_pause(void)
{
    struct timespec pause = {.tv_nsec = 2000000};
    (void)nanosleep(&pause, NULL);
}

#if defined(__linux__)

#include <dirent.h>
#include <stdlib.h>

int
pf_os_threads_any(pf_os_thread_fn is, void *data)
{
    DIR *tasks = opendir("/proc/self/task");
    if (tasks == NULL) {
        return -1;
    }
    int found = 0;
    struct dirent *entry;
    while (found == 0 && (entry = readdir(tasks)) != NULL) {
        if (entry->d_name[0] != '.') {
            found = is(strtoull(entry->d_name, NULL, 10), data);
        }
    }
    closedir(tasks);
    return found;
}

#elif defined(__APPLE__)

#include <mach/mach.h>

static int
holds_for(thread_act_t thread, pf_os_thread_fn is, void *data)
{
    thread_identifier_info_data_t info;
    mach_msg_type_number_t size = THREAD_IDENTIFIER_INFO_COUNT;
    return thread_info(thread, THREAD_IDENTIFIER_INFO, (thread_info_t)&info,
                       &size) == KERN_SUCCESS &&
           is(info.thread_id, data);
}

int
pf_os_threads_any(pf_os_thread_fn is, void *data)
{
    thread_act_array_t threads;
    mach_msg_type_number_t count;
    if (task_threads(mach_task_self(), &threads, &count) != KERN_SUCCESS) {
        return -1;
    }
    int found = 0;
    for (mach_msg_type_number_t i = 0; i < count; i++) {
        found = found || holds_for(threads[i], is, data);
        mach_port_deallocate(mach_task_self(), threads[i]);
    }
    vm_deallocate(mach_task_self(), (vm_address_t)threads,
                  count * sizeof *threads);
    return found;
}

#else

int
pf_os_threads_any(pf_os_thread_fn is, void *data)
{
    (void)is;
    (void)data;
    return -1;
}

#endif
