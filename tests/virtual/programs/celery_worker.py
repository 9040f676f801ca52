"""A Celery worker with its pool of threads, the broker in memory, on the main thread."""

import os
import signal
import threading
import traceback

from celery import Celery, current_task, group

TASKS = 20
together = threading.Barrier(TASKS)
app = Celery("tasks", broker="memory://", backend="cache+memory://")
app.conf.update(worker_hijack_root_logger=False, worker_redirect_stdouts=False)


@app.task
def wait_together(number):
    together.wait(60)
    return number, current_task.request.id, threading.current_thread().name


@app.task
def fail():
    raise ValueError("its own")


@app.task(bind=True, max_retries=3)
def in_the_end(self):
    if self.request.retries < 2:
        raise self.retry(countdown=0.01)
    return self.request.retries


def get(result, **options):
    # The process of the worker counts as a task, whichever thread asks.
    return result.get(timeout=60, disable_sync_subtasks=False, **options)


def use():
    results = [wait_together.delay(number) for number in range(TASKS)]
    found = [get(result) for result in results]
    assert [(number, ident) for number, ident, _ in found] == [
        (number, result.id) for number, result in enumerate(results)
    ]
    assert len({name for _, _, name in found}) == TASKS
    assert isinstance(get(fail.delay(), propagate=False), ValueError)
    assert get(in_the_end.delay()) == 2
    together_again = group(wait_together.s(number) for number in range(TASKS))()
    assert len(get(together_again)) == TASKS
    print("done", flush=True)


def client():
    try:
        use()
    except BaseException:
        traceback.print_exc()
    os.kill(os.getpid(), signal.SIGTERM)


threading.Thread(target=client).start()
options = ["--pool", "threads", "--concurrency", str(TASKS), "--without-mingle"]
app.worker_main(["worker", *options, "--loglevel", "ERROR"])
