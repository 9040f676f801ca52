"""Measures what the patch costs code that runs in no fiber: operations unpatched and patched.

    python -m bench.patch_cost                  # instructions (valgrind's) and nanoseconds
    python -m bench.patch_cost --rounds 15 recv "with lock"

Each count and each time comes from a separate process, and includes the loop around the operation.
A time is the median of --rounds rounds; a round runs one process without and one with the patch.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from typing import Any

from .instructions import price
from .model import ROOT

FEW, MANY, TIMED = 500, 3_000, 20_000

#: The statements that are run once, as preparation, and many times.
OPERATIONS = {
    "the loop itself": ("pass", "pass"),
    "lock.acquire, release": ("lock = threading.Lock()", "lock.acquire(); lock.release()"),
    "with lock": ("lock = threading.Lock()", "with lock: pass"),
    "with rlock": ("lock = threading.RLock()", "with lock: pass"),
    "Queue put, get": ("q = queue.Queue()", "q.put(1); q.get()"),
    "SimpleQueue put, get": ("q = queue.SimpleQueue()", "q.put(1); q.get()"),
    "local attribute": ("here = threading.local(); here.name = 1", "here.name"),
    "time.sleep(0)": ("pass", "time.sleep(0)"),
    "recv": ("a, b = socket.socketpair(); a.sendall(b'x' * number)", "b.recv(1)"),
}

PROGRAM = """
import queue, socket, threading, time
import pyfiber
def operation(number):
    {setup}
    begun = time.perf_counter()
    for _ in range(number):
        {statement}
    return time.perf_counter() - begun
"""


def perform(name: str, patched: bool, number: int) -> float:
    """Run an operation in this process; return the seconds that it took."""
    import pyfiber

    if patched:
        pyfiber.patch()
    setup, statement = OPERATIONS[name]
    names: dict[str, object] = {}
    exec(PROGRAM.format(setup=setup, statement=statement), names)
    operation: Any = names["operation"]
    operation(FEW)
    return float(operation(number))


def arguments(name: str, patched: bool, number: int) -> list[str]:
    """The arguments of an interpreter that runs an operation."""
    return ["-m", "bench.patch_cost", "--perform", str(int(patched)), str(number), name]


def nanoseconds(name: str, patched: bool) -> float:
    command = [sys.executable, *arguments(name, patched, TIMED)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    return float(done.stdout) / TIMED * 1e9


def counted(name: str, patched: bool) -> float:
    return price(lambda number: arguments(name, patched, number), FEW, MANY).all


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--perform", nargs=2, type=int, help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*", help="these operations only", metavar="OPERATION")
    options = parser.parse_args()
    if options.perform:
        patched, number = options.perform
        print(perform(options.names[0], bool(patched), number))
        return
    print("| outside of fibers | instructions | patched | | ns | patched | |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name in options.names or OPERATIONS:
        counts = [counted(name, patched) for patched in (False, True)]
        pairs = [
            [nanoseconds(name, patched) for patched in (False, True)] for _ in range(options.rounds)
        ]
        times = [statistics.median(each) for each in zip(*pairs, strict=True)]
        cells = [
            f"{before:,.0f} | {after:,.0f} | {after / before - 1:+.1%}"
            for before, after in (counts, times)
        ]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
