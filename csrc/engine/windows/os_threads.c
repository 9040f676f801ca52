/* Lists the threads of this process from a snapshot of all threads of the
 * system: see os_threads.h. */
#include "engine/base/os_threads.h"

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include <tlhelp32.h>

int
pf_os_threads_any(pf_os_thread_fn is, void *data)
{
    HANDLE list = CreateToolhelp32Snapshot(TH32CS_SNAPTHREAD, 0);
    if (list == INVALID_HANDLE_VALUE) {
        return -1;
    }
    DWORD process = GetCurrentProcessId();
    THREADENTRY32 entry = {.dwSize = sizeof entry};
    int found = 0;
    BOOL more = Thread32First(list, &entry);
    while (more && found == 0) {
        if (entry.th32OwnerProcessID == process) {
            found = is(entry.th32ThreadID, data);
        }
        more = Thread32Next(list, &entry);
    }
    CloseHandle(list);
    return found;
}

void
pf_os_thread_pause(void)
{
    Sleep(2);
}
