"""Root looks at processes of other users, who can plant links wherever they can write."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pyfiber._debug import client, places, remote
from pyfiber._debug import command as commands
from pyfiber._debug.places import User
from tests.debug.programs import (
    OURS,
    WAITING,
    WITH_SOCKET,
    WITHOUT,
    command,
    needs_unix,
    running,
)
from tests.support.subprocesses import EMULATED

IS_ROOT = hasattr(os, "geteuid") and os.geteuid() == 0
pytestmark = [needs_unix, pytest.mark.skipif(not IS_ROOT, reason="needs root")]
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux says whose process it is")

NOBODY = User(65534, 65534)


@pytest.fixture
def folder() -> Iterator[str]:
    """One that everybody can reach; pytest's own are its user's."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        os.chmod(made, 0o755)
        yield made


def refused_to_nobody(act: Callable[[], object]) -> None:
    with NOBODY.acting(), pytest.raises(PermissionError):
        act()


# where files are made -----------------------------------------------------------------------------


def test_meeting_folder_of_another_users_process_is_not_handed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def order(pid: int, script: str) -> None:
        meeting = os.path.dirname(script)
        path = os.path.join(meeting, "socket")
        assert os.stat(meeting).st_uid == os.stat(script).st_uid == 0
        assert stat.S_IMODE(os.stat(script).st_mode) == 0o644
        assert (os.stat(path).st_uid, stat.S_IMODE(os.stat(path).st_mode)) == (NOBODY.uid, 0o600)
        refused_to_nobody(lambda: os.symlink("/etc/passwd", os.path.join(meeting, "planted")))
        refused_to_nobody(lambda: os.unlink(script))
        refused_to_nobody(lambda: os.rename(meeting, f"{meeting}-moved"))
        refused_to_nobody(lambda: Path(script).write_text("evil"))
        raise remote.Refused("that is all")

    monkeypatch.setattr(remote, "order", order)
    with pytest.raises(remote.Refused, match="that is all"):
        remote.enter(os.getpid(), NOBODY, 1)


def test_script_is_made_and_never_written_into_what_is_there(folder: str) -> None:
    precious = Path(folder, "precious")
    precious.write_text("precious")
    os.symlink(precious, os.path.join(folder, "script.py"))
    with pytest.raises(FileExistsError):
        remote.write(os.path.join(folder, "script.py"), "pass", NOBODY)
    assert precious.read_text() == "precious"


