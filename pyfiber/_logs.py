"""Adds the running fiber's name to log records."""

from __future__ import annotations

import logging

from pyfiber import _words
from pyfiber._engine import _name_here, current_grain

#: The name in records that are logged outside of fibers.
NOWHERE = "-"


class LogFilter(logging.Filter):
    """Puts the name of the fiber that logs into each record, for `%(fiber)s` in a format.

    Add the filter to handlers: a logger's own filters see only what is logged with that very
    logger. The name is "-" outside of fibers, and the grain's in a grain; line ends and control
    characters in the name are escaped, so that it cannot forge a line of the log. A record that
    already has the attribute, from `extra=` or from this filter on the other side of a queue, keeps
    it. So with a QueueHandler add the filter to that handler, because the listener runs on another
    thread. ``attribute`` is the name of the attribute. Records of loggers that are not below
    ``name`` are dropped, as by logging.Filter; the default passes all.
    """

    def __init__(self, name: str = "", *, attribute: str = "fiber") -> None:
        super().__init__(name)
        if not isinstance(attribute, str):
            raise TypeError(f"attribute must be a str, not {type(attribute).__name__!r}")
        if attribute in logging.makeLogRecord({}).__dict__ or attribute in ("message", "asctime"):
            raise ValueError(f"every log record has its own {attribute!r}: choose another name")
        self.attribute = attribute

    def filter(self, record: logging.LogRecord) -> bool:
        """Put the fiber's name into the record; false if the record is dropped."""
        if self.attribute not in record.__dict__:
            record.__dict__[self.attribute] = name_here()
        return self.nlen == 0 or bool(super().filter(record))


def name_here() -> str:
    """The name of the grain or fiber that runs; NOWHERE on a thread's own stack."""
    grain = current_grain()
    name = _name_here() if grain is None else grain.name
    return NOWHERE if name is None else _words.clean(name)
