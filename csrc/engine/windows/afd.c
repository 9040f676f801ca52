/* Makes requests to AFD, the driver of sockets: see afd.h. */
#define WIN32_LEAN_AND_MEAN
#include "engine/windows/afd.h"

#include <errno.h>
#include <mswsock.h>
#include <winternl.h>

#include "engine/base/memory.h"

#define IOCTL_AFD_POLL 0x00012024

enum {
    AFD_RECEIVE = 1 << 0,
    AFD_EXPEDITED = 1 << 1, /* data out of band */
    AFD_SEND = 1 << 2,
    AFD_DISCONNECT = 1 << 3, /* the other end sends no more */
    AFD_ABORT = 1 << 4,      /* the other end has broken the connection */
    AFD_CLOSE = 1 << 5,      /* this end is closed */
    AFD_ACCEPT = 1 << 7,
    AFD_CONNECT_FAIL = 1 << 8,
};

/* Older versions of winsock2.h and mswsock.h lack these. */
#if !defined(SIO_BASE_HANDLE)
#define SIO_BASE_HANDLE 0x48000022
#endif
#if !defined(SIO_BSP_HANDLE_POLL)
#define SIO_BSP_HANDLE_POLL 0x4800001D
#endif

#define STATUS_OF_PENDING ((ULONG_PTR)0x00000103)
#define STATUS_OF_CANCELLED ((LONG)0xC0000120)
#define STATUS_OF_LOST ((ULONG_PTR)0xC0000008) /* an invalid handle */

/* ------------------------------------------------- handles of AFD --- */

#define MOST_SOCKETS 32 /* of one handle */

struct pf_afd_device {
    pf_afd_device *next;
    HANDLE handle;
    int sockets;
};

typedef NTSTATUS(NTAPI *create_file_fn)(HANDLE *, ACCESS_MASK,
                                        OBJECT_ATTRIBUTES *, IO_STATUS_BLOCK *,
                                        LARGE_INTEGER *, ULONG, ULONG, ULONG,
                                        ULONG, void *, ULONG);

/* CreateFile cannot open a device that has no Win32 name, so this calls
 * NtCreateFile from ntdll, which every process has loaded. */
static HANDLE
open_driver(void)
{
    static WCHAR name[] = L"\\Device\\Afd\\pyfiber";
    UNICODE_STRING path = {sizeof name - sizeof *name, sizeof name, name};
    OBJECT_ATTRIBUTES attributes = {.Length = sizeof attributes,
                                    .ObjectName = &path};
    IO_STATUS_BLOCK status;
    HANDLE handle = NULL;
    create_file_fn create = (create_file_fn)(void (*)(void))GetProcAddress(
        GetModuleHandleW(L"ntdll.dll"), "NtCreateFile");
    if (create == NULL || create(&handle, SYNCHRONIZE, &attributes, &status,
                                 NULL, 0, FILE_SHARE_READ | FILE_SHARE_WRITE,
                                 FILE_OPEN, 0, NULL, 0) < 0) {
        return NULL;
    }
    return handle;
}

static pf_afd_device *
open_device(pf_afd *afd)
{
    pf_afd_device *device = pf_memory_calloc(1, sizeof *device);
    if (device == NULL) {
        return NULL;
    }
    device->handle = open_driver();
    if (device->handle == NULL ||
        CreateIoCompletionPort(device->handle, afd->port, afd->key, 0) ==
            NULL) {
        if (device->handle != NULL) {
            CloseHandle(device->handle);
        }
        free(device);
        return NULL;
    }
    (void)SetFileCompletionNotificationModes(device->handle,
                                             FILE_SKIP_SET_EVENT_ON_HANDLE);
    device->next = afd->devices;
    afd->devices = device;
    return device;
}

static pf_afd_device *
device_with_room(pf_afd *afd)
{
    pf_afd_device *device = afd->devices;
    while (device != NULL && device->sockets == MOST_SOCKETS) {
        device = device->next;
    }
    return device != NULL ? device : open_device(afd);
}

/* ----------------------------------------------------- watches --- */

static SOCKET
related(SOCKET s, DWORD which)
{
    SOCKET other;
    DWORD size;
    int rc =
        WSAIoctl(s, which, NULL, 0, &other, sizeof other, &size, NULL, NULL);
    return rc == SOCKET_ERROR ? INVALID_SOCKET : other;
}

/* Not every system checks this before it answers SIO_BASE_HANDLE. */
static bool
is_socket(SOCKET s)
{
    int type, size = sizeof type;
    return getsockopt(s, SOL_SOCKET, SO_TYPE, (char *)&type, &size) !=
           SOCKET_ERROR;
}

/* Returns the handle that AFD knows the socket by.  A program that puts a
 * layer between Winsock and the system gives its sockets handles of that
 * layer.  Some layers do not answer SIO_BASE_HANDLE, as they should;
 * SIO_BSP_HANDLE_POLL then leads to the next layer below. */
static SOCKET
base_of(SOCKET s)
{
    SOCKET base;
    while ((base = related(s, SIO_BASE_HANDLE)) == INVALID_SOCKET) {
        SOCKET below = related(s, SIO_BSP_HANDLE_POLL);
        if (below == INVALID_SOCKET || below == s) {
            return INVALID_SOCKET;
        }
        s = below;
    }
    return base;
}

