/* Lists the threads of this process from a snapshot of all threads of the
 * system: see os_threads.h. */
#include "engine/base/os_threads.h"

#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include <tlhelp32.h>

int
pf_os_threads_any(pf_os_thread_fn matches, void *data)
{
    HANDLE list = CreateToolhelp32Snapshot(TH32CS_SNAPTHREAD, 0);
    if (list == INVALID_HANDLE_VALUE) {
        return -1;
    }
    DWORD process = GetCurrentProcessId();
    THREADENTRY32 entry = {.dwSize = sizeof entry};
    bool found = false;
    BOOL more = Thread32First(list, &entry);
    while (more && !found) {
        if (entry.th32OwnerProcessID == process) {
            found = matches(entry.th32ThreadID, data);
        }
        more = found || Thread32Next(list, &entry);
    }
    bool failed = !more && GetLastError() != ERROR_NO_MORE_FILES;
    CloseHandle(list);
    return failed ? -1 : found;
}

void
pf_os_thread_pause(void)
{
    Sleep(2);
}