@pytest.mark.parametrize("user", [OURS, NOBODY])
def test_temporary_folder_that_others_could_exchange_is_not_used(
    user: User, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = os.path.join(folder, "theirs")
    os.mkdir(theirs)
    os.chmod(theirs, 0o777)
    monkeypatch.setattr(tempfile, "tempdir", theirs)
    with remote.meeting_place(user) as meeting:
        assert os.path.dirname(meeting) == "/tmp"


@pytest.mark.parametrize(
    ("mode", "owner", "firm"),
    [(0o755, 0, True), (0o1777, 0, True), (0o777, 0, False), (0o775, 0, False), (0o755, 1, False)],
)
def test_folder_is_firm_if_nobody_else_can_exchange_it(
    mode: int, owner: int, firm: bool, folder: str
) -> None:
    above = os.path.join(folder, "above")
    own = os.path.join(above, "own")
    os.makedirs(own)
    os.chown(above, owner, -1)
    os.chmod(above, mode)
    os.chmod(own, 0o700)
    assert places.is_firm(above, 0) == firm
    assert places.is_firm(own, 0) == firm
    assert places.is_own(own, 0) == firm


# what is touched by its name ----------------------------------------------------------------------


@contextlib.contextmanager
def sleeping() -> Iterator[int]:
    """A process of that user."""
    process = subprocess.Popen(["sleep", "1000"], user=NOBODY.uid, group=NOBODY.gid)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


@on_linux
def test_link_to_a_socket_of_root_is_not_followed(
    folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = os.path.join(folder, "theirs")
    os.mkdir(theirs, 0o700)
    os.chown(theirs, NOBODY.uid, NOBODY.gid)
    monkeypatch.setattr(places, "FOLDERS", (theirs,))
    with sleeping() as pid, socket.socket(socket.AF_UNIX) as precious:
        precious.bind(os.path.join(folder, "precious"))
        os.chmod(precious.getsockname(), 0o600)
        precious.listen()
        precious.setblocking(False)
        os.symlink(precious.getsockname(), places.socket_in(theirs, pid))
        assert client.connected(pid, client.owner_of(pid), 3) is None
        with pytest.raises(BlockingIOError):
            precious.accept()
    assert (os.geteuid(), os.getegid()) == (OURS.uid, OURS.gid)


def test_source_is_read_with_the_rights_of_the_processs_user(
    folder: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path(folder, "secret").write_text("secret\n")
    os.chmod(os.path.join(folder, "secret"), 0o600)
    os.symlink(os.path.join(folder, "secret"), os.path.join(folder, "planted.py"))
    Path(folder, "open.py").write_text("everybody's\n")
    stack = [[os.path.join(folder, name), 1, "f"] for name in ("planted.py", "open.py")]
    answered(answer_with(stack=stack), NOBODY)
    shown = capsys.readouterr().out
    assert "planted.py" in shown
    assert "everybody's" in shown
    assert "secret\n" not in shown


def answer_with(**of_the_group: Any) -> dict[str, Any]:
    """Of a process that has one fiber."""
    group = {
        "count": 1,
        "state": "parked",
        "names": ["name"],
        "wait": "waits",
        "requests": [],
        "more_requests": 0,
        "waited": [1.0, 1.0],
        "moved": 0,
        "stack": [],
        **of_the_group,
    }
    thread = {"id": 1, "name": "t", "idle": True, "fibers": 1, "examined": 1, "schedulers": []}
    return {
        "protocol": 1,
        "pid": 1,
        "pyfiber": "1",
        "python": "3",
        "home": "/",
        "time": 1.0,
        "threads": [{**thread, "groups": [group]}],
    }


def answered(answer: Any, user: User = OURS, action: Any = commands.ps) -> None:
    """Let `ps` or `top` show this answer."""
    ours, theirs = socket.socketpair()
    parser = commands.argparse.ArgumentParser()
    (commands.add_ps if action is commands.ps else commands.add_top)(parser)
    options = parser.parse_args(["1"] if action is commands.ps else ["1", "--count", "1"])
    with ours, theirs:
        sender = threading.Thread(
            target=theirs.sendall, args=(json.dumps(answer).encode() + b"\n",)
        )
        sender.start()
        try:
            action(client.Connection(ours, 1, user), options)
        finally:
            sender.join()


@pytest.mark.parametrize("action", [commands.ps, commands.top])
@pytest.mark.parametrize(
    "answer",
    [
        {"protocol": 1},
        {"protocol": 1, "threads": 7},
        {**answer_with(), "threads": [7]},
        {**answer_with(), "threads": [{}]},
        answer_with(stack=7, count="many"),
        answer_with(stack=[[1]], names=7),
        answer_with(stack=[[None, None, None]], waited=["a", "b"]),
        answer_with(waited=[float("inf"), float("nan")]),
        answer_with(count=None, state=None),
    ],
)
def test_answer_of_a_hostile_process_is_refused_in_words(answer: Any, action: Any) -> None:
    with pytest.raises(client.Failed, match="cannot be understood"):
        answered(answer, action=action)


# what still works ---------------------------------------------------------------------------------

#: Not by exec: then the system says that the process is root's.
CHANGES_ITS_USER = f"""
    import os
    import encodings.idna, json, pyfiber._debug.server  # which that user may not be able to read
{WAITING}
    def change():
        os.setgroups([])
        os.setgid({NOBODY.gid})
        os.setuid({NOBODY.uid})
        main()
"""


@on_linux
@pytest.mark.skipif(not hasattr(sys, "remote_exec"), reason="from Python 3.14 on")
@pytest.mark.skipif(EMULATED, reason="qemu knows no ptrace")
def test_root_enters_a_process_of_another_user() -> None:
    with running(CHANGES_ITS_USER, "run(change)", env=WITHOUT) as process:
        assert "2 fibers, 'consumer" in command("ps", process.pid)


@on_linux
def test_root_reaches_the_socket_of_a_process_that_has_changed_its_user() -> None:
    with running(CHANGES_ITS_USER, "run(change)", env=WITH_SOCKET) as process:
        assert client.owner_of(process.pid) == NOBODY
        assert "2 fibers, 'consumer" in command("ps", process.pid)
        process.terminate()
        assert "Traceback" not in process.communicate(timeout=60)[1]


def test_process_that_has_changed_its_user_ends_without_a_word() -> None:
    end = "os.setuid(65534)\nprint('ready', flush=True)"
    with running("import os, pyfiber", end, env=WITH_SOCKET) as process:
        assert process.communicate(timeout=60)[1] == ""
        assert process.returncode == 0
