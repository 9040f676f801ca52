"""Which tests are asked whether they notice a fault, in what order, and how they are built."""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
MEMORY = 12 << 20  # KiB of addresses: a fault may ask for memory without end
SECONDS = 30  # of processor time, for all C tests: they need one; the Python tests: more


@dataclass(frozen=True)
class Stage:
    name: str
    place: str  # from the project's root: where its commands run
    build: list[str]
    program: str  # part of the name of what is linked
    test: list[str]
    failure: str  # finds the test that failed in what is printed

    def failed(self, printed: str) -> str:
        found = re.search(self.failure, printed, re.MULTILINE)
        return found[1] if found else f"a crash after {printed.strip().splitlines()[-1:]}"


def c_stage(name: str, *variables: str) -> Stage:
    make = ["make", "--no-print-directory", f"BUILD=build-{name}", *variables, "all"]
    # The first failure ends it.  Addresses are no measure where a sanitizer maps its shadow.
    tests = f"build-{name}/*/tests 2>&1 | sed '/^FAIL/q'; exit ${{PIPESTATUS[0]}}"
    memory = "export ASAN_OPTIONS=hard_rss_limit_mb=4096" if variables else f"ulimit -v {MEMORY}"
    test = ["bash", "-c", f"ulimit -c 0 -t {SECONDS}; {memory}; {tests}"]
    return Stage(name, "tests/c", make, "/tests", test, r"^FAIL (\w+)")


# The tests of a file: those named after it, and these.
ENGINE = "run spawn_join park sleep threads cross_thread raw_switch stack_pool scheduler_embed exit"
SYNC = "references explored_primitives testing_primitives sync_threads sync_reentry misuse"
OTHERS = {
    "waitq": "lock lock_model condition queue channel select select_model cross_thread messages"
    f" scheduler_embed {SYNC}",
    "wait": "park sleep spawn_join spawn_now join_order cancel cross_thread threads run"
    " scopes_elsewhere condition lock group grain_waits to_thread scheduler_embed references"
    " testing_primitives",
    "latch": "executor await_future pmap done_callbacks compose",
    "lock": f"cpython_lock_tests condition messages {SYNC}",
    "semaphore": f"lock lock_model select_queues {SYNC}",
    "condition": f"cpython_lock_tests {SYNC}",
    "event": f"lock cpython_lock_tests select_queues {SYNC}",
    "queue": f"lock_model select select_queues {SYNC}",
    "queue_hooks": "queue references sync_reentry misuse",
    "ring": "queue lock_model channel select_model references",
    "channel": f"select select_model {SYNC}",
    "select": SYNC,
    "case": f"select select_model select_queues grain_waits long_chains {SYNC}",
    "until": "grain_calls grain_waits grains generator ordinary_generators references",
    "limiter": "to_thread to_thread_stress to_thread_tokens from_thread references sync_reentry",
    "worker": "to_thread one_thread to_thread_stress from_thread exit fork_run messages",
    "switch": "raw_attributes raw_switch raw_type spawn_join run misuse",
    "loop": "run_ends signals signal_handlers run deadlock scheduler_embed scheduler_ends threads"
    " misuse run_beside_threads",
    "signals": "signals signal_handlers run sync_threads",
    "scope": "cancel group group_cancel grain_groups reentrant_scopes messages references",
    "group": "scopes cancel grain_groups reentrant_scopes compose references",
    "choices": "testing_schedule testing_explore testing_finds testing_nondeterminism"
    " testing_cancellation explored_primitives",
}


def tests_named(pattern: str) -> list[str]:
    found = (ROOT / "tests").glob(f"*/test_{pattern}.py")
    return sorted(file.relative_to(ROOT).as_posix() for file in found)


def test_named(name: str) -> str:
    (file,) = tests_named(name)
    return file


def tests_of(path: str) -> list[str]:
    stem = Path(path).stem
    own = tests_named(f"{stem}*")
    others = OTHERS.get(stem, ENGINE) if "/python/" in path else ENGINE
    named = [test_named(name) for name in others.split()]
    return list(dict.fromkeys([*own, *named]))


def python_stage(path: str) -> Stage:
    pytest = ["-m", "pytest", "-x", "-q", "-n0", "-p", "no:cacheprovider", "--timeout=30"]
    test = shlex.join([sys.executable, *pytest, *tests_of(path)])
    test = f"ulimit -c 0 -t {6 * SECONDS} -v {MEMORY}; exec {test}"
    build = [sys.executable, "setup.py", "build_ext", "--inplace", "--force"]
    return Stage("python", ".", build, "_engine", ["bash", "-c", test], r"^FAILED (\S+)")


def stages_for(path: str) -> list[Stage]:
    stages = [python_stage(path)]
    if "/python/" not in path:
        stages[:0] = [c_stage("c"), c_stage("hard", "HARDTEST=1", "SANITIZE=address,undefined")]
    return stages
