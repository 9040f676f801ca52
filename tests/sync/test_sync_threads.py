"""Primitives between threads: plain ones and ones that run a scheduler; signals, fork, exit."""

from __future__ import annotations

import os
import random
import sys
import threading
import time

import pytest

from pyfiber import (
    Cancelled,
    Channel,
    Condition,
    Event,
    Fiber,
    Lock,
    Queue,
    RLock,
    Semaphore,
    current,
    run,
    select,
    sleep,
    spawn,
    yield_now,
)
from tests.support.threads import PATIENCE, in_thread

posix = pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals and fork")


def start(fn, *args):
    thread = threading.Thread(target=fn, args=args)
    thread.start()
    return thread


def wait_until(condition):
    """Until another thread has got there."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.0005)


@pytest.mark.parametrize("make", [Lock, RLock, Semaphore])
def test_lock_is_handed_over_between_threads_in_order(make):
    lock, order = make(), []
    lock.acquire()

    def plain(name):
        with lock:
            order.append(name)

    def with_a_run(name):
        run(plain, name)

    threads = []
    for i, body in enumerate([plain, with_a_run] * 3):
        threads.append(start(body, i))
        wait_until(lambda i=i: len(lock._waiters()) == i + 1)
    lock.release()
    for thread in threads:
        thread.join()
    assert order == list(range(6))
    assert lock.acquire(blocking=False)


def test_rlock_owner_is_the_threads_own_fiber():
    lock = RLock()
    lock.acquire()
    assert lock._holders() == [current()]
    assert in_thread(lock._is_owned) is False
    with pytest.raises(RuntimeError, match="another fiber or thread"):
        in_thread(lock.release)
    lock.release()


def test_rlock_of_a_dead_thread_is_not_inherited_by_another():
    lock = RLock()
    in_thread(lock.acquire)
    for _ in range(10):
        assert in_thread(lambda: lock.acquire(blocking=False)) is False
    assert lock._holders() == []


def test_wake_up_from_another_thread_that_comes_late_wakes_nobody_else():
    """The waiter noticed by its own timer; the message finds it in another wait."""

    def main():
        for _ in range(200):
            event, other = Event(), Event()
            thread = start(event.set)
            event.wait(random.random() / 1000)
            assert other.wait(0.0005) is False
            thread.join()

    run(main)


def test_wake_up_posted_to_a_raw_fiber_that_is_over():
    """It waited in the run; the post from the other thread arrives after its end."""

    def main():
        for _ in range(100):
            queue = Queue()
            got = []

            def body(queue=queue, got=got):
                try:
                    got.append(queue.get(timeout=0.0003))
                except BaseException as error:
                    got.append(error)

            thread = start(queue.put, 1)
            raw = Fiber(body)
            raw.switch()
            del raw
            thread.join()
            assert len(got) == 1
            assert got[0] == 1 or queue.get(timeout=PATIENCE) == 1

    run(main)


def test_fiber_cancelled_while_another_thread_serves_it():
    """Each permit is taken or still there; none is lost between the two."""
    semaphore = Semaphore(0)
    rounds = 300
    taken = []

    def main():
        def body():
            semaphore.acquire()
            taken.append(1)

        thread = start(lambda: [semaphore.release() or time.sleep(0) for _ in range(rounds)])
        while thread.is_alive() or semaphore._value:
            fibers = [spawn(body) for _ in range(3)]
            sleep(0)
            for fiber in fibers:
                fiber.cancel()
            for fiber in fibers:
                fiber.join()
        thread.join()

    run(main)
    left = 0
    while semaphore.acquire(blocking=False):
        left += 1
    assert len(taken) + left == rounds


@pytest.mark.parametrize("kind", ["Queue", "Channel", "select"])
def test_values_between_threads_are_neither_lost_nor_doubled(kind):
    """Fibers of several threads and plain threads; some give up now and then."""
    pipe = Queue(3) if kind == "Queue" else Channel(2)
    never = Channel()
    per_sender, got, sent = 60, [], []

    def put(value):
        if kind == "Queue":
            pipe.put(value, timeout=(None, 0.0005)[value % 2])
        elif kind == "Channel":
            pipe.send(value, timeout=(None, 0.0005)[value % 2])
        elif select(pipe.sending(value), never.receiving(), timeout=0.001) is None:
            raise TimeoutError

    def get():
        if kind == "Queue":
            return pipe.get(timeout=0.001)
        if kind == "Channel":
            return pipe.receive(timeout=0.001)
        result = select(never.receiving(), pipe.receiving(), timeout=0.001)
        if result is None:
            raise TimeoutError
        return result[1]

    from queue import Empty, Full

    def send(base):
        for i in range(per_sender):
            while True:
                try:
                    put(base + i)
                except (Full, TimeoutError):
                    continue
                sent.append(base + i)
                break

    def receive():
        while len(got) < len(sent) or senders_left():
            try:
                got.append(get())
            except (Empty, TimeoutError):
                continue

    def fibers(fn, *groups):
        def main():
            for fiber in [spawn(fn, *arguments) for arguments in groups]:
                fiber.result()

        run(main)

    senders = [
        start(send, 1000),
        start(fibers, send, (2000,), (3000,)),
        start(fibers, send, (4000,), (5000,)),
    ]

    def senders_left():
        return any(thread.is_alive() for thread in senders)

    receivers = [start(receive), start(fibers, receive, (), ()), start(fibers, receive, ())]
    for thread in senders + receivers:
        thread.join()
    assert sorted(got) == sorted(sent)
    assert len(set(got)) == 5 * per_sender


WAITS = {
    "lock": (Lock, lambda lock: lock.acquire(timeout=0.01), Lock.release, True),
    "semaphore": (
        lambda: Semaphore(0),
        lambda semaphore: semaphore.acquire(timeout=0.01),
        Semaphore.release,
        True,
    ),
    "event": (Event, lambda event: event.wait(0.01), Event.set, True),
    "queue": (Queue, lambda queue: queue.get(timeout=0.01), lambda queue: queue.put(1), 1),
    "channel": (
        Channel,
        lambda channel: channel.receive(timeout=0.01),
        lambda channel: channel.send(1, timeout=0),
        1,
    ),
    "select": (
        Channel,
        lambda channel: select(channel.receiving(), timeout=0.01)[1],
        lambda channel: channel.send(1, timeout=0),
        1,
    ),
}


def wait_in_thread(wait, made, got):
    def body():
        try:
            got.append(wait(made))
        except Exception as error:
            got.append(error)

    return start(body)


def give_too_late(made, wait, give):
    """What the wait ended with; None if its time was over before this thread saw it begin."""
    got = []
    waiter = wait_in_thread(wait, made, got)
    while not made._waiters():
        if not waiter.is_alive():
            return None
        time.sleep(0)
    end = time.monotonic() + 0.05
    while time.monotonic() < end:
        pass
    if not made._waiters():
        return None
    give(made)
    waiter.join()
    return got[0]


@pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="no thread can keep the interpreter"
)
@pytest.mark.parametrize("in_a_run", [False, True])
@pytest.mark.parametrize("what", WAITS)
def test_what_comes_after_the_timeout_and_before_the_waiter_looks_is_not_lost(what, in_a_run):
    """The waiter's time is over, and it waits for the interpreter, which this thread keeps."""
    make, wait, give, expected = WAITS[what]
    made = make()
    if what == "lock":
        made.acquire()
    result, before = None, sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        while result is None:
            waits = (lambda made: run(wait, made)) if in_a_run else wait
            result = give_too_late(made, waits, give)
    finally:
        sys.setswitchinterval(before)
    assert result == expected


