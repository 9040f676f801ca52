"""The endurance runs, made short: they run, and they notice what grows."""

from __future__ import annotations

import os

import pytest

from tests.conftest import Child

psutil = pytest.importorskip("psutil")

from tests.soak.gauge import Gauge, Grown, Use  # noqa: E402


def samples(gauge: Gauge, grow: dict[str, int]) -> Gauge:
    use = Use(0.0, 0, 1000, 10, 2)
    for number in range(20):
        gauge.samples.append(
            use._replace(**{name: getattr(use, name) + number * by for name, by in grow.items()})
        )
    return gauge


@pytest.mark.parametrize("name", ["kibibytes", "descriptors", "threads"])
def test_what_grows_is_noticed(name: str) -> None:
    with pytest.raises(Grown, match=name):
        samples(Gauge("a test", "growth", slack=5), {name: 1}).check()


def test_what_stays_or_shrinks_passes() -> None:
    samples(Gauge("a test", "no growth", slack=5), {}).check()
    samples(Gauge("a test", "no growth", slack=5), {"kibibytes": -1, "threads": -1}).check()


def test_growth_within_the_slack_passes() -> None:
    samples(Gauge("a test", "slack", slack=50), {"kibibytes": 1}).check()


@pytest.mark.parametrize(
    "arguments",
    [("switches", "--switches", "60000"), ("spawns", "--spawns", "80000")],
    ids=lambda arguments: arguments[0],
)
def test_endurance_run_runs(arguments: tuple[str, ...], child: Child) -> None:
    program = "import sys; sys.argv[0] = 'tests.soak'; from tests.soak.__main__ import main; main()"
    # AddressSanitizer keeps what was freed, 256 MiB of it; this run must be past that growth.
    keeps = ":quarantine_size_mb=1:thread_local_quarantine_size_kb=16"
    env = {"ASAN_OPTIONS": os.environ.get("ASAN_OPTIONS", "") + keeps}
    assert "nothing grew" in child(program, *arguments, env=env).stdout


@pytest.mark.slow
def test_mixed_load_runs(child: Child) -> None:
    program = "import sys; sys.argv[0] = 'tests.soak'; from tests.soak.__main__ import main; main()"
    assert "nothing grew" in child(program, "mixed", "--minutes", "0.2").stdout
