"""DeadlockError: what it tells, and when it is not raised.

Each runs in an interpreter of its own: a thread of the test runner could wake us, for all the
loop knows, and then it rightly waits.
"""

from __future__ import annotations

import textwrap

import pytest

from tests.support.subprocesses import run_script

PRELUDE = """
import threading
from pyfiber import *
def report(fn, run=run):
    try:
        run(fn)
    except DeadlockError as exc:
        return str(exc)
    raise SystemExit("no deadlock was reported")
"""


def script(code: str) -> str:
    """What it prints, without the end of the line."""
    done = run_script(PRELUDE + textwrap.dedent(code), timeout=20)
    assert done.stderr == ""
    return done.stdout.rstrip()


def test_deadlock_is_a_runtime_error() -> None:
    assert script("print(issubclass(DeadlockError, RuntimeError))") == "True"


def test_deadlock_when_the_only_fiber_parks() -> None:
    assert script('print("1 fiber waits" in report(park))') == "True"


def test_deadlock_lists_every_fiber_with_what_it_waits_for() -> None:
    text = script("""
        def parks_here():
            park()
        def joins_here(target):
            target.join()
        def main():
            target = Fiber(parks_here, name="the parked one").start()
            Fiber(joins_here, (target,), name="the joining one").start()
            Fiber(parks_here, name="the daemon", daemon=True).start()
            spawn(target.result).join()
        print(report(main))
    """)
    assert text.startswith("5 fibers wait and nothing can wake one")
    for part in (
        "'the parked one'",
        "'the joining one'",
        "'the daemon'",
        "waits in park()",
        "waits for the end of fiber 'the parked one' at 0x",
        "in parks_here",
        "in joins_here",
        "in main",
    ):
        assert part in text, part


def test_deadlock_shows_the_whole_stack_of_each() -> None:
    text = script("""
        def outer(): middle()
        def middle(): inner()
        def inner(): park()
        print(report(outer))
    """)
    assert text.index("in outer") < text.index("in middle") < text.index("in inner")


def test_deadlock_names_fibers_left_by_a_direct_switch() -> None:
    text = script("""
        def main():
            me = current()
            def raw():
                park()
            Fiber(raw, name="the raw one").switch()
        print(report(main))
    """)
    assert "was left by a direct switch" in text
    assert "'the raw one'" in text


def test_deadlock_cancels_and_unwinds_everything() -> None:
    text = script("""
        log = []
        def body(name):
            try:
                park()
            finally:
                log.append(name)
        def main():
            spawn(body, "a")
            Fiber(body, ("b",), daemon=True).start()
            body("main")
        report(main)
        print(sorted(log))
    """)
    assert text == "['a', 'b', 'main']"


def test_deadlock_of_two_that_join_each_other() -> None:
    text = script("""
        def main():
            box = []
            box.append(spawn(lambda: box[1].join()))
            box.append(spawn(lambda: box[0].join()))
        print(report(main))
    """)
    assert text.startswith("2 fibers wait")


def test_deadlock_after_real_work() -> None:
    text = script("""
        def main():
            for _ in range(10):
                sleep(0.0001)
                yield_now()
            park()
        print(report(main))
    """)
    assert text.startswith("1 fiber waits")


def test_deadlock_is_not_seen_while_a_timer_is_set() -> None:
    text = script("""
        def main():
            fiber = spawn(park)
            def later():
                sleep(0.002)
                fiber.unpark("woken")
            spawn(later)
            return fiber.result()
        print(run(main))
    """)
    assert text == "woken"


def test_deadlock_is_not_seen_while_only_daemons_sleep() -> None:
    text = script("""
        def main():
            me = current()
            Fiber(lambda: (sleep(0.002), me.unpark("woken")), daemon=True).start()
            return park()
        print(run(main))
    """)
    assert text == "woken"


def test_deadlock_is_not_seen_while_another_thread_could_wake_us() -> None:
    text = script("""
        import time
        def main():
            me = current()
            thread = threading.Thread(target=lambda: (time.sleep(0.02), me.unpark("woken")))
            thread.start()
            return park()
        print(run(main))
    """)
    assert text == "woken"


def test_deadlock_on_a_thread_is_not_seen_while_the_main_thread_lives() -> None:
    text = script("""
        import time
        fibers = []
        def body():
            fibers.append(current())
            return park()
        results = []
        thread = threading.Thread(target=lambda: results.append(run(body)))
        thread.start()
        while not fibers or fibers[0].state != "parked":
            time.sleep(0.001)
        time.sleep(0.01)
        fibers[0].unpark("woken")
        thread.join()
        print(results)
    """)
    assert text == "['woken']"


def test_deadlock_is_seen_again_when_the_threads_are_gone() -> None:
    text = script("""
        def main():
            thread = threading.Thread(target=lambda: None)
            thread.start()
            thread.join()
            park()
        print(report(main))
    """)
    assert text.startswith("1 fiber waits")


@pytest.mark.slow
@pytest.mark.parametrize(
    "runner",
    ["run", "lambda main: pyfiber.testing.run(main, threads=True)"],
    ids=["real", "virtual"],
)
def test_deadlock_is_seen_when_the_last_thread_ends_while_the_loop_waits(runner: str) -> None:
    """The loop was asleep for ever: a thread does not say that it ends."""
    text = script(f"""
        import time
        import pyfiber.testing
        thread = threading.Thread(target=time.sleep, args=(0.2,))
        thread.start()
        print(report(lambda: park(), {runner}))
        print(thread.is_alive())
    """)
    assert text.startswith("1 fiber waits")
    assert text.endswith("False")


def test_deadlock_error_can_be_caught_and_the_next_run_works() -> None:
    assert script("report(park); print(run(lambda: spawn(lambda: 5).result()))") == "5"


