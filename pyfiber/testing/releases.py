"""Which functions of the standard library's C modules give up the GIL before they have any effect.

Another thread may run between the call of such a function and what the function does: between the
call of `connect()` and the connection. A function that only sometimes gives up the GIL is not
listed.
"""

from __future__ import annotations

import os
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType, ModuleType
from typing import Any

from pyfiber._engine import _outside
from pyfiber.testing.accesses import is_a

PACKAGE = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")

SOCKET = frozenset(
    {"accept", "_accept", "bind", "close", "connect", "connect_ex", "listen", "recv", "recv_into"}
    | {"recvfrom", "recvfrom_into", "recvmsg", "send", "sendall", "sendmsg", "sendto"}
    | {"setblocking", "settimeout", "shutdown"}
    | {"getaddrinfo", "gethostbyaddr", "gethostbyname", "gethostbyname_ex", "getnameinfo"}
)
FILES = frozenset(
    {"access", "chdir", "chmod", "close", "fstat", "fsync", "ftruncate", "link", "listdir"}
    | {"lseek", "lstat", "mkdir", "open", "pipe", "pread", "pwrite", "read", "readlink", "remove"}
    | {"rename", "replace", "rmdir", "scandir", "sendfile", "stat", "symlink", "truncate"}
    | {"unlink", "utime", "wait", "waitpid", "write"}
)
SQLITE = frozenset(
    {"close", "commit", "connect", "execute", "executemany", "executescript", "fetchall"}
    | {"fetchmany", "fetchone", "rollback"}
)
#: The names of functions and methods, by the modules of functions or of the methods' types.
RELEASES: dict[str, frozenset[str]] = {
    "_io": frozenset({"open"}),
    "_socket": SOCKET,
    "_sqlite3": SQLITE,
    "fcntl": frozenset({"flock", "lockf"}),
    "_ssl": frozenset({"do_handshake", "read", "shutdown", "write"}),
    "nt": FILES,
    "posix": FILES,
    "select": frozenset({"control", "epoll", "poll", "select"}),
    "sqlite3": SQLITE,
    "time": frozenset({"sleep"}),
}
#: pyfiber's own functions that stand in for such functions have the same names.
STAND_INS = SOCKET | RELEASES["select"] | RELEASES["time"]


def gives_up_gil(function: Any) -> bool:
    """Does a call of the function give up the GIL at its beginning?"""
    function = _outside(function)
    kind = type(function)
    if kind is MethodDescriptorType:
        return is_listed(function.__objclass__, function.__name__)
    if kind is BuiltinFunctionType:
        owner = function.__self__
        if is_a(owner, ModuleType):
            return function.__name__ in RELEASES.get(owner.__name__, ())
        return any(is_listed(base, function.__name__) for base in type(owner).__mro__)
    if kind is FunctionType:
        name = function.__name__
        return name in STAND_INS and function.__code__.co_filename.startswith(PACKAGE)
    return False


def is_listed(owner: type, name: str) -> bool:
    """Is this a method of a type of one of the modules?"""
    return name in RELEASES.get(owner.__module__, ())
