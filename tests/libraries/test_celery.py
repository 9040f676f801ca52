"""pyfiber.celery.TaskPool in Celery's worker, over Redis, as its users start it."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.libraries.acts import need
from tests.libraries.services import PATIENCE, Service, end, until

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="the broker is Debian's"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning"),  # theirs
]


class Workers:
    """Starts workers, and is their client."""

    def __init__(self, folder: Path, redis: Service) -> None:
        self.folder = folder
        self.environment = {
            **os.environ,
            "TASKS_FOLDER": str(folder),
            "TASKS_REDIS": str(redis.port),
            "CELERY_CUSTOM_WORKER_POOL": "pyfiber.celery:TaskPool",
        }

    @property
    def log(self) -> str:
        return Path(self.folder, "log").read_text()

    @contextlib.contextmanager
    def worker(self, *options: str) -> Iterator[subprocess.Popen[bytes]]:
        command = [sys.executable, "-m", "celery", "-A", "tests.libraries.celery_program", "worker"]
        command += ["--pool", "custom", "--concurrency", "100", "--loglevel", "INFO"]
        command += ["--without-mingle", "--without-gossip", *options]
        with open(self.folder / "log", "a") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, env=self.environment)
        try:
            until(lambda: process.poll() is not None or " ready." in self.log)
            assert process.poll() is None, self.log
            yield process
        finally:
            end(process)

    def there(self, pattern: str) -> int:
        return len(list(self.folder.glob(pattern)))

    def open(self) -> None:
        Path(self.folder, "open").touch()


@pytest.fixture
def workers(tmp_path: Path, request: pytest.FixtureRequest) -> Workers:
    need("celery", "redis")
    import redis

    redis_server: Service = request.getfixturevalue("redis_server")
    with redis.Redis(port=redis_server.port) as client:
        client.flushall()
    return Workers(tmp_path, redis_server)


@pytest.fixture
def tasks(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    for name in ("TASKS_FOLDER", "TASKS_REDIS"):
        monkeypatch.setenv(name, workers.environment[name])
    monkeypatch.delitem(sys.modules, "tests.libraries.celery_program", raising=False)
    module = importlib.import_module("tests.libraries.celery_program")
    yield module
    module.app.close()
    sys.modules.pop("tests.libraries.celery_program", None)


def get(result: Any) -> Any:
    return result.get(timeout=PATIENCE)


def test_tasks_run_in_fibers_and_give_results(workers: Workers, tasks: Any) -> None:
    with workers.worker():
        assert get(tasks.in_a_fiber.delay()) is True
        assert get(tasks.add.delay(2, 3)) == 5
        with pytest.raises(ValueError, match="the task's own"):
            get(tasks.fail.delay())
        assert get(tasks.in_the_end.delay()) == 2


def test_task_that_would_end_the_process_takes_no_other_along(workers: Workers, tasks: Any) -> None:
    from celery.exceptions import WorkerLostError

    with workers.worker("--concurrency", "1"):
        for _ in range(3):
            with pytest.raises(WorkerLostError, match="SystemExit"):
                get(tasks.leave.delay("process"))
            tasks.leave.delay("worker").forget()
            assert get(tasks.add.delay(2, 3)) == 5


def test_tasks_that_come_of_tasks_give_results(workers: Workers, tasks: Any) -> None:
    from celery import chain, chord, group

    with workers.worker():
        pairs = [tasks.add.s(number, 1) for number in range(20)]
        assert get(group(pairs)()) == list(range(1, 21))
        assert get(chain(tasks.add.s(1, 2), tasks.add.s(3))()) == 6
        assert get(chord(pairs)(tasks.total.s())) == 210
        results = [tasks.total_of_others.delay(5) for _ in range(20)]
        assert [get(result) for result in results] == [[1, 2, 3, 4, 5]] * 20


@pytest.mark.slow
def test_task_with_a_time_of_its_own_waits_for_that(workers: Workers, tasks: Any) -> None:
    with workers.worker():
        late = [tasks.add.apply_async((number, 0), countdown=0.3) for number in range(50)]
        never = tasks.add.apply_async((1, 1), countdown=3600)
        assert [get(result) for result in late] == list(range(50))
        inspect = tasks.app.control.inspect(timeout=60, limit=1)
        scheduled = next(iter(inspect.scheduled().values()))
        assert [each["request"]["id"] for each in scheduled] == [never.id]
        never.forget()


@pytest.mark.slow
def test_a_thousand_tasks_wait_at_once_in_one_worker(workers: Workers, tasks: Any) -> None:
    with workers.worker("--concurrency", "1000"):
        results = [tasks.until_open.delay(number) for number in range(1000)]
        until(lambda: workers.there("inside.*") == 1000)
        workers.open()
        assert [get(result) for result in results] == [result.id for result in results]


@pytest.mark.slow
def test_no_more_tasks_run_than_the_concurrency(workers: Workers, tasks: Any) -> None:
    with workers.worker("--concurrency", "3", "--prefetch-multiplier", "4"):
        results = [tasks.until_open.delay(number) for number in range(20)]
        until(lambda: workers.there("inside.*") == 3)
        inspect = tasks.app.control.inspect(timeout=60, limit=1)
        pool = next(iter(inspect.stats().values()))["pool"]
        assert (pool["running"], pool["max-concurrency"]) == (3, 3)
        waiting = next(iter(inspect.reserved().values()))
        assert len(waiting) == 12  # as many as the multiplier allows, and no more
        assert workers.there("inside.*") == 3
        workers.open()
        assert [get(result) for result in results] == [result.id for result in results]


def test_revoked_task_is_cancelled(workers: Workers, tasks: Any) -> None:
    with workers.worker():
        result = tasks.until_open.delay(1)
        until(lambda: workers.there("inside.*") == 1)
        result.revoke(terminate=True)
        with pytest.raises(Exception, match="terminated"):
            get(result)
        until(lambda: workers.there("left.1") == 1)
        assert get(tasks.add.delay(2, 3)) == 5


def test_task_beyond_its_time_limit_ends(workers: Workers, tasks: Any) -> None:
    from celery.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded

    with workers.worker():
        with pytest.raises(TimeLimitExceeded):
            get(tasks.hard.delay())
        until(lambda: workers.there("hard ended") == 1)
        with pytest.raises(SoftTimeLimitExceeded):
            get(tasks.soft.delay())
        until(lambda: workers.there("soft ended") == 1)


def test_worker_that_lost_its_broker_goes_on_when_it_is_back(
    workers: Workers, tasks: Any, redis_server: Service
) -> None:
    import redis

    with workers.worker() as process, redis.Redis(port=redis_server.port) as client:
        descriptors = f"/proc/{process.pid}/fd"
        running = tasks.until_open.delay(1)
        until(lambda: workers.there("inside.*") == 1)
        before = len(os.listdir(descriptors))
        for turn in range(1, 6):
            client.execute_command("CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "YES")
            until(lambda turn=turn: workers.log.count("onnection to broker lost") == turn)  # type: ignore[misc]
            assert get(tasks.add.delay(2, turn)) == 2 + turn
        assert len(os.listdir(descriptors)) < before + 5
        workers.open()
        assert get(running) == running.id


def test_warm_shutdown_waits_for_the_tasks(workers: Workers, tasks: Any) -> None:
    with workers.worker() as process:
        result = tasks.until_open.delay(1)
        until(lambda: workers.there("inside.*") == 1)
        process.send_signal(signal.SIGTERM)
        until(lambda: "Warm shutdown" in workers.log)
        workers.open()
        assert get(result) == result.id
        assert process.wait(PATIENCE) == 0


def test_cold_shutdown_cancels_the_tasks_and_late_ones_come_again(
    workers: Workers, tasks: Any
) -> None:
    with workers.worker() as process:
        result = tasks.late.delay(1)
        until(lambda: workers.there("begun.1") == 1)
        process.send_signal(signal.SIGQUIT)
        process.wait(PATIENCE)
    workers.open()
    Path(workers.folder, "log").unlink()
    with workers.worker():
        assert get(result) == 1
        assert Path(workers.folder, "begun.1").read_text() == "xx"


@pytest.mark.slow
def test_soft_shutdown_gives_tasks_the_time_to_end(workers: Workers, tasks: Any) -> None:
    workers.environment["TASKS_SOFT_SHUTDOWN"] = "2"
    with workers.worker() as process:
        result = tasks.late.delay(1)
        until(lambda: workers.there("begun.1") == 1)
        process.send_signal(signal.SIGQUIT)
        until(lambda: "Initiating Soft Shutdown" in workers.log)
        workers.open()
        assert get(result) == 1


@pytest.mark.slow
def test_late_tasks_of_a_killed_worker_come_again(workers: Workers, tasks: Any) -> None:
    with workers.worker() as process:
        results = [tasks.late.delay(number) for number in range(50)]
        until(lambda: workers.there("begun.*") == 50)
        process.kill()
        process.wait()
    workers.open()
    Path(workers.folder, "log").unlink()
    with workers.worker():
        assert [get(result) for result in results] == list(range(50))
