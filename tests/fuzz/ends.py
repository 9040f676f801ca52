"""Processes that end while threads are busy with fibers: no crash, no hang, the right exit code.

Daemon threads make, switch, drop and end fibers, greenlets and schedulers, and hand them to each
other; when the main thread comes to its end depends on the machine. Without a GIL they run on until
the interpreter lets them hang. Each program is a process of its own, this file run as a program.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from random import Random
from typing import Any

import pyfiber
from pyfiber.greenlet import greenlet

from .batch import LIMIT_SECONDS

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
#: What a program of each seed ends with, whatever its threads do meanwhile.
WAYS = {"falls off": 0, "exits": 3, "fails": 1, "exits in a run": 3, "fails in a run": 1}


def way_of(seed: int) -> str:
    return Random(seed).choice(sorted(WAYS))


class Kind:
    """The program that plays such a process; it has no steps that could be left out."""

    def __init__(self, seed: int, steps: int | None = None, verbose: bool = False) -> None:
        self.seed, self.verbose = seed, verbose
        self.findings: list[str] = []

    def judge(self, label: str, error: BaseException) -> None:
        self.findings.append(f"{label}: {error!r}")

    def play(self) -> None:
        """Run it to its end, and look at its exit code."""
        command = [sys.executable, "-m", "tests.fuzz.ends", str(self.seed)]
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as child:
            _, errors = child.communicate()
        way = way_of(self.seed)
        if self.verbose:
            sys.stderr.write(errors)
        if child.returncode != WAYS[way]:
            text = f"one that {way} ends with {child.returncode}, not {WAYS[way]}: {errors}"
            self.findings.append(text)


class Busy:
    """What the daemon threads do; they share all objects here."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.shared: list[Any] = []
        self.acted = threading.Semaphore(0)
        self.channel, self.lock = pyfiber.Channel(3), pyfiber.Lock()

    def import_all(self) -> None:
        """Whatever is imported late.

        CPython 3.15 without a GIL hangs if it ends while another thread makes a class.
        """
        for act in (self.schedulers, self.calls, self.talks, self.looks):
            act(Random(0))

    def make_room(self) -> None:
        """For as many threads as there ever are.

        CPython without a GIL hangs if it ends while another thread makes its table of them larger.
        """
        meeting = threading.Barrier(128)
        threads = [threading.Thread(target=meeting.wait) for _ in range(meeting.parties)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def thread(self, number: int) -> None:
        """Act upon act, to the end of the process."""
        random = Random(self.seed * 100 + number)
        acts = [self.raw, self.raw, self.greenlets, self.greenlets, self.takes, self.schedulers]
        acts += [self.calls, self.leaves, self.talks, self.looks, random.choice(acts)]
        while True:
            with contextlib.suppress(pyfiber.FiberError, RuntimeError, TypeError, ValueError):
                random.choice(acts)(random)
            self.acted.release()

    def keep(self, random: Random, thing: Any) -> None:
        """For anybody; what was there is dropped, on this thread."""
        if len(self.shared) < 10:
            self.shared.append(thing)
        else:
            self.shared[random.randrange(10)] = thing

    def raw(self, random: Random) -> None:
        """One that is suspended some frames deep, perhaps resumed to its end."""

        def deep(levels: int) -> None:
            try:
                if levels:
                    deep(levels - 1)
                else:
                    here.switch()
            finally:
                kept.append(levels)

        kept: list[int] = []
        here = pyfiber.current()
        fiber = pyfiber.Fiber(deep, (random.randrange(5),))
        fiber.switch()
        if random.random() < 0.3:
            fiber.throw(pyfiber.FiberExit)
        elif random.random() < 0.7:
            self.keep(random, fiber)

    def greenlets(self, random: Random) -> None:
        let = greenlet(lambda: let.parent.switch(random.random()))
        if random.random() < 0.8:
            let.switch()
        if random.random() < 0.8:
            self.keep(random, let)
        else:
            let.throw()

    def takes(self, random: Random) -> None:
        """Ends, looks at or drops what perhaps another thread has made."""
        if self.shared:
            thing = random.choice(self.shared)
            how = random.choice(("throw", "switch", "drop", "look"))
            if how == "drop":
                self.keep(random, None)
            elif how == "look" or thing is None:
                repr(thing)
            elif isinstance(thing, (pyfiber.Fiber, greenlet)):
                getattr(thing, how)()

    def schedulers(self, random: Random) -> None:
        """A run of its own: sleeps, groups, workers."""

        def main() -> None:
            with pyfiber.TaskGroup() as group:
                for _ in range(random.randrange(1, 5)):
                    group.spawn(pyfiber.sleep, random.random() * 0.002)
                    group.spawn(pyfiber.to_thread, time.sleep, random.random() * 0.001)

        pyfiber.run(main, threads=random.choice((1, 1, 2)))

    def calls(self, random: Random) -> None:
        """Fibers that share a lock with those of all threads, and are handed round."""

        def work() -> None:
            with self.lock:
                pyfiber.yield_now()
            pyfiber.sleep(0)
            self.keep(random, pyfiber.current())

        pyfiber.run(lambda: [pyfiber.spawn(work) for _ in range(random.randrange(50))])

    def leaves(self, random: Random) -> None:
        """A short thread that leaves a suspended fiber and a scheduler that was never run."""

        def short() -> None:
            scheduler = pyfiber.Scheduler()
            scheduler.spawn(pyfiber.park)
            self.keep(random, scheduler)
            self.raw(random)

        thread = threading.Thread(target=short, daemon=True)
        thread.start()
        if random.random() < 0.5:
            thread.join()

    def talks(self, random: Random) -> None:
        """To the other threads; for a moment, as there may be none."""
        way = random.choice((pyfiber.Channel.receive, lambda channel: channel.send(1)))

        def main() -> None:
            with pyfiber.move_on_after(random.random() * 0.001):
                way(self.channel)

        pyfiber.run(main)

    def looks(self, random: Random) -> None:
        with open(os.devnull, "w") as nowhere:
            pyfiber.debug.dump_fibers(nowhere)


def end(way: str, random: Random) -> None:
    """The main thread's last acts."""
    acts: dict[str, Callable[[], Any]] = {
        "falls off": lambda: None,
        "exits": lambda: sys.exit(3),
        "fails": lambda: 1 // 0,
    }
    act = acts[way.removesuffix(" in a run")]
    if not way.endswith(" in a run"):
        act()
        return

    def main() -> None:
        for _ in range(random.randrange(4)):
            pyfiber.spawn(pyfiber.sleep, 3600)
        pyfiber.sleep(random.random() * 0.02)
        act()

    pyfiber.run(main)


def main(seed: int) -> None:
    faulthandler.enable()
    faulthandler.dump_traceback_later(LIMIT_SECONDS / 2, exit=True)
    random = Random(seed)
    logging.getLogger("pyfiber").addHandler(logging.NullHandler())
    logging.getLogger("pyfiber").propagate = False
    threading.excepthook = lambda info: None  # of threads that cannot begin any more
    busy = Busy(seed)
    busy.import_all()
    busy.make_room()
    for number in range(random.randrange(1, 7)):
        threading.Thread(target=busy.thread, args=(number,), daemon=True).start()
    for _ in range(random.randrange(30)):  # or less, where they wait for each other
        busy.acted.acquire(timeout=0.01)
    end(way_of(seed), random)


if __name__ == "__main__":
    main(int(sys.argv[1]))
