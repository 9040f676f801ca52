"""Reports of what each fiber waits for and which fibers hold that, for a deadlock or on demand.

A fiber's ``waiting_on`` is what the fiber is parked in: another fiber (a join), a group at its end,
a primitive, a future, a ``to_thread()`` job, or a word. An object that fibers can hold has a method
``_holders()``, which returns a list of fibers or threads. From these come the edges of the wait
graph.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

from pyfiber import _engine, _hooks, _native, _words
from pyfiber._engine import Fiber, FiberGenerator, Grain, Lock, RLock, TaskGroup, _load

if TYPE_CHECKING:
    from traceback import StackSummary

Task: TypeAlias = Fiber[Any] | Grain[Any]

#: Limits of the text of a DeadlockError: characters, characters of one line, lines of one stack
#: (its ends), fibers of a cycle.
LONGEST_TEXT = 20_000
LONGEST_LINE = 500
MOST_LINES = 60
MOST_IN_CIRCLE = 20


# words --------------------------------------------------------------------------------------------


def name_of(thing: object) -> str:
    """A fiber or thread by its name, anything else by its repr, even if that raises."""
    try:
        if isinstance(thing, Fiber):
            return f"fiber {thing.name!r} at {id(thing):#x}"  # names need not be unique
        if isinstance(thing, Grain):
            return f"grain {thing.name!r} at {id(thing):#x}"
        if isinstance(thing, threading.Thread):
            return f"thread {thing.name!r}"
        return _words.clean(repr(thing))
    except Exception as exc:
        return f"<{type(thing).__name__} at {id(thing):#x}, whose repr raised {exc!r}>"


def title_of(fiber: Task) -> str:
    """The fiber's own repr, if that works."""
    try:
        return _words.clean(repr(fiber))  # the repr has the target's name, which may be any text
    except Exception:
        return f"<{type(fiber).__name__} {fiber.name!r} {fiber.state} at {id(fiber):#x}>"


def holders_of(what: object) -> list[Any]:
    """The fibers and threads that must act before a wait for ``what`` can end, if known."""
    if isinstance(what, (Fiber, Grain)):
        return [what]
    ask = getattr(what, "_holders", None)
    if ask is None:
        return _engine._lot_holders(what)
    try:
        return list(ask())
    except Exception:
        return []  # a bad _holders() must not make the report fail


def wait_of(fiber: Task) -> str:
    """Text that says what a parked fiber waits for, and which fibers or threads hold that."""
    what = fiber.waiting_on
    if what is None:
        return "was left by a direct switch"
    if isinstance(what, (Fiber, Grain)):
        return f"waits for the end of {name_of(what)}"
    if isinstance(fiber, Grain):
        return f"has yielded {name_of(what)}"
    if isinstance(what, str):
        return f"waits in {what}"
    if (io := _engine._io_wait_of(fiber)) is not None:
        return _load("pyfiber._descriptors").wait_text(*io, what)  # type: ignore[no-any-return]
    holders = holders_of(what)
    if isinstance(what, FiberGenerator):
        return f"waits for the next value of {name_of(what)}"
    if isinstance(what, TaskGroup):
        return f"waits for the end of {some_of(holders)}, of {name_of(what)}"
    return f"waits for {name_of(what)}{held_by(what, holders, fiber)}"


def held_by(what: object, holders: list[Any], waiter: Task) -> str:
    """Text that says which fibers or threads hold ``what``, and why they may never release it."""
    if waiter in holders:
        again = ": it cannot take a Lock twice, but an RLock" if isinstance(what, Lock) else ""
        return f", held by itself{again}"
    if holders:
        return f", held by {some_of(holders)}"
    if isinstance(what, (Lock, RLock)):
        kind, lost = "fiber", what._lost_holder()
    else:
        kind, lost = "thread", _engine._lot_lost_holder(what)
    if lost is None:
        return ""
    name = f"a {kind}" if lost == "?" else f"{kind} {lost!r}"
    return (
        f", taken by {name}, which has ended without release(): "
        "a 'with' block releases it in any case"
    )


def some_of(things: list[Any]) -> str:
    """A list in words, cut where it becomes long."""
    named = [name_of(thing) for thing in things[: _words.MOST_NAMED]]
    return _words.some(named, len(things))


