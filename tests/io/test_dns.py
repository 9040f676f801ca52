"""pyfiber.dns: which look-ups need a thread, how they are shared, given up and replaced."""

from __future__ import annotations

import os
import socket as standard
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from pyfiber import (
    Fiber,
    dns,
    gather,
    move_on_after,
    now,
    run,
    sleep,
    socket,
    spawn,
    timeout,
    to_thread,
    yield_now,
)
from pyfiber.threads import ThreadLimiter
from tests.support.threads import in_thread

ANSWER = standard.getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM)[0]


class System:
    """In place of the system's resolver: it knows what it is told, and answers when it may."""

    def __init__(self) -> None:
        self.known: dict[bytes, Any] = {b"known.test": "127.0.0.1"}
        self.asked: list[tuple[Any, ...]] = []
        self.threads: set[int] = set()
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.begun = threading.Semaphore(0)

    def __call__(self, host: Any, port: Any, *rest: int, **flags: int) -> Any:
        if (rest[3:] and rest[3] & socket.AI_NUMERICHOST) or flags:
            return real(host, port, *rest, **flags)
        host = host.encode() if isinstance(host, str) else host  # outside of a run
        self.asked.append((host, port, *rest))
        self.threads.add(threading.get_ident())
        self.begun.release()
        assert self.may_answer.wait(60)
        if host not in self.known:
            raise standard.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(self.known[host], port, *rest)


real = standard.getaddrinfo


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> Iterator[System]:
    made = System()
    monkeypatch.setattr(standard, "getaddrinfo", made)
    yield made
    made.may_answer.set()


@pytest.fixture(autouse=True)
def _no_resolver() -> Iterator[None]:
    yield
    dns.set_resolver(None)


def begins(system: System) -> None:
    """Wait until a look-up is in a thread."""
    assert to_thread(system.begun.acquire, timeout=60)


# numbers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", b"127.0.0.1", "::1", "127.1", None])
@pytest.mark.parametrize("port", [80, "80", None])
def test_number_is_answered_without_a_thread(system: System, host: Any, port: Any) -> None:
    if host is None and port is None:
        port = 0
    wanted = real(host, port, type=socket.SOCK_STREAM)

    def main() -> None:
        assert dns.getaddrinfo(host, port, type=socket.SOCK_STREAM) == wanted

    run(main)
    assert system.asked == []


def test_number_as_a_name_of_other_functions(system: System) -> None:
    def main() -> None:
        assert socket.gethostbyname("127.0.0.1") == "127.0.0.1"
        assert socket.gethostbyname("") == standard.gethostbyname("")
        numbers = socket.NI_NUMERICHOST | socket.NI_NUMERICSERV
        assert socket.getnameinfo(("127.0.0.1", 80), numbers) == ("127.0.0.1", "80")

    run(main)
    assert system.asked == []


# names --------------------------------------------------------------------------------------------


def test_name_is_looked_up_in_a_thread_while_others_run(system: System) -> None:
    system.may_answer.clear()

    def main() -> None:
        lookup = spawn(socket.getaddrinfo, "known.test", 80, type=socket.SOCK_STREAM)
        begins(system)
        assert not lookup.done()
        system.may_answer.set()
        assert lookup.result() == [ANSWER]

    run(main)
    assert threading.get_ident() not in system.threads


def test_name_is_encoded_before_the_thread(system: System) -> None:
    system.known[b"xn--bcher-kva.test"] = "127.0.0.1"

    def main() -> None:
        assert socket.getaddrinfo("bücher.test", 80, type=socket.SOCK_STREAM) == [ANSWER]
        for bad in ("a" * 70, "bücher" * 20, "a..b"):
            with pytest.raises(UnicodeError):
                socket.getaddrinfo(bad, 80)

    run(main)
    assert [question[0] for question in system.asked] == [b"xn--bcher-kva.test"]


def test_unknown_name_is_the_standard_error(system: System) -> None:
    def main() -> None:
        with pytest.raises(standard.gaierror) as caught:
            socket.getaddrinfo("unknown.test", 80)
        assert caught.value.errno == socket.EAI_NONAME

    run(main)


