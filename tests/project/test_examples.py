"""Each program of examples/ runs, and prints what it should."""

from __future__ import annotations

import os
import re
import signal
import threading
from pathlib import Path
from types import ModuleType

import psutil
import pytest

import pyfiber
from pyfiber import _engine
from tests.support.examples import EXAMPLES, example_in_child, imported, run_example
from tests.support.subprocesses import run_python
from tests.support.wine import is_wine

pytestmark = pytest.mark.skipif(not EXAMPLES.exists(), reason="needs the source tree")


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
    assert lines[2] == "8 events, the same from pulled() and from iterparse"
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
    assert "5,002 events, the same from pulled() and from iterparse" in printed


def test_pull_parser_passes_on_what_the_parser_raises(tmp_path: Path) -> None:
    printed = run_example("pull_parser.py", document(tmp_path, "<a><b></a>"), code=1)
    assert "ExpatError: mismatched tag" in printed


def test_pull_parser_of_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert "FileNotFoundError" in run_example("pull_parser.py", str(tmp_path / "none"), code=1)


ORDER = [
    "Before nesting",
    "Before creating task",
    "After creating delay",
    "Side job",
    "After sleeping",
    "After creating data",
    "After reading data Some string",
    "After nesting",
]


def test_async_without_async_prints_the_same_three_times_on_one_thread() -> None:
    lines = run_example("async_without_async.py").splitlines()
    ways = ["--- coroutines", "--- generators", "--- functions"]
    assert lines == [line for way in ways for line in (way, *ORDER)]


def test_downloads_keep_so_many_under_way() -> None:
    lines = run_example("downloads.py", "--delay", "0.2").splitlines()
    assert lines[0] == "both: (2000, 3000)"
    assert lines[-2] == f"all: {[1000 * n for n in range(1, 11)]}"
    trace = [re.sub(r" - result: \d+", " ends", line) for line in lines[1:-2]]
    trace = [line.replace(" - begins", " begins") for line in trace]
    assert trace[:3] == [f"page {n} begins" for n in (1, 2, 3)]
    assert sorted(trace) == sorted(
        f"page {n} {what}" for n in range(1, 11) for what in ("begins", "ends")
    )
    running, most = 0, 0
    for line in trace:
        running += 1 if line.endswith("begins") else -1
        most = max(most, running)
    assert most == 3
    # The slow first page held up nobody: others ended and new ones began before it was done.
    assert trace.index("page 1 ends") > trace.index("page 4 begins")


def test_mandelbrot_in_bands_is_the_sequential_image(tmp_path: Path) -> None:
    images = [tmp_path / "bands.pbm", tmp_path / "odd.pbm", tmp_path / "sequential.pbm"]
    options = [("--bands", "4"), ("--bands", "7"), ("--sequential",)]
    for image, option in zip(images, options, strict=True):
        printed = run_example("mandelbrot.py", str(image), "--size", "128", *option)
        assert "2,059 bytes" in printed
    first, second, third = (image.read_bytes() for image in images)
    assert first == second == third
    assert first.startswith(b"P4\n128 128\n")


@pytest.mark.slow
def test_mandelbrot_in_full_size(tmp_path: Path) -> None:
    bands, sequential = tmp_path / "bands.pbm", tmp_path / "sequential.pbm"
    run_example("mandelbrot.py", str(bands))
    run_example("mandelbrot.py", str(sequential), "--sequential")
    assert bands.read_bytes() == sequential.read_bytes()
    assert len(bands.read_bytes()) == 2048 * 2048 // 8 + len(b"P4\n2048 2048\n")


def test_mandelbrot_of_an_odd_size(tmp_path: Path) -> None:
    printed = run_example("mandelbrot.py", str(tmp_path / "no.pbm"), "--size", "100", code=2)
    assert "multiple of 8" in printed


def test_cancellation_trees_tell_who_was_cancelled() -> None:
    printed = run_example("cancellation_trees.py")
    scenes = dict(re.findall(r"^(a \w+)\n((?:  .*\n)+)", printed, flags=re.MULTILINE))
    ends = {
        name: sorted(re.findall(r"^  (\w+) - (result|cancelled)", text, flags=re.MULTILINE))
        for name, text in scenes.items()
    }
    assert ends == {
        "a race": [("hare", "result"), ("tortoise", "cancelled")],
        "a timeout": [("sloth", "cancelled")],
        "a failure": [("left", "cancelled"), ("right", "cancelled")],
        "a tree": [("a", "cancelled"), ("b", "cancelled"), ("c", "cancelled")],
    }
    results = re.findall(r"-> (.*)", printed)
    assert results == [
        "hare",
        "gave up: not done after 0.02 seconds",
        "failed: broken",
        "CancelledOutcome(reason='the user went away')",
    ]


