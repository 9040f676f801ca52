"""Where a fiber that computes is preempted, and where it is not.

A spinner loops until another fiber has run, so a test in which it must be preempted ends only then.
Where it must not be, it spins for several slices, and another fiber must have no turn meanwhile.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import re
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pyfiber import Event, Scheduler, current_scheduler, no_preemption, run, sleep, spawn, yield_now

SLICE = 0.0005
#: How long a spinner that must not be preempted computes, in seconds: some slices.
LONG = 10 * SLICE

pytestmark = pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="time slices need a GIL"
)


class Flag:
    """Set by the other fiber."""

    def __init__(self) -> None:
        self.up = False
        self.turns = 0

    def spin(self) -> None:
        while not self.up:
            pass

    def spin_long(self) -> bool:
        """Whether no other fiber had a turn meanwhile."""
        before = self.turns
        end = time.perf_counter() + LONG
        while time.perf_counter() < end:
            pass
        return self.turns == before


def beside(work: Callable[[Flag], object]) -> Flag:
    """Run `work` while another fiber is ready, which sets the flag."""
    flag = Flag()

    def other() -> None:
        flag.up = True

    def main() -> None:
        spawn(other)
        work(flag)

    run(main, time_slice=SLICE)
    return flag


def beside_many_turns(work: Callable[[Flag], object]) -> None:
    """Run `work` while another fiber takes as many turns as it gets."""
    flag = Flag()

    def other() -> None:
        while not flag.up:
            flag.turns += 1
            yield_now()

    def main() -> None:
        spawn(other)
        try:
            work(flag)
        finally:
            flag.up = True

    run(main, time_slice=SLICE)


# ---------------------------------------------------------------------- preempted


def endless() -> None:
    while True:
        pass


def loop(flag: Flag) -> None:
    flag.spin()


def comprehension(flag: Flag) -> None:
    class Numbers:
        def __getitem__(self, index: int) -> int:
            if flag.up:
                raise IndexError
            return index

    for _ in [each for each in Numbers()]:  # type: ignore[attr-defined] # noqa: C416
        pass


def recursion(flag: Flag) -> None:
    def down(depth: int) -> None:
        if depth > 0 and not flag.up:
            down(depth - 1)
            down(depth - 1)

    while not flag.up:
        down(12)


def generator_in_sum(flag: Flag) -> None:
    def numbers() -> Iterator[int]:
        while not flag.up:
            yield 1

    sum(numbers())


def generator_expression_in_any(flag: Flag) -> None:
    any(False for _ in iter(lambda: flag.up, True))


def callback_of_re(flag: Flag) -> None:
    def replace(_: re.Match[str]) -> str:
        flag.spin()
        return ""

    re.sub("a", replace, "a")


def callback_of_pattern(flag: Flag) -> None:
    def replace(_: re.Match[str]) -> str:
        flag.spin()
        return ""

    re.compile("b").sub(replace, "abc")


def executed(flag: Flag) -> None:
    exec("while not flag.up: pass", {"flag": flag})


def in_a_context(flag: Flag) -> None:
    contextvars.copy_context().run(flag.spin)


def constructor(flag: Flag) -> None:
    class Spinner:
        def __init__(self, up: Flag) -> None:
            up.spin()

    Spinner(flag)


def constructor_with_keyword(flag: Flag) -> None:
    class Spinner:
        def __init__(self, *, up: Flag) -> None:
            up.spin()

    Spinner(up=flag)


def captured_self(flag: Flag) -> None:
    class Spinner:
        def __init__(self) -> None:
            self.get: Callable[[], Spinner] = lambda: self
            flag.spin()

    Spinner()


def called_instance(flag: Flag) -> None:
    class Spinner:
        def __call__(self) -> None:
            flag.spin()

    Spinner()()


def decorated(flag: Flag) -> None:
    def plain(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    @plain
    def spin(up: Flag) -> None:
        up.spin()

    spin(flag)


def method_with_star(flag: Flag) -> None:
    args: tuple[()] = ()
    flag.spin(*args)


@pytest.mark.parametrize(
    "work",
    [
        loop,
        comprehension,
        recursion,
        generator_in_sum,
        callback_of_re,
        callback_of_pattern,
        executed,
        in_a_context,
        constructor,
        constructor_with_keyword,
        captured_self,
        called_instance,
        decorated,
        method_with_star,
    ],
)
def test_fiber_that_computes_is_preempted_in(work: Callable[[Flag], None]) -> None:
    if work is comprehension and sys.version_info < (3, 12):
        pytest.skip("the iterator's __getitem__ is called from C code")
    assert beside(work).up


def test_empty_endless_loop_is_preempted() -> None:
    """A loop of one instruction has no event of its own on 3.11."""
    seen: list[int] = []
    scheduler = Scheduler(time_slice=SLICE)
    scheduler.spawn(endless)
    scheduler.spawn(lambda: seen.append(1))
    while not seen:
        scheduler.run_once()
    assert scheduler.stats()["preemptions"] >= 1
    scheduler.close()


def test_preempted_fiber_goes_behind_fibers_that_are_ready() -> None:
    order = []

    def other(name: str) -> None:
        order.append(name)

    def main() -> None:
        for name in "abc":
            spawn(other, name)
        while not order:
            pass
        order.append("main")

    run(main, time_slice=SLICE)
    assert order == ["a", "b", "c", "main"]


def test_timer_is_served_while_fibers_compute() -> None:
    done = Flag()

    def timer() -> None:
        sleep(SLICE)
        done.up = True

    def main() -> None:
        spawn(timer)
        for _ in range(4):
            spawn(done.spin)

    run(main, time_slice=SLICE)
    assert done.up


def test_fibers_that_compute_go_on_while_others_are_always_ready() -> None:
    done = Flag()

    def chatter() -> None:
        while not done.up:
            yield_now()

    def computes() -> None:
        for _ in range(200_000):
            pass
        done.up = True

    def main() -> None:
        spawn(chatter)
        spawn(chatter)
        spawn(computes)

    run(main, time_slice=SLICE)
    assert done.up


def test_fiber_on_another_thread_is_preempted() -> None:
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(beside(loop).up))
    thread.start()
    thread.join()
    assert found == [True]


def test_two_threads_with_slices_at_a_time() -> None:
    found: list[bool] = []
    threads = [threading.Thread(target=lambda: found.append(beside(loop).up)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 3


def test_recursion_error_is_raised_in_a_run_with_slices() -> None:
    def deep() -> None:
        deep()

    def main() -> None:
        spawn(yield_now)
        for _ in range(20):
            with pytest.raises(RecursionError):
                deep()

    run(main, time_slice=SLICE)


# ------------------------------------------------------------------ not preempted


def sort_key(flag: Flag) -> None:
    def key(item: int) -> int:
        assert flag.spin_long()
        return item

    [2, 1].sort(key=key)


def class_as_sort_key(flag: Flag) -> None:
    class Key:
        def __init__(self, item: int) -> None:
            self.item = item
            assert flag.spin_long()

        def __lt__(self, other: Key) -> bool:
            return self.item < other.item

    sorted([2, 1], key=Key)


def equality_in_a_dict(flag: Flag) -> None:
    class Same:
        def __hash__(self) -> int:
            return 1

        def __eq__(self, other: object) -> bool:
            assert flag.spin_long()
            return False

    found = {Same(): 1}
    found[Same()] = 2


def finalizer(flag: Flag) -> None:
    class Dies:
        def __del__(self) -> None:
            seen.append(flag.spin_long())

    seen: list[bool] = []
    dies = Dies()
    del dies
    assert seen == [True]


def weakref_callback(flag: Flag) -> None:
    def callback(_: object) -> None:
        seen.append(flag.spin_long())

    seen: list[bool] = []
    dies = Flag()
    reference = weakref.ref(dies, callback)
    del dies
    assert seen == [True]
    assert reference() is None


def weakref_callback_in_a_call(flag: Flag) -> None:
    """The freed argument is dropped by the calling instruction itself."""

    def callback(_: object) -> None:
        seen.append(flag.spin_long())

    seen: list[bool] = []
    references = []

    def make() -> Flag:
        dies = Flag()
        references.append(weakref.ref(dies, callback))
        return dies

    isinstance(make(), Flag)
    len([make()])
    str(*(make(),))
    assert seen == [True] * 3


def block(flag: Flag) -> None:
    with no_preemption():
        with no_preemption():
            assert flag.spin_long()
        assert flag.spin_long()


def pyfibers_own_code(flag: Flag) -> None:
    from pyfiber import _calls

    source = inspect.getsource(Flag.spin_long).replace("def spin_long(self)", "def spin(self)")
    names: dict[str, Any] = {"time": time, "LONG": LONG}
    exec(compile(textwrap.dedent(source), _calls.__file__, "exec"), names)
    assert names["spin"](flag)


@pytest.mark.parametrize(
    "work",
    [
        sort_key,
        class_as_sort_key,
        equality_in_a_dict,
        finalizer,
        weakref_callback,
        weakref_callback_in_a_call,
        block,
        pyfibers_own_code,
    ],
)
def test_fiber_that_computes_is_not_preempted_in(work: Callable[[Flag], None]) -> None:
    beside_many_turns(work)


def test_import_is_not_preempted(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "module_of_a_slow_import.py").write_text(
        "import sys\nundisturbed = sys.flag.spin_long()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    def work(flag: Flag) -> None:
        monkeypatch.setattr(sys, "flag", flag, raising=False)
        import module_of_a_slow_import  # type: ignore[import-not-found]

        assert module_of_a_slow_import.undisturbed

    beside_many_turns(work)
    sys.modules.pop("module_of_a_slow_import", None)


def test_fiber_is_preempted_when_the_call_from_c_code_is_over() -> None:
    def work(flag: Flag) -> None:
        sorted([2, 1], key=lambda item: (flag.spin_long(), item)[1])
        flag.spin()

    assert beside(work).up


# ------------------------------------------------------------------- cancellation


def test_cancellation_is_not_raised_at_a_preemption() -> None:
    from pyfiber import Cancelled

    seen: list[str] = []

    def computes(go: Flag) -> None:
        try:
            go.spin()
            seen.append("computed")
            yield_now()
        except Cancelled:
            seen.append("cancelled")
            raise

    def main() -> None:
        go = Flag()
        fiber = spawn(computes, go)
        yield_now()  # it is preempted, as nothing else makes it give way
        assert fiber.waiting_on == "the line of preempted fibers"
        fiber.cancel()
        go.up = True
        fiber.join()

    run(main, time_slice=SLICE)
    assert seen == ["computed", "cancelled"]


def test_fiber_that_is_preempted_in_its_last_instructions_returns_its_result() -> None:
    def main() -> list[int]:
        def count() -> int:
            n = 0
            while n < 50_000:
                n += 1
            return n

        return [fiber.result() for fiber in [spawn(count) for _ in range(20)]]

    assert run(main, time_slice=SLICE) == [50_000] * 20


def test_preempted_fiber_of_a_closed_scheduler_is_unwound() -> None:
    seen = []

    def computes() -> None:
        try:
            endless()
        finally:
            seen.append("unwound")

    scheduler = Scheduler(time_slice=SLICE)
    scheduler.spawn(computes)
    scheduler.spawn(lambda: None)
    scheduler.run_once()
    scheduler.close()
    assert seen == ["unwound"]


def test_event_that_a_preempted_fiber_waits_for_later_is_not_lost() -> None:
    def main() -> int:
        events = [Event() for _ in range(50)]

        def waits(event: Event) -> int:
            total = sum(range(2000))
            event.wait()
            return total

        fibers = [spawn(waits, event) for event in events]
        for event in events:
            sum(range(2000))
            event.set()
        return sum(fiber.result() == 1999000 for fiber in fibers)

    assert run(main, time_slice=0.0001) == 50


def test_stats_count_preemptions() -> None:
    def main() -> int:
        flag = Flag()

        def other() -> None:
            flag.up = True

        spawn(other)
        flag.spin()
        return current_scheduler().stats()["preemptions"]

    assert run(main, time_slice=SLICE) >= 1
