"""Reports: who waits for what held by whom, as text, for a deadlock or on demand.

A fiber's ``waiting_on`` is what it is parked in: another fiber (a join), a group at its end, a
primitive, a future, a ``to_thread()`` job, or a word. A thing that fibers hold offers
``_holders()``: a list of fibers or threads. From these come the edges of the wait graph.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from typing import Any, TextIO, TypeAlias

from pyfiber import _engine
from pyfiber._engine import Fiber, FiberGenerator, Grain, Lock, RLock, TaskGroup

Task: TypeAlias = Fiber[Any] | Grain[Any]

#: Holders named in one line.
MOST_NAMED = 5


# words --------------------------------------------------------------------------------------------


def name_of(thing: object) -> str:
    """A fiber or thread by its name, anything else by its repr, whatever that does."""
    try:
        if isinstance(thing, Fiber):
            return f"fiber {thing.name!r} at {id(thing):#x}"  # names need not differ
        if isinstance(thing, Grain):
            return f"grain {thing.name!r} at {id(thing):#x}"
        if isinstance(thing, threading.Thread):
            return f"thread {thing.name!r}"
        return repr(thing)
    except Exception as exc:
        return f"<{type(thing).__name__} at {id(thing):#x}, whose repr raised {exc!r}>"


def title_of(fiber: Task) -> str:
    """The fiber's own repr, if that works."""
    try:
        return repr(fiber)
    except Exception:
        return f"<{type(fiber).__name__} {fiber.name!r} {fiber.state} at {id(fiber):#x}>"


def holders_of(what: object) -> list[Any]:
    """Who has to act before a wait for ``what`` can end, as far as that is known."""
    if isinstance(what, (Fiber, Grain)):
        return [what]
    ask = getattr(what, "_holders", None)
    if ask is None:
        return []
    try:
        return list(ask())
    except Exception:
        return []  # a report must not fail for one of its lines


def wait_of(fiber: Task) -> str:
    """What a parked fiber waits for, held by whom."""
    what = fiber.waiting_on
    if what is None:
        return "was left by a direct switch"
    if isinstance(what, (Fiber, Grain)):
        return f"waits for the end of {name_of(what)}"
    if isinstance(fiber, Grain):
        return f"has yielded {name_of(what)}"
    if isinstance(what, str):
        return f"waits in {what}"
    holders = holders_of(what)
    if isinstance(what, FiberGenerator):
        return f"waits for the next value of {name_of(what)}"
    if isinstance(what, TaskGroup):
        return f"waits for the end of {some_of(holders)}, of {name_of(what)}"
    return f"waits for {name_of(what)}{held_by(what, holders, fiber)}"


def held_by(what: object, holders: list[Any], waiter: Task) -> str:
    """Who holds ``what``, and why that may never end."""
    if waiter in holders:
        again = ": it cannot take a Lock twice, but an RLock" if isinstance(what, Lock) else ""
        return f", held by itself{again}"
    if holders:
        return f", held by {some_of(holders)}"
    lost = what._lost_holder() if isinstance(what, (Lock, RLock)) else None
    if lost is None:
        return ""
    name = "a fiber" if lost == "?" else f"fiber {lost!r}"
    return (
        f", taken by {name}, which has ended without release(): "
        "a 'with' block releases it in any case"
    )


def some_of(things: list[Any]) -> str:
    """A list in words, cut where it becomes long."""
    named = [name_of(thing) for thing in things[:MOST_NAMED]]
    if len(things) > MOST_NAMED:
        named.append(f"{len(things) - MOST_NAMED} more")
    return ", ".join(named)


def stack_of(fiber: Task) -> list[str]:
    """The lines of a suspended fiber's or grain's stack, outermost call first."""
    if isinstance(fiber, Grain):
        return "".join(fiber.stack().format()).splitlines()
    try:
        frame = fiber.frame
    except Exception:
        return []  # nor because one of them cannot be looked into
    return stack_at(frame)


def stack_at(frame: Any) -> list[str]:
    """The lines of the stack that ends in ``frame``."""
    if frame is None:
        return []
    summary = traceback.StackSummary.extract(traceback.walk_stack(frame))
    summary.reverse()
    return "".join(summary.format()).splitlines()


