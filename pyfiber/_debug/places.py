"""Where a process's socket is: a file named by the process's number, in a folder of its user alone.

Root may look at the processes of others, and a user can plant links in every folder that the user
can write. So two rules hold here and wherever this package touches a file by its name: a process
makes files only in folders that nobody else can replace by something else (`is_firm`), and files in
another user's folder are touched with that user's rights (`User.acting`).
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass

#: Fixed, not from the environment: the client and the process have different environments.
FOLDERS = ("/run/user/{uid}/pyfiber", "/tmp/pyfiber-{uid}")
SOCKET = re.compile(r"(\d+)\.sock", re.ASCII)


def folders(uid: int) -> list[str]:
    """The folders that a user's sockets may be in, the best one first; they need not exist."""
    return [folder.format(uid=uid) for folder in FOLDERS]


def socket_in(folder: str, pid: int) -> str:
    return os.path.join(folder, f"{pid}.sock")


def is_own(folder: str, uid: int) -> bool:
    """Is it a folder of that user, which nobody else can get into or replace?"""
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
    return private and found.st_uid == uid and is_firm(os.path.dirname(folder), uid)


def is_firm(folder: str, uid: int) -> bool:
    """Can only that user and root replace this folder, one above, or their own files in it?"""
    folder = os.path.realpath(folder)
    trusted = (uid, 0, os.lstat("/").st_uid)  # the owner of / could replace everything anyway
    while True:
        try:
            found = os.lstat(folder)
        except OSError:
            return False
        open_to_others = found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX
        if found.st_uid not in trusted or open_to_others or not stat.S_ISDIR(found.st_mode):
            return False
        above = os.path.dirname(folder)
        if above == folder:
            return True
        folder = above


@dataclass(frozen=True)
class User:
    """The user of the process that is looked at."""

    uid: int
    gid: int

    def is_other(self) -> bool:
        """Whether this is not the caller's own user. The caller is root then."""
        return self.uid != os.geteuid()

    @contextlib.contextmanager
    def acting(self) -> Iterator[None]:
        """Give this process that user's rights within the block. OSError if that is impossible.

        The real user ID stays, so that user cannot send signals to this process or trace it.
        """
        if not self.is_other():
            yield
            return
        uid, gid, groups = os.geteuid(), os.getegid(), os.getgroups()
        try:
            os.setgroups([self.gid])
            os.setegid(self.gid)
            os.seteuid(self.uid)
            yield
        finally:
            os.seteuid(uid)
            os.setegid(gid)
            os.setgroups(groups)


def own_folder() -> str:
    """A folder for this process's socket, made if need be; OSError if none is usable."""
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
    """Remove the sockets of processes that have ended without removing them."""
    for name in os.listdir(folder):
        named = SOCKET.fullmatch(name)
        if named and not is_alive(int(named[1])):
            remove(os.path.join(folder, name))


def remove(path: str) -> None:
    """Remove the file if that is possible: this process may have changed its user since."""
    with contextlib.suppress(FileNotFoundError, PermissionError):
        os.unlink(path)
