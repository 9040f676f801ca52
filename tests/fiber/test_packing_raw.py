"""Raw fibers and greenlets that share stacks, their ends, and threads and processes with such."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from pyfiber import Fiber, FiberError, FiberExit, current, greenlet
from tests.conftest import Child
from tests.fiber.sharing import counted, deep, needs_packing, running
from tests.support.subprocesses import EMULATED

pytestmark = [needs_packing, pytest.mark.parametrize("slots", [2, 3])]


def suspended(wait: Callable[[], Any], count: int = 20) -> list[Fiber[Any]]:
    """Raw fibers in wait(), nearly all of them packed."""
    before = counted("packed")
    fibers: list[Fiber[Any]] = [Fiber(deep, (i % 4, wait)) for i in range(count)]
    for fiber in fibers:
        fiber.switch()
    assert counted("packed") - before >= count - 3
    return fibers


# ------------------------------------------------------------------------- raw fibers


def test_raw_fibers_that_are_packed_take_what_is_sent(slots: int) -> None:
    def main() -> None:
        root = current()
        fibers = suspended(lambda: [root.switch(), root.switch()])
        for i, fiber in enumerate(fibers):
            assert fiber.switch(i) is None
        assert [fiber.switch("last") for fiber in fibers] == [[i, "last"] for i in range(20)]

    running(main, slots)


def test_raw_fibers_that_are_packed_raise_what_is_thrown(slots: int) -> None:
    def main() -> None:
        fibers = suspended(current().switch)
        for i, fiber in enumerate(fibers):
            with pytest.raises(KeyError) as caught:
                fiber.throw(KeyError(i))
            assert caught.value.args == (i,)
            names = []
            tb = caught.tb
            while tb is not None:
                names.append(tb.tb_frame.f_code.co_name)
                tb = tb.tb_next
            assert names[-(i % 4 + 1) :] == ["deep"] * (i % 4 + 1)

    running(main, slots)


def test_raw_fibers_switch_among_each_other(slots: int) -> None:
    """Where both are at home in one slot, another context moves their bytes."""

    def main() -> None:
        fibers: list[Fiber[Any]] = []
        log: list[int] = []

        def work(i: int) -> str:
            for lap in range(5):
                mine = [i, lap]
                log.append(i)
                fibers[(i + slots) % 12 if lap % 2 else (i + 1) % 12].switch()
                assert mine == [i, lap]
            return f"end of {i}"

        fibers.extend(Fiber(work, (i,)) for i in range(12))
        ends = []
        while alive := [fiber for fiber in fibers if not fiber.done()]:
            ends.append(alive[0].switch())
        assert len(log) == 60
        assert {end for end in ends if end} <= {f"end of {i}" for i in range(12)}

    running(main, slots)


def test_result_goes_to_a_parent_that_is_packed(slots: int) -> None:
    def main() -> None:
        root = current()

        def child(i: int, others: int) -> Any:
            suspended(root.switch, others)
            return i

        def parent(i: int) -> Any:
            root.switch()
            mine: Fiber[Any] = Fiber(child, (i, 8))
            got = mine.switch()  # the root runs its other fibers meanwhile
            while got is None:
                got = mine.switch()
            return got

        parents: list[Fiber[Any]] = [Fiber(parent, (i,)) for i in range(10)]
        for fiber in parents:
            fiber.switch()
        for i, fiber in enumerate(parents):
            got = fiber.switch()
            while not fiber.done():
                got = fiber.switch()
            assert got == i

    running(main, slots)


def test_parents_that_end_hand_the_result_on(slots: int) -> None:
    """Each end leads to a fiber that is packed, often one at home in the same slot."""

    def main() -> None:
        root = current()
        leaves: list[Fiber[Any]] = []

        def chain(depth: int) -> Any:
            if depth == 0:
                leaves.append(current())
                return root.switch()
            return [depth, Fiber(chain, (depth - 1,)).switch()]

        chains: list[Fiber[Any]] = [Fiber(chain, (12,)) for _ in range(4)]
        for fiber in chains:
            fiber.switch()
        suspended(root.switch)
        for i, leaf in enumerate(leaves):
            wanted: Any = i
            for depth in range(1, 13):
                wanted = [depth, wanted]
            assert leaf.switch(i) == wanted
        assert all(fiber.done() for fiber in chains)

    running(main, slots)


def test_dropped_raw_fibers_unwind(slots: int) -> None:
    def main() -> None:
        root = current()
        ended: list[Any] = []

        def work(i: int) -> None:
            try:
                deep(i % 4, root.switch)
            except FiberExit:
                ended.append(i)
                raise

        fibers: list[Fiber[Any]] = [Fiber(work, (i,)) for i in range(20)]
        for fiber in fibers:
            fiber.switch()
        del fiber
        while fibers:
            fibers.pop(len(fibers) // 2)
        assert sorted(ended) == list(range(20))

    running(main, slots)


def test_garbage_of_packed_raw_fibers_is_collected(slots: int) -> None:
    """The collector runs on a fiber that is at home where others are that it ends."""

    class Node:
        fiber: Fiber[Any]
        itself: Node

    def main() -> None:
        root = current()
        ended: list[int] = []

        def work(i: int) -> None:
            try:
                deep(i % 4, root.switch)
            finally:
                ended.append(i)

        def make() -> list[weakref.ref[Node]]:
            nodes = []
            for i in range(20):
                node = Node()
                node.itself = node
                node.fiber = Fiber(work, (i,))
                node.fiber.switch()
                nodes.append(weakref.ref(node))
            return nodes

        nodes = make()
        gc.disable()
        try:
            Fiber(gc.collect).switch()
            Fiber(int).switch()
        finally:
            gc.enable()
        assert sorted(ended) == list(range(20))
        assert all(node() is None for node in nodes)

    running(main, slots)


def test_fiber_cannot_be_entered_where_the_collector_runs(slots: int) -> None:
    """The collector's lists are on the stack that it would need. Afterwards it can."""

    class Last:
        itself: Last

        def __init__(self, others: list[Fiber[Any]], refused: list[str]) -> None:
            self.itself, self.others, self.refused = self, others, refused

        def __del__(self) -> None:
            for fiber in self.others:
                if not fiber.done():
                    fiber.parent = current()
                    try:
                        assert fiber.switch() == "done"
                    except FiberError as error:
                        self.refused.append(str(error))

    def main() -> None:
        root = current()
        others = suspended(lambda: root.switch() or "done")
        refused: list[str] = []

        def collect() -> str:
            garbage = [Last(others, refused) for _ in range(3)]
            del garbage
            gc.collect()
            return "collected"

        assert Fiber(collect).switch() == "collected"
        assert refused
        assert all("while the garbage collector runs" in text for text in refused)
        for fiber in others:
            if not fiber.done():
                fiber.parent = root
                assert fiber.switch() == "done"

    running(main, slots)


