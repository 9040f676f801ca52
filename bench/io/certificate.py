"""Makes a new key and certificate for 127.0.0.1 for each measurement."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from ..model import Unavailable


def make_certificate(directory: Path) -> Path:
    """Return a file with a new private key and its self-signed certificate."""
    openssl = shutil.which("openssl")
    if openssl is None:
        raise Unavailable("needs the openssl command to make a certificate")
    key, certificate = directory / "key.pem", directory / "certificate.pem"
    subprocess.run(
        [
            *(openssl, "req", "-x509", "-nodes", "-days", "2"),
            *("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"),
            *("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(certificate)),
        ],
        check=True,
        capture_output=True,
    )
    both = directory / "both.pem"
    both.touch(mode=0o600)
    both.write_bytes(key.read_bytes() + certificate.read_bytes())
    return both
