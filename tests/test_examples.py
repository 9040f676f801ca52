"""Each program of examples/ runs, and prints what it should."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from subprocesses import run_python

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"

pytestmark = pytest.mark.skipif(not EXAMPLES.exists(), reason="needs the source tree")


def run_example(name: str, *arguments: str, code: int = 0) -> str:
    """What an example prints, on either of its outputs."""
    done = run_python(str(EXAMPLES / name), *arguments, env={"PYTHONIOENCODING": "utf-8"})
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def document(tmp_path: Path, text: str) -> str:
    """An XML file with that text."""
    path = tmp_path / "document.xml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_ping_pong_hands_the_ball_back_and_forth() -> None:
    lines = run_example("ping_pong.py", "--exchanges", "2", "--depth", "3").splitlines()
    balls = [" ".join(line.split()) for line in lines[:-1]]
    assert balls == ["ping -> 0", "<- pong 0", "ping -> 1", "<- pong 1"]
    assert re.fullmatch(r"4 switches, 3 calls deep: [\d,]+ ns each", lines[-1])


def test_ping_pong_plays_in_the_depth_without_a_word() -> None:
    printed = run_example("ping_pong.py", "--exchanges", "50", "--depth", "300", "--quiet")
    assert re.fullmatch(r"100 switches, 300 calls deep: [\d,]+ ns each\n", printed)


def test_ping_pong_without_a_single_exchange() -> None:
    assert "calls deep" in run_example("ping_pong.py", "--exchanges", "0")


def test_skynet_adds_up_its_leaves() -> None:
    printed = run_example("skynet.py", "--leaves", "1000")
    assert printed.startswith("sum 499,500 of 1,000 leaves in ")


def test_skynet_with_other_children() -> None:
    printed = run_example("skynet.py", "--leaves", "64", "--children", "4")
    assert printed.startswith("sum 2,016 of 64 leaves in ")


@pytest.mark.parametrize("arguments", [("--leaves", "12"), ("--children", "1")], ids=" ".join)
def test_skynet_refuses_a_tree_that_cannot_be_filled(arguments: tuple[str, ...]) -> None:
    assert "must be a power" in run_example("skynet.py", *arguments, code=2)


RICH = """<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE menu [<!ENTITY who "Zoot">]>
<menu xmlns="urn:menu" xmlns:x="urn:x" day="Monday" x:cook="&who;">
  before <egg/> between <x:spam fresh="no">S<![CDATA[<pam>]]> &amp; &#228;</x:spam> after
  <!-- a comment --><?an instruction?>
  <empty></empty>
</menu>
"""


def test_pull_parser_agrees_with_iterparse(tmp_path: Path) -> None:
    lines = run_example(
        "pull_parser.py", document(tmp_path, RICH), "--repeat", "1", "--show", "2"
    ).splitlines()
    assert lines[0] == "start {urn:menu}menu {'day': 'Monday', '{urn:x}cook': 'Zoot'}"
    assert lines[1] == "start {urn:menu}egg {}"
    assert lines[2] == "8 events, the same from pull() and from iterparse"
    assert [line.split("  ")[0] for line in lines[3:]] == [
        "expat callbacks alone",
        "pulled out of expat",
        "ElementTree.iterparse",
    ]


def test_pull_parser_with_a_large_and_deep_document(tmp_path: Path) -> None:
    many = "".join(f'<item number="{number}">text {number}</item>' for number in range(2000))
    deep = "<level>" * 500 + "</level>" * 500
    text = f"<root>{many}{deep}</root>"
    printed = run_example("pull_parser.py", document(tmp_path, text), "--repeat", "1")
    assert "5,002 events, the same from pull() and from iterparse" in printed


def test_pull_parser_passes_on_what_the_parser_raises(tmp_path: Path) -> None:
    printed = run_example("pull_parser.py", document(tmp_path, "<a><b></a>"), code=1)
    assert "ExpatError: mismatched tag" in printed


def test_pull_parser_of_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert "FileNotFoundError" in run_example("pull_parser.py", str(tmp_path / "none"), code=1)
