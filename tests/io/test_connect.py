"""pyfiber.net.connect(): which addresses are tried when, and what becomes of the others."""

from __future__ import annotations

import errno
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyfiber import dns, net, now, run, sleep, socket, spawn, testing, timeout, yield_now
from tests.support.threads import in_thread

#: What happens to a try, by address: seconds, then a number of an error, or 0.
Script = dict[str, tuple[float, int]]


class Fake:
    """In place of a socket."""

    made: list[Fake]

    def __init__(self, family: int, kind: int, proto: int) -> None:
        self.family = family
        self.begun: float | None = None
        self.closed: float | None = None
        self.host = ""
        Fake.made.append(self)

    def connect(self, address: Any) -> None:
        self.host = address[0]
        self.begun = now()
        seconds, number = Fake.script[address[0]]
        sleep(seconds)
        if number:
            raise OSError(number, os.strerror(number))

    def close(self) -> None:
        self.closed = now()

    def settimeout(self, seconds: object) -> None: ...
    def setsockopt(self, *args: object) -> None: ...
    def bind(self, address: object) -> None: ...

    script: Script


def six(n: int) -> Any:
    return socket.AF_INET6, socket.SOCK_STREAM, 6, "", (f"2001:db8::{n}", 80, 0, 0)


def four(n: int) -> Any:
    return socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"192.0.2.{n}", 80)


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """A host's addresses, in the resolver's order, and what they do."""

    def describe(*infos: Any, **script: Any) -> None:
        monkeypatch.setattr(dns, "getaddrinfo", lambda *question: list(infos))
        monkeypatch.setattr(socket, "socket", Fake)
        Fake.made = []
        Fake.script = {
            (f"192.0.2.{name[1:]}" if name[0] == "v" else f"2001:db8::{name[1:]}"): what
            for name, what in script.items()
        }

    yield describe
    Fake.made = []


def connect(**options: Any) -> tuple[str, float]:
    """Who was faster, and when."""
    stream = net.connect("host.test", 80, **options)
    assert [fake.closed for fake in Fake.made if fake is not stream.socket].count(None) == 0
    assert stream.socket.closed is None  # type: ignore[attr-defined]
    return stream.peer[0], round(now(), 3)


def begun() -> list[tuple[str, float]]:
    return [(fake.host, round(fake.begun, 3)) for fake in Fake.made if fake.begun is not None]


def test_first_address_that_answers_at_once_is_the_only_one(network: Any) -> None:
    network(six(1), four(1), s1=(0.2, 0))
    assert testing.run(connect) == ("2001:db8::1", 0.2)
    assert len(Fake.made) == 1


def test_families_take_turns_with_a_head_start_each(network: Any) -> None:
    network(
        six(1), six(2), six(3), four(1), four(2),
        s1=(9, 0), s2=(9, 0), s3=(0.1, 0), v1=(9, 0), v2=(9, 0),
    )  # fmt: skip
    assert testing.run(connect) == ("2001:db8::3", 1.1)
    assert begun() == [
        ("2001:db8::1", 0.0),
        ("192.0.2.1", 0.25),
        ("2001:db8::2", 0.5),
        ("192.0.2.2", 0.75),
        ("2001:db8::3", 1.0),
    ]


def test_earlier_address_may_still_be_the_first_to_answer(network: Any) -> None:
    network(six(1), four(1), s1=(0.4, 0), v1=(0.3, 0))
    assert testing.run(connect) == ("2001:db8::1", 0.4)
    loser = Fake.made[1]
    assert loser.closed == pytest.approx(0.4)


def test_failure_lets_the_next_address_begin_at_once(network: Any) -> None:
    network(six(1), four(1), s1=(0.1, errno.ENETUNREACH), v1=(0.1, 0))
    assert testing.run(connect) == ("192.0.2.1", 0.2)


