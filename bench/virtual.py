"""Measures what very many threads cost: virtual threads, native ones, and those of gevent.

    python -m bench.virtual [--quick] [SUBJECT...]

Each measurement has a separate process. The program is the same for all subjects, and starts
`threading.Thread` objects:

- waiting: each thread waits for a separate `threading.Event`. The table has the memory that the
  process gains for each thread, with its Thread object and its Event (VmRSS and VmPTE, so without
  the kernel's own stacks of native threads), and the processor time for each thread: to make
  Thread and Event, to start the thread, and to set the Event and join the thread.
- pool: `ThreadPoolExecutor(max_workers=N)` gets N calls of `time.sleep(1)`. The table has the
  seconds from the first submit() until all have ended, and the processor time of the process.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pyfiber

from .model import ROOT
from .peers import is_installed, load
from .proc import memory_of

Figures = dict[str, float]


def waiting(number: int) -> Figures:
    """Start threads that wait for their events, and end them."""

    def work(event: threading.Event) -> None:
        event.wait()

    before = memory_of()
    times = [time.process_time()]
    events = [threading.Event() for _ in range(number)]
    threads = [threading.Thread(target=work, args=(event,)) for event in events]
    times.append(time.process_time())
    for thread in threads:
        thread.start()
    times.append(time.process_time())
    held = memory_of() - before
    for event in events:
        event.set()
    for thread in threads:
        thread.join()
    times.append(time.process_time())
    make, start, end = (
        (after - before) / number * 1e6 for before, after in itertools.pairwise(times)
    )
    return {"bytes": held / number, "make": make, "start": start, "end": end}


def pool(number: int) -> Figures:
    """Let a pool of as many threads sleep."""
    before, began, cpu = memory_of(), time.monotonic(), time.process_time()
    with ThreadPoolExecutor(max_workers=number) as executor:
        sleeps = [executor.submit(time.sleep, 1) for _ in range(number)]
        held = memory_of() - before
        for each in sleeps:
            each.result()
    return {
        "bytes": held / number,
        "seconds": time.monotonic() - began,
        "cpu": time.process_time() - cpu,
    }


def of_gevent() -> AbstractContextManager[object]:
    load("gevent.monkey").patch_all()
    return nullcontext()


SUBJECTS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "virtual threads": pyfiber.virtual_threads,
    "native threads": nullcontext,
    "gevent, monkey-patched": of_gevent,
}
WORK: dict[str, Callable[[int], Figures]] = {"waiting": waiting, "pool": pool}
#: What is measured: work, subject, number of threads.
PLAN = (
    ("waiting", "virtual threads", 100_000),
    ("waiting", "virtual threads", 10_000),
    ("waiting", "native threads", 10_000),
    ("waiting", "gevent, monkey-patched", 100_000),
    ("waiting", "gevent, monkey-patched", 10_000),
    ("pool", "virtual threads", 10_000),
    ("pool", "native threads", 10_000),
    ("pool", "gevent, monkey-patched", 10_000),
)
HEADS = {
    "waiting": "| threads that wait | number | bytes each | make | start | set and join |",
    "pool": "| a pool of | number | bytes each | seconds | processor seconds |",
}


def cells(work: str, found: Figures) -> str:
    """The figures of one measurement, as cells of the table."""
    if work == "waiting":
        times = " | ".join(f"{found[name]:.1f} us" for name in ("make", "start", "end"))
        return f"{found['bytes']:,.0f} | {times}"
    return f"{found['bytes']:,.0f} | {found['seconds']:.2f} | {found['cpu']:.2f}"


def measure(work: str, subject: str, number: int) -> str:
    """Measure in a new process; the cells of the table, or why there are none."""
    command = [sys.executable, "-m", "bench.virtual", "--one", work, subject, str(number)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return f"failed: {done.stderr.strip().splitlines()[-1:]}"
    return cells(work, json.loads(done.stdout))


def tables(subjects: list[str], least: int) -> None:
    """Measure and print both tables; `least` is by how much the numbers are divided."""
    for work, head in HEADS.items():
        print(head, "|---|" + "---:|" * (head.count("|") - 2), sep="\n")
        for planned, subject, number in PLAN:
            if planned == work and subject in subjects:
                told = measure(work, subject, number // least)
                print(f"| {subject} | {number // least:,} | {told} |", flush=True)
        print()


def main() -> None:
    """Measure what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("subjects", nargs="*", help=f"of {', '.join(SUBJECTS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="a tenth of the threads")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        work, subject, number = options.subjects
        with SUBJECTS[subject]():
            found: Any = WORK[work](int(number))
        print(json.dumps(found))
        return
    unknown = set(options.subjects) - SUBJECTS.keys()
    if unknown:
        parser.error(f"no such subject: {', '.join(sorted(unknown))}")
    wanted = options.subjects or list(SUBJECTS)
    if not is_installed("gevent"):
        wanted = [subject for subject in wanted if "gevent" not in subject]
    tables(wanted, 10 if options.quick else 1)


if __name__ == "__main__":
    main()