def test_fiber_that_unwinds_another_at_its_end_goes_on(slots: int) -> None:
    """It has ended, as others see it, and its stack still holds the rest of its end."""

    class Target:
        def __init__(self, held: list[Fiber[Any]]) -> None:
            self.held = held

        def __call__(self) -> int:
            return 5

        def __del__(self) -> None:
            self.held.clear()

    def main() -> None:
        root = current()
        ended: list[int] = []

        def wait(i: int) -> None:
            try:
                root.switch()
            finally:
                ended.append(i)

        fibers: list[Fiber[Any]] = [Fiber(wait, (i,)) for i in range(12)]
        for fiber in fibers:
            fiber.switch()
        del fiber
        while fibers:
            dropped = [fibers.pop() for _ in range(3)]
            last: Fiber[Any] = Fiber(Target(dropped))
            del dropped
            assert last.switch() == 5
        assert sorted(ended) == list(range(12))

        fibers = [Fiber(wait, (i,)) for i in range(12)]
        for fiber in fibers:
            fiber.switch()
        del fiber
        ended.clear()
        last = Fiber(lambda: 6)
        last.add_done_callback(lambda _: fibers.clear())
        assert last.switch() == 6
        assert sorted(ended) == list(range(12))

    running(main, slots)


def test_deep_recursion_into_the_reserve_and_back(slots: int) -> None:
    """A stack whose reserve is open is packed whole, and finds it open again."""

    def main() -> None:
        root = current()

        def down(depth: int) -> list[int]:
            try:
                return sorted([0], key=lambda _: len(down(depth + 1)))
            except RecursionError:
                root.switch(depth)  # at the deepest place
                return []

        def work() -> str:
            for _ in range(2):
                down(0)
            return "done"

        fibers: list[Fiber[Any]] = [Fiber(work, stack_size=256 << 10) for _ in range(6)]
        depths = [fiber.switch() for fiber in fibers]
        assert all(20 < depth < 100 for depth in depths)
        flat = suspended(lambda: root.switch() or 7, 6)
        assert all(20 < fiber.switch() < 100 for fiber in fibers)
        assert [fiber.switch() for fiber in flat] == [7] * 6
        assert [fiber.switch() for fiber in fibers] == ["done"] * 6

    running(main, slots)