def test_threads_with_runs_pass_a_baton():
    """Wake-ups from thread to thread, each of which may come while the other goes to sleep."""
    count, rounds = 4, 50
    channels = [Channel() for _ in range(count)]

    def player(me):
        for _ in range(rounds):
            value = channels[me].receive()
            if value < count * rounds:
                channels[(me + 1) % count].send(value + 1)

    threads = [start(run, player, i) if i % 2 else start(player, i) for i in range(count)]
    channels[0].send(1)
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def test_thread_that_sets_an_event_and_ends_is_no_deadlock(child):
    """Without a GIL it may do both between the loop's look for messages and that for threads."""
    child("""
        import _thread
        from pyfiber import Event, run

        def main():
            event = Event()
            _thread.start_new_thread(event.set, ())
            event.wait()

        for _ in range(1000):
            run(main)
    """)


def test_plain_thread_waiting_releases_the_gil():
    event = Event()
    thread = start(event.wait)
    wait_until(lambda: event._waiters())
    event.set()
    thread.join()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no descriptor to host it by")
def test_scheduler_hosted_elsewhere_is_told_of_a_wake_up():
    from pyfiber import Scheduler

    scheduler, event = Scheduler(), Event()
    fiber = scheduler.spawn(event.wait)
    scheduler.run_once()
    scheduler.fileno()
    event.set()
    scheduler.run_once(5)
    assert fiber.done()
    scheduler.close()


