"""Where a process's socket is: a file named by its number, in a folder that is its user's alone.

Root may look at the processes of others, and a user can plant links in every folder that the user
can write. So two rules hold here and wherever this package touches a file by its name: a process
makes files only in folders whose names nobody else can turn into something else (`is_firm`), and
what is in another user's folder is touched with that user's rights (`User.acting`).
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass

#: Not from the environment, because who looks has another one than who is looked at.
FOLDERS = ("/run/user/{uid}/pyfiber", "/tmp/pyfiber-{uid}")
SOCKET = re.compile(r"(\d+)\.sock", re.ASCII)


def folders(uid: int) -> list[str]:
    """Those of a user, the best one first; they need not exist."""
    return [folder.format(uid=uid) for folder in FOLDERS]


def socket_in(folder: str, pid: int) -> str:
    return os.path.join(folder, f"{pid}.sock")


def is_own(folder: str, uid: int) -> bool:
    """Is it a folder of that user, which nobody else can get into or exchange?"""
    try:
        found = os.lstat(folder)
    except OSError:
        return False
    private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
    return private and found.st_uid == uid and is_firm(os.path.dirname(folder), uid)


def is_firm(folder: str, uid: int) -> bool:
    """Can only that user and root exchange this folder, one above, or what is theirs in it?"""
    folder = os.path.realpath(folder)
    trusted = (uid, 0, os.lstat("/").st_uid)  # the owner of / could exchange everything anyway
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
    """Whose process is looked at."""

    uid: int
    gid: int

    def is_other(self) -> bool:
        """Another one than ours, which is root then."""
        return self.uid != os.geteuid()

    @contextlib.contextmanager
    def acting(self) -> Iterator[None]:
        """Within this, the process may do what that user may do. OSError if it cannot be.

        The real user stays, so that user cannot send signals to this process or trace it.
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
    """Remove the file, if it is there and this process, which may have changed its user, may."""
    with contextlib.suppress(FileNotFoundError, PermissionError):
        os.unlink(path)
