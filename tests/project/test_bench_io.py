"""The servers and the load of `python -m bench io`: that each server does each kind of
work, and that nothing stays behind. Never how fast anything was."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("bench", reason="needs the source tree")

from bench.io import counting, hello, measuring, processes, programs
from bench.io.processes import Ended, Load, loading, server
from bench.io.subjects import (
    HTTP_SUBJECTS,
    SMALL_STACKS,
    SUBJECTS,
    WSGI_SUBJECTS,
    C,
    Subject,
    find,
)
from bench.model import IO, ROOT, Sample, Unavailable
from bench.peers import is_installed
from bench.rows import ROWS
from bench.rows import select as select_rows

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the load generator is for Linux")

FEW = Load(connections=5, messages=100, warm_up=10)
#: More than the buffers of two sockets hold.
LARGE = Load(connections=2, messages=4, size=8_000_000)

every_subject = pytest.mark.parametrize(
    "subject", [*SUBJECTS, SMALL_STACKS], ids=lambda subject: subject.name
)


@pytest.fixture(autouse=True)
def needs_a_compiler():
    try:
        programs.build(programs.LOAD)
    except Unavailable as reason:
        pytest.skip(str(reason))


def run(subject: Subject, *loads: Load, tls: bool = False, compute: bool = False) -> list[dict]:
    if subject.peer and not is_installed(subject.peer):
        pytest.skip(f"{subject.peer} is not installed")
    found = []
    try:
        with server(subject, tls=tls, compute=compute) as running:
            for load in loads:
                with loading(load, running) as generator:
                    found.append(generator.measure())
    except Unavailable as reason:
        pytest.skip(str(reason))
    return found


# What servers do ----------------------------------------------------------------------------------


@every_subject
def test_server_echoes_on_lasting_and_on_short_connections_and_large_messages(subject):
    loads = (FEW, replace(FEW, short=True), LARGE)
    assert [found["messages"] for found in run(subject, *loads)] == [100, 100, 4]


@every_subject
def test_server_echoes_with_tls(subject):
    found = run(subject, FEW, LARGE, tls=True)
    assert [one["messages"] for one in found] == [100, 4]


@every_subject
def test_server_echoes_beside_a_thread_that_computes(subject):
    if subject.name == C:
        pytest.skip("has no interpreter to share")
    (found,) = run(subject, replace(FEW, messages=20, warm_up=0), compute=True)
    assert found["messages"] == 20


@pytest.mark.parametrize(
    "subject", [*HTTP_SUBJECTS, *WSGI_SUBJECTS], ids=lambda s: f"{s.name} {s.speaks}"
)
def test_server_answers_http_requests(subject):
    (found,) = run(subject, FEW)
    assert found["messages"] == 100


def test_requests_are_answered_one_by_one_when_they_are_whole():
    requests = hello.Requests()
    whole = hello.REQUEST + hello.REQUEST.replace(b"GET /", b"GET /elsewhere") + hello.REQUEST
    half = len(hello.REQUEST) + 10
    assert requests.answers(whole[:half]) == hello.RESPONSE
    assert requests.answers(whole[half:-1]) == hello.NOT_FOUND
    assert requests.answers(whole[-1:]) == hello.RESPONSE


def test_load_tells_times_that_fit_together():
    (found,) = run(find(C), FEW)
    assert found["server_ns"] > 0
    assert 0 < found["p50_ns"] <= found["p90_ns"] <= found["p99_ns"] <= found["max_ns"]
    assert found["max_ns"] < found["wall_ns"]


def test_load_ends_when_its_time_is_over():
    endless = replace(FEW, messages=10**12, warm_up=0, seconds=0.05)
    (found,) = run(find(C), endless)
    assert 0 < found["messages"] < 10**12


@pytest.mark.parametrize("tls", [[], ["TLS="]], ids=["with TLS where it can", "without"])
def test_programs_are_built_without_a_warning(tmp_path: Path, tls: list[str]):
    names = (programs.LOAD, programs.ECHO, programs.SWITCH)
    command = ["make", "-C", str(programs.SOURCES), f"O={tmp_path}", "CFLAGS=-O2 -Werror"]
    subprocess.run([*command, *tls, *names], check=True)
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(names)


# What is measured ---------------------------------------------------------------------------------


def sample_of(measured, load: Load) -> Sample:
    try:
        sample: Sample = measured(find("asyncio protocols"), load)
    except Unavailable as reason:
        pytest.skip(str(reason))
    return sample


def test_time_of_the_server_is_for_each_message():
    sample = sample_of(measuring.server_time, FEW)
    assert (sample.operations, sample.total > 0) == (100, True)
    assert set(sample.details) == {"messages_per_s", "p50_us", "p99_us"}


def test_time_beside_computing_is_what_went_by():
    sample = sample_of(measuring.time_beside_computing, replace(FEW, messages=20))
    assert sample.details["messages_per_s"] == pytest.approx(20 / sample.total * 1e9)


def test_memory_is_counted_with_all_connections_open(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(measuring, "REST", 0.01)
    sample = sample_of(measuring.idle_memory, Load(300))
    assert sample.operations == 300
    assert sample.value > 100
    assert sample.details["at_once_bytes"] > 100


def test_system_calls_are_those_of_the_server():
    """asyncio receives and sends each message, and waits once for several of them."""
    assert 2 <= sample_of(measuring.system_calls, FEW).value <= 3.2


def test_strace_counts_what_the_process_calls(tmp_path: Path):
    calls, found = with_a_caller(lambda pid, work: counting.under_strace(pid, tmp_path / "c", work))
    assert found == "done\n"
    assert 500 <= calls < 600


def test_counting_needs_a_tool_that_counts(monkeypatch):
    monkeypatch.setattr(counting, "perf_is_permitted", lambda: False)
    monkeypatch.setattr(counting.shutil, "which", lambda name: None)
    with pytest.raises(Unavailable, match="needs strace"):
        counting.count_calls(os.getpid(), lambda: None)


def with_a_caller(count) -> tuple[int, str]:
    """A process that makes 500 system calls when it is told to."""
    code = "import os; print('up', flush=True); input()\n" + (
        "for _ in range(500): os.getppid()\nprint('done', flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None

        def work() -> str:
            child.stdin.write("\n")
            child.stdin.flush()
            return child.stdout.readline()

        child.stdout.readline()
        try:
            return count(child.pid, work)
        except Unavailable as reason:
            pytest.skip(str(reason))
        except FileNotFoundError:
            pytest.skip("strace is not installed")
        finally:
            child.kill()


def test_counts_are_read_from_what_the_tools_write():
    perf = "# started on Mon\n\n41,,raw_syscalls:sys_enter,100,100.00,,\n"
    strace = "% time     seconds  usecs/call     calls    errors syscall\n" + (
        "100.00    0.000100           1        71         3 total\n"
    )
    assert counting.perf_total(perf) == 41
    assert counting.strace_total(strace) == 71


# What goes wrong ----------------------------------------------------------------------------------


def serving(monkeypatch, body: str) -> Subject:
    """A server whose thread for a connection does this."""
    code = f"""
