"""A schedule as a short string: ``pf1-`` and base32 of the choices made.

A schedule is the list of choices of a run, each ``(kind, count, taken)``.
Nearly all of a shrunk one are 0, "as usual"; only the others are written,
each after the number of zeros before it, with what is needed to notice that
the program is not the one recorded.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pyfiber.testing.errors import ScheduleError

Choice = tuple[int, int, int]

PREFIX = "pf1-"
KINDS = (
    "who runs next",
    "which timer fires",
    "who is woken",
    "which case of select()",
    "choose()",
    "whether to preempt",
)
PREEMPT, DEFLATED, UNFAIR = 1, 2, 4
CHECK_BYTES = 3
HASH_BYTES = 2


def describe(choice: Choice) -> str:
    """One choice in words."""
    kind, count, taken = choice
    if count == 0:
        return "a choice"
    return f"{KINDS[kind]}: {taken + 1} of {count}"


@dataclass(frozen=True, slots=True)
class Schedule:
    """The choices of one run; ``fingerprint`` is a hash of all that happened in it."""

    choices: Sequence[Choice]
    preempt: bool = False
    unfair: bool = False
    fingerprint: int = 0

    @property
    def deviations(self) -> int:
        """How many choices are not the usual one."""
        return sum(1 for choice in self.choices if choice[2] != 0)

    def __str__(self) -> str:
        body = b"".join(map(varint, self.numbers()))
        body += (self.fingerprint & 0xFFFF).to_bytes(HASH_BYTES, "big")
        flags = PREEMPT * self.preempt + UNFAIR * self.unfair
        packed = zlib.compress(body, 9)
        if len(packed) < len(body):
            flags |= DEFLATED
            body = packed
        data = bytes([flags]) + body
        return PREFIX + base64.b32encode(data + check(data)).decode().rstrip("=").lower()

    def numbers(self) -> Iterator[int]:
        """How many choices there are; then for each deviation what leads to it."""
        yield len(self.choices)
        zeros = 0
        for kind, count, taken in self.choices:
            if taken == 0:
                zeros += 1
                continue
            yield zeros
            yield count * len(KINDS) + kind
            yield taken
            zeros = 0

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Read what str() wrote.

        ScheduleError, a ValueError, tells what is wrong with the text.
        """
        if not isinstance(text, str):
            raise TypeError(f"a schedule is a string, not {type(text).__name__!r}")
        text = text.strip().lower()
        if not text.startswith(PREFIX):
            if text.startswith("pf") and text[2:3].isdigit():
                raise ScheduleError(
                    f"the schedule {shorten(text)!r} was written by another version of pyfiber: "
                    f"this one reads those that begin with {PREFIX!r}"
                )
            raise ScheduleError(f"not a schedule: {shorten(text)!r} does not begin with {PREFIX!r}")
        flags, body = unwrap(text)
        return cls.from_numbers(body, bool(flags & PREEMPT), bool(flags & UNFAIR))

    @classmethod
    def from_numbers(cls, body: bytes, preempt: bool, unfair: bool) -> Schedule:
        """The inverse of numbers(), behind it the hash."""
        numbers = list(varints(body[:-HASH_BYTES]))
        choices: list[Choice] = []
        if not numbers or len(numbers) % 3 != 1:
            raise ScheduleError("the schedule is damaged: its numbers do not add up")
        total = numbers[0]
        if total > MAX_CHOICES:
            raise ScheduleError("the schedule is damaged: it has too many choices")
        for i in range(1, len(numbers), 3):
            zeros, what, taken = numbers[i : i + 3]
            count, kind = divmod(what, len(KINDS))
            if len(choices) + zeros >= total or not 0 < taken < count:
                raise ScheduleError("the schedule is damaged: it has an impossible choice")
            choices += [(0, 0, 0)] * zeros
            choices.append((kind, count, taken))
        choices += [(0, 0, 0)] * (total - len(choices))
        return cls(choices, preempt, unfair, int.from_bytes(body[-HASH_BYTES:], "big"))


MAX_CHOICES = 20_000_000


def shorten(text: str) -> str:
    """What of a text fits into an error message."""
    return text if len(text) <= 24 else text[:20] + "..."


def check(data: bytes) -> bytes:
    """The checksum at the end of a schedule."""
    return (zlib.crc32(data) & 0xFFFFFF).to_bytes(CHECK_BYTES, "big")


def unwrap(text: str) -> tuple[int, bytes]:
    """Flags and body, once the checksum is right."""
    letters = text[len(PREFIX) :].upper()
    try:
        data = base64.b32decode(letters + "=" * (-len(letters) % 8))
    except binascii.Error:
        data = b""
    data, found = data[:-CHECK_BYTES], data[-CHECK_BYTES:]
    if len(data) < 1 + HASH_BYTES + 1 or check(data) != found:
        raise ScheduleError(
            f"the schedule {shorten(text)!r} is cut or mistyped: its checksum is wrong"
        )
    flags, body = data[0], data[1:]
    if flags & DEFLATED:
        try:
            body = zlib.decompress(body)
        except zlib.error:
            raise ScheduleError("the schedule is damaged: it cannot be unpacked") from None
    return flags, body


def varint(number: int) -> bytes:
    """Seven bits a byte, low ones first; the last byte is below 128."""
    out = bytearray()
    while number > 127:
        out.append(128 | number & 127)
        number >>= 7
    out.append(number)
    return bytes(out)


def varints(data: bytes) -> Iterator[int]:
    """Read what varint() wrote."""
    number = shift = 0
    for byte in data:
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield number
            number = shift = 0
