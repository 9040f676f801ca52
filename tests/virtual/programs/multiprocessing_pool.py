"""multiprocessing.pool.ThreadPool, and the threads of multiprocessing.dummy."""

import multiprocessing.dummy
import threading
import time
from multiprocessing.pool import ThreadPool

WORKERS = 50
together = threading.Barrier(WORKERS)


def wait_together(number):
    together.wait(60)
    return number


def fail():
    raise ValueError("its own")


with ThreadPool(WORKERS) as pool:
    assert pool.map(wait_together, range(WORKERS), chunksize=1) == list(range(WORKERS))
    assert sorted(pool.imap_unordered(abs, range(-100, 0))) == list(range(1, 101))
    assert list(pool.imap(abs, range(-100, 0), 7)) == list(range(100, 0, -1))
    assert pool.starmap(pow, [(2, 3), (3, 2)]) == [8, 9]
    errors = []
    failed = pool.apply_async(fail, error_callback=errors.append)
    failed.wait(60)
    assert not failed.successful()
    assert isinstance(errors[0], ValueError)
    late = pool.apply_async(time.sleep, (0.2,))
    try:
        late.get(timeout=0.01)
    except multiprocessing.TimeoutError:
        pass
    else:
        raise AssertionError("get() did not time out")

pool = ThreadPool(3, print, ("worker",))
results = [pool.apply_async(pow, (number, 2)) for number in range(10)]
pool.close()
pool.join()
assert [result.get() for result in results] == [number**2 for number in range(10)]

found = []
process = multiprocessing.dummy.Process(target=found.append, args=(1,))
process.start()
process.join()
assert found == [1]
print("done")
