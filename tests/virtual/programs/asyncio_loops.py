"""A loop of asyncio's in each thread, made by asyncio.run(), by a factory, and by hand."""

import asyncio
import signal
import threading
import time

THREADS = 10
found = []


async def answers(number):
    loop = asyncio.get_running_loop()
    asked = threading.current_thread()
    slept = [asyncio.to_thread(time.sleep, 0.01) for _ in range(5)]
    await asyncio.gather(*slept, loop.run_in_executor(None, time.sleep, 0.01))
    begin = time.monotonic()
    while time.monotonic() - begin < 0.02:
        pass  # is interrupted, so that another thread's loop runs
    assert asyncio.get_running_loop() is loop
    assert threading.current_thread() is asked
    return number


def run(number):
    found.append(asyncio.run(answers(number)))


def run_by_factory(number):
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        found.append(runner.run(answers(number)))


def run_by_hand(number):
    loop = asyncio.SelectorEventLoop()
    try:
        found.append(loop.run_until_complete(answers(number)))
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


async def signalled():
    got = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, got.set)
    timer = threading.Timer(0.02, signal.raise_signal, (signal.SIGUSR1,))
    timer.start()
    await got.wait()
    timer.join()


ways = (run, run_by_factory, run_by_hand)
threads = [
    threading.Thread(target=ways[number % 3], args=(number,)) for number in range(3 * THREADS)
]
for thread in threads:
    thread.start()
with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
    runner.run(signalled())
for thread in threads:
    thread.join()
assert sorted(found) == list(range(3 * THREADS)), found
print("done")
