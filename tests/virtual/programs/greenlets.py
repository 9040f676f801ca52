"""Threads whose greenlets wait, as those of SQLAlchemy's asyncio extension do."""

import threading
import time

import greenlet

THREADS, ROUNDS = 20, 5
seen = []


def count(number):
    for n in range(ROUNDS):
        time.sleep(0.001)
        me = greenlet.getcurrent()
        assert me.parent.switch(number, n, me) == n
    return "end"


def work(number):
    above = greenlet.getcurrent()
    mine = greenlet.greenlet(count)
    for n in range(ROUNDS):
        assert mine.switch(*([n - 1] if n else [number])) == (number, n, mine)
        time.sleep(0.001)
        assert greenlet.getcurrent() is above
    assert mine.switch(ROUNDS - 1) == "end"
    assert mine.dead
    seen.append(above)


threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len({greenlet.getcurrent(), *seen}) == THREADS + 1
print("done")
