"""Where a process's socket is: a file named by its number, in a folder that is its user's alone."""

from __future__ import annotations

import contextlib
import os
import re
import stat

#: Not from the environment, because who looks has another one than who is looked at.
FOLDERS = ("/run/user/{uid}/pyfiber", "/tmp/pyfiber-{uid}")
SOCKET = re.compile(r"(\d+)\.sock", re.ASCII)


def folders(uid: int) -> list[str]:
    """Those of a user, the best one first; they need not exist."""
    return [folder.format(uid=uid) for folder in FOLDERS]


def socket_in(folder: str, pid: int) -> str:
    return os.path.join(folder, f"{pid}.sock")


def is_own(folder: str, uid: int) -> bool:
    """Is it a folder of that user, which nobody else can get into?"""
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
    return private and found.st_uid == uid


def own_folder() -> str:
    """A folder for this process's socket, made if need be; OSError if there can be none."""
    uid = os.geteuid()
    for folder in folders(uid):
        with contextlib.suppress(OSError):
            os.mkdir(folder, 0o700)
        if is_own(folder, uid):
            return folder
    raise PermissionError(
        f"no place for pyfiber's debug socket: {' and '.join(folders(uid))} cannot be made, "
        f"or belong to somebody else, or are open to others"
    )


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


def clean(folder: str) -> None:
    """Remove what processes have left that ended without doing so."""
    for name in os.listdir(folder):
        named = SOCKET.fullmatch(name)
        if named and not is_alive(int(named[1])):
            remove(os.path.join(folder, name))


def remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