def test_fibers_in_both_halves_of_the_reserve_share_a_stack(slots: int) -> None:
    """The reserve is opened in halves.  Who was left further down needs more of it open."""

    def main() -> None:
        root = current()

        def switch_under(levels: int) -> None:
            nested: Any = map(root.switch, [levels, None])
            for _ in range(levels):
                nested = filter(None, nested)
            next(nested, None)

        def down(levels: int) -> list[int]:
            try:
                return sorted([0], key=lambda _: len(down(levels)))
            except RecursionError:
                switch_under(levels)
                return []

        fibers: list[Fiber[Any]] = [
            Fiber(down, (levels,), stack_size=512 << 10) for levels in (700, 0) * 3
        ]
        assert [fiber.switch() for fiber in fibers] == [700, 0] * 3
        for fiber in fibers:
            while not fiber.done():
                fiber.switch()

    running(main, slots)


USED_UP = """
import sys
from pyfiber import Fiber, Scheduler, current

def nest(depth):
    nested = map(root.switch, ["first", "second"])
    for _ in range(depth):
        nested = filter(None, nested)
    return nested

def main():
    global root
    root = current()
    for depth in range(1000, 60_000, 100):
        fibers = [Fiber(list, (nest(depth),), stack_size=256 * 1024) for _ in range(5)]
        assert [fiber.switch() for fiber in fibers] == ["first"] * 5
        assert [fiber.switch(number) for number, fiber in enumerate(fibers, 1)] == ["second"] * 5
        assert [fiber.switch(9) for fiber in fibers] == [[number, 9] for number in range(1, 6)]
        print(depth, flush=True)

Scheduler(slots=int(sys.argv[1])).run(main)
"""


@pytest.mark.skipif(EMULATED, reason="the frames of an emulated processor")
def test_fibers_that_are_left_in_their_reserve_come_back_to_it(slots: int, child: Child) -> None:
    """Calls that nobody counts use up the stack, until that is too much; no earlier if it moves."""

    def deepest(slots: int) -> int:
        done = child(USED_UP, str(slots), check=False)
        assert "stack overflow" in done.stderr.lower()  # from 3.14 on the interpreter counts, too
        return int(done.stdout.split()[-1])

    assert abs(deepest(slots) - deepest(0)) <= 100


def test_fibers_dropped_by_the_collector_end_after_it(slots: int) -> None:
    """What a new greenlet does for those that others have dropped has to wait, too."""
    ended = []

    class Trigger:
        def __init__(self, held: list[Fiber[Any]]) -> None:
            self.held = held
            self.itself = self

        def __del__(self) -> None:
            self.held.clear()
            greenlet.greenlet(print)

    def work(number: int) -> None:
        try:
            root.switch()
        finally:
            ended.append(number)

    def collect() -> None:
        Trigger(fibers)
        gc.collect()

    def main() -> None:
        nonlocal root
        root = current()
        fibers.extend(Fiber(work, (number,)) for number in range(8))
        for fiber in fibers:
            fiber.switch()
        Fiber(collect).switch()
        Fiber(int).switch()

    root = current()
    fibers: list[Fiber[Any]] = []
    running(main, slots)
    assert sorted(ended) == list(range(8))


# --------------------------------------------------------------------------- greenlets


