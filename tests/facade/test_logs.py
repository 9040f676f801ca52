"""`LogFilter`: the fiber's name in log records."""

from __future__ import annotations

import io
import logging
import logging.config
import logging.handlers
import queue
from collections.abc import Iterator
from typing import Any

import pytest

from pyfiber import Fiber, run, to_thread
from pyfiber.debug import LogFilter
from pyfiber.grains import Grain
from tests.support.threads import in_thread

FORMAT = "%(fiber)s: %(message)s"


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    made = logging.getLogger("tests.facade.logs")
    made.setLevel(logging.INFO)
    made.propagate = False
    yield made
    for handler in list(made.handlers):
        made.removeHandler(handler)
        handler.close()


def stream_of(logger: logging.Logger, *filters: logging.Filter) -> io.StringIO:
    """What a handler with these filters writes."""
    handler = logging.StreamHandler(io.StringIO())
    handler.setFormatter(logging.Formatter(FORMAT))
    for each in filters:
        handler.addFilter(each)
    logger.addHandler(handler)
    return handler.stream


def test_record_has_the_name_of_its_fiber(logger: logging.Logger) -> None:
    text = stream_of(logger, LogFilter())

    def main() -> None:
        for name in ("first", "second"):
            Fiber(logger.info, (f"by {name}",), name=name).start().join()

    logger.info("before")
    run(main)
    assert text.getvalue() == "-: before\nfirst: by first\nsecond: by second\n"


def test_name_that_is_changed_is_the_new_one(logger: logging.Logger) -> None:
    text = stream_of(logger, LogFilter())

    def renames() -> None:
        fiber.name = "request 7"
        logger.info("x")

    def main() -> None:
        fiber.start().join()

    fiber = Fiber(renames, name="connection")
    run(main)
    assert text.getvalue() == "request 7: x\n"


def test_raw_fiber_and_grain_have_names_and_threads_have_none(logger: logging.Logger) -> None:
    text = stream_of(logger, LogFilter())

    def grain() -> Iterator[None]:
        logger.info("grain")
        yield

    def main() -> None:
        Grain(grain, name="corn").start().join()
        to_thread(logger.info, "worker")

    raw: Fiber[object] = Fiber(logger.info, ("raw",), name="bare")
    raw.switch()
    run(main)
    in_thread(lambda: logger.info("thread"))
    assert text.getvalue() == "bare: raw\ncorn: grain\n-: worker\n-: thread\n"


def test_listener_of_a_queue_keeps_the_name_from_where_it_was_logged(
    logger: logging.Logger,
) -> None:
    records: queue.SimpleQueue[object] = queue.SimpleQueue()
    handler = logging.handlers.QueueHandler(records)  # type: ignore[arg-type]
    handler.addFilter(LogFilter())
    logger.addHandler(handler)
    out = logging.StreamHandler(io.StringIO())
    out.setFormatter(logging.Formatter(FORMAT))
    out.addFilter(LogFilter())  # there for what comes by other ways
    listener = logging.handlers.QueueListener(records, out)  # type: ignore[arg-type]
    listener.start()
    run(lambda: Fiber(logger.info, ("x",), name="worker").start().join())
    listener.stop()
    assert out.stream.getvalue() == "worker: x\n"


def test_attribute_that_a_record_has_already_is_kept(logger: logging.Logger) -> None:
    text = stream_of(logger, LogFilter())
    logger.info("x", extra={"fiber": "optical"})
    assert text.getvalue() == "optical: x\n"


def test_attribute_may_have_another_name() -> None:
    record = logging.makeLogRecord({})
    assert LogFilter(attribute="where").filter(record)
    assert record.where == "-"
    assert not hasattr(record, "fiber")


@pytest.mark.parametrize("attribute", ["msg", "threadName", "args", "message", "asctime"])
def test_attribute_of_every_record_is_refused(attribute: str) -> None:
    """A formatter sets the last two: a fiber's name there would never be seen."""
    with pytest.raises(ValueError, match=f"every log record has its own '{attribute}'"):
        LogFilter(attribute=attribute)


@pytest.mark.parametrize("attribute", [None, 3, b"fiber"])
def test_attribute_that_is_no_name_is_refused(attribute: Any) -> None:
    with pytest.raises(TypeError, match="attribute must be a str, not '"):
        LogFilter(attribute=attribute)


def test_filter_by_name_works_as_with_logging() -> None:
    wanted = LogFilter("a.b")
    for name, passes in (("a.b", True), ("a.b.c", True), ("a", False), ("a.bc", False)):
        record = logging.makeLogRecord({"name": name})
        assert wanted.filter(record) is passes
        assert record.fiber == "-"


def test_filter_in_a_configuration() -> None:
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "filters": {"fiber": {"()": "pyfiber.debug.LogFilter"}},
            "formatters": {"short": {"format": FORMAT}},
            "handlers": {
                "here": {
                    "class": "logging.handlers.MemoryHandler",
                    "capacity": 10,
                    "filters": ["fiber"],
                    "formatter": "short",
                }
            },
            "loggers": {"tests.facade.configured": {"handlers": ["here"], "level": "INFO"}},
        }
    )
    logger = logging.getLogger("tests.facade.configured")
    [handler] = logger.handlers
    assert isinstance(handler, logging.handlers.MemoryHandler)
    run(lambda: Fiber(logger.info, ("x",), name="configured").start().join())
    [record] = handler.buffer
    assert handler.format(record) == "configured: x"
    handler.buffer.clear()
    logger.removeHandler(handler)
    handler.close()