# signals -----------------------------------------------------------------------------------------

# The signal goes to the main thread itself, and again until it has been handled: one that comes
# just before a wait does not end it.
SIGNALLING = """
import signal, sys, threading, time, pyfiber

handled = 0

def until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.001)

def signal_main(handled):
    def send():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
        time.sleep(0.01)
        return handled()
    until(send)
"""


INTERRUPTED = (
    SIGNALLING
    + """
what = sys.argv[1]
lock = pyfiber.Lock(); lock.acquire()
channel, queue, condition = pyfiber.Channel(), pyfiber.Queue(), pyfiber.Condition()
event = pyfiber.Event()
things = lock, queue, channel, condition, event

def wait():
    if what == "lock": lock.acquire()
    elif what == "queue": queue.get()
    elif what == "channel": channel.receive()
    elif what == "select": pyfiber.select(channel.receiving(), channel.sending(1))
    elif what == "event": event.wait()
    elif what == "condition":
        with condition: condition.wait()

def handler(signum, frame):
    global handled
    if handled < 1:
        handled += 1
        raise KeyboardInterrupt

def interrupt():
    until(lambda: any(each._waiters() for each in things))
    signal_main(lambda: handled == 1)

signal.signal(signal.SIGUSR1, handler)
thread = threading.Thread(target=interrupt)
thread.start()
try:
    wait()
except KeyboardInterrupt:
    print("interrupted", *(each._waiters() for each in things))
thread.join()
"""
)


@posix
@pytest.mark.parametrize("what", ["lock", "queue", "channel", "select", "event", "condition"])
def test_ctrl_c_ends_the_wait_of_the_main_thread(child, what):
    done = child(INTERRUPTED, what)
    assert done.stdout == "interrupted [] [] [] [] []\n"


@posix
def test_signal_handler_may_wait_itself(child):
    """While the main thread waits for one thing its handler waits for another."""
    done = child(
        SIGNALLING
        + """
inner = pyfiber.Queue()

def handler(signum, frame):
    global handled
    if handled < 1:
        handled += 1
        print("handler", inner.get())

def other():
    until(outer._waiters)
    signal_main(lambda: inner._waiters())
    print("both wait")
    outer.release()
    inner.put("item")

outer = pyfiber.Lock()
outer.acquire()
signal.signal(signal.SIGUSR1, handler)
thread = threading.Thread(target=other)
thread.start()
print("outer", outer.acquire(timeout=60))
thread.join()
"""
    )
    assert done.stdout == "both wait\nhandler item\nouter True\n"


@posix
def test_item_given_while_a_signal_handler_raises_is_not_lost(child):
    done = child(
        SIGNALLING
        + """
queue = pyfiber.Queue()

def handler(signum, frame):
    global handled
    if handled < 1:
        handled += 1
        queue.put("item")
        raise KeyError("from the handler")

def other():
    until(queue._waiters)
    signal_main(lambda: handled == 1)

signal.signal(signal.SIGUSR1, handler)
thread = threading.Thread(target=other)
thread.start()
try:
    queue.get()
except KeyError:
    print(queue.qsize(), queue.get())
thread.join()
"""
    )
    assert done.stdout == "1 item\n"


