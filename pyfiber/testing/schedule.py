"""A schedule as a short string: ``pf2-`` and base32 of the choices made.

A schedule is the list of choices of a run, each ``(kind, count, taken)``. Nearly all choices of a
shrunk schedule are 0, "as usual". Only the others are written, each after the number of zeros
before it, with enough data to notice that the program differs from the recorded one. Choices are
packed bit by bit, not by a compression library whose output might vary, so that the string is the
same on every platform.
"""

from __future__ import annotations

import base64
import binascii
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

from pyfiber.testing.errors import ScheduleError

Choice = tuple[int, int, int]

PREFIX = "pf2-"
KINDS = (
    "who runs next",
    "which timer fires",
    "who is woken",
    "which case of select()",
    "choose()",
    "whether to preempt",
    "whether there is a fault",
)
FAULT = KINDS.index("whether there is a fault")
PREEMPT, UNFAIR = 1, 2
SWITCHES = ("wait", "line", "access", "gil")  # the number is in the string, times SWITCH
SWITCH = 4
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
    """The choices of one run; ``fingerprint`` is a hash of everything that happened in it."""

    choices: Sequence[Choice]
    preempt: bool = False
    unfair: bool = False
    fingerprint: int = 0
    switch: str = "wait"

    @property
    def deviations(self) -> int:
        """How many choices are not the usual one."""
        return sum(1 for choice in self.choices if choice[2] != 0)

    def __str__(self) -> str:
        flags = PREEMPT * self.preempt + UNFAIR * self.unfair
        flags += SWITCH * SWITCHES.index(self.switch)
        hashed = (self.fingerprint & 0xFFFF).to_bytes(HASH_BYTES, "big")
        data = bytes([flags]) + pack(self.choices) + hashed
        return PREFIX + base64.b32encode(data + check(data)).decode().rstrip("=").lower()

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Read what str() wrote.

        ScheduleError, a ValueError, says what is wrong with the text.
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
        data = unwrap(text)
        flags, packed, hashed = data[0], data[1:-HASH_BYTES], data[-HASH_BYTES:]
        fingerprint = int.from_bytes(hashed, "big")
        if flags >= SWITCH * len(SWITCHES):
            raise ScheduleError("the schedule is damaged: it has unknown options")
        preempt, unfair = bool(flags & PREEMPT), bool(flags & UNFAIR)
        return cls(unpack(packed), preempt, unfair, fingerprint, SWITCHES[flags // SWITCH])


MAX_CHOICES = 20_000_000


def shorten(text: str) -> str:
    """Shorten a text to what fits into an error message."""
    return text if len(text) <= 24 else text[:20] + "..."


def check(data: bytes) -> bytes:
    """The checksum at the end of a schedule."""
    return (zlib.crc32(data) & 0xFFFFFF).to_bytes(CHECK_BYTES, "big")


def unwrap(text: str) -> bytes:
    """Decode the letters of a schedule; ScheduleError if the checksum is wrong."""
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
    return data


# ------------------------------------------------------------------------- the bits


def gamma(number: int) -> str:
    """Encode a positive number by Elias' gamma code: small ones are short."""
    bits = f"{number:b}"
    return "0" * (len(bits) - 1) + bits


def deviation(zeros: int, choice: Choice) -> str:
    """Encode a choice that is not the usual one, and the number of usual ones before it."""
    kind, count, taken = choice
    width = (count - 2).bit_length()  # taken is 1 .. count - 1
    named = f"1{kind:03b}" if kind else "0"
    taken_bits = f"{taken - 1:0{width}b}" if width else ""
    return "1" + gamma(zeros + 1) + named + gamma(count - 1) + taken_bits


def pack(choices: Sequence[Choice]) -> bytes:
    """Encode the number of choices, then those that deviate; a bit of 0 ends them."""
    parts = [gamma(len(choices) + 1)]
    zeros = 0
    for choice in choices:
        if choice[2] == 0:
            zeros += 1
        else:
            parts.append(deviation(zeros, choice))
            zeros = 0
    bits = "".join(parts) + "0"
    bits += "0" * (-len(bits) % 8)
    return int(bits, 2).to_bytes(len(bits) // 8, "big")


class Bits:
    """Reads bits; ScheduleError at their end."""

    def __init__(self, data: bytes) -> None:
        self.bits = f"{int.from_bytes(data, 'big'):0{8 * len(data)}b}"
        self.at = 0

    def read(self, width: int) -> int:
        found = self.bits[self.at : self.at + width]
        if len(found) < width:
            raise ScheduleError("the schedule is damaged: its end is missing")
        self.at += width
        return int(found, 2) if width else 0

    def gamma(self) -> int:
        zeros = 0
        while self.read(1) == 0:
            zeros += 1
        return 1 << zeros | self.read(zeros)


def unpack(data: bytes) -> list[Choice]:
    """The inverse of pack(), except that usual choices are (0, 0, 0)."""
    bits = Bits(data)
    choices: list[Choice] = []
    total = bits.gamma() - 1
    if total > MAX_CHOICES:
        raise ScheduleError("the schedule is damaged: it has too many choices")
    while bits.read(1):
        zeros = bits.gamma() - 1
        kind = bits.read(3) if bits.read(1) else 0
        count = bits.gamma() + 1
        taken = bits.read((count - 2).bit_length()) + 1
        if len(choices) + zeros >= total or not taken < count < 1 << 32 or kind >= len(KINDS):
            raise ScheduleError("the schedule is damaged: it has an impossible choice")
        choices += [(0, 0, 0)] * zeros
        choices.append((kind, count, taken))
    choices += [(0, 0, 0)] * (total - len(choices))
    return choices
