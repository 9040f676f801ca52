"""A key and its certificate for the tests of TLS, made when they are first needed.

The openssl command makes them. Where there is none, PYFIBER_TEST_CERTIFICATES may be a folder that
has them as NAME.pem: the certificate, and its key.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

#: What a test of TLS connects to; no name is looked up for it.
HOST = "test.invalid"

_MADE = os.environ.get("PYFIBER_TEST_CERTIFICATES")
needs_certificates = pytest.mark.skipif(
    _MADE is None and shutil.which("openssl") is None,
    reason="the openssl command makes the certificates, and is not there",
)


@functools.cache
def _directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="pyfiber-tls-")


def certificate(name: str = HOST) -> str:
    """A file with a private key, and a certificate of its own for the host of that name."""
    return _make(name)


@functools.cache
def _make(name: str) -> str:
    if _MADE is not None:
        return str(Path(_MADE, name + ".pem"))
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("the openssl command makes the certificate, and is not there")
    key, made = Path(_directory().name, name + ".key"), Path(_directory().name, name + ".pem")
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-nodes", "-days", "2"),
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}"),
            *("-addext", "keyUsage=critical,digitalSignature,keyCertSign"),
            *("-keyout", str(key), "-out", str(made)),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    made.write_bytes(made.read_bytes() + key.read_bytes())
    return str(made)
