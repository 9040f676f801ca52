"""A timeline and a profile while the runs of other threads go on."""

from __future__ import annotations

import threading
from typing import Any

import pyfiber
from pyfiber import FiberError, spawn, yield_now
from pyfiber._engine import _Turns
from tests.support.gil import GIL
from tests.support.parallel import in_parallel

ROUNDS = 100


def work(n: int) -> int:
    yield_now()
    return n


def test_turns_of_one_thread_are_recorded_while_others_run() -> None:
    over = threading.Event()

    def recorded() -> list[Any]:
        profile, timeline = _Turns(0), _Turns(1000)
        profile.start()
        timeline.start()
        for n in range(ROUNDS):
            assert spawn(work, n).result() == n
        timeline.timeline()
        assert (timeline.stop(), profile.stop()) == (True, True)
        over.set()
        return [row[1] for row in profile.profile() if row[0] == "work"]

    def body(i: int) -> Any:
        if i == 0:
            return recorded()
        while not over.is_set():
            spawn(work, i).result()
        return None

    turns = in_parallel(body)[0]
    assert turns[0] >= 2 * ROUNDS if not GIL else turns[0] > 0


def test_record_of_another_thread_is_refused_without_the_gil() -> None:
    recorder = _Turns(0)
    recorder.start()
    told: list[Any] = []

    def elsewhere() -> None:
        try:
            told.append(recorder.stop())
        except FiberError as exc:
            told.append(str(exc))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    if GIL:
        assert told == [True]
    else:
        assert "another thread records" in told[0]
        assert recorder.stop()


def test_thread_that_ended_while_it_recorded_keeps_nobody_from_it() -> None:
    recorder = _Turns(0)

    def records() -> None:
        pyfiber.run(recorder.start)

    thread = threading.Thread(target=records)
    thread.start()
    thread.join()
    assert recorder.stop()


def test_callbacks_added_from_other_threads_are_all_called() -> None:
    """Fibers end while other threads add callbacks to them."""
    called: list[tuple[int, int]] = []
    fibers: list[Any] = []
    made = threading.Barrier(8)

    def body(i: int) -> None:
        if i == 0:
            fibers.extend(spawn(work, n) for n in range(ROUNDS))
        made.wait()
        for n in range(ROUNDS):
            fibers[n].add_done_callback(lambda fiber, n=n: called.append((i, n)))

    in_parallel(body)
    assert sorted(called) == [(i, n) for i in range(8) for n in range(ROUNDS)]
