"""The text of a failure: the traceback, how to replay it, which fiber ran when."""

from __future__ import annotations

import os
import traceback
from types import TracebackType

from pyfiber.testing.schedule import Schedule
from pyfiber.testing.story import HERE, plural


def clean(tb: TracebackType | None) -> TracebackType | None:
    """The traceback from the program's first frame on."""
    while tb is not None and tb.tb_frame.f_code.co_filename.startswith(HERE + os.sep):
        tb = tb.tb_next
    return tb


def format_failure(exc: BaseException) -> str:
    """The traceback as Python prints it, without pyfiber.testing's frames."""
    shown = traceback.TracebackException(type(exc), exc, clean(exc.__traceback__))
    return "".join(shown.format()).rstrip()


def failure_text(
    headline: str,
    exc: BaseException,
    schedule: Schedule,
    replay: str,
    log: str,
    shrunk_from: int,
    verdict: str,
    story: str = "",
) -> str:
    """Write the text of a ScheduleFailure."""
    verdict = f"with a GIL: {verdict}\n" if verdict else ""
    much = schedule.deviations
    how_far = "the usual order" if much == 0 else f"{plural(much, 'choice')} out of the usual order"
    if shrunk_from > much:
        how_far += f", {shrunk_from} before shrinking"
    told = f"what the network did:\n{story}\n\n" if story else ""
    return (
        f"{headline}\n\n"
        f"{format_failure(exc)}\n\n"
        f"{told}"
        f"schedule: {schedule}\n"
        f"replay:   {replay.replace('SCHEDULE', str(schedule))}\n"
        f"({plural(len(schedule.choices), 'choice')}; {how_far})\n"
        f"{verdict}\n"
        f"who ran when (* marks a turn out of the usual order):\n{log}"
    )