@pytest.mark.parametrize("family", [(), (socket.AF_INET,)], ids=str)
def test_same_questions_at_the_same_time_are_one(system: System, family: tuple[int, ...]) -> None:
    system.may_answer.clear()

    def main() -> None:
        fibers = [
            spawn(socket.getaddrinfo, host, 80, *(family or (0,)), socket.SOCK_STREAM)
            for host in ("known.test", b"known.test")
            for _ in range(20)
        ]
        begins(system)
        system.may_answer.set()
        answers = gather(*fibers)
        assert answers == [[ANSWER]] * 40
        answers[0].clear()
        assert answers[1] == [ANSWER]  # each has a list of its own

    run(main)
    assert len(system.asked) == 1
    assert not dns._in_flight


def test_failure_of_a_shared_look_up_is_raised_for_each(system: System) -> None:
    system.may_answer.clear()

    def main() -> None:
        fibers = [spawn(socket.getaddrinfo, "unknown.test", 80) for _ in range(3)]
        begins(system)
        system.may_answer.set()
        failures = [fiber.exception() for fiber in fibers]
        assert {type(exc) for exc in failures} == {standard.gaierror}
        assert len({id(exc) for exc in failures}) == 3

    run(main)
    assert len(system.asked) == 1


def test_runs_of_several_threads_share_a_look_up(system: System) -> None:
    system.may_answer.clear()

    def main() -> None:
        first = spawn(socket.getaddrinfo, "known.test", 80, type=socket.SOCK_STREAM)
        begins(system)
        others = [
            spawn(to_thread, run, socket.getaddrinfo, "known.test", 80, 0, socket.SOCK_STREAM)
            for _ in range(3)
        ]
        sleep(0.01)
        system.may_answer.set()
        assert gather(first, *others) == [[ANSWER]] * 4

    run(main)
    assert len(system.asked) <= 4


# giving up ----------------------------------------------------------------------------------------


def test_timeout_gives_the_look_up_up(system: System, caplog: pytest.LogCaptureFixture) -> None:
    system.may_answer.clear()

    limit = timeout(1000)

    def ask() -> None:
        with limit:
            socket.getaddrinfo("unknown.test", 80)

    def main() -> None:
        fiber = spawn(ask)
        begins(system)
        limit.deadline = now()
        with pytest.raises(TimeoutError):
            fiber.result()
        system.may_answer.set()
        while dns._threads.borrowed_tokens:
            sleep(0.001)

    run(main)
    assert not dns._in_flight
    assert caplog.records == []  # a failure that comes too late is nobody's


def test_those_who_still_wait_get_the_answer_of_the_one_who_gave_up(system: System) -> None:
    system.may_answer.clear()

    def main() -> None:
        first, second = (
            spawn(socket.getaddrinfo, "known.test", 80, 0, socket.SOCK_STREAM) for _ in range(2)
        )
        begins(system)
        first.cancel()
        first.join()
        third = spawn(socket.getaddrinfo, "known.test", 80, 0, socket.SOCK_STREAM)
        yield_now()
        system.may_answer.set()
        assert gather(second, third) == [[ANSWER]] * 2

    run(main)
    assert len(system.asked) == 1


def test_name_that_gets_no_answer_keeps_one_thread_only(system: System) -> None:
    system.may_answer.clear()

    def main() -> None:
        for _ in range(3 * dns.THREADS):
            with move_on_after(0):
                socket.getaddrinfo("silent.test", 80)
            with move_on_after(0.0001):
                socket.getaddrinfo("silent.test", 80)
        assert dns._threads.borrowed_tokens <= 1
        system.may_answer.set()

    run(main)