def test_deadlock_in_run_once_without_a_limit() -> None:
    text = script("""
        scheduler = Scheduler()
        fiber = scheduler.spawn(park)
        scheduler.run_once()
        try:
            scheduler.run_once(None)
        except DeadlockError as exc:
            print(str(exc).splitlines()[0])
        fiber.unpark("still usable")
        scheduler.run_once()
        print(fiber.result())
    """)
    assert text.startswith("1 fiber waits")
    assert text.endswith("still usable")


@pytest.mark.slow
def test_run_once_without_a_limit_waits_while_a_thread_lives() -> None:
    """Longer than it takes the loop to look whether there still is one."""
    text = script("""
        import time
        scheduler = Scheduler()
        fiber = scheduler.spawn(park)
        scheduler.run_once()
        thread = threading.Thread(target=lambda: (time.sleep(1.2), fiber.unpark("woken")))
        thread.start()
        scheduler.run_once(None)
        print(fiber.result())
    """)
    assert text == "woken"


def test_deadlock_report_survives_a_repr_that_waits() -> None:
    """It is written while the loop is in the middle of its work."""
    text = script("""
        errors = []
        class Target:
            def __call__(self):
                park()
            def __repr__(self):
                for wait in (yield_now, park, lambda: sleep(0.001), lambda: park(0.001)):
                    try:
                        wait()
                    except FiberError as exc:
                        errors.append(exc)
                return "the target"
        text = report(lambda: Fiber(Target(), name="name").start())
        print("the target" in text, len(errors) >= 4)
    """)
    assert text == "True True"


def test_deadlock_report_survives_a_repr_that_fails() -> None:
    text = script("""
        class Target:
            def __call__(self):
                park()
            def __repr__(self):
                raise ValueError("no repr")
        try:
            run(lambda: Fiber(Target(), name="name").start())
        except (DeadlockError, ValueError) as exc:
            print(type(exc).__name__)
    """)
    assert text in ("DeadlockError", "ValueError")


# many fibers --------------------------------------------------------------------------------------


def test_deadlock_of_alike_fibers_shows_one_and_counts_the_others() -> None:
    """It had 362,081 characters for 2,000 fibers."""
    lines = script("""
        def waits(n):
            park()
        def main():
            for n in range(2000):
                Fiber(waits, (n,), name=f"worker {n}").start()
            park()
        print(report(main))
    """).splitlines()
    assert lines[0].startswith("2,001 fibers wait and nothing can wake one")
    (shown,) = [i for i, line in enumerate(lines) if "'worker 0'" in line]
    assert lines[shown + 1].endswith(", in waits")
    assert len(lines) - shown <= 4  # with the line of source, where that is to be had
    assert lines[-1] == (
        "and 1,999 fibers like it: 'worker 1', 'worker 2', 'worker 3', 'worker 4', 'worker 5', "
        "1,994 more"
    )


def test_deadlock_of_fibers_alike_but_for_what_they_wait_for() -> None:
    text = script("""
        def waits(event):
            event.wait()
        def main():
            for n in range(3):
                spawn(waits, Event())
            same = Lock()
            same.acquire()
            for n in range(4):
                spawn(same.acquire)
            park()
        print(report(main))
    """)
    assert "and 2 fibers like it, at other Event objects, of the same name" in text
    assert "and 3 fibers like it, of the same name" in text


def test_deadlock_tells_fibers_apart_that_wait_at_different_places() -> None:
    text = script("""
        def waits(early):
            if early:
                park()
            park()
        def main():
            spawn(waits, True)
            spawn(waits, False)
            park()
        print(report(main))
    """)
    assert "like it" not in text
    assert text.count(", in waits") == 2


def test_deadlock_of_alike_grains() -> None:
    text = script("""
        from pyfiber.grains import SLEEPING, Grain
        def sleeps():
            yield SLEEPING
        def main():
            for _ in range(30):
                Grain(sleeps).start()
            park()
        print(report(main))
    """)
    assert text.count(", in sleeps") == 1
    assert "and 29 grains like it, of the same name" in text


def test_deadlock_text_is_bounded_whatever_waits() -> None:
    printed = script("""
        class Wide:
            def __repr__(self):
                return "wide" * 10_000
        def waits(depth, line):
            if depth:
                return waits(depth - 1, line)
            exec(compile("\\n" * line + "park()", "generated", "exec"))
        def follows(fibers, n):
            fibers[(n + 1) % len(fibers)].join()
        def main():
            for line in range(300):
                spawn(waits, line % 50, line)
            circle = []
            for n in range(500):
                circle.append(spawn(follows, circle, n))
            Fiber(park, name="long" * 10_000).start()
            park()
        print(report(main))
    """)
    assert len(printed) < 30_000
    assert "... and so on, 480 more" in printed
    assert " more, waiting elsewhere" in printed
    assert "..." in printed


def test_dump_shows_alike_fibers_once() -> None:
    text = script("""
        import io
        from pyfiber.debug import dump_fibers
        def waits():
            park()
        def main():
            fibers = [spawn(waits) for _ in range(100)]
            yield_now()
            dump_fibers(out)
            for fiber in fibers:
                fiber.unpark()
        out = io.StringIO()
        run(main)
        print(out.getvalue())
    """)
    assert "101 fibers" in text
    assert text.count(", in waits") == 1
    assert "and 99 fibers like it, of the same name" in text


def test_text_has_no_empty_line() -> None:
    text = script("""
        def main():
            lock = Lock()
            lock.acquire()
            one, two = spawn(lock.acquire), spawn(park)
            two.join()
        print(report(main), end="|")
    """)
    assert all(line.strip() for line in text.split("\n"))
    assert text.endswith("|")
    assert not text.endswith("\n|")
