"""Answers as text. What comes from the process is escaped: it must not write on the terminal."""

from __future__ import annotations

import linecache
import os
from collections.abc import Iterator

from pyfiber._debug.snapshot import Call, Group, Snapshot, ThreadState

#: In this order `top` shows them, with the rates of these counters.
COUNTERS = ("switches", "wakeups", "messages", "timeouts", "waits")


def clean(text: str) -> str:
    """Without control characters, line ends and what cannot be printed."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def time_text(seconds: float) -> str:
    """Short: 120 us, 3.1 ms, 12 s, 2 min 5 s, 3 h 10 min."""
    if seconds < 1e-3:
        return f"{max(seconds, 0) * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else "1 s"
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"


def waited_text(group: Group) -> str:
    """For how long: one time, or the shortest and the longest."""
    if group["waited"] is None:
        return ""
    shortest, longest = map(time_text, group["waited"])
    return longest if shortest == longest else f"{shortest} to {longest}"


def names_text(group: Group) -> str:
    names = ", ".join(map(repr, group["names"]))
    one_of_each = len(group["names"]) == group["count"]
    return names if one_of_each or len(group["names"]) < 2 else f"{names}, ..."


def count_text(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


# ps -----------------------------------------------------------------------------------------------


def page(found: Snapshot) -> str:
    """All of an answer."""
    threads = found["threads"]
    fibers = sum(thread["fibers"] for thread in threads)
    lines = [
        f"process {found['pid']}, pyfiber {found['pyfiber']} on CPython {found['python']}: "
        f"{count_text(fibers, 'fiber')}"
    ]
    for thread in threads:
        lines += thread_lines(thread, Sources(found["pid"]))
    return "\n".join(map(clean, lines)) + "\n"


def thread_title(thread: ThreadState) -> str:
    name = f"{thread['name']!r} " if thread["name"] else ""
    doing = ""
    if thread["schedulers"]:
        doing = ", the loop has nothing to do" if thread["idle"] else ", a fiber runs"
        if not any(each["running"] for each in thread["schedulers"]):
            doing = ", no loop runs"
    return f"thread {name}({thread['id']}): {count_text(thread['fibers'], 'fiber')}{doing}"


def thread_lines(thread: ThreadState, sources: Sources) -> Iterator[str]:
    yield ""
    yield thread_title(thread)
    for scheduler in thread["schedulers"]:
        stats = scheduler["stats"]
        yield "  so far: " + ", ".join(f"{stats[name]:,} {name}" for name in COUNTERS)
    for group in ordered(thread["groups"]):
        yield ""
        yield f"  {group_title(group)}"
        yield from request_lines(group)
        yield from stack_lines(group["stack"], sources)
    left = thread["fibers"] - thread["examined"]
    if left > 0:
        yield ""
        yield f"  and {count_text(left, 'fiber')} more: to examine all would take too long"


def ordered(groups: list[Group]) -> list[Group]:
    """Who runs, who is ready, then who has waited longest."""
    states = ["running", "ready"]

    def place(group: Group) -> tuple[int, float]:
        state = group["state"]
        longest = group["waited"][1] if group["waited"] else 0.0
        return states.index(state) if state in states else len(states), -longest

    return sorted(groups, key=place)


def group_title(group: Group) -> str:
    number = "" if group["count"] == 1 else f"{group['count']:,} fibers, "
    time = f" for {waited_text(group)}" if group["waited"] else ""
    wait = f" {group['wait']}" if group["wait"] else ""
    others = ", and so on" if group["count"] > 1 and wait else ""
    return f"{number}{names_text(group)}: {group['state']}{time}{wait}{others}"


def request_lines(group: Group) -> Iterator[str]:
    """What the fibers answer, if they are those of a server."""
    for method, path, age in group["requests"]:
        yield f"      request {method} {path} for {time_text(age)}"
    if group["more_requests"]:
        yield f"      and {count_text(group['more_requests'], 'request')} more"


def stack_lines(stack: list[Call], sources: Sources) -> Iterator[str]:
    for file, line, function in stack:
        if file is None:
            yield f"      ... {line:,} calls"
            continue
        yield f'      File "{file}", line {line}, in {function}'
        if source := sources.line(file, line):
            yield f"        {source}"


class Sources:
    """Lines of the process's source files, as far as this side can read them."""

    def __init__(self, pid: int) -> None:
        try:
            self.folder = os.readlink(f"/proc/{pid}/cwd")
        except OSError:
            self.folder = ""

    def line(self, file: str, number: int) -> str:
        if not file.endswith(".py"):
            return ""  # it may be any file of this side's user
        path = os.path.join(self.folder, file)
        if not os.path.isfile(path):
            return ""  # to read a pipe or a device may take for ever
        return linecache.getline(path, number).strip()


# top ----------------------------------------------------------------------------------------------


def screen(found: Snapshot, before: Snapshot | None, columns: int, rows: int) -> str:
    """What `top` shows: the rates since the answer before, then the groups, busiest first."""
    fibers = sum(thread["fibers"] for thread in found["threads"])
    lines = [
        f"process {found['pid']}, pyfiber {found['pyfiber']} on CPython {found['python']}: "
        f"{count_text(fibers, 'fiber')}",
        rates_line(found, before),
        "",
        f"{'fibers':>8} {'moved':>8}  {'state':8} {'for':18} name, place, wait",
    ]
    groups = [group for thread in found["threads"] for group in thread["groups"]]
    groups.sort(key=lambda group: (-group["moved"], -group["count"]))
    lines += [row(group, found["home"]) for group in groups]
    left = sum(thread["fibers"] - thread["examined"] for thread in found["threads"])
    if len(lines) > rows - 1:
        lines[rows - 2 :] = [f"... {count_text(len(lines) - rows + 2, 'group')} more"]
    if left:
        lines.append(f"and {count_text(left, 'fiber')} that were not examined")
    return "\n".join(clean(line)[:columns] for line in lines) + "\n"


def totals(found: Snapshot) -> dict[tuple[int, str], int]:
    """The counters of each scheduler."""
    return {
        (scheduler["id"], name): scheduler["stats"][name]
        for thread in found["threads"]
        for scheduler in thread["schedulers"]
        for name in COUNTERS
    }


def rates_line(found: Snapshot, before: Snapshot | None) -> str:
    """What happened in a second, in all schedulers."""
    if before is None:
        return "per second: ..."
    old, new = totals(before), totals(found)
    seconds = max(found["time"] - before["time"], 1e-6)
    rates = dict.fromkeys(COUNTERS, 0)
    for (scheduler, name), value in new.items():
        rates[name] += max(value - old.get((scheduler, name), 0), 0)
    return "per second: " + ", ".join(f"{rates[n] / seconds:,.0f} {n}" for n in COUNTERS)


def row(group: Group, home: str) -> str:
    wait = f" {group['wait']}" if group["wait"] else ""
    return (
        f"{group['count']:>8,} {group['moved']:>8,}  {group['state']:8} {waited_text(group):18} "
        f"{names_text(group)}{place_text(group, home)}{wait}"
    )


def place_text(group: Group, home: str) -> str:
    """The innermost call that is not pyfiber's own."""
    for file, line, function in reversed(group["stack"]):
        if file is not None and not file.startswith(home + os.sep):
            return f" in {function} at {os.path.basename(file)}:{line}"
    return ""
