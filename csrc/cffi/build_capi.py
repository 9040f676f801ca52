"""Makes pyfiber._capi, the module behind pyfiber.capi, with cffi in API mode.

Named in setup.py as ``csrc/cffi/build_capi.py:ffibuilder``; the compiler's
flags are given there, as for the engine.
"""

from __future__ import annotations

from pathlib import Path

from cffi import FFI


def source_directory() -> Path:
    """The project's csrc; cffi runs this file with its path in ``__file__``."""
    return Path(__file__).resolve().parent.parent


def make_builder() -> FFI:
    """cffi's description of the module."""
    here = source_directory() / "cffi"
    builder = FFI()
    builder.cdef((here / "capi.cdef").read_text(encoding="utf-8"))
    builder.set_source(
        "pyfiber._capi",
        '#include "capi.c"\n',
        # Relative to setup.py, where the compiler runs.
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
