"""`python -m pyfiber ps` and `top`, on processes that have a socket."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from pyfiber._debug import places, server
from pyfiber._debug.client import Failed, connect, connected
from tests.conftest import Child
from tests.debug.programs import (
    OURS,
    WAITING,
    WITH_SOCKET,
    WITHOUT,
    command,
    fibers_of,
    needs_unix,
    running,
)
from tests.support.examples import EXAMPLES
from tests.support.subprocesses import EMULATED, start_python

pytestmark = needs_unix


def path_of(pid: int) -> str:
    """The socket of a process of ours that has one."""
    found = [places.socket_in(folder, pid) for folder in places.folders(os.geteuid())]
    return next(path for path in found if os.path.exists(path))


# what is shown ------------------------------------------------------------------------------------


def test_ps_shows_alike_fibers_together() -> None:
    with running(WAITING) as process:
        shown = command("ps", process.pid)
    assert f"process {process.pid}, pyfiber" in shown
    assert ": 3 fibers" in shown
    assert "thread 'MainThread' (" in shown
    assert "the loop has nothing to do" in shown
    assert re.search(
        r"2 fibers, 'consumer [01]', 'consumer [01]': parked for \S+ .*s "
        r"waits for <pyfiber.Channel at 0x\w+: 0 values, capacity 0>, and so on\n"
        r".*in consumer\n",
        shown,
    )
    assert re.search(r"  'main': parked for \S+ .*s waits in park\(\)\n.*in main\n", shown)


def test_ps_while_a_fiber_computes_shows_it_running() -> None:
    source = """
        from pyfiber import *
        def computes():
            print("ready", flush=True)
            while True:
                pass
    """
    with running(source, "run(computes)") as process:
        [group] = fibers_of(process.pid)
        assert (group["state"], group["names"], group["count"]) == ("running", ["computes"], 1)
        assert group["stack"][-1][2] == "computes"
        assert "a fiber runs" in command("ps", process.pid)


def test_ps_shows_the_fibers_of_all_threads() -> None:
    source = """
        import threading
        from pyfiber import *
        def main():
            threading.Thread(target=run, args=(waits, "second"), name="other", daemon=True).start()
            waits("first")
        def waits(text):
            if text == "second":
                print("ready", flush=True)
            park(1000)
    """
    with running(source) as process:
        found = json.loads(command("ps", "--json", process.pid))
    assert {thread["name"] for thread in found["threads"]} == {"MainThread", "other"}
    assert [thread["fibers"] for thread in found["threads"]] == [1, 1]


def test_ps_shows_what_could_harm_a_terminal_escaped() -> None:
    source = r"""
        from pyfiber import *
        from pyfiber import _engine
        class Evil:
            def __repr__(self):
                raise SystemExit("its repr was called")
        def main():
            Fiber(park, (1000,), name="two\nlines \x1b[2J \udc80").start()
            latch = _engine._Latch()
            Fiber(latch.wait, (None, Evil()), name="evil").start()
            yield_now()
            print("ready", flush=True)
            park(1000)
    """
    with running(source) as process:
        shown = command("ps", process.pid)
    assert r"'two\nlines \x1b[2J \udc80': parked" in shown
    assert re.search(r"'evil': parked for .* waits for <__main__.Evil at 0x\w+>", shown)


@pytest.mark.skipif(not EXAMPLES.exists(), reason="needs the source tree")
def test_ps_and_top_show_the_echo_server_under_load() -> None:
    """A server of the examples, and clients that keep asking."""
    echo = start_python(str(EXAMPLES / "echo.py"), "--port", "0", env=WITH_SOCKET)
    try:
        assert echo.stdout is not None
        port = int(echo.stdout.readline().rpartition(":")[2])
        over = threading.Event()
        clients = [threading.Thread(target=ask, args=(port, over)) for _ in range(3)]
        for client in clients:
            client.start()
        try:
            found = [fibers_of(echo.pid) for _ in range(3)]
            shown = command("top", echo.pid, "--count", 3, "--interval", 0.2)
        finally:
            over.set()
            for client in clients:
                client.join()
    finally:
        echo.kill()
        echo.communicate()
    connections = [group for group in found[-1] if group["stack"] and in_echo(group)]
    assert 1 <= sum(group["count"] for group in connections) <= 3
    rates = [
        int(n.replace(",", ""))
        for n in re.findall(r"^per second +switches .*\n +([\d,]+) ", shown, re.MULTILINE)
    ]
    assert len(rates) == 2  # the first look has nothing before it
    assert min(rates) > 0
    moved = re.findall(r"^ +\d+ +(\d+) parked .* in echo at echo.py:", shown, re.MULTILINE)
    assert any(int(each) for each in moved)


def in_echo(group: dict[str, list[list[object]]]) -> bool:
    return any(str(file).endswith("echo.py") and name == "echo" for file, _, name in group["stack"])


def ask(port: int, over: threading.Event) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        while not over.is_set():
            sock.sendall(b"hello")
            sock.recv(100)


def test_top_ends_with_the_process() -> None:
    with running(WAITING) as process:
        connection = connect(process.pid)
        connection.ask()
        process.kill()
        process.wait()
        with pytest.raises(Failed, match="has ended"):
            connection.ask()
        connection.close()


def test_two_may_look_at_once() -> None:
    with running(WAITING) as process:
        first, second = connect(process.pid), connect(process.pid)
        assert first.ask()["pid"] == second.ask()["pid"] == process.pid
        first.close()
        assert second.ask()["threads"][0]["fibers"] == 3
        second.close()


def test_too_many_at_once_are_refused_until_one_leaves() -> None:
    with running(WAITING) as process:
        looking = [connect(process.pid) for _ in range(server.MOST_CLIENTS)]
        for each in looking:
            each.ask()
        late = connect(process.pid)
        with pytest.raises(
            Failed, match=r"the process refuses: it has 8 clients already|has closed"
        ):
            late.ask()
        late.close()
        for each in looking:
            each.close()
        assert json.loads(wait_for_socket(process.pid))["pid"] == process.pid


def test_silent_clients_give_way_to_a_new_one() -> None:
    """As `top` that is stopped, or a program that connects and asks nothing."""
    source = f"""
    from pyfiber._debug import server
    server.LONGEST_SILENCE = 0.0
{WAITING}
"""
    with running(source) as process:
        silent = [connect(process.pid) for _ in range(server.MOST_CLIENTS)]
        silent[1].ask()
        late = connect(process.pid)
        assert late.ask()["pid"] == process.pid
        with pytest.raises(Failed, match="has closed its socket"):
            silent[0].ask()  # which has never asked
        assert silent[1].ask()["pid"] == process.pid
        for each in [*silent, late]:
            each.close()


def test_client_that_does_not_take_its_answer_is_left_alone() -> None:
    """It holds a thread and its answer, for a while; it harms nobody else."""
    source = f"""
    from pyfiber._debug import server
    server.PATIENCE = 0.05
    padding = [b" " * 10_000_000]  # of the first answer
    server.answer = lambda question, answer=server.answer: (
        answer(question) + (padding.pop() if padding else b"")
    )
{WAITING}
"""
    with running(source) as process, contextlib.closing(connect(process.pid)) as greedy:
        greedy.sock.sendall(b'{"protocol": 1}\n')
        taken = len(greedy.sock.recv(1))
        assert json.loads(command("ps", "--json", process.pid))["pid"] == process.pid
        while taken < 10_000_000 and (data := greedy.sock.recv(1 << 16)):
            taken += len(data)
        assert taken < 10_000_000


# who may look, and where --------------------------------------------------------------------------


def test_socket_is_its_users_alone_and_goes_with_the_process() -> None:
    with running(WAITING) as process:
        path = path_of(process.pid)
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert not os.path.exists(path)


def test_socket_of_a_killed_process_is_removed_by_the_next_one() -> None:
    with running(WAITING) as killed:
        path = path_of(killed.pid)
    assert os.path.exists(path)
    assert command("ps", killed.pid, code=1) == f"pyfiber: there is no process {killed.pid}\n"
    with running(WAITING):
        assert not os.path.exists(path)


def test_socket_of_an_earlier_process_of_the_same_number_is_replaced() -> None:
    source = f"""
    import os, socket
    from pyfiber import _hooks
    from pyfiber._debug import places
    old = socket.socket(socket.AF_UNIX)
    old.bind(places.socket_in(places.own_folder(), os.getpid()))
    old.close()
    _hooks.open_debug_socket()
{WAITING}
"""
    with running(source, env=WITHOUT) as process:
        assert len(fibers_of(process.pid)) == 2


def test_socket_that_another_process_listens_on_is_not_asked() -> None:
    """A number was given to a new process, and somebody still has the old one's socket."""
    with running(WAITING) as process, socket.socket(socket.AF_UNIX) as old:
        path = path_of(process.pid)
        os.unlink(path)
        old.bind(path)
        old.listen()
        if hasattr(socket, "SO_PEERCRED"):
            assert connected(process.pid, OURS, 3) is None