def test_failure_of_an_earlier_address_shortens_no_head_start_for_ever(network: Any) -> None:
    network(
        six(1), four(1), six(2),
        s1=(0.3, errno.ECONNREFUSED), v1=(9, 0), s2=(0.1, 0),
    )  # fmt: skip
    assert testing.run(connect) == ("2001:db8::2", 0.4)
    assert begun() == [("2001:db8::1", 0.0), ("192.0.2.1", 0.25), ("2001:db8::2", 0.3)]


def test_both_answer_in_the_same_turn_and_one_is_closed(network: Any) -> None:
    network(six(1), four(1), s1=(0.5, 0), v1=(0.25, 0))
    for seed in range(20):
        Fake.made = []
        testing.run(connect, seed=seed)
        assert [fake.closed is None for fake in Fake.made].count(True) == 1


def test_failures_of_all_addresses_are_told(network: Any) -> None:
    network(six(1), four(1), s1=(0.1, errno.ENETUNREACH), v1=(0.1, errno.ECONNREFUSED))
    with pytest.raises(OSError, match=r"cannot connect to host.test:80: ") as caught:
        testing.run(connect)
    assert f"{os.strerror(errno.ECONNREFUSED)} (192.0.2.1:80)" in str(caught.value)
    assert f"{os.strerror(errno.ENETUNREACH)} ([2001:db8::1]:80)" in str(caught.value)
    assert isinstance(caught.value.__cause__, ExceptionGroup)
    assert [fake.closed is not None for fake in Fake.made] == [True, True]


def test_failures_that_are_alike_keep_their_class(network: Any) -> None:
    network(four(1), four(2), v1=(0.1, errno.ECONNREFUSED), v2=(0.1, errno.ECONNREFUSED))
    with pytest.raises(ConnectionRefusedError) as caught:
        testing.run(connect)
    assert caught.value.errno == errno.ECONNREFUSED


def test_timeout_closes_all_that_was_begun(network: Any) -> None:
    network(six(1), four(1), s1=(9, 0), v1=(9, 0))
    with pytest.raises(TimeoutError):
        testing.run(lambda: connect(timeout=2))
    assert [fake.closed for fake in Fake.made] == [2, 2]


def test_cancellation_in_the_moment_of_success_closes_the_winner(network: Any) -> None:
    network(six(1), four(1), s1=(1, 0), v1=(1, 0))

    def main() -> Any:
        try:
            with timeout(1):
                return net.connect("host.test", 80).socket
        except TimeoutError:
            return None

    for seed in range(20):
        Fake.made = []
        winner = testing.run(main, seed=seed)
        still_open = [fake for fake in Fake.made if fake.closed is None]
        assert still_open == ([winner] if winner else [])


# real sockets -------------------------------------------------------------------------------------


def test_connect_and_its_options(monkeypatch: pytest.MonkeyPatch) -> None:
    def main() -> None:
        with net.listen("127.0.0.1", 0) as listener:
            port = listener.address[1]
            with net.connect("127.0.0.1", port, local_address=("127.0.0.1", 0)) as stream:
                assert stream.peer == listener.address
                assert stream.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                assert stream.socket.gettimeout() is None
                with listener.accept() as accepted:
                    assert accepted.peer == stream.local
                    assert accepted.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            with pytest.raises(OSError, match="of another family"):
                net.connect("127.0.0.1", port, local_address=("::1", 0))
        with pytest.raises(ConnectionRefusedError, match=rf"\(127.0.0.1:{port}\)"):
            net.connect("127.0.0.1", port)

    run(main)


def test_connect_outside_of_a_run() -> None:
    with (
        net.listen("127.0.0.1", 0) as listener,
        net.connect("127.0.0.1", listener.address[1], timeout=5) as stream,
    ):
        assert stream.socket.gettimeout() is None
        stream.write(b"hello\n")
        with in_thread(listener.accept) as accepted:
            assert next(accepted) == b"hello\n"


