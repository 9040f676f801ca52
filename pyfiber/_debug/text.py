"""Formats answers. Text from the process is escaped, so that it cannot control the terminal."""

from __future__ import annotations

import functools
import io
import os
import stat
import tokenize
import unicodedata
from collections.abc import Iterator

from pyfiber._debug.snapshot import Call, Group, Snapshot, ThreadState
from pyfiber._words import clean

#: The counters, in the order in which they and their rates are shown.
COUNTERS = ("switches", "wakeups", "messages", "timeouts", "waits")
#: Source files that are cached, and the bytes that are read of each.
MOST_SOURCES = 100
LONGEST_SOURCE = 4 << 20
#: Columns of `top` before the name, and the fewest in which a wait is shown.
BEFORE_NAME = 41
LEAST_WAIT = 10


def time_text(seconds: float) -> str:
    """A time in short: 120 us, 3.1 ms, 12 s, 2 min 5 s, 3 h 10 min."""
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
    """How long the fibers have waited: one time, or the shortest and the longest."""
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


def page(found: Snapshot, pid: int) -> str:
    """What `ps` shows: all of the answer of that process."""
    sources = Sources(pid)
    threads = found["threads"]
    fibers = sum(thread["fibers"] for thread in threads)
    lines = [
        f"process {found['pid']}, pyfiber {found['pyfiber']} on CPython {found['python']}: "
        f"{count_text(fibers, 'fiber')}"
    ]
    for thread in threads:
        lines += thread_lines(thread, sources)
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
    """Sort groups: the running fiber, ready ones, then those that have waited longest."""
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
    """The requests that the fibers answer, if they are a server's."""
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
    """Lines of the process's source files, as far as this side can read them.

    The names of the files come from the process. So the caller reads the files of another user's
    process with that user's rights.
    """

    def __init__(self, pid: int) -> None:
        self.lines = functools.lru_cache(MOST_SOURCES)(lines_of)
        try:
            self.folder = os.readlink(f"/proc/{pid}/cwd")
        except OSError:
            self.folder = ""

    def line(self, file: str, number: int) -> str:
        if not file.endswith(".py"):
            return ""  # the process may name any file that this side can read
        lines = self.lines(os.path.join(self.folder, file))
        return lines[number - 1].strip() if 0 < number <= len(lines) else ""


def lines_of(path: str) -> list[str]:
    """The lines of a source file, [] if it cannot be read or is a device, a pipe and so on."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
    try:
        with open(os.open(path, flags), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return []
            content = io.BytesIO(file.read(LONGEST_SOURCE))
        encoding, _ = tokenize.detect_encoding(content.readline)
        content.seek(0)
        return io.TextIOWrapper(content, encoding, "replace").readlines()
    except (OSError, ValueError, SyntaxError, LookupError):
        return []


# top ----------------------------------------------------------------------------------------------


def screen(
    found: Snapshot, before: Snapshot | None, columns: int, rows: int, hint: str = ""
) -> str:
    """What `top` shows: the rates since the answer before, then the groups, busiest first."""
    fibers = sum(thread["fibers"] for thread in found["threads"])
    lines = [
        f"process {found['pid']}, pyfiber {found['pyfiber']} on CPython {found['python']}: "
        f"{count_text(fibers, 'fiber')}{hint}",
        "",
        *rates_lines(found, before),
        "",
        f"{'fibers':>7} {'moved':>7} {'state':9} {'for':13}  name, place, wait",
    ]
    groups = [group for thread in found["threads"] for group in thread["groups"]]
    groups.sort(key=lambda group: (-group["moved"], -group["count"]))
    left = sum(thread["fibers"] - thread["examined"] for thread in found["threads"])
    end = [f"and {count_text(left, 'fiber')} not examined"] if left else []
    room = max(rows - 1 - len(lines) - len(end), 0)
    if len(groups) > room:
        room = max(room - 1, 0)
        end.insert(0, f"... {count_text(len(groups) - room, 'group')} more")
    lines += [row(group, found["home"], columns) for group in groups[:room]]
    return "\n".join(cut(clean(line), columns) for line in lines + end) + "\n"


def width_of(character: str) -> int:
    """Columns of the terminal that the character takes."""
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in ("F", "W") else 1


def cut(text: str, columns: int) -> str:
    """As much of the text as fits into the columns, with dots at the end if it is cut."""
    used = room = 0
    for place, character in enumerate(text):
        if used <= columns - 3:
            room = place  # the characters before this one fit, with the dots
        used += width_of(character)
        if used > columns:
            return text[:room] + "..."[:columns]
    return text


def totals(found: Snapshot) -> dict[tuple[int, str], int]:
    """The counters of each scheduler."""
    return {
        (scheduler["id"], name): scheduler["stats"][name]
        for thread in found["threads"]
        for scheduler in thread["schedulers"]
        for name in COUNTERS
    }


def rates_lines(found: Snapshot, before: Snapshot | None) -> Iterator[str]:
    """What happened in a second, in all schedulers."""
    yield f"{'per second':10}" + "".join(f"{name:>10}" for name in COUNTERS)
    if before is None:
        yield f"{'':10}" + f"{'...':>10}" * len(COUNTERS)
        return
    old, new = totals(before), totals(found)
    seconds = max(found["time"] - before["time"], 1e-6)
    rates = dict.fromkeys(COUNTERS, 0)
    for (scheduler, name), value in new.items():
        rates[name] += max(value - old.get((scheduler, name), 0), 0)
    yield f"{'':10}" + "".join(f"{number_text(rates[n] / seconds):>10}" for n in COUNTERS)


def number_text(number: float) -> str:
    """Write a number in at most seven characters: 12, 123,456, 1.23M."""
    if number < 999_999.5:
        return f"{number:,.0f}"
    number /= 1e6
    return f"{number:.3g}M" if number < 999.5 else f"{number:,.0f}M"


def short_time(seconds: float) -> str:
    """Write a time in at most six characters: 120us, 3.1ms, 12s, 2m5s, 3h10m, 4d3h."""
    if seconds < 59.5:
        return time_text(seconds).replace(" ", "")
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours}h" if days < 100 else f"{days}d"
    return f"{hours}h{minutes}m" if hours else f"{minutes}m{rest}s"


def short_waited(group: Group) -> str:
    """Do what waited_text() does, in at most thirteen characters."""
    if group["waited"] is None:
        return ""
    shortest, longest = map(short_time, group["waited"])
    return longest if shortest == longest else f"{shortest}-{longest}"


def row(group: Group, home: str, columns: int) -> str:
    place = place_text(group, home)
    room = max(columns - BEFORE_NAME - len(place), (columns - BEFORE_NAME) // 2)
    names = cut(clean(names_text(group)), room)
    line = (
        f"{number_text(group['count']):>7} {number_text(group['moved']):>7} {group['state']:9} "
        f"{short_waited(group):13}  {names}{place}"
    )
    if group["wait"] and len(line) + LEAST_WAIT <= columns:
        line += f" {group['wait']}"
    return line


def place_text(group: Group, home: str) -> str:
    """The innermost call that is not pyfiber's own."""
    for file, line, function in reversed(group["stack"]):
        if file is not None and not file.startswith(home + os.sep):
            return f" in {function} at {os.path.basename(file)}:{line}"
    return ""