@pytest.mark.skipif(sys.platform != "linux", reason="others refuse a connection in other ways")
def test_process_that_answers_nobody_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that is stopped: after 17 had asked, the others were told that it has no socket."""
    monkeypatch.setattr(places, "FOLDERS", (str(tmp_path),))
    waiting = [socket.socket(socket.AF_UNIX) for _ in range(3)]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(places.socket_in(str(tmp_path), os.getpid()))
        listener.listen(0)
        for sock in waiting:
            sock.setblocking(False)
            sock.connect_ex(listener.getsockname())
        with pytest.raises(Failed, match="does not take the question: others wait for an answer"):
            connected(os.getpid(), OURS, 3)
    for sock in waiting:
        sock.close()


@pytest.mark.parametrize("mode", [0o755, 0o770])
def test_folder_that_others_can_get_into_is_refused(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    monkeypatch.setattr(places, "FOLDERS", (str(folder),))
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(PermissionError, match="cannot be made, or belong to somebody else"):
        places.own_folder()
    folder.chmod(0o700)
    assert places.own_folder() == str(folder)


def test_folder_that_is_a_link_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setattr(places, "FOLDERS", (str(tmp_path / "link"),))
    with pytest.raises(PermissionError):
        places.own_folder()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root")
def test_process_of_another_user_is_refused_in_words(child: Child) -> None:
    done = child(
        """
        import os, sys
        from pyfiber._debug import client  # before it may not read the files any more
        import encodings.idna
        os.setuid(65534)
        try:
            client.connect(os.getppid())
        except client.Failed as exc:
            print(exc)
        """
    )
    assert (
        done.stdout == f"process {os.getpid()} belongs to another user: ask as that user, or "
        "with sudo\n"
    )


@pytest.mark.parametrize("pid", [0, -1, 2**22 + 1])
def test_process_that_does_not_exist_is_refused(pid: int) -> None:
    with pytest.raises(Failed, match=f"there is no process {pid}"):
        connect(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says so")
def test_process_without_pyfiber_is_refused() -> None:
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert command("ps", other.pid, code=1) == (
            f"pyfiber: process {other.pid} does not use pyfiber\n"
        )
    finally:
        other.communicate(b"\n")


@pytest.mark.skipif(hasattr(sys, "remote_exec"), reason="that needs no socket")
def test_process_without_a_socket_is_refused_with_what_would_help() -> None:
    with running(WAITING, env=WITHOUT) as process:
        shown = command("ps", process.pid, code=1)
    assert shown.startswith(f"pyfiber: process {process.pid} has no debug socket: start it with ")
    assert "PYFIBER_DEBUG=1" in shown
    assert "pyfiber.debug.debug_on_signal(signal.SIGUSR1)" in shown


# the process's side -------------------------------------------------------------------------------


def test_child_of_a_fork_has_a_socket_of_its_own() -> None:
    source = """
        import os, time
        from pyfiber import *
        def main():
            spawn(park, 1000)
            yield_now()
            child = os.fork()
            if child:
                print(child, flush=True)
            park(1000)
    """
    with running(source, "run(main)") as process:
        # The line has been read; the child is the only one there is.
        [pid] = children_of(process.pid)
        try:
            assert json.loads(wait_for_socket(pid))["pid"] == pid
            assert json.loads(command("ps", "--json", process.pid))["pid"] == process.pid
        finally:
            os.kill(pid, signal.SIGKILL)


def children_of(pid: int) -> list[int]:
    import psutil

    return [child.pid for child in psutil.Process(pid).children()]


def wait_for_socket(pid: int) -> str:
    """The child opens it after the fork, while its parent goes on."""
    for _ in range(50):
        try:
            connection = connect(pid)
        except Failed:
            continue
        try:
            return json.dumps(connection.ask())
        except Failed:
            continue
        finally:
            connection.close()
    return command("ps", "--json", pid)


def test_socket_does_not_hide_a_deadlock(child: Child) -> None:
    done = child(
        """
        from pyfiber import *
        from pyfiber._debug.client import connect
        import os
        connection = connect(os.getpid())  # the thread that answers is there, too
        connection.ask()
        try:
            run(park)
        except DeadlockError as exc:
            print(exc)
        connection.close()
        """,
        env=WITH_SOCKET,
    )
    assert done.stdout.startswith("1 fiber waits and nothing can wake one")


def test_program_without_the_variable_opens_nothing(child: Child) -> None:
    done = child(
        """
        import sys, pyfiber
        pyfiber.run(int)
        print([name for name in sys.modules if name.startswith("pyfiber._debug")])
        """,
        env=WITHOUT,
    )
    assert done.stdout == "[]\n"


def test_variable_of_another_value_is_refused(child: Child) -> None:
    done = child("import pyfiber", env={"PYFIBER_DEBUG": "yes"}, check=False)
    assert "PYFIBER_DEBUG must be 0 or 1, not 'yes'" in done.stderr


def test_process_that_cannot_open_its_socket_says_so_and_runs(child: Child) -> None:
    done = child(
        """
        import os
        os.environ["PYFIBER_DEBUG"] = "0"
        from pyfiber import _hooks, run
        from pyfiber._debug import places
        places.FOLDERS = ("/nowhere/at/all",)
        _hooks.open_debug_socket()
        print(run(lambda: 7))
        """,
        check=False,
    )
    assert done.stdout == "7\n"
    assert done.stderr.startswith("no place for pyfiber's debug socket: /nowhere/at/all")


# by a signal --------------------------------------------------------------------------------------

ON_SIGNAL = f"""
    import signal
    from pyfiber.debug import debug_on_signal
    debug_on_signal(signal.SIGUSR1)
{WAITING}
"""


def test_signal_opens_the_socket_of_an_idle_loop() -> None:
    with running(ON_SIGNAL, env=WITHOUT) as process:
        assert connected(process.pid, OURS, 3) is None
        assert "2 fibers, 'consumer" in command("ps", process.pid, "--signal", "USR1")
        assert "2 fibers, 'consumer" in command("ps", process.pid)  # and it stays


def test_signal_that_the_process_does_not_handle_is_not_sent() -> None:
    with running(WAITING, env=WITHOUT) as process:
        if os.path.exists("/proc/self/status") and not EMULATED:  # qemu handles all signals itself
            shown = command("ps", process.pid, "--signal", "SIGUSR1", code=1)
            assert "does not handle SIGUSR1, which would end it: nothing was sent" in shown
        assert process.poll() is None


def test_signal_that_there_is_not_is_refused() -> None:
    assert "there is no signal 'NONE'" in command("ps", 1, "--signal", "NONE", code=2)


def test_signal_can_be_undone(child: Child) -> None:
    done = child(
        """
        import os, signal
        from pyfiber import run
        from pyfiber.debug import debug_on_signal
        from pyfiber._debug.server import server
        with debug_on_signal(signal.SIGUSR1):
            pass
        print(signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL, server.listener)
        with debug_on_signal(signal.SIGUSR1):
            run(signal.raise_signal, signal.SIGUSR1)
            signal.raise_signal(signal.SIGUSR1)
            print(os.path.exists(server.path))
        """,
        env=WITHOUT,
    )
    assert done.stdout == "True None\nTrue\n"


def test_refused_accept_is_tried_again_after_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when there is no descriptor left; without a pause the thread would take a processor."""
    pauses: list[float] = []
    tested = server.Server()

    class Listener:
        def _accept(self) -> None:
            if len(pauses) == 3:
                tested.listener = None  # closed
            raise OSError(24, "Too many open files")

    listener: Any = Listener()
    tested.listener = listener
    monkeypatch.setattr(server.time, "sleep", pauses.append)
    monkeypatch.setattr(server._engine, "_only_watches", lambda: True)
    tested.accept(listener)
    assert pauses == [server.PAUSE] * 3


def test_client_is_refused_when_no_thread_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    tested = server.Server()

    class Listener:
        def _accept(self) -> tuple[int, str]:
            if tested.listener is None:
                raise OSError
            tested.listener = None
            return theirs.detach(), ""

    def fail(*args: object) -> None:
        raise RuntimeError("can't start new thread")

    listener: Any = Listener()
    tested.listener = listener
    monkeypatch.setattr(server._native, "start_new_thread", fail)
    monkeypatch.setattr(server._engine, "_only_watches", lambda: True)
    tested.accept(listener)
    with ours:
        assert "error" in json.loads(ours.recv(1000))
    assert not tested.connections