@pytest.mark.parametrize("port", [-1, 65536])
def test_port_that_is_none_is_refused(port: int) -> None:
    with pytest.raises(ValueError, match="a port is a number from 0 to 65535"):
        run(net.connect, "127.0.0.1", port)
    with pytest.raises(ValueError, match="a port is a number from 0 to 65535"):
        run(functools.partial(net.connect, local_address=("127.0.0.1", port)), "127.0.0.1", 80)
    with pytest.raises(ValueError, match="a port is a number from 0 to 65535"):
        run(net.listen, "127.0.0.1", port)


@pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="needs Unix sockets")
class TestUnixSockets:
    def test_connection_and_the_file(self, tmp_path: Any) -> None:
        path = str(tmp_path / "socket")

        def main() -> None:
            with net.listen_unix(path) as listener:
                assert os.stat(path).st_mode & 0o777 == 0o600
                assert listener.address == path
                with net.connect_unix(path, timeout=5) as stream, listener.accept() as accepted:
                    assert stream.peer == path
                    assert repr(accepted) == "<pyfiber.net.Stream to a Unix socket>"
                    stream.write([b"hel", b"lo\n"])
                    assert next(accepted) == b"hello\n"
            assert not os.path.exists(path)

        run(main)

    def test_socket_that_nobody_listens_to_is_replaced(self, tmp_path: Any) -> None:
        path = str(tmp_path / "socket")
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(path)
        with net.listen_unix(path):
            with pytest.raises(OSError, match="in use"):
                net.listen_unix(path)
            assert os.path.exists(path)

    def test_file_that_is_no_socket_is_kept(self, tmp_path: Any) -> None:
        path = tmp_path / "file"
        path.write_text("kept")
        with pytest.raises(OSError, match="in use"):
            net.listen_unix(str(path))
        assert path.read_text() == "kept"

    def test_file_of_another_is_not_removed(self, tmp_path: Any) -> None:
        path = str(tmp_path / "socket")
        first = net.listen_unix(path)
        os.unlink(path)
        with net.listen_unix(path):
            first.close()
            assert os.path.exists(path)

    def test_no_listener_is_an_error(self, tmp_path: Any) -> None:
        with pytest.raises(FileNotFoundError):
            run(net.connect_unix, str(tmp_path / "nothing"))


@pytest.mark.parametrize("host", ["", None])
def test_nothing_listens_at_an_address_that_was_not_named(host: Any) -> None:
    with pytest.raises(ValueError, match="needs the address to listen at"):
        net.listen(host, 0)


@pytest.mark.skipif(not socket.has_ipv6, reason="needs IPv6")
def test_all_of_ipv6_is_not_all_of_ipv4() -> None:
    try:
        listener = net.listen("::", 0)
    except OSError:
        pytest.skip("there is no IPv6")
    with listener, pytest.raises(ConnectionRefusedError):
        net.connect("127.0.0.1", listener.address[1])


def test_listener_is_iterated_until_it_is_closed() -> None:
    def main() -> None:
        served = []
        with net.listen("127.0.0.1", 0) as listener:

            def accept() -> None:
                for stream in listener:
                    served.append(stream.peer)
                    stream.close()

            fiber = spawn(accept)
            for _ in range(3):
                with net.connect(*listener.address) as stream:
                    assert stream.read() == b""
            yield_now()
            port = listener.address[1]
            assert repr(listener) == f"<pyfiber.net.Listener at 127.0.0.1:{port}>"
        fiber.result()
        assert len(served) == 3
        assert repr(listener) == "<pyfiber.net.Listener closed>"

    run(main)


@pytest.mark.skipif(not hasattr(socket, "SO_REUSEPORT"), reason="the system has no such option")
def test_port_is_shared_only_by_those_who_say_so() -> None:
    with net.listen("127.0.0.1", 0, reuse_port=True) as first:
        with net.listen(*first.address, reuse_port=True) as second:
            assert second.address == first.address
        with pytest.raises(OSError, match="in use"):
            net.listen(*first.address)
