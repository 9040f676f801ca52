"""The table of the thread state's fields is complete; a build or import that does not fit stops."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.support.compilers import extension_compiler

CSRC = Path(__file__).resolve().parents[2] / "csrc"
CORE = CSRC / "python" / "core"

pytestmark = pytest.mark.skipif(not CORE.exists(), reason="needs the source tree")

MODULE = """
#include "python/core/tstate.h"

static PyModuleDef def = {PyModuleDef_HEAD_INIT, "layout", NULL, 0};

PyMODINIT_FUNC
PyInit_layout(void)
{
    return pystate_check_layout() < 0 ? NULL : PyModule_Create(&def);
}
"""


def code_of(*names: str) -> str:
    """Without comments."""
    text = "\n".join((CORE / name).read_text(encoding="utf-8") for name in names)
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


def table() -> dict[str, str]:
    """Of each field of PyThreadState in the table, SWITCHED or READ."""
    code = code_of("tstate_layout.h")
    return {name: use for use, name in re.findall(r"^PF_(\w+)\s*\((\w+)", code, re.MULTILINE)}


def test_every_field_that_is_used_is_in_the_table() -> None:
    used = set(re.findall(r"\bts->(\w+)", code_of("tstate.h", "tstate.c", "tstate_layout.c")))
    assert used
    assert used - table().keys() == set()


def test_no_field_is_written_that_is_not_switched() -> None:
    code = code_of("tstate.h", "tstate.c", "tstate_layout.c")
    places = r"\bts->(\w+)(?:\.\w+)*\s*(?:[-+|&]?=(?!=)|\+\+|--)"
    written = set(re.findall(places, code))
    #: Some are written through a function that gives the place of a field.
    written |= set(re.findall(r"return &ts->(\w+)", code))
    assert "datastack_top" in written
    assert "context" in written
    assert {name for name in written if table()[name] != "SWITCHED"} == set()


def test_thread_states_are_looked_into_in_this_room_alone() -> None:
    files = [file for file in CSRC.rglob("*.[ch]") if not file.name.startswith("tstate")]
    text = {file: file.read_text(encoding="utf-8") for file in files}
    assert [file.name for file in files if re.search(r"\b(ts|tstate)->", text[file])] == []


@pytest.fixture(scope="module")
def headers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python's headers, in which `id` and all after it have moved."""
    if sysconfig.get_config_var("SIZEOF_LONG") != 8 or sys.maxsize < 2**32:
        pytest.skip("the table is not for this system")
    extension_compiler("CC")
    folder = tmp_path_factory.mktemp("headers")
    real = Path(sysconfig.get_path("include"))
    for file in real.rglob("*.h"):
        link = folder / file.relative_to(real)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file)
    changed = folder / "cpython" / "pystate.h"
    text = changed.read_text(encoding="utf-8")
    assert text.count("    uint64_t context_ver;\n") == 1
    changed.unlink()
    changed.write_text(
        text.replace("    uint64_t context_ver;\n", "    uint64_t context_ver, stranger;\n"),
        encoding="utf-8",
    )
    return folder


def compile_with(headers: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    includes = ["-I", str(headers), "-I", str(CSRC), "-I", sysconfig.get_path("platinclude")]
    command = [*extension_compiler("CC"), "-std=c11", *includes, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_build_stops_where_a_field_has_moved(headers: Path) -> None:
    source = str(CORE / "tstate_layout.c")
    known = compile_with(Path(sysconfig.get_path("include")), "-fsyntax-only", source)
    assert known.returncode == 0, known.stderr
    moved = compile_with(headers, "-fsyntax-only", source)
    assert moved.returncode != 0
    assert "pyfiber does not know this layout of PyThreadState: " in moved.stderr
    assert "the field datastack_top has moved" in moved.stderr
    assert "the field context has moved" not in moved.stderr


def imported_from(folder: Path) -> str:
    code = "import sys; sys.path.insert(0, sys.argv[1]); import layout; print('fits')"
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode in (0, 1), done.stderr
    return done.stdout + done.stderr


def test_import_is_refused_where_a_field_has_moved(headers: Path, tmp_path: Path) -> None:
    """As a wheel on a patch release that it was not built for: the build could not know."""
    unchecked = tmp_path / "unchecked.h"
    unchecked.write_text('#include "python/core/pyinclude.h"\n#define PF_LIES_AT(...)\n')
    (tmp_path / "layout.c").write_text(MODULE)
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    for name, found in [("known", Path(sysconfig.get_path("include"))), ("moved", headers)]:
        made = tmp_path / name
        made.mkdir()
        done = compile_with(
            found,
            "-shared",
            "-fPIC",
            "-O2",
            "-include",
            str(unchecked),
            "-DPF_TSTATE_LAYOUT_H",
            str(tmp_path / "layout.c"),
            str(CORE / "tstate_layout.c"),
            "-o",
            os.fspath(made / f"layout{suffix}"),
        )
        assert done.returncode == 0, done.stderr
    assert imported_from(tmp_path / "known") == "fits\n"
    refusal = imported_from(tmp_path / "moved")
    assert "ImportError: pyfiber was built with the headers of CPython" in refusal
    assert "PyThreadState.id lies elsewhere" in refusal
