"""Time slices: places that are not preempted, and slices as text."""

from __future__ import annotations

from pyfiber import _engine

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class no_preemption:
    """Keep the fiber that enters the block from being preempted in it.

    For code that is only correct if no other fiber runs in its midst. The fiber may still wait
    there, which lets others run. Blocks may be nested, and an object may be used again after its
    block has ended. Outside of a run with time slices this does nothing.

        with pyfiber.no_preemption():
            balance = account.balance
            account.balance = balance - amount

    Entering an object twice at a time raises RuntimeError.
    """

    __slots__ = ("_fiber",)

    def __init__(self) -> None:
        self._fiber: _engine.Fiber[Any] | None = None

    def __enter__(self) -> None:
        if self._fiber is not None:
            raise RuntimeError("this no_preemption() is entered already: make one for each block")
        self._fiber = _engine._no_preemption_begin()

    def __exit__(self, *exc_info: object) -> None:
        fiber = self._fiber
        if fiber is None:
            raise RuntimeError("this no_preemption() is not entered")
        self._fiber = None
        _engine._no_preemption_end(fiber)


def seconds_of(text: str) -> float:
    """The length in seconds of a text such as "5ms", "0.005s" or "0.005"; ValueError otherwise."""
    number, unit = text.strip(), 1.0
    for suffix, length in (("us", 1e-6), ("ms", 1e-3), ("s", 1.0)):
        if number.endswith(suffix):
            number, unit = number.removesuffix(suffix), length
            break
    try:
        return float(number) * unit
    except ValueError:
        raise ValueError(
            f"a time slice is a number of seconds, or for example 5ms, not {text!r}"
        ) from None
