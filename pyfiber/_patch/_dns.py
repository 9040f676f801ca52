"""The part ``dns``: the look-ups of names in ``socket``. ``getfqdn()`` calls two of them."""

from __future__ import annotations

import socket

from pyfiber import dns
from pyfiber._patch._record import Record

FUNCTIONS = (
    "getaddrinfo",
    "gethostbyname",
    "gethostbyname_ex",
    "gethostbyaddr",
    "gethostname",
    "getnameinfo",
)


def apply(record: Record) -> None:
    for name in FUNCTIONS:
        record.function(socket, name, getattr(dns, name))