def grains_lines(policy: str) -> tuple[list[str], list[str]]:
    lines = run_example("grains.py", "--count", "8", "--policy", policy).splitlines()
    return [line for line in lines[:-2] if not line.startswith("#")], lines[-2:]


def test_grains_take_turns() -> None:
    lines, ends = grains_lines("round-robin")
    assert [line.split()[0] for line in lines[:8]] == ["Fibonacci", "Random"] * 4
    numbers = [int(line.split()[1]) for line in lines if line.startswith("Fibonacci")]
    assert numbers == [0, 1, 1, 2, 3, 5, 8, 13]
    drawn = [int(line.split()[1]) for line in lines if line.startswith("Random")]
    assert ends == ["fibonacci: 21", f"randoms: {sum(drawn)}"]
    assert len(drawn) == 8


def test_grains_with_priority_let_the_first_one_go_on() -> None:
    lines, _ = grains_lines("priority")
    assert [line.split()[0] for line in lines[:4]] == ["Random"] * 4


def test_grains_with_fair_share() -> None:
    lines, ends = grains_lines("fair-share")
    assert len(lines) == 16
    assert ends[0] == "fibonacci: 21"


def test_shuffled_instants_find_the_race_and_run_it_again() -> None:
    assert run_example("shuffled_instants.py").splitlines() == [
        " 8.0 h  open",
        "18.5 h  close",
        "23.0 h  backup",
        "the usual order: nothing found",
        "another order: an order was lost",
        "the same order again: an order was lost",
    ]


def test_operators_come_to_what_they_should() -> None:
    assert run_example("operators.py").splitlines() == [
        "bind: 3",
        "combine: after the delay",
        "map: LOUD",
        "apply: 3",
        "join: inner",
        "unfold: [20, 10, 5, 2, 1]",
        "catch: instead of: 7 is odd",
        "map_outcome: failed: 7 is odd",
        "of_future: from a thread",
        "on_new_thread: pyfiber",
        "describe: caught: 3 is odd",
    ]


def test_grain_pool_has_its_day() -> None:
    assert run_example("grain_pool.py").splitlines() == [
        "[before] ann STOPPED bob STOPPED cem STOPPED waiter STOPPED cook STOPPED clock STOPPED",
        "cook: here is egg",
        "bob: thanks for the egg",
        "[in the middle] ann SLEEPING cem SLEEPING waiter SLEEPING cook SLEEPING",
        "waiter: table three, please",
        "cook: here is spam",
        "ann: thanks for the spam",
        "[late] waiter SLEEPING",
        "waiter: good night",
        "ann done Ok(value='spam')",
        "bob done Ok(value='egg')",
        "cem parked None",
        "waiter done CancelledOutcome(reason='closing time')",
        "on_error='grain': Failed(exception=OSError('broken')) Ok(value='done')",
        "shutdown raised: broken",
        "on_error='pool': Failed(exception=OSError('broken')) "
        "CancelledOutcome(reason='another grain failed')",
    ]


@pytest.mark.skipif(os.name == "nt", reason="programs of POSIX")
def test_pipeline_counts_words(tmp_path: Path) -> None:
    text = document(tmp_path, "the cat and the dog\nand the mouse\n" * 20_000)
    assert run_example("pipeline.py", "--top", "2", text).splitlines() == ["60000 the", "40000 and"]
    assert "TimeoutError" in run_example("pipeline.py", "--limit", "0", text, code=1)


@pytest.mark.skipif(os.name == "nt", reason="signals and programs of POSIX")
def test_pipeline_that_is_told_to_end_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = imported("pipeline")
    monkeypatch.setattr(pipeline, "STAGES", [["cat"], ["sleep", "1000"]])

    def main() -> None:
        pyfiber.spawn(pipeline.most_frequent, [__file__], 5)
        for _ in range(10):
            pyfiber.yield_now()
        signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit, match="ended by SIGTERM"):
        pyfiber.run(main)
    # (Another test may have left a process of its own.)
    assert not {"cat", "sleep"} & {child.name() for child in psutil.Process().children()}


# crawl --------------------------------------------------------------------------------------------

CRAWLED = re.compile(
    r"([\d,]+) pages, ([\d,]+) missing, ([\d,]+) without an answer, "
    r"([\d,]+) retries, ([\d,]+) timeouts"
)


def numbers(printed: str) -> list[int]:
    """Those of the report: pages, missing, without an answer, retries, timeouts."""
    found = CRAWLED.search(printed)
    assert found, printed
    return [int(number.replace(",", "")) for number in found.groups()]


@pytest.fixture
def crawl() -> ModuleType:
    return imported("crawl")


