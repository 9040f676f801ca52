"""concurrent.futures: ten thousand workers, and what else pools and futures can do."""

import concurrent.futures
import threading
import time
from concurrent.futures import ThreadPoolExecutor

WORKERS = 10_000


def wait_together(number):
    together.wait(60)
    return number


together = threading.Barrier(WORKERS)
with ThreadPoolExecutor(max_workers=WORKERS) as pool:
    futures = [pool.submit(wait_together, number) for number in range(WORKERS)]
    done, not_done = concurrent.futures.wait(futures)
    assert not not_done
    assert sorted(future.result() for future in done) == list(range(WORKERS))

local = threading.local()


def initialize(value):
    local.value = value


def fail():
    raise ValueError("its own")


with ThreadPoolExecutor(4, "worker", initialize, (17,)) as pool:
    assert pool.submit(lambda: local.value).result() == 17
    assert pool.submit(lambda: threading.current_thread().name).result().startswith("worker_")
    assert list(pool.map(pow, range(10), [2] * 10)) == [number * number for number in range(10)]
    assert isinstance(pool.submit(fail).exception(), ValueError)
    opened = threading.Event()
    late = pool.submit(opened.wait)
    try:
        late.result(timeout=0.01)
    except concurrent.futures.TimeoutError:
        pass
    else:
        raise AssertionError("result() did not time out")
    quick = [pool.submit(time.sleep, 0.001) for _ in range(10)]
    assert set(concurrent.futures.as_completed(quick)) == set(quick)
    first, rest = concurrent.futures.wait(
        [late, pool.submit(fail)], return_when=concurrent.futures.FIRST_EXCEPTION
    )
    assert rest == {late}
    assert len(first) == 1
    called = []
    late.add_done_callback(called.append)
    opened.set()
    assert late.result() is True
assert called == [late]

opened.clear()
pool = ThreadPoolExecutor(1)
running, queued = pool.submit(opened.wait), pool.submit(print, "never")
pool.shutdown(wait=False, cancel_futures=True)
assert queued.cancelled()
assert not running.done()
opened.set()
assert running.result() is True
pool.shutdown()

# The exit of the program waits for this pool.
ThreadPoolExecutor(2).submit(lambda: (time.sleep(0.05), print("done", flush=True)))
