"""Builds pyfiber._capi, the module behind pyfiber.capi, with cffi in API mode.

setup.py names this file as ``csrc/cffi/build_capi.py:ffibuilder`` and sets the
compiler's flags, as for the engine.
"""

from __future__ import annotations

from pathlib import Path

from cffi import FFI


def source_directory() -> Path:
    """Return the project's csrc; cffi sets __file__ to this file's path."""
    return Path(__file__).resolve().parent.parent


def make_builder() -> FFI:
    """Return cffi's description of the module."""
    here = source_directory() / "cffi"
    builder = FFI()
    builder.cdef((here / "capi.cdef").read_text(encoding="utf-8"))
    builder.set_source(
        "pyfiber._capi",
        '#include "capi.c"\n',
        # The paths of a CFFI module are relative to setup.py, where the compiler runs.
        include_dirs=["csrc/cffi", "csrc/include", "csrc"],
        depends=[
            "csrc/cffi/capi.c",
            "csrc/cffi/capi.cdef",
            "csrc/include/pyfiber.h",
            "csrc/python/core/tstate.h",
            "csrc/python/core/pyinclude.h",
        ],
        py_limited_api=False,
    )
    return builder


ffibuilder = make_builder()

if __name__ == "__main__":
    ffibuilder.compile(verbose=True)
