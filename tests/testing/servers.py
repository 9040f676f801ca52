"""Tiny servers with a thread for each connection, for clients that nobody here wrote."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def serving(port: int, session: Callable[[Any], object]) -> Iterator[str]:
    """A listener of this port, with a thread that calls ``session(sock)`` for each connection."""

    def serve() -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=answer, args=(sock,), daemon=True).start()

    def answer(sock: Any) -> None:
        with sock:
            session(sock)

    with socket.create_server(("127.0.0.1", port)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield "127.0.0.1"


class Mysql:
    """A MySQL server whose only query returns the next number."""

    OK = b"\0\0\0\2\0\0\0"
    EOF = b"\xfe\0\0\2\0"
    GREETING = (
        b"\x0a8.0.0\0" + struct.pack("<I", 1) + b"12345678\0"
        + struct.pack("<HBHHB", 0xF7FF, 33, 2, 8, 21) + bytes(10)
        + b"123456789012\0mysql_native_password\0"
    )  # fmt: skip

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.number = 0

    def session(self, sock: socket.socket) -> None:
        with sock.makefile("rwb") as stream:

            def send(first: int, *packets: bytes) -> None:
                for at, packet in enumerate(packets, first):
                    stream.write(len(packet).to_bytes(3, "little") + bytes([at]) + packet)
                stream.flush()

            def read() -> bytes:
                head = stream.read(4)
                return stream.read(int.from_bytes(head[:3], "little"))

            send(0, self.GREETING)
            read()
            send(2, self.OK)
            while (command := read())[:1] not in (b"", b"\x01"):
                if not command.startswith(b"\x03SELECT"):
                    send(1, self.OK)
                    continue
                with self.lock:
                    self.number += 1
                    digits = str(self.number).encode()
                column = struct.pack("<HIBHB", 33, 20, 8, 0, 0) + b"\0\0"
                definition = b"\3def\0\0\0\1n\0\x0c" + column
                send(1, b"\1", definition, self.EOF, bytes([len(digits)]) + digits, self.EOF)


class Amqp:
    """A broker of AMQP 0-9-1 with one queue."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []

    def session(self, sock: socket.socket) -> None:
        def send(cls: int, method: int, arguments: bytes = b"", channel: int = 0) -> None:
            payload = struct.pack(">HH", cls, method) + arguments
            sock.sendall(self.frame(1, channel, payload))

        with sock.makefile("rb") as stream:
            assert stream.read(8) == b"AMQP\0\0\x09\x01"
            send(10, 10, b"\0\x09" + self.text(b"") + self.text(b"PLAIN") + self.text(b"en_US"))
            while head := stream.read(7):
                kind, channel, size = struct.unpack(">BHI", head)
                payload = stream.read(size + 1)[:-1]
                if kind == 3:
                    self.messages.append(payload)
                if kind != 1:
                    continue
                match struct.unpack(">HH", payload[:4]):
                    case (10, 11):
                        send(10, 30, struct.pack(">HIH", 10, 131072, 60))
                    case (10, 40):
                        send(10, 41, b"\0")
                    case (10, 50):
                        send(10, 51)
                        return
                    case (20, 10):
                        send(20, 11, self.text(b""), channel)
                    case (20, 40):
                        send(20, 41, b"", channel)
                    case (50, 10):
                        send(50, 11, b"\1q" + struct.pack(">II", len(self.messages), 0), channel)
                    case (60, 70):
                        message = self.messages.pop(0)
                        send(60, 71, struct.pack(">Q?", 1, False) + b"\0\1q" + bytes(4), channel)
                        properties = struct.pack(">HHQH", 60, 0, len(message), 0)
                        sock.sendall(self.frame(2, channel, properties))
                        sock.sendall(self.frame(3, channel, message))

    @staticmethod
    def frame(kind: int, channel: int, payload: bytes) -> bytes:
        return struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"

    @staticmethod
    def text(data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + data


class Ssh:
    """paramiko's server; a command is answered with its input in capitals."""

    def __init__(self, paramiko: Any, key: Any) -> None:
        self.paramiko = paramiko
        self.key = key

    def session(self, sock: socket.socket) -> None:
        paramiko, asked = self.paramiko, threading.Event()

        class Answers(paramiko.ServerInterface):  # type: ignore[misc]
            def check_auth_password(self, username: str, password: str) -> int:
                right = (username, password) == ("tester", "secret")
                return int(paramiko.AUTH_SUCCESSFUL if right else paramiko.AUTH_FAILED)

            def get_allowed_auths(self, username: str) -> str:
                return "password"

            def check_channel_request(self, kind: str, chanid: int) -> int:
                return int(paramiko.OPEN_SUCCEEDED)

            def check_channel_exec_request(self, channel: Any, command: bytes) -> bool:
                asked.set()
                return True

        with paramiko.Transport(sock) as transport:
            transport.add_server_key(self.key)
            transport.start_server(threading.Event(), server=Answers())
            with transport.accept(60) as channel:
                asked.wait()
                channel.sendall(channel.makefile("rb").read().upper())
                channel.send_exit_status(0)
            transport.join()
