"""The fiber's name in log records."""

from __future__ import annotations

import logging

from pyfiber import _words
from pyfiber._engine import _name_here, current_grain

#: Outside of fibers.
NOWHERE = "-"


class LogFilter(logging.Filter):
    """Puts the name of the fiber that logs into each record, for `%(fiber)s` in a format.

    Add it to handlers: a logger's own filters see only what is logged with that very logger. The
    name is "-" outside of fibers, and the grain's in a grain; line ends and control characters in
    it are escaped, so that it cannot forge a line of the log. A record that has the attribute
    already keeps it, be it from `extra=` or from this filter on the other side of a queue: with
    QueueHandler add it to that handler, as the listener runs on another thread. ``attribute`` is
    another name for it. Records of loggers that are not below ``name`` are dropped, as
    logging.Filter does; the default passes all.
    """

    def __init__(self, name: str = "", *, attribute: str = "fiber") -> None:
        super().__init__(name)
        if not isinstance(attribute, str):
            raise TypeError(f"attribute must be a str, not {type(attribute).__name__!r}")
        if attribute in logging.makeLogRecord({}).__dict__ or attribute in ("message", "asctime"):
            raise ValueError(f"every log record has its own {attribute!r}: choose another name")
        self.attribute = attribute

    def filter(self, record: logging.LogRecord) -> bool:
        """Pass the record on, with the name in it."""
        if self.attribute not in record.__dict__:
            record.__dict__[self.attribute] = name_here()
        return self.nlen == 0 or bool(super().filter(record))


def name_here() -> str:
    """Of the grain or the fiber that runs; NOWHERE on a thread's own stack."""
    grain = current_grain()
    name = _name_here() if grain is None else grain.name
    return NOWHERE if name is None else _words.clean(name)