def test_greenlets_that_are_packed_switch_and_throw(slots: int) -> None:
    def main() -> None:
        root = greenlet.getcurrent()

        def work(i: int) -> Any:
            got = deep(i % 4, lambda: root.switch(i))
            return (i, *got) if isinstance(got, tuple) else (i, got)

        greenlets = [greenlet.greenlet(work) for _ in range(20)]
        before = counted("packed")
        assert [g.switch(i) for i, g in enumerate(greenlets)] == list(range(20))
        assert counted("packed") - before >= 17
        assert [g.gr_frame is not None for g in greenlets] == [True] * 20
        for i, g in enumerate(greenlets[:10]):
            assert g.switch("a", i) == (i, "a", i)
            assert g.dead
        for g in greenlets[10:]:
            with pytest.raises(KeyError):
                g.throw(KeyError)
            assert g.dead

    running(main, slots)


def test_dropped_greenlets_unwind(slots: int) -> None:
    def main() -> None:
        root = greenlet.getcurrent()
        ended: list[int] = []

        def work(i: int) -> None:
            try:
                deep(i % 4, root.switch)
            except greenlet.GreenletExit:
                ended.append(i)
                raise

        greenlets = [greenlet.greenlet(work) for _ in range(20)]
        for i, g in enumerate(greenlets):
            g.switch(i)
        del g
        while greenlets:
            del greenlets[len(greenlets) // 2]
        gc.collect()
        assert sorted(ended) == list(range(20))

    running(main, slots)


def test_greenlets_end_in_a_parent_that_is_packed(slots: int) -> None:
    def main() -> None:
        root = greenlet.getcurrent()

        def parent(i: int) -> Any:
            children = [greenlet.greenlet(lambda n: n * i) for _ in range(3)]
            got = []
            for n, child in enumerate(children):
                root.switch()
                got.append(child.switch(n))
            return got

        parents = [greenlet.greenlet(parent) for _ in range(12)]
        for i, g in enumerate(parents):
            g.switch(i)
        for _ in range(2):
            for g in parents:
                g.switch()
        assert [g.switch() for g in parents] == [[0, i, 2 * i] for i in range(12)]

    running(main, slots)


# --------------------------------------------------------------- threads and processes


def test_each_thread_has_its_own_slots(slots: int, child: Child) -> None:
    done = child(
        """
        import threading
        from pyfiber import Fiber, current
        from pyfiber.debug import stack_stats

        def work(number, results):
            root = current()
            def wait(i):
                mine = [number, i]
                for _ in range(20):
                    root.switch()
                    assert mine == [number, i]
                return i
            fibers = [Fiber(wait, (i,)) for i in range(20)]
            for _ in range(20):
                for fiber in fibers:
                    fiber.switch()
            packed = sum(stats["packed"] for stats in stack_stats())
            results.append((packed >= 17, [fiber.switch() for fiber in fibers]))

        results = []
        threads = [threading.Thread(target=work, args=(n, results)) for n in range(6)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        print(results == [(True, list(range(20)))] * 6)
        """,
        env={"PYFIBER_SLOTS": str(slots)},
    )
    assert done.stdout == "True\n"


def test_thread_that_ends_unwinds_or_forgets_its_packed_fibers(slots: int, child: Child) -> None:
    done = child(
        """
        import gc, threading, weakref
        from pyfiber import Fiber, current
        from pyfiber.greenlet import greenlet, getcurrent

        class Thing: pass
        things, kept = [], []

        def work():
            root, main = current(), getcurrent()
            def wait(switch):
                thing = Thing()
                things.append(weakref.ref(thing))
                switch()
            for n in range(20):
                fiber = Fiber(wait, (root.switch,))
                fiber.switch()
                kept.append(fiber)
                g = greenlet(wait)
                g.switch(main.switch)
                kept.append(g)

        for _ in range(3):
            thread = threading.Thread(target=work)
            thread.start()
            thread.join()
        for thing in kept:
            repr(thing)
            getattr(thing, "frame", None), getattr(thing, "gr_frame", None)
        kept.clear()
        gc.collect()
        Fiber(int).switch()
        print(len(things))
        """,
        env={"PYFIBER_SLOTS": str(slots)},
    )
    assert done.stdout == "120\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_fork_with_packed_fibers(slots: int, child: Child) -> None:
    """Both processes go on with all of them, packed and not."""
    done = child(
        """
        import os, warnings
        from pyfiber import Fiber, current, run, spawn, park, yield_now
        from pyfiber.debug import stack_stats
        warnings.simplefilter("ignore", DeprecationWarning)

        def go_on(fibers):
            return [fiber.switch(i) for i, fiber in enumerate(fibers)]

        def main():
            root = current()
            fibers = [Fiber(lambda n=n: (n, root.switch())) for n in range(20)]
            for fiber in fibers:
                fiber.switch()
            waiting = [spawn(park) for _ in range(20)]
            yield_now()
            assert sum(stats["packed"] for stats in stack_stats()) >= 35
            pid = os.fork()
            got = go_on(fibers)
            for i, fiber in enumerate(waiting):
                fiber.unpark(i)
            got += [fiber.result() for fiber in waiting]
            fine = got == [(n, n) for n in range(20)] + list(range(20))
            if pid == 0:
                os._exit(3 if fine else 4)
            print(fine, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

        run(main)
        """,
        env={"PYFIBER_SLOTS": str(slots)},
    )
    assert done.stdout == "True 3\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_fork_in_a_thread_with_packed_fibers_of_others(slots: int, child: Child) -> None:
    """The fibers of threads that the child has not got are forgotten, packed as they are."""
    done = child(
        """
        import gc, os, threading, warnings
        from pyfiber import Fiber, current
        warnings.simplefilter("ignore", DeprecationWarning)

        fibers, made, over = [], threading.Event(), threading.Event()

        def work():
            root = current()
            fibers.extend(Fiber(root.switch) for _ in range(20))
            for fiber in fibers:
                fiber.switch()
            made.set()
            over.wait()
            for fiber in fibers:
                fiber.switch()

        thread = threading.Thread(target=work)
        thread.start()
        made.wait()
        pid = os.fork()
        if pid == 0:
            [repr(fiber) for fiber in fibers]
            fibers.clear()
            gc.collect()
            root = current()
            mine = [Fiber(lambda n=n: (root.switch(), n)[1]) for n in range(20)]
            for fiber in mine:
                fiber.switch()
            os._exit(3 if [fiber.switch() for fiber in mine] == list(range(20)) else 4)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        over.set()
        thread.join()
        print(code)
        """,
        env={"PYFIBER_SLOTS": str(slots)},
    )
    assert done.stdout == "3\n"


def test_thread_looks_at_packed_raw_fibers_of_another(slots: int) -> None:
    def main() -> None:
        fibers = suspended(current().switch)
        texts: list[str] = []
        thread = threading.Thread(
            target=lambda: texts.extend("".join(fiber.stack().format()) for fiber in fibers)
        )
        thread.start()
        thread.join()
        assert all("in deep" in text for text in texts)
        assert len(texts) == 20
        for fiber in fibers:
            fiber.switch()

    running(main, slots)


def test_collectors_greenlet_is_not_left_while_others_are_at_home_in_its_slot(slots: int) -> None:
    """One of these could have to run next, and the collector's lists would be in its way."""
    raised = []

    class Switching:
        def __init__(self, to: Any) -> None:
            self.to = to
            self.itself = self

        def __del__(self) -> None:
            try:
                self.to.switch()
            except greenlet.error as error:
                raised.append(str(error))

    def collect() -> str:
        main.switch()
        Switching(waiting[0])
        gc.collect()
        return "collected"

    main = greenlet.getcurrent()

    def run() -> Any:
        nonlocal main
        main = greenlet.getcurrent()
        waiting.extend(greenlet.greenlet(main.switch) for _ in range(8))
        collecting = greenlet.greenlet(collect)
        for g in [*waiting, collecting]:
            g.switch()
        got = collecting.switch()
        assert [g.switch(number) for number, g in enumerate(waiting)] == list(range(8))
        return got

    waiting: list[Any] = []
    assert running(run, slots) == "collected"
    assert len(raised) == 1
    assert "garbage collector" in raised[0]