def test_look_up_that_is_cancelled_in_the_queue_is_made_by_the_next(
    system: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dns, "_threads", ThreadLimiter(1, abandon_on_cancel=True))
    system.may_answer.clear()

    def main() -> None:
        busy = spawn(socket.getaddrinfo, "unknown.test", 80)
        begins(system)
        first, second = (
            spawn(socket.getaddrinfo, "known.test", 80, 0, socket.SOCK_STREAM) for _ in range(2)
        )
        yield_now()
        first.cancel()
        first.join()
        system.may_answer.set()
        assert second.result() == [ANSWER]
        assert busy.exception() is not None

    run(main)
    assert [question[0] for question in system.asked] == [b"unknown.test", b"known.test"]


def test_threads_of_to_thread_that_are_all_busy_hold_no_look_up_up(system: System) -> None:
    over = threading.Event()

    def main() -> None:
        users: list[Fiber[Any]] = [spawn(to_thread, over.wait, 60) for _ in range(50)]
        yield_now()
        assert socket.getaddrinfo("known.test", 80, type=socket.SOCK_STREAM) == [ANSWER]
        over.set()
        gather(*users)

    run(main)


def test_finalizer_in_the_collector_looks_up_without_leaving_its_fiber(system: System) -> None:
    import gc

    answers = []

    class Last:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            answers.append(socket.getaddrinfo("known.test", 80, type=socket.SOCK_STREAM))

    def main() -> None:
        Last()
        gc.collect()

    run(main)
    assert answers == [[ANSWER]]
    assert system.threads == {threading.get_ident()}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork()")
def test_look_up_that_is_under_way_at_a_fork_is_made_again_in_the_child(child: Any) -> None:
    child(
        """
        import os, socket as standard, threading, warnings
        from pyfiber import dns, run, spawn, to_thread, yield_now, gather

        warnings.simplefilter("ignore", DeprecationWarning)
        real, parent, begun = standard.getaddrinfo, os.getpid(), threading.Event()
        over = threading.Event()

        def fake(host, port, family=0, type=0, proto=0, flags=0):
            if flags & standard.AI_NUMERICHOST:
                return real(host, port, family, type, proto, flags)
            begun.set()
            if os.getpid() == parent:
                over.wait(60)
            return [os.getpid()]

        standard.getaddrinfo = fake

        def main():
            fibers = [spawn(dns.getaddrinfo, "known.test", 80) for _ in range(3)]
            to_thread(begun.wait)
            pid = os.fork()
            if pid == 0:
                good = gather(*fibers) == [[os.getpid()]] * 3
                os._exit(0 if good else 1)
            over.set()
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            assert gather(*fibers) == [[parent]] * 3

        run(main)
        """
    )


# elsewhere ----------------------------------------------------------------------------------------


def test_outside_of_a_run_it_is_the_standard_function(system: System) -> None:
    answer = socket.getaddrinfo("known.test", 80, 0, socket.SOCK_STREAM)
    assert answer == [ANSWER]
    assert system.threads == {threading.get_ident()}
    dns.set_resolver(lambda *question: pytest.fail("it is for fibers"))
    in_thread(lambda: socket.getaddrinfo("known.test", 80))


def test_socket_connects_binds_and_sends_to_names(system: System) -> None:
    def main() -> None:
        with socket.create_server(("known.test", 0)) as listener:
            port = listener.getsockname()[1]
            with socket.create_connection(("known.test", port)) as sock:
                assert sock.getpeername() == ("127.0.0.1", port)
            with socket.socket() as sock:
                sock.bind(("known.test", 0))
                assert sock.connect_ex(("known.test", port)) == 0
            with socket.socket() as sock, pytest.raises(socket.gaierror):
                sock.connect(("unknown.test", port))
        kind = socket.SOCK_DGRAM
        with socket.socket(type=kind) as one, socket.socket(type=kind) as other:
            other.bind(("known.test", 0))
            place = ("known.test", other.getsockname()[1])
            assert one.sendto(b"1", place) == one.sendto(b"2", 0, place) == 1
            assert [other.recv(10) for _ in range(2)] == [b"1", b"2"]
            if hasattr(one, "sendmsg"):
                assert one.sendmsg([b"3", b"4"], [], 0, place) == 2
                assert other.recv(10) == b"34"

    run(main)
    assert threading.get_ident() not in system.threads