def indented(lines: Iterable[str], prefix: str) -> Iterator[str]:
    for line in lines:
        yield prefix + line


# the graph ----------------------------------------------------------------------------------------


def find_cycle(fibers: Iterable[Task]) -> list[Task]:
    """Fibers of which each waits for the next one, and the last for the first; empty: none.

    An iterative depth-first search: thousands of fibers may wait in a row.
    """
    finished: set[int] = set()
    for start in fibers:
        path: list[Task] = []
        places: dict[int, int] = {}
        pending: list[Iterator[Any]] = [iter([start])]
        while pending:
            fiber = next(pending[-1], None)
            if fiber is None:
                pending.pop()
                if path:
                    last = path.pop()
                    finished.add(id(last))
                    del places[id(last)]
            elif id(fiber) in places:
                return path[places[id(fiber)] :]
            elif isinstance(fiber, (Fiber, Grain)) and id(fiber) not in finished:
                places[id(fiber)] = len(path)
                path.append(fiber)
                pending.append(iter(holders_of(fiber.waiting_on)))
    return []


def cycle_lines(cycle: list[Task]) -> Iterator[str]:
    """The cycle, named: one line for each fiber in it."""
    if len(cycle) == 1:
        return  # its own line says that it waits for itself
    yield "they wait for each other:"
    for fiber, following in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
        what = fiber.waiting_on
        if isinstance(what, (Fiber, Grain, TaskGroup)):
            yield f"  {name_of(fiber)} waits for the end of {name_of(following)}"
        else:
            yield f"  {name_of(fiber)} waits for {name_of(what)}, held by {name_of(following)}"


def how_many(tasks: list[Task]) -> str:
    """`2 fibers and 1 grain`."""
    grains = sum(isinstance(task, Grain) for task in tasks)
    counts = [(len(tasks) - grains, "fiber"), (grains, "grain")]
    return " and ".join(f"{n} {word}{'s' * (n != 1)}" for n, word in counts if n) or "no fiber"


def deadlock_text(fibers: list[Task]) -> str:
    """The text of a DeadlockError."""
    wait = "waits" if len(fibers) == 1 else "wait"
    lines = [
        f"{how_many(fibers)} {wait} and nothing can wake one: no timer is set, no other thread runs"
    ]
    cycle = find_cycle(fibers)
    if cycle:
        lines += cycle_lines(cycle)
    for fiber in fibers:
        lines.append(f"{title_of(fiber)} {wait_of(fiber)}")
        lines += stack_of(fiber)
    return "\n".join(lines) + "\n"


# all fibers ---------------------------------------------------------------------------------------


def groups_of(fiber: Fiber[Any]) -> list[object]:
    """The groups that a fiber is in, outermost first.

    A fiber's ``_group`` is the group that spawned it, or None; that group's ``_parent_fiber`` is
    the fiber in which it was entered, which may be in a group itself.
    """
    groups: list[object] = []
    seen = {id(fiber)}
    member: Any = fiber
    while member is not None:
        group = getattr(member, "_group", None)
        if group is None or id(group) in seen:
            break
        seen.add(id(group))
        groups.append(group)
        member = getattr(group, "_parent_fiber", None)
    return groups[::-1]


class Node:
    """A group in the tree: its members, and the groups in it."""

    def __init__(self) -> None:
        self.fibers: list[Fiber[Any]] = []
        self.groups: dict[int, tuple[object, Node]] = {}

    def add(self, fiber: Fiber[Any]) -> None:
        node = self
        for group in groups_of(fiber):
            node = node.groups.setdefault(id(group), (group, Node()))[1]
        node.fibers.append(fiber)

    def lines(self, current: Fiber[Any] | None, frame: Any) -> Iterator[str]:
        """``current`` runs just now, in ``frame``."""
        for fiber in self.fibers:
            if fiber is current:
                yield f"{title_of(fiber)}"
                yield from indented(stack_at(frame), "  ")
            elif fiber.state in ("new", "ready"):
                yield f"{title_of(fiber)}"
                yield from indented(stack_of(fiber), "  ")
            else:
                yield f"{title_of(fiber)} {wait_of(fiber)}"
                yield from indented(stack_of(fiber), "  ")
        for group, node in self.groups.values():
            yield name_of(group)
            yield from indented(node.lines(current, frame), "    ")