import socket, sys, threading
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
def handle(connection):
    {body}
while True:
    threading.Thread(target=handle, args=listener.accept()[:1], daemon=True).start()
"""
    command = [sys.executable, "-c", code]
    monkeypatch.setattr(processes, "server_command", lambda *arguments: command)
    return Subject("a server", None)


def test_server_that_answers_something_else_is_told(monkeypatch):
    subject = serving(monkeypatch, "connection.sendall(connection.recv(99).upper())")
    with pytest.raises(Ended, match="answers b'IS ANYBODY THERE"), server(subject):
        pass


def test_server_that_hangs_up_is_told_with_its_last_words(monkeypatch):
    subject = serving(monkeypatch, "sys.stderr.write('no mood'); connection.close()")
    with pytest.raises(Ended, match="no mood"), server(subject):
        pass


def test_server_that_confuses_messages_is_told(monkeypatch):
    subject = serving(
        monkeypatch, "connection.sendall(connection.recv(99).replace(b'abc', b'cba'))"
    )
    with (
        server(subject) as running,
        loading(replace(FEW, warm_up=0), running) as generator,
        pytest.raises(Ended, match="the server answered something else"),
    ):
        generator.measure()


def test_server_that_dies_at_once_is_told_with_its_last_words(monkeypatch):
    command = [sys.executable, "-c", "raise SystemExit('no port left')"]
    monkeypatch.setattr(processes, "server_command", lambda *arguments: command)
    with pytest.raises(Ended, match="no port left"), server(find(C)):
        pass


def test_pyfiber_without_its_sockets_is_unavailable(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyfiber.socket", None)
    with pytest.raises(Unavailable, match=r"`import pyfiber\.socket` fails"):
        processes.require(find("pyfiber"), tls=False)


def test_too_few_descriptors_are_told_with_the_command_that_allows_more(monkeypatch):
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda which: (100, 200))
    with pytest.raises(Unavailable, match="ulimit -n 1100"):
        processes.require_descriptors(1000)


def test_machine_without_a_compiler_is_told(monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(Unavailable, match="needs a C compiler"):
        programs.build(programs.LOAD)


def test_server_is_gone_after_its_measurement():
    with server(find("asyncio protocols")) as running:
        pid = running.pid
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("name", ["asyncio protocols", C])
def test_server_ends_when_who_measures_is_killed(name):
    code = f"""
from bench.io.processes import server
from bench.io.subjects import find
with server(find({name!r})) as running:
    print(running.pid, flush=True)
    input()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        descriptor = os.pidfd_open(pid)
        try:
            parent.kill()
            assert select.select([descriptor], [], [], 30)[0] == [descriptor]
        finally:
            os.close(descriptor)


# Rows ---------------------------------------------------------------------------------------------


def test_rows_are_a_family_of_their_own():
    rows = select_rows([], full=True, family=IO)
    assert [row.name for row in rows] == [row.name for row in ROWS if row.name.startswith("io-")]
    assert not any(row in rows for row in select_rows([], full=True))


def test_interrupted_command_leaves_no_process():
    """Ctrl-C reaches every process of the terminal's group."""
    command = [sys.executable, "-m", "bench", "--only", "io-echo-100", "--json", "-"]
    with subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd=ROOT,
    ) as parent:
        try:
            descriptors = [os.pidfd_open(pid) for pid in server_and_load(parent.pid)]
            os.killpg(parent.pid, signal.SIGINT)
            for descriptor in descriptors:
                assert select.select([descriptor], [], [], 30)[0] == [descriptor]
                os.close(descriptor)
            assert parent.wait(60) != 0
        finally:
            parent.kill()


def server_and_load(pid: int) -> list[int]:
    """The C programs below a process, once both run."""
    psutil = pytest.importorskip("psutil")
    found: list[int] = []
    while len(found) < 2:
        names = {child.pid: name_of(child) for child in psutil.Process(pid).children(True)}
        found = [pid for pid, name in names.items() if name in (programs.LOAD, programs.ECHO)]
    return found


def name_of(process) -> str:
    """Empty if it has ended meanwhile."""
    try:
        return str(process.name())
    except Exception:
        return ""