@posix
@pytest.mark.parametrize("ends", ["interrupt", "notify"])
def test_second_ctrl_c_ends_even_the_wait_for_a_conditions_lock(child, ends):
    """The first waits until the lock is there again, so that it can be released properly."""
    done = child(
        SIGNALLING
        + """
def handler(signum, frame):
    global handled
    if handled < 2:  # others were sent while it ran
        handled += 1
        raise KeyboardInterrupt(handled)

def other():
    until(condition._waiters)
    with condition:
        if sys.argv[1] == "notify":
            condition.notify()
        for number in (1, 2):
            signal_main(lambda: handled == number)
        print("ended while the lock was taken:", ended.wait(20))

condition, ended = pyfiber.Condition(), threading.Event()
signal.signal(signal.SIGUSR1, handler)
condition.acquire()
thread = threading.Thread(target=other)
thread.start()
try:
    condition.wait()
except KeyboardInterrupt as exc:
    ended.set()
    print("interrupt", exc, condition._is_owned())
thread.join()
""",
        ends,
    )
    lines = ["ended while the lock was taken: True", "interrupt 2 False"]
    assert sorted(done.stdout.splitlines()) == lines


@posix
def test_first_ctrl_c_waits_for_a_conditions_lock(child):
    done = child(
        SIGNALLING
        + """
def handler(signum, frame):
    global handled
    if handled < 1:
        handled += 1
        raise KeyboardInterrupt(handled)

def other():
    until(condition._waiters)
    with condition:
        signal_main(lambda: handled == 1)
        until(lock._waiters)
        print("waits for the lock")

lock = pyfiber.RLock()
condition = pyfiber.Condition(lock)
signal.signal(signal.SIGUSR1, handler)
condition.acquire()
thread = threading.Thread(target=other)
thread.start()
try:
    condition.wait()
except KeyboardInterrupt as exc:
    print("interrupt", exc, condition._is_owned())
thread.join()
"""
    )
    assert done.stdout == "waits for the lock\ninterrupt 1 True\n"


# fork and exit -----------------------------------------------------------------------------------


@posix
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_fork_while_other_threads_wait(child):
    done = child("""
        import os, sys, threading, time, warnings, pyfiber

        warnings.simplefilter("ignore")
        lock, event, queue = pyfiber.RLock(), pyfiber.Event(), pyfiber.Queue()
        lock.acquire()
        threads = [
            threading.Thread(target=lock.acquire, daemon=True),
            threading.Thread(target=event.wait, daemon=True),
            threading.Thread(target=pyfiber.run, args=(queue.get,), daemon=True),
        ]
        for thread in threads:
            thread.start()
        while not (lock._waiters() and event._waiters() and queue._waiters()):
            time.sleep(0.001)
        pid = os.fork()
        if pid == 0:
            # Nobody waits here: the threads are gone.
            assert not (lock._waiters() or event._waiters() or queue._waiters())
            event.set()
            queue.put(1)
            assert queue.get() == 1
            lock.release()
            assert lock.acquire(blocking=False)
            lock._at_fork_reinit()
            assert not lock.locked()
            assert pyfiber.run(lock.acquire)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status))
        event.set()
        queue.put(1)
        lock.release()
        for thread in threads:
            thread.join()
    """)
    assert done.stdout == "0\n"


def test_exit_while_threads_and_fibers_wait(child):
    """Daemon threads die in their waits; what runs at exit may still use the primitives."""
    child("""
        import atexit, threading, time
        lock = None

        @atexit.register
        def last():
            lock.release()
            event.set()
            queue.put(1)

        import pyfiber

        lock, event, queue = pyfiber.Lock(), pyfiber.Event(), pyfiber.Queue()
        lock.acquire()
        for wait in (lock.acquire, event.wait, queue.get):
            threading.Thread(target=wait, daemon=True).start()
            threading.Thread(target=pyfiber.run, args=(wait,), daemon=True).start()
        while not (len(lock._waiters()) == len(event._waiters()) == len(queue._waiters()) == 2):
            time.sleep(0.001)
        scheduler = pyfiber.Scheduler()
        scheduler.spawn(queue.get)
        scheduler.run_once()
    """)


def test_primitives_alive_at_exit(child):
    child("""
        import pyfiber, sys

        class Last:
            def __init__(self, *things):
                self.things = things

            def __del__(self):
                lock, event, queue, channel, local = self.things
                lock.acquire(blocking=False)
                event.set()
                queue.put(self.things)
                channel.close()

        sys.last = Last(pyfiber.Lock(), pyfiber.Event(), pyfiber.Queue(), pyfiber.Channel(),
                        pyfiber.local())
        sys.last.things[4].x = sys.last
        sys.cycle = sys.last
    """)


