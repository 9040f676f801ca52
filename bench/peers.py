"""The libraries that pyfiber is measured beside."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterable
from typing import Any

#: Distributions outside the standard library, each of the same name as its module.
PEERS = ("greenlet", "gevent", "uvloop", "trio", "sqlalchemy", "gunicorn", "tonio")

#: Peers that cannot be installed on a system.
NOT_FOR = {"win32": ("uvloop", "gunicorn")}


def load(name: str) -> Any:
    """Import a peer. Untyped on purpose: type checking must not depend on what is installed."""
    return importlib.import_module(name)


def runs_here(name: str) -> bool:
    """Whether a peer exists for this system."""
    return name not in NOT_FOR.get(sys.platform, ())


def is_installed(name: str) -> bool:
    """Whether a peer can be imported, found out without importing it."""
    return importlib.util.find_spec(name) is not None


def version(name: str) -> str | None:
    """The installed version of a peer, None when there is none."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def install_command(names: Iterable[str]) -> str:
    """The command that installs peers for the interpreter that is running."""
    return f"{sys.executable or 'python'} -m pip install {' '.join(names)}"