def stack_of(fiber: Task) -> list[str]:
    """The lines of a suspended fiber's or grain's stack, outermost call first."""
    if isinstance(fiber, Grain):
        return lines_of(fiber.stack())
    try:
        frame = _hooks.frame_of(fiber)
    except Exception:
        return []  # a fiber that cannot be inspected must not make the report fail
    return stack_at(frame)


def stack_at(frame: Any) -> list[str]:
    """The lines of the stack that ends in ``frame``."""
    if frame is None:
        return []
    return lines_of(_hooks.stack_summary(frame))


def lines_of(stack: StackSummary) -> list[str]:
    """The stack as text. Names of files and functions may contain text from the network."""
    for call in stack:
        if not (call.filename.isprintable() and call.name.isprintable()):
            _ = call.line  # reads the line while `filename` is still the file's real name
            call.filename = _words.clean(call.filename)
            call.name = _words.clean(call.name)
    lines = "".join(stack.format()).rstrip("\n").split("\n")
    return [_words.clean(line.expandtabs()) for line in lines] if stack else []


def indented(lines: Iterable[str], prefix: str) -> Iterator[str]:
    for line in lines:
        yield prefix + line


# groups of alike tasks ----------------------------------------------------------------------------


def places_of(task: Task) -> tuple[Any, ...]:
    """The position of each call on its stack, for comparison; cheaper than the stack's text."""
    if isinstance(task, Grain):
        return tuple((each.filename, each.lineno, each.name) for each in task.stack())
    try:
        frame: Any = _hooks.frame_of(task)
    except Exception:
        return ()
    places = []
    while frame is not None:
        places.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return tuple(places)


def kind_of(task: Task) -> tuple[Any, ...]:
    """A key that is equal for tasks with the same stack and the same wait."""
    what = task.waiting_on
    places = places_of(task)
    wait = what if isinstance(what, str) else type(what)
    return type(task), task.state, wait, places or task.name, places


def alike(tasks: Iterable[Task]) -> list[list[Task]]:
    """Groups of alike tasks, in the order of their first ones."""
    kinds: dict[tuple[Any, ...], list[Task]] = {}
    for task in tasks:
        kinds.setdefault(kind_of(task), []).append(task)
    return list(kinds.values())


def others_line(tasks: list[Task]) -> Iterator[str]:
    """A line on how many tasks are like the first, and their names; nothing if there are none."""
    first, *others = tasks
    if not others:
        return
    names = list(dict.fromkeys(repr(task.name) for task in others))
    same = names == [repr(first.name)]
    named = ", of the same name" if same else f": {_words.some(names)}"
    what = first.waiting_on
    where = ""
    if not isinstance(what, str) and any(task.waiting_on is not what for task in others):
        where = f", at other {type(what).__name__} objects"
    yield f"and {how_many(others)} like it{where}{named}"


def cut(lines: list[str]) -> list[str]:
    """The lines of a stack, without the middle ones if there are too many."""
    if len(lines) <= MOST_LINES:
        return lines
    half = MOST_LINES // 2
    return [*lines[:half], f"  ... {len(lines) - 2 * half:,} lines", *lines[-half:]]


def kind_lines(tasks: list[Task]) -> list[str]:
    """The lines of waiting tasks that are alike: the first one's stack, then the others' names."""
    first = tasks[0]
    lines = [f"{title_of(first)} {wait_of(first)}", *cut(stack_of(first)), *others_line(tasks)]
    return [line if len(line) <= LONGEST_LINE else line[:LONGEST_LINE] + "..." for line in lines]


def waiting_lines(tasks: list[Task]) -> Iterator[str]:
    """The lines of all groups that fit into LONGEST_TEXT, and always of the first group."""
    kinds = alike(tasks)
    room = LONGEST_TEXT
    for number, kind in enumerate(kinds):
        lines = kind_lines(kind)
        room -= sum(len(line) + 1 for line in lines)
        if number and room < 0:
            left = [task for each in kinds[number:] for task in each]
            yield f"... and {how_many(left)} more, waiting elsewhere"
            return
        yield from lines


# the graph ----------------------------------------------------------------------------------------