@pytest.mark.parametrize("name", ["gethostbyaddr", "gethostbyname_ex", "gethostbyname", "getfqdn"])
def test_other_functions_ask_in_a_thread(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    threads = []

    def fake(host: Any) -> str:
        threads.append(threading.get_ident())
        return f"{host!r} from a thread"

    monkeypatch.setattr(standard, name, fake)
    answer = run(getattr(socket, name), "known.test")
    assert "known.test" in answer
    assert "from a thread" in answer
    assert threading.get_ident() not in threads


# another resolver ---------------------------------------------------------------------------------


def test_resolver_answers_in_the_fiber_that_asks(system: System) -> None:
    asked = []

    def resolver(host: str, port: int, *rest: int) -> dns.Found:
        asked.append((host, port, *rest))
        sleep(0.0001)  # it may park
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "alias.test", ("127.0.0.1", port))]

    def main() -> None:
        assert dns.set_resolver(resolver) is None
        found = socket.getaddrinfo("known.test", 80, 0, socket.SOCK_STREAM)
        assert found[0][4] == ("127.0.0.1", 80)
        assert socket.gethostbyname("known.test") == "127.0.0.1"
        assert socket.gethostbyname_ex("known.test") == ("alias.test", [], ["127.0.0.1"])
        assert socket.getaddrinfo("127.0.0.1", 80) == real("127.0.0.1", 80)
        assert dns.set_resolver(None) is resolver

    run(main)
    assert [host for host, *_ in asked] == ["known.test"] * 3
    assert asked[0] == ("known.test", 80, 0, socket.SOCK_STREAM, 0, 0)
    assert system.asked == []


def test_resolver_is_not_asked_with_the_name_of_a_port_where_that_must_be_a_number() -> None:
    def resolver(host: str, port: int, *rest: int) -> dns.Found:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    def main() -> None:
        dns.set_resolver(resolver)
        try:
            with pytest.raises(standard.gaierror):
                socket.getaddrinfo("known.test", "http", flags=socket.AI_NUMERICSERV)
            found = socket.getaddrinfo("known.test", "80", flags=socket.AI_NUMERICSERV)
            assert found[0][4] == ("127.0.0.1", 80)
        finally:
            dns.set_resolver(None)

    run(main)


@pytest.mark.parametrize(
    ("failure", "number"),
    [
        (TimeoutError("timed out"), socket.EAI_AGAIN),
        (ConnectionRefusedError(111, "refused"), socket.EAI_AGAIN),
        (LookupError("NXDOMAIN"), socket.EAI_FAIL),
        (standard.gaierror(socket.EAI_NODATA, "no data"), socket.EAI_NODATA),
        (None, socket.EAI_NONAME),
    ],
    ids=repr,
)
def test_failure_of_a_resolver_is_the_standard_error(
    system: System, failure: Exception | None, number: int
) -> None:
    def resolver(*question: Any) -> dns.Found:
        if failure is not None:
            raise failure
        return []

    def main() -> None:
        dns.set_resolver(resolver)
        with pytest.raises(standard.gaierror) as caught:
            socket.create_connection(("known.test", 80))
        assert caught.value.errno == number

    run(main)


def test_resolver_may_ask_the_system(system: System) -> None:
    answers: dict[Any, dns.Found] = {}

    def cached(*question: Any) -> dns.Found:
        if question not in answers:
            answers[question] = dns.system(*question)
        return answers[question]

    def main() -> None:
        dns.set_resolver(cached)
        for _ in range(3):
            found = socket.getaddrinfo("known.test", "80", type=socket.SOCK_STREAM)
            assert found == [ANSWER]

    run(main)
    assert len(system.asked) == 1


def test_resolver_that_is_no_function_is_refused() -> None:
    with pytest.raises(TypeError, match="expected a function or None, not 'int'"):
        dns.set_resolver(5)  # type: ignore[arg-type]
