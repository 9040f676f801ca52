"""APScheduler: a scheduler in a thread of its own, jobs in a pool."""

import datetime
import threading

from apscheduler.schedulers.background import BackgroundScheduler

JOBS = 5
times = threading.Semaphore(0)
together = threading.Barrier(JOBS + 1)
failures = []
scheduler = BackgroundScheduler(timezone=datetime.UTC)


def fail():
    raise ValueError("its own")


scheduler.add_listener(lambda event: failures.append(event.exception), 1 << 13)
scheduler.start()
scheduler.add_job(times.release, "interval", seconds=0.05, id="often")
for _ in range(JOBS):
    scheduler.add_job(together.wait, "date", args=(60,))
scheduler.add_job(fail)
for _ in range(5):
    assert times.acquire(timeout=60)
together.wait(60)
scheduler.remove_job("often")
scheduler.shutdown(wait=True)
assert [type(failure) for failure in failures] == [ValueError]
print("done")