def test_crawl_finds_what_a_sequential_crawl_finds() -> None:
    printed = run_example("crawl.py", "--pages", "60", "--patience", "0.2", "--check")
    pages, missing, lost, retries, timeouts = numbers(printed)
    assert (pages, missing, lost) == (60, 1, 0)
    # Pages 7, 27 and 47 fail 2, 1 and 3 times; those that hang do so once.
    assert timeouts >= 4
    assert retries >= 6 + timeouts
    assert printed.endswith("\nthe same pages\n")


@pytest.mark.slow
def test_crawl_of_the_whole_site() -> None:
    printed = run_example("crawl.py", "--check")
    pages, missing, lost, retries, timeouts = numbers(printed)
    assert (pages, lost) == (2000, 0)
    assert missing > 10
    assert timeouts >= 4
    assert retries >= 200
    assert "the same pages" in printed


def test_crawl_keeps_so_many_requests_under_way(crawl: ModuleType) -> None:
    asking = most = 0
    site = crawl.Site(300, 0, hang=0)
    site.failures.clear()
    site.delays = dict.fromkeys(range(300), 0.005)
    answer = site.answer

    def counted(page: int) -> tuple[int, str]:
        nonlocal asking, most
        asking += 1
        most = max(most, asking)
        try:
            return answer(page)
        finally:
            asking -= 1

    site.answer = counted
    with crawl.served(site) as port:
        crawler = crawl.Crawl(port, 4, 60, 1)
        pyfiber.run(crawler.run)
    assert most == 4
    assert len(crawler.idle) == 4
    assert len(crawler.pages) == len(crawler.seen) > 300


def test_crawl_gives_up_a_page_that_never_answers(crawl: ModuleType) -> None:
    site = crawl.Site(30, 0, hang=0)
    site.failures[7] = 1000
    with crawl.served(site) as port:
        crawler = crawl.Crawl(port, 4, 60, 3)
        pyfiber.run(crawler.run)
    assert crawler.pages["/7"] == crawl.Page(0)
    assert crawler.retries == 2 + 1  # page 27 fails once


@pytest.mark.skipif(is_wine(), reason="shutdown() of a socket does not end its select() there")
def test_crawl_that_is_cancelled_leaves_no_thread_and_no_fiber(crawl: ModuleType) -> None:
    site = crawl.Site(30, 0, hang=60)
    with crawl.served(site) as port:
        crawler = crawl.Crawl(port, 4, 60, 3)

        def main() -> None:
            with pyfiber.move_on_after(0.2) as limit:
                crawler.run()
            assert limit.cancelled()
            assert crawler.threads.borrowed_tokens == 0  # though a page hangs for a minute
            assert _running_fibers() == 1

        start = pyfiber.now()
        pyfiber.run(main)
        assert pyfiber.now() - start < 30
    threads = [thread.name for thread in threading.enumerate()]
    assert not [name for name in threads if "serve" in name or "request" in name]
    assert 0 < len(crawler.pages) < len(crawler.seen)


def _running_fibers() -> int:
    scheduler = _engine._running_scheduler()
    assert scheduler
    return len(scheduler.fibers())


@pytest.mark.skipif(os.name == "nt", reason="terminals and signals of POSIX")
def test_crawl_shows_its_progress_on_a_terminal_and_ends_with_ctrl_c() -> None:
    import pty

    terminal, its_other_end = pty.openpty()
    try:
        # Pages that hang for long are waited for: it does not end by itself.
        crawl = example_in_child(
            "crawl.py", "--pages", "40", "--patience", "60", stderr=its_other_end
        )
        shown = b""
        while not re.search(rb"\r[1-9]\d* of \d+ pages, \d+ retries", shown):
            shown += os.read(terminal, 1000)
        crawl.send_signal(signal.SIGINT)
        printed, _ = crawl.communicate(timeout=60)
        shown += os.read(terminal, 1000)
    finally:
        os.close(terminal)
        os.close(its_other_end)
    assert crawl.returncode == 130
    assert printed.startswith("interrupted: ")
    pages, _, lost, _, _ = numbers(printed)
    assert 0 < pages < 40
    assert lost == 0
    assert shown.endswith(b"\r\x1b[K")  # the line is empty again


def test_crawl_says_nothing_where_there_is_no_terminal() -> None:
    done = run_python(str(EXAMPLES / "crawl.py"), "--pages", "10", "--patience", "0.2")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "arguments", [("--pages", "0"), ("--parallel", "0"), ("--patience", "nan")], ids=" ".join
)
def test_crawl_refuses_numbers_that_make_no_sense(arguments: tuple[str, ...]) -> None:
    assert "must be positive" in run_example("crawl.py", *arguments, code=2)
