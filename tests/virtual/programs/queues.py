"""Producers and consumers, over each kind of queue."""

import collections
import queue
import threading

PRODUCERS, CONSUMERS, ITEMS = 20, 30, 200


def run_all(threads):
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def produce(channel, producer):
    for number in range(ITEMS):
        channel.put((number, producer))


def consume(channel, found):
    while (item := channel.get())[0] != float("inf"):
        found[item] += 1
        if hasattr(channel, "task_done"):
            channel.task_done()


def exchange(channel):
    found = collections.Counter()
    consumers = [threading.Thread(target=consume, args=(channel, found)) for _ in range(CONSUMERS)]
    for thread in consumers:
        thread.start()
    run_all([threading.Thread(target=produce, args=(channel, n)) for n in range(PRODUCERS)])
    if hasattr(channel, "join"):
        channel.join()
    for _ in consumers:
        channel.put((float("inf"), 0))
    for thread in consumers:
        thread.join()
    assert found == {(n, p): 1 for n in range(ITEMS) for p in range(PRODUCERS)}


exchange(queue.Queue())
exchange(queue.Queue(maxsize=1))
exchange(queue.PriorityQueue(maxsize=7))
exchange(queue.SimpleQueue())
lifo = queue.LifoQueue(maxsize=3)
exchange(lifo)
try:
    lifo.get(timeout=0.01)
except queue.Empty:
    print("done")