# stress ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_everything_at_once_for_a_while():
    """Fibers of several threads and plain threads, with cancellations and timeouts throughout."""
    lock, semaphore, condition = RLock(), Semaphore(3), Condition()
    queue, channel = Queue(2), Channel(1)
    state = {"inside": 0}
    end = time.monotonic() + 5
    put, got = [], []

    def with_lock():
        with lock:
            state["inside"] += 1
            assert state["inside"] == 1
            try:
                if random.random() < 0.2:
                    sleep_anywhere(0.0001)
            finally:
                state["inside"] -= 1

    def with_semaphore():
        if semaphore.acquire(timeout=0.001):
            semaphore.release()

    def with_condition():
        with condition:
            condition.notify()
            condition.wait(0.001)
            assert condition._is_owned()

    def with_queue():
        value = random.random()
        try:
            queue.put(value, timeout=0.0005)
        except Exception:
            return
        put.append(value)

    def from_queue():
        try:
            got.append(queue.get(timeout=0.0005))
        except Exception:
            return

    def with_channel():
        value = random.random()
        match select(channel.sending(value), channel.receiving(), timeout=0.001):
            case None:
                return
            case 0, _:
                put.append(value)
            case 1, other:
                got.append(other)

    def sleep_anywhere(seconds):
        if current().parent is None and current().name != "main":
            sleep(seconds)
        else:
            time.sleep(seconds)

    jobs = [with_lock, with_semaphore, with_condition, with_queue, from_queue, with_channel]

    def plain():
        while time.monotonic() < end:
            random.choice(jobs)()

    def fibers():
        def body():
            for _ in range(20):
                random.choice(jobs)()

        def main():
            while time.monotonic() < end:
                group = [spawn(body) for _ in range(8)]
                sleep(random.random() / 500)
                # Only fibers that are in no item's way: values are counted.
                for fiber in group:
                    fiber.result()

        run(main)

    def cancelled_lockers():
        def main():
            while time.monotonic() < end:
                group = [spawn(with_lock) for _ in range(5)]
                group += [spawn(with_condition) for _ in range(3)]
                yield_now()
                for fiber in random.sample(group, 4):
                    fiber.cancel()
                for fiber in group:
                    fiber.join()
                    error = None if fiber.cancelled() else fiber.exception()
                    assert error is None or isinstance(error, Cancelled), error

        run(main)

    failures = []

    def guarded(fn):
        try:
            fn()
        except BaseException as error:
            failures.append(error)

    threads = [start(guarded, fn) for fn in (plain, plain, fibers, fibers, cancelled_lockers)]
    for thread in threads:
        thread.join()
    assert failures == []
    while not queue.empty():
        got.append(queue.get())
    while len(channel):
        got.append(channel.receive())
    assert sorted(put) == sorted(got)
    assert not lock.locked()
    assert semaphore._value == 3


@posix
def test_fork_finds_no_wait_of_another_thread_that_is_over(child):
    """The child ends the waits of the threads that it has not; these were on stacks of its."""
    done = child(
        """
        import os, signal, threading, warnings
        from pyfiber import Lock
        warnings.simplefilter("ignore")
        lock, waited, leave = Lock(), threading.Event(), threading.Event()
        lock.acquire()
        def waits():
            for _ in range(3):
                assert not lock.acquire(timeout=0.001)
            waited.set()
            leave.wait()
        thread = threading.Thread(target=waits)
        thread.start()
        waited.wait()
        pid = os.fork()
        if pid == 0:
            signal.alarm(20)
            lock.release()
            os._exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        leave.set()
        thread.join()
        """
    )
    assert done.stdout == "7\n"


@posix
def test_lock_reinitialised_in_the_child_of_fork_is_free():
    lock = Lock()
    lock.acquire()
    read, write = os.pipe()
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid == 0:
        lock._at_fork_reinit()
        os.write(write, b"free" if lock.acquire(blocking=False) else b"held")
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 10) == b"free"
    os.close(read)
    os.close(write)
    assert lock.locked()