def find_cycle(fibers: Iterable[Task]) -> list[Task]:
    """A cycle of fibers: each waits for the next, the last for the first; empty if none.

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
        return  # the fiber's line says already that it waits for itself
    yield "they wait for each other:"
    pairs = list(zip(cycle, [*cycle[1:], cycle[0]], strict=True))
    for fiber, following in pairs[:MOST_IN_CIRCLE]:
        what = fiber.waiting_on
        if isinstance(what, (Fiber, Grain, TaskGroup)):
            yield f"  {name_of(fiber)} waits for the end of {name_of(following)}"
        else:
            yield f"  {name_of(fiber)} waits for {name_of(what)}, held by {name_of(following)}"
    if len(pairs) > MOST_IN_CIRCLE:
        yield f"  ... and so on, {len(pairs) - MOST_IN_CIRCLE:,} more"


def how_many(tasks: list[Task]) -> str:
    """A text such as "2 fibers and 1 grain"."""
    grains = sum(isinstance(task, Grain) for task in tasks)
    counts = [(len(tasks) - grains, "fiber"), (grains, "grain")]
    return " and ".join(f"{n:,} {word}{'s' * (n != 1)}" for n, word in counts if n) or "no fiber"


def deadlock_text(fibers: list[Task]) -> str:
    """Describe the deadlock of these fibers, for a DeadlockError."""
    wait = "waits" if len(fibers) == 1 else "wait"
    lines = [
        f"{how_many(fibers)} {wait} and nothing can wake one: no timer is set, no other thread runs"
    ]
    return "\n".join([*lines, *graph_lines(fibers)])


def graph_lines(fibers: list[Task]) -> Iterator[str]:
    """The lines of the cycle of waiting fibers, if there is one, then of each fiber."""
    cycle = find_cycle(fibers)
    if cycle:
        yield from cycle_lines(cycle)
    yield from waiting_lines(fibers)


def _handled() -> list[str]:
    """Names of the signals for which the program has set a handler."""
    _load("pyfiber._help")
    from pyfiber import _help

    return [number.name for number in _help.handled_signals()]


def stall_text(seconds: float, fibers: list[Task]) -> str:
    """The warning that only another thread could wake a fiber, and none has for so many seconds."""
    own = threading.current_thread()
    # Workers of to_thread() last: they mostly wait for their next job.
    living = sorted(threading.enumerate(), key=lambda t: t.name.startswith("pyfiber-worker-"))
    threads = [
        f"{thread.name!r}{' (daemon)' if thread.daemon else ''}"
        for thread in living
        if thread is not own
    ]
    handlers = f"; or a handler of {_words.some(_handled())}" if _handled() else ""
    head = (
        f"nothing has happened for {seconds:g} s, and only another thread could make something "
        f"happen: no timer is set and no to_thread() call is under way. Threads that live: "
        f"{_words.some(threads) or 'some that the threading module does not know'}{handlers}. If "
        f"none of them will wake a fiber, this is a deadlock of {how_many(fibers)}"
    )
    return "\n".join([head, *graph_lines(fibers)])


# waits where no switch is allowed -----------------------------------------------------------------


def cannot_wait_text(what: object, holder: Task | None, why: str) -> str:
    """The error text of a patched wait that would last for ever."""
    head = f"cannot wait for {name_of(what)} {why}: "
    if holder is None:
        return head + "nobody could end that wait, for no fiber goes on before this returns"
    itself = holder is _engine.current()
    place = "" if itself else f", at {place_of(_hooks.frame_of(holder))},"
    return (
        f"{head}{name_of(holder)}{place} holds it"
        f"{' itself' if itself else ''}, and cannot go on before this returns"
    )


def place_of(frame: Any) -> str:
    """File, line and function of the program's innermost call."""
    while frame is not None and frame.f_globals.get("__name__", "").startswith("pyfiber."):
        frame = frame.f_back
    if frame is None:
        return "its beginning"
    code = frame.f_code
    return _words.clean(f"{code.co_filename}:{frame.f_lineno} in {code.co_qualname}()")