pf_afd_watch *
pf_afd_watch_new(pf_afd *afd, intptr_t number, int *error)
{
    SOCKET base =
        is_socket((SOCKET)number) ? base_of((SOCKET)number) : INVALID_SOCKET;
    *error = -ENOTSOCK;
    if (base == INVALID_SOCKET) {
        return NULL;
    }
    *error = -ENOMEM;
    pf_afd_watch *watch = pf_memory_calloc(1, sizeof *watch);
    if (watch == NULL) {
        return NULL;
    }
    watch->device = device_with_room(afd);
    if (watch->device == NULL) {
        free(watch);
        return NULL;
    }
    watch->device->sockets++;
    watch->socket = (HANDLE)base;
    return watch;
}

void
pf_afd_watch_free(pf_afd_watch *watch)
{
    watch->device->sockets--;
    free(watch);
}

/* ---------------------------------------------------- requests --- */

static ULONG
wanted_from_system(unsigned interest)
{
    ULONG events = AFD_ABORT | AFD_CLOSE | AFD_CONNECT_FAIL;
    if (interest & PF_IO_READ) {
        events |= AFD_RECEIVE | AFD_ACCEPT | AFD_DISCONNECT;
    }
    if (interest & PF_IO_WRITE) {
        events |= AFD_SEND;
    }
    if (interest & PF_IO_URGENT) {
        events |= AFD_EXPEDITED;
    }
    return events;
}

static unsigned
found_by_system(ULONG system)
{
    unsigned events = 0;
    if (system & (AFD_RECEIVE | AFD_ACCEPT)) {
        events |= PF_IO_READ;
    }
    if (system & AFD_SEND) {
        events |= PF_IO_WRITE;
    }
    if (system & AFD_EXPEDITED) {
        events |= PF_IO_URGENT;
    }
    if (system & AFD_DISCONNECT) {
        events |= PF_IO_READ | PF_IO_END;
    }
    if (system & (AFD_ABORT | AFD_CLOSE | AFD_CONNECT_FAIL)) {
        events |= PF_IO_READ | PF_IO_WRITE | PF_IO_ERROR;
    }
    return events;
}

/* Whether the system takes the request.  A packet then comes, even if the
 * request completes at once. */
static bool
request(pf_afd_watch *watch)
{
    DWORD size;
    return DeviceIoControl(watch->device->handle, IOCTL_AFD_POLL,
                           &watch->request, sizeof watch->request,
                           &watch->request, sizeof watch->request, &size,
                           &watch->overlapped) ||
           GetLastError() == ERROR_IO_PENDING;
}

bool
pf_afd_ask(pf_afd *afd, pf_afd_watch *watch, unsigned interest)
{
    memset(&watch->overlapped, 0, sizeof watch->overlapped);
    watch->request = (pf_afd_request){
        .timeout.QuadPart = INT64_MAX,
        .count = 1,
        .socket = watch->socket,
        .events = wanted_from_system(interest),
    };
    watch->asked = interest;
    watch->outstanding = true;
    afd->outstanding++;
    if (request(watch)) {
        return true;
    }
    watch->overlapped.Internal = STATUS_OF_LOST;
    if (!PostQueuedCompletionStatus(afd->port, 0, afd->key,
                                    &watch->overlapped)) {
        watch->outstanding = false; /* no memory: the ERROR is lost */
        afd->outstanding--;
    }
    return false;
}

/* CancelIoEx fails if the request has completed: then its packet comes
 * anyway. */
void
pf_afd_cancel(pf_afd_watch *watch)
{
    (void)CancelIoEx(watch->device->handle, &watch->overlapped);
}

unsigned
pf_afd_answer(pf_afd *afd, pf_afd_watch *watch)
{
    LONG status = (LONG)watch->overlapped.Internal;
    watch->outstanding = false;
    afd->outstanding--;
    if (status == STATUS_OF_CANCELLED) {
        return 0;
    }
    if (status < 0) {
        return PF_IO_READ | PF_IO_WRITE | PF_IO_ERROR;
    }
    return watch->request.count == 0 ? 0
                                     : found_by_system(watch->request.events);
}

bool
pf_afd_has_answered(const pf_afd_watch *watch)
{
    return watch->overlapped.Internal != STATUS_OF_PENDING;
}

/* --------------------------------------------------------- end --- */

/* Milliseconds.  The driver answers a cancelled request long before that. */
#define ANSWERS_WITHIN 1000

static void
cancel_all(pf_afd *afd)
{
    for (pf_afd_device *d = afd->devices; d != NULL; d = d->next) {
        (void)CancelIoEx(d->handle, NULL);
    }
}

static void
take_the_rest(pf_afd *afd)
{
    OVERLAPPED_ENTRY entries[16];
    ULONG count;
    while (afd->outstanding > 0 &&
           GetQueuedCompletionStatusEx(afd->port, entries, 16, &count,
                                       ANSWERS_WITHIN, FALSE)) {
        for (ULONG i = 0; i < count; i++) {
            if (entries[i].lpCompletionKey == afd->key) {
                pf_afd_watch *watch = (pf_afd_watch *)entries[i].lpOverlapped;
                (void)pf_afd_answer(afd, watch);
                pf_afd_watch_free(watch);
            }
        }
    }
}

void
pf_afd_finish(pf_afd *afd)
{
    cancel_all(afd);
    take_the_rest(afd);
    while (afd->devices != NULL) {
        pf_afd_device *device = afd->devices;
        afd->devices = device->next;
        CloseHandle(device->handle);
        free(device);
    }
}
