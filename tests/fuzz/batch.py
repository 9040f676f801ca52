"""Many programs in one process, told about on standard output line by line.

begin SEED          a program starts; the last one without an `end` is who crashed or hangs
found SEED TEXT     something is wrong
end SEED            it is over
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import logging
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pyfiber
from pyfiber import _engine

from . import load
from .evil import Evil, programs
from .program import Program

#: A program takes milliseconds; under a sanitizer, traced, on a loaded machine perhaps a second.
LIMIT_SECONDS = float(os.environ.get("PYFIBER_FUZZ_LIMIT", "60"))


OURS = (Evil, Program, pyfiber.Fiber, pyfiber.Scheduler)


def tell(word: str, seed: int, text: str = "") -> None:
    """One line, at once: the next act may crash."""
    os.write(1, f"{word} {seed} {json.dumps(text)}\n".encode())


def census() -> Counter[str]:
    """How many objects there are of our types, and evil ones, which a lost reference keeps."""
    gc.collect()
    pyfiber.Fiber(int).switch()  # ends fibers of this thread that others have dropped
    gc.collect()
    roots = {id(root) for _, root, *_ in _engine._threads()}  # idle workers come and go
    kinds = (type(thing) for thing in gc.get_objects() if id(thing) not in roots)
    return Counter(
        kind.__qualname__
        for kind in kinds
        if issubclass(kind, OURS) or str(kind.__module__).startswith("pyfiber")
    )


def visit_workers() -> None:
    """Give every idle worker thread a job: only then it ends the fibers that were left on it."""
    meeting = threading.Barrier(len(_engine._threads()))

    def meet() -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            meeting.wait(1)

    def main() -> None:
        with pyfiber.TaskGroup() as group:
            for _ in range(meeting.parties):
                group.spawn(pyfiber.to_thread, meet)

    pyfiber.run(main)


def unraisable(info: Any) -> None:
    """What is raised where nobody can catch it: a thread keeps this function for all its life.

    The collector does not look into ``info``: in a cycle with a frame it would stay for good, and
    an exception that is raised in here has this frame.
    """
    error = info.exc_value
    del info
    for program in programs:
        program.judge("unraisable", error)


def play_out(program: Program) -> list[str]:
    """Run it; what it finds."""
    programs.append(program)
    try:
        program.play()
    except BaseException as error:
        program.judge("play", error)
    programs.pop()
    return program.findings


def play(kind: type[Program], seed: int, steps: int | None, verbose: bool) -> list[str]:
    """Run one program; what is wrong with it."""
    before = census()
    findings = play_out(kind(seed, steps, verbose))
    left = census() - before
    if left:
        visit_workers()
    for _ in range(20):  # a worker thread lets go of its last job a moment after its end was told
        if left:
            time.sleep(0.01)
            left = census() - before
    if left:
        findings.append(f"left behind: {dict(left)}")
    return findings


def run(name: str, seeds: Iterable[int], steps: int | None = None, verbose: bool = False) -> bool:
    """Run programs up to the first that finds something: that may leave anything. Is there one?"""
    logging.getLogger("pyfiber").addHandler(logging.NullHandler())
    logging.getLogger("pyfiber").propagate = False
    kind = load(name)
    # CPython 3.11's lock around an import breaks when a finalizer imports in the midst of it.
    for name in pyfiber.__all__:
        getattr(pyfiber, name)
    # The root fiber and the limiter are made when they are first asked for.
    pyfiber.current()
    pyfiber.threads.default_thread_limiter()
    faulthandler.enable()
    sys.unraisablehook = threading.excepthook = unraisable
    gc.disable()
    play(kind, 0, 5, False)  # imports what is imported late
    gc.collect()
    gc.freeze()
    findings: list[str] = []
    for seed in seeds:
        tell("begin", seed)
        faulthandler.dump_traceback_later(LIMIT_SECONDS, exit=True)
        findings = play(kind, seed, steps, verbose)
        faulthandler.cancel_dump_traceback_later()
        for text in findings:
            tell("found", seed, text)
        tell("end", seed)
        if findings:
            break
    faulthandler.dump_traceback_later(LIMIT_SECONDS, exit=True)  # of the interpreter's end
    return bool(findings)
