/* What Windows offers, by mingw's headers, which want to be read by gcc. */
#undef _MSC_VER
#define __GNUC__ 4
#define __GNUC_MINOR__ 2
#define __MINGW32__ 1
#define __MINGW64__ 1
#define __declspec __declspec /* they ask whether it is a macro */

#include <winsock2.h>

#include <mswsock.h>
#include <windows.h>

#include <assert.h>
#include <errno.h>
#include <intrin.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <winternl.h>
#if defined(WITH_PYTHON)
#include <Python.h>
#endif
