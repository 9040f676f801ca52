"""The tasks of test_celery.py, and the application that they belong to."""

from __future__ import annotations

import os
import pathlib
import time

from celery import Celery, current_task, group
from celery.exceptions import SoftTimeLimitExceeded, WorkerShutdown

import pyfiber

HERE = pathlib.Path(os.environ["TASKS_FOLDER"])
BROKER = f"redis://127.0.0.1:{os.environ['TASKS_REDIS']}"

app = Celery("tasks", broker=f"{BROKER}/0", backend=f"{BROKER}/1")
app.conf.update(
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    broker_transport_options={
        "visibility_timeout": 3,
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    },
    result_backend_always_retry=False,
    worker_soft_shutdown_timeout=float(os.environ.get("TASKS_SOFT_SHUTDOWN", 0)),
)
POLL = 0.2


@app.task
def add(left, right):
    return left + right


@app.task
def total(numbers):
    return sum(numbers)


@app.task
def total_of_others(number):
    """A task that waits for others; they run in the same worker."""
    return group(add.s(each, 1) for each in range(number))().get(disable_sync_subtasks=False)


@app.task
def fail():
    raise ValueError("the task's own")


@app.task
def leave(kind):
    raise (SystemExit if kind == "process" else WorkerShutdown)(3)


def wait_for(name):
    while not (HERE / name).exists():
        time.sleep(POLL)


@app.task(bind=True)
def until_open(self, number):
    """What is common to a thread must not get lost while another task runs."""
    (HERE / f"inside.{number}").touch()
    try:
        wait_for("open")
    finally:
        (HERE / f"left.{number}").touch()
    assert current_task.request.id == self.request.id
    return self.request.id


@app.task(acks_late=True, reject_on_worker_lost=True)
def late(number):
    with open(HERE / f"begun.{number}", "a") as file:
        file.write("x")
    wait_for("open")
    return number


@app.task(time_limit=0.2)
def hard():
    try:
        time.sleep(1000)
    finally:
        (HERE / "hard ended").touch()


@app.task(soft_time_limit=0.2, autoretry_for=(SoftTimeLimitExceeded,), max_retries=0)
def soft():
    try:
        time.sleep(1000)
    finally:
        (HERE / "soft ended").touch()


@app.task(bind=True, max_retries=5)
def in_the_end(self):
    if self.request.retries < 2:
        raise self.retry(countdown=0.05)
    return self.request.retries


@app.task
def in_a_fiber():
    return pyfiber.current_scheduler() is not None