def thread_title(ident: int) -> str:
    for thread in threading.enumerate():
        if thread.ident == ident:
            return f"thread {thread.name!r} ({ident})"
    return f"thread {ident}"


def thread_lines(
    ident: int,
    current: Fiber[Any],
    root: Fiber[Any],
    scheduler: _engine.Scheduler | None,
    fibers: list[Fiber[Any]],
    frame: Any,
) -> Iterator[str]:
    """One thread: its own stack if that runs, then its fibers by scheduler and group."""
    yield f"{thread_title(ident)}: {count_of(fibers)}"
    if current is root:
        yield "  running on the thread's own stack" if scheduler is None else "  the loop is idle"
        yield from indented(stack_at(frame), "    ")
    trees: dict[int, tuple[_engine.Scheduler | None, Node]] = {}
    for fiber in fibers:
        owner = _engine._scheduler_of(fiber)
        trees.setdefault(id(owner), (owner, Node()))[1].add(fiber)
    for loop, tree in trees.values():
        if loop is None:
            yield "  raw fibers"
        else:
            yield f"  {name_of(loop)}{', running' if loop is scheduler else ''}"
        yield from indented(tree.lines(current, frame), "    ")


def count_of(fibers: list[Any]) -> str:
    return "1 fiber" if len(fibers) == 1 else f"{len(fibers)} fibers"


def report(all_threads: bool, here: Any) -> str:
    """What ``dump_fibers()`` prints; ``here`` is the calling frame."""
    own = threading.get_ident()
    frames = sys._current_frames()
    frames[own] = here
    lines: list[str] = []
    for ident, current, root, scheduler, fibers in _engine._threads():
        if all_threads or ident == own:
            frame = frames.get(ident)
            lines += thread_lines(ident, current, root, scheduler, fibers, frame)
    return "\n".join(lines or ["no fibers"]) + "\n"


def dump_fibers(file: TextIO | None = None, *, all_threads: bool = False) -> None:
    """Print every fiber of this thread that is not done to ``file`` (default: sys.stderr).

    For each: what it waits for, held by whom, and its stack; by scheduler, and inside of that by
    group. With ``all_threads`` the fibers of every thread that has any.
    """
    text = report(all_threads, sys._getframe().f_back)  # None: the fiber's target is this function
    print(text, end="", file=sys.stderr if file is None else file, flush=True)


class SignalDump:
    """A signal that prints all fibers; ``undo()`` gives back what the signal did before.

    Also a context manager, which does that at its end.
    """

    def __init__(self, signum: int, file: TextIO | None) -> None:
        import signal

        self.signum = signum
        self._file = file
        self._busy = False
        self._installed = True
        self._before = signal.signal(signum, self._handle)

    def _handle(self, signum: int, frame: Any) -> None:
        if self._busy:  # the same signal again, while it prints
            return
        self._busy = True
        try:
            text = report(True, frame)
            print(text, end="", file=self._file or sys.stderr, flush=True)
        finally:
            self._busy = False

    def undo(self) -> None:
        """The handler before is in force again, unless somebody has set another one since."""
        import signal

        if self._installed and signal.getsignal(self.signum) == self._handle:
            signal.signal(self.signum, self._before)
        self._installed = False

    def __enter__(self) -> SignalDump:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


def dump_on_signal(signum: int, file: TextIO | None = None) -> SignalDump:
    """Print the fibers of all threads to ``file`` (default: sys.stderr) whenever ``signum`` comes.

    Returns an object whose ``undo()`` takes it back; it is a context manager, too. Works while a
    fiber runs Python code and while the loop is idle. To be called on the main thread (ValueError
    elsewhere), as ``signal.signal()``, whose errors it raises.
    """
    return SignalDump(signum, file)