def blocked_text(seconds: float, what: object, why: str) -> str:
    """The warning for a patched wait that blocks the thread of a run."""
    stack = "".join(_hooks.stack_summary(sys._getframe(2)).format())
    return (
        f"a wait for {name_of(what)} {why} has blocked every fiber of this thread for {seconds:g} s"
        f"\n{stack}"
    )


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
    """A group in the tree: its fibers, and the groups in it."""

    def __init__(self) -> None:
        self.fibers: list[Fiber[Any]] = []
        self.groups: dict[int, tuple[object, Node]] = {}

    def add(self, fiber: Fiber[Any]) -> None:
        node = self
        for group in groups_of(fiber):
            node = node.groups.setdefault(id(group), (group, Node()))[1]
        node.fibers.append(fiber)

    def lines(self, current: Fiber[Any] | None, frame: Any) -> Iterator[str]:
        """The lines of this group. The fiber ``current`` is running, in ``frame``."""
        for kind in alike(self.fibers):
            fiber = kind[0]
            if fiber is current:
                yield f"{title_of(fiber)}"
                yield from indented(stack_at(frame), "  ")
            elif fiber.state in ("new", "ready"):
                yield f"{title_of(fiber)}"
                yield from indented(stack_of(fiber), "  ")
            else:
                yield f"{title_of(fiber)} {wait_of(fiber)}"
                yield from indented(stack_of(fiber), "  ")
            yield from others_line(kind)
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
    """The lines of a thread: its own stack if that runs, then its fibers by scheduler and group."""
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
    own = _native.get_ident()
    lines: list[str] = []
    for ident, current, root, scheduler, fibers in _engine._threads():
        if all_threads or ident == own:
            frame = here if ident == own else _hooks.frame_on(ident)
            lines += thread_lines(ident, current, root, scheduler, fibers, frame)
    return "\n".join(lines or ["no fibers"]) + "\n"


def dump_fibers(file: TextIO | None = None, *, all_threads: bool = False) -> None:
    """Print every fiber of this thread that is not done to ``file`` (default: sys.stderr).

    For each fiber: what it waits for, who holds that, and its stack; sorted by scheduler and group.
    With ``all_threads`` the fibers of every thread that has any.
    """
    text = report(all_threads, sys._getframe().f_back)  # None if this is a fiber's target
    print(text, end="", file=sys.stderr if file is None else file, flush=True)


class SignalHandler:
    """The handler of a signal that reports on the program; ``undo()`` removes it.

    The object is also a context manager, which calls undo() at its end.
    """

    def __init__(self, signum: int, act: Callable[[Any], object]) -> None:
        """``act`` gets the frame that the signal interrupted."""
        _load("signal")
        import signal

        self.signum = signum
        self._act = act
        self._busy = False
        self._installed = True
        self._before = signal.signal(signum, self._handle)

    def _handle(self, signum: int, frame: Any) -> None:
        if self._busy:  # the signal has come again meanwhile
            return
        self._busy = True
        try:
            self._act(frame)
        finally:
            self._busy = False

    def undo(self) -> None:
        """Restore the previous handler, unless another one has been set since."""
        _load("signal")
        import signal

        if self._installed and signal.getsignal(self.signum) == self._handle:
            signal.signal(self.signum, self._handler_before())
        self._installed = False

    def _handler_before(self) -> Any:
        """The handler that this one has replaced, but no SignalHandler that was undone since."""
        before: Any = self._before
        while isinstance(ours := getattr(before, "__self__", None), SignalHandler):
            if ours._installed:
                break
            before = ours._before
        return before

    def __enter__(self) -> SignalHandler:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


def dump_on_signal(signum: int, file: TextIO | None = None) -> SignalHandler:
    """Print the fibers of all threads to ``file`` (default: sys.stderr) whenever ``signum`` comes.

    Returns an object whose ``undo()`` restores the previous handler; it is a context manager, too.
    The signal is handled while a fiber runs Python code and while the loop is idle. Call this on
    the main thread (ValueError elsewhere), as ``signal.signal()``, whose errors it raises.
    """

    def dump(frame: Any) -> None:
        print(report(True, frame), end="", file=file or sys.stderr, flush=True)

    return SignalHandler(signum, dump)


def debug_on_signal(signum: int) -> SignalHandler:
    """Let `python -m pyfiber ps --signal NAME PID` look at this process, once ``signum`` has come.

    The signal opens a socket that only this user and the system's administrator can connect to, and
    a thread that answers there; both stay until the process ends. PYFIBER_DEBUG=1 in the
    environment opens it from the start. Returns an object whose ``undo()`` restores the previous
    handler; it is a context manager, too. Call this on the main thread (ValueError elsewhere), as
    ``signal.signal()``, whose errors it raises. Raises NotImplementedError on Windows.
    """
    if sys.platform == "win32":
        raise NotImplementedError("Python has no Unix sockets on Windows")
    _load("pyfiber._debug.server")  # now, so that the handler need not import it
    return SignalHandler(signum, lambda frame: _hooks.open_debug_socket())
