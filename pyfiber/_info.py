"""Facts about this build of pyfiber: ``info()`` and ``get_include()``."""

from __future__ import annotations

import os
import sys

from pyfiber import _engine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def info() -> dict[str, Any]:
    """Facts about the engine in use, for bug reports and benchmarks.

    Keys: ``version``, ``backend`` (how contexts are switched), ``stack_size`` and
    ``min_stack_size`` (bytes), ``guard`` (how stacks are guarded), ``page_size`` (bytes),
    ``slots`` (how many stacks fibers that wait share by default; 0: each has its own) and
    ``slots_refused`` (why they cannot share any here, or None),
    ``fiber_bytes`` (of a Fiber object), ``collects_suspended_cycles`` (whether the collector
    traverses suspended frames), ``gil`` (whether this process runs with the GIL), ``built_for`` and
    ``python`` (versions), ``platform``.
    """
    from pyfiber import __version__

    facts: dict[str, Any] = {"version": __version__}
    facts.update(_engine._facts())
    facts["gil"] = gil_is_on()
    facts["python"] = sys.version.split()[0]
    facts["platform"] = sys.platform
    return facts


def gil_is_on() -> bool:
    """Does this process have a GIL? A free-threaded build has one with PYTHON_GIL=1."""
    is_enabled = getattr(sys, "_is_gil_enabled", None)  # from Python 3.13 on
    return is_enabled is None or bool(is_enabled())


def get_include() -> str:
    """Return the directory that holds ``pyfiber.h``, the C API, for a compiler's -I.

    In an installed package that is ``pyfiber/include``. Where the package is used from its source
    tree, that is ``csrc/include`` beside it. Raises FileNotFoundError if neither has the file.
    """
    package = os.path.dirname(os.path.abspath(__file__))
    installed = os.path.join(package, "include")
    if os.path.exists(os.path.join(installed, "pyfiber.h")):
        return installed
    source = os.path.join(os.path.dirname(package), "csrc", "include")
    if os.path.exists(os.path.join(source, "pyfiber.h")):
        return source
    raise FileNotFoundError(f"pyfiber.h is neither in {installed} nor in {source}")
