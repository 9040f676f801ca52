"""gunicorn's own collection of requests, served by the site of pyfiber's Worker.

It is in gunicorn's source distribution alone: PYFIBER_GUNICORN_SOURCE is the folder of one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

import pyfiber
from pyfiber.net import Stream
from pyfiber.socket import socketpair

pytest.importorskip("gunicorn", reason="gunicorn is NOT INSTALLED")
pytest.importorskip("httptools", reason="httptools is NOT INSTALLED")

SOURCE = Path(os.environ.get("PYFIBER_GUNICORN_SOURCE", "/nowhere"), "tests")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not SOURCE.exists(), reason="PYFIBER_GUNICORN_SOURCE is not set"),
]

#: Refused, though gunicorn's own code takes them, and why.
REFUSED = {
    "005": "a fragment in the target",
    "013": "an extension of a chunk that is not to the letter",
    "025": "Transfer-Encoding: identity",
    "025_line": "Transfer-Encoding: identity",
    "029": "Transfer-Encoding: identity",
    "030": "Transfer-Encoding: identity",
    "031": "a method that nobody has heard of",
    "099": "a body that ends too early",
    "rfc9112_smuggle_gzip_chunked_01": "Transfer-Encoding: gzip",
    "rfc9112_smuggle_te_identity_chunked_01": "Transfer-Encoding: identity",
    "rfc9112_target_absolute_userinfo_01": "a password in the target",
    "rfc9112_target_authority_connect_01": "CONNECT",
    "rfc9112_target_authority_ipv6_01": "CONNECT",
}

#: Taken, though gunicorn's own code refuses it; it does no harm.
TAKEN = {
    "rfc9112_leading_crlf_02": "several empty lines before a request",
}


def requests(kind: str) -> list[str]:
    return sorted(file.stem for file in (SOURCE / "requests" / kind).glob("*.http"))


class Worker:
    """As much of one as a site looks at."""

    nr = 0
    max_requests = sys.maxsize
    aborts = False
    handle = handle_request = handle_error = timeout_ctx = is_already_handled = None


def collected(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any, bytes]:
    """The settings, what gunicorn makes of the request, and its bytes."""
    monkeypatch.syspath_prepend(str(SOURCE))
    treq: Any = __import__("treq")
    file = SOURCE / "requests" / kind / name
    told = treq.load_py(f"{file}.py", http_parser="auto")
    data = file.with_name(f"{name}.http").read_bytes().replace(b"\n", b"")
    for written, meant in [(rb"\r\n", b"\r\n"), (rb"\0", b"\0"), (rb"\n", b"\n"), (rb"\t", b"\t")]:
        data = data.replace(written, meant)
    return told["cfg"], told["request"], treq.decode_hex_escapes(data)


def served(settings: Any, data: bytes) -> list[tuple[dict[str, Any], bytes]]:
    """The environ and the body of each request that has reached the application."""
    from gunicorn.glogging import Logger

    from pyfiber.gunicorn._needs import own_code
    from pyfiber.gunicorn._site import GunicornSite

    if reason := own_code(settings, Worker, Worker):
        pytest.skip(f"gunicorn's own code serves, because of {reason}")
    seen = []

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        seen.append((environ, environ["wsgi.input"].read()))
        start_response("200 OK", [])
        return []

    def talk(sock: Any) -> None:
        worker: Any = Worker()
        worker.cfg, worker.wsgi, worker.log = settings, app, Logger(settings)
        site = GunicornSite(worker, ("127.0.0.1", 80))
        with Stream(sock, ("127.0.0.1", 1234)) as stream:
            site.talk(stream)

    def main() -> None:
        ours, theirs = socketpair()
        with pyfiber.TaskGroup() as group, theirs:
            group.spawn(talk, ours)
            theirs.sendall(data)
            theirs.shutdown(1)
            while theirs.recv(65536):
                pass

    pyfiber.run(main)
    return seen


@pytest.mark.parametrize("name", requests("invalid"))
def test_malformed_request_is_not_served(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, _, data = collected("invalid", name, monkeypatch)
    assert bool(served(settings, data)) == (name in TAKEN)


@pytest.mark.parametrize("name", requests("valid"))
def test_request_is_served_as_gunicorn_reads_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings, expected, data = collected("valid", name, monkeypatch)
    found = served(settings, data)
    if name in REFUSED:
        assert not found
        return
    expected = expected if isinstance(expected, list) else [expected]
    for (environ, body), told in zip(found, expected, strict=True):
        assert environ["REQUEST_METHOD"] == told["method"]
        assert environ["RAW_URI"] == told["uri"]["raw"]
        assert environ["SERVER_PROTOCOL"] == "HTTP/{}.{}".format(*told["version"])
        assert body == (told["body"] or b"")
        for field, value in told["headers"]:
            key = field.replace("-", "_")
            key = key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{key}"
            assert value in environ[key] or "_" in field
