"""Descriptions of file descriptors in words, for reports."""

from __future__ import annotations

import _socket
import os
import socket
import stat
from typing import Any

KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFREG: "a file",
    stat.S_IFDIR: "a directory",
    stat.S_IFBLK: "a block device",
}


def wait_text(number: int, writing: bool, what: object = None) -> str:
    """What a fiber does: "waits to read from fd 7, a TCP connection to 127.0.0.1:5432"."""
    head = f"waits to {'write to' if writing else 'read from'}"
    if isinstance(what, socket.socket) and not getattr(what, "_has_file", True):
        return f"{head} {text_of(what)}, in memory"
    return f"{head} fd {number}{kind_of(number)}"


def kind_of(number: int) -> str:
    """The kind of a descriptor after a comma, as in ", a pipe"; empty if it cannot be found out."""
    try:
        mode = os.fstat(number).st_mode
        if stat.S_ISSOCK(mode):
            return f", {socket_text(number)}"
        if stat.S_ISCHR(mode):
            return ", a terminal" if os.isatty(number) else ", a character device"
        return f", {KINDS.get(stat.S_IFMT(mode)) or target_of(number)}"
    except OSError:
        return ""


def target_of(number: int) -> str:
    """Linux's name for a descriptor that has none of the file types above, such as an eventfd."""
    return os.readlink(f"/proc/self/fd/{number}").removeprefix("anon_inode:").strip("[]")


def socket_text(number: int) -> str:
    """The kind and the addresses of a socket's descriptor.

    ``_socket.socket`` leaves the descriptor as it is, while ``socket.socket`` of a patched program
    sets it to non-blocking, for every process that shares it. ``_socket.socket`` does that, too, if
    there is a default timeout: then the addresses of a blocking socket are not asked for.
    """
    if socket.getdefaulttimeout() is not None and os.get_blocking(number):
        return "a socket"
    copy = os.dup(number)
    try:
        sock = _socket.socket(fileno=copy)
    except BaseException:
        os.close(copy)
        raise
    try:
        return text_of(sock)
    finally:
        sock.close()


def text_of(sock: _socket.socket) -> str:
    kind = kind_of_socket(sock)
    try:
        there = address_text(sock.getpeername())
    except OSError:
        pass
    else:
        return f"{kind} connection to {there}" if there else f"{kind} connection"
    here = address_text(sock.getsockname())
    if listens(sock):
        return f"{kind} listener on {here}"
    return f"{kind} socket on {here}" if here else f"{kind} socket"


def kind_of_socket(sock: _socket.socket) -> str:
    datagrams = sock.type == socket.SOCK_DGRAM
    if sock.family in (socket.AF_INET, socket.AF_INET6):
        return "a UDP" if datagrams else "a TCP"
    if sock.family == getattr(socket, "AF_UNIX", None):
        return "a Unix datagram" if datagrams else "a Unix"
    try:
        return f"a {socket.AddressFamily(sock.family).name}"
    except ValueError:
        return f"a {sock.family}"


def listens(sock: _socket.socket) -> bool:
    try:
        return bool(sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    except (AttributeError, OSError):
        return False


def address_text(address: Any) -> str:
    """HOST:PORT, with brackets around an IPv6 address; a path, or @ and an abstract name; or ""."""
    if isinstance(address, tuple) and len(address) >= 2:
        host, port = address[:2]
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
    if isinstance(address, bytes):
        address = "@" + os.fsdecode(address[1:]) if address[:1] == b"\0" else os.fsdecode(address)
    return str(address)
