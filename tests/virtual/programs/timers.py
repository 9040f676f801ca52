"""threading.Timer, sched, and waits with time-outs."""

import sched
import threading
import time

fired = []
timers = [threading.Timer(0.05 - number / 1000, fired.append, (number,)) for number in range(20)]
cancelled = threading.Timer(0.03, fired.append, ("cancelled",))
for timer in (*timers, cancelled):
    timer.start()
cancelled.cancel()
for timer in (*timers, cancelled):
    timer.join()
assert sorted(fired) == list(range(20)), fired

told = []
scheduler = sched.scheduler(time.monotonic, time.sleep)
scheduler.enter(0.02, 1, told.append, ("second",))
scheduler.enter(0.01, 1, told.append, ("first",))
never = scheduler.enter(0.015, 1, told.append, ("never",))
thread = threading.Thread(target=scheduler.run)
thread.start()
scheduler.cancel(never)
thread.join()
assert told == ["first", "second"], told

condition = threading.Condition()
begin = time.monotonic()
with condition:
    assert not condition.wait(0.02)
    assert not condition.wait_for(lambda: False, 0.02)
assert not threading.Event().wait(0.02)
assert not threading.Semaphore(0).acquire(timeout=0.02)
lock = threading.Lock()
lock.acquire()
assert not lock.acquire(timeout=0.02)
assert time.monotonic() - begin >= 0.1
sleeper = threading.Thread(target=time.sleep, args=(0.1,))
sleeper.start()
sleeper.join(0.01)
assert sleeper.is_alive()
sleeper.join()
print("done")
