"""Gets into a process that has no socket, with sys.remote_exec of Python 3.14 and later.

The process runs a few lines of Python, which start a thread. The thread connects to a socket of
this side and ends when this side leaves; nothing stays in the process.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterator

from pyfiber._debug import places
from pyfiber._debug.places import User
from pyfiber._debug.server import peer_of

SCRIPT = """
import _thread


def pyfiber_looks(path={path!r}):
    import _socket, json, sys

    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    connection.connect(path)
    try:
        if "pyfiber" not in sys.modules:
            raise ImportError("the process does not use pyfiber")
        from pyfiber._debug import server
    except Exception as exc:
        connection.sendall(json.dumps({{"protocol": 1, "error": str(exc)}}).encode() + b"\\n")
    else:
        server.serve(connection)


_native = __import__("sys").modules.get("pyfiber._native", _thread)
_native.start_new_thread(pyfiber_looks, ())
"""

#: Seconds until a process that has not answered is taken to be blocked in a system call.
SOON = 0.2


class Refused(Exception):
    """Why the process cannot be entered, as a sentence."""


def is_possible() -> bool:
    return hasattr(sys, "remote_exec")


def enter(pid: int, user: User, seconds: float) -> socket.socket:
    """Start a thread in that process and return a connection to the thread. Raises Refused."""
    with meeting_place(user) as folder, socket.socket(socket.AF_UNIX) as listener:
        path = os.path.join(folder, "socket")
        script = os.path.join(folder, "script.py")
        listen(listener, path, user)
        write(script, SCRIPT.format(path=path), user)
        order(pid, script)
        return arrival(listener, pid, seconds)


@contextlib.contextmanager
def meeting_place(user: User) -> Iterator[str]:
    """Make a folder of the caller's user, in which nobody else can write. Raises Refused.

    If the process is another user's, that user may reach files in the folder, but not write there.
    """
    above = ("/tmp", "/var/tmp") if user.is_other() else (tempfile.gettempdir(), "/tmp")
    for place in above:
        if places.is_firm(place, os.geteuid()):
            break
    else:
        raise Refused(f"no place to meet the process: others can write in {' and '.join(above)}")
    folder = tempfile.mkdtemp(prefix="pyfiber-", dir=place)
    try:
        if user.is_other():
            os.chmod(folder, 0o711)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def listen(listener: socket.socket, path: str, user: User) -> None:
    """Listen at the path, to which only that user can connect."""
    listener.bind(path)
    os.chmod(path, 0o600)
    if user.is_other():
        os.chown(path, user.uid, -1, follow_symlinks=False)
    listener.listen(1)


def write(path: str, text: str, user: User) -> None:
    """Make a file that the user can read."""
    with open(path, "x", encoding="utf-8") as file:
        if user.is_other():
            os.chmod(file.fileno(), 0o644)
        file.write(text)


def order(pid: int, script: str) -> None:
    """Have the process run the script when its main thread next runs Python code, or Refused."""
    try:
        sys.remote_exec(pid, script)  # type: ignore[attr-defined]
    except ProcessLookupError:
        raise Refused(f"there is no process {pid}") from None
    except PermissionError as exc:
        raise Refused(f"the system does not let you into process {pid} ({exc}): {hint()}") from None
    except (OSError, RuntimeError) as exc:
        raise Refused(
            f"process {pid} cannot be entered ({exc}): it must be the same version of Python as "
            "this one, and without PYTHON_DISABLE_REMOTE_DEBUG and -X disable-remote-debug"
        ) from None


def hint() -> str:
    """What would give the missing permission."""
    if sys.platform == "darwin":
        return "macOS asks for sudo"
    try:
        with open("/proc/sys/kernel/yama/ptrace_scope", encoding="ascii") as file:
            scope = int(file.read())
    except (OSError, ValueError):
        scope = 0
    if scope == 0:
        return "sudo may help, or in a container the capability SYS_PTRACE"
    return f"kernel.yama.ptrace_scope is {scope}, so only the process's parent or sudo can do it"


def arrival(listener: socket.socket, pid: int, seconds: float) -> socket.socket:
    """Wait for the connection that the script makes, and close others. Raises Refused."""
    deadline = time.monotonic() + seconds
    listener.settimeout(min(SOON, seconds))
    while True:
        try:
            connection = listener.accept()[0]
        except TimeoutError:
            left = deadline - time.monotonic()
            if left <= 0:
                raise Refused(
                    f"the main thread of process {pid} has run no Python code for {seconds:g} s: "
                    "it may wait for a lock, or be in a C function"
                ) from None
            wake(pid)
            listener.settimeout(left)
            continue
        if peer_of(connection)[0] in (pid, None):
            connection.settimeout(seconds)
            return connection
        connection.close()


# a process that waits -----------------------------------------------------------------------------

PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH = 0x4206, 0x4207, 17
WALL = 0x40000000


def wake(pid: int) -> None:
    """On Linux, end the system call that the main thread waits in, by attaching like a debugger.

    The call fails with EINTR. Python then looks for signals, and finds the script.
    """
    if sys.platform != "linux":
        return
    import ctypes

    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
    ptrace.restype = ctypes.c_long
    if ptrace(PTRACE_SEIZE, pid, None, None) == 0:
        ptrace(PTRACE_INTERRUPT, pid, None, None)
        for _ in range(100):  # of 10 ms
            if os.waitpid(pid, WALL | os.WNOHANG)[0] == pid:
                break
            time.sleep(0.01)
        ptrace(PTRACE_DETACH, pid, None, None)
