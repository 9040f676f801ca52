"""Events of virtual threads: they have a Condition only once somebody asks for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.support.subprocesses import run_python
from tests.virtual.conftest import Prints

#: Three threads that wait for an event, and note what wait() returns.
WAITERS = """
import threading
event = threading.Event()
seen = []
def work(timeout=None):
    seen.append(event.wait(timeout))
def start(number=3, *args):
    threads = [threading.Thread(target=work, args=args) for _ in range(number)]
    for thread in threads:
        thread.start()
    return threads
def end(threads):
    for thread in threads:
        thread.join()
    assert pyfiber._engine._lot_waiters(event) == []
    print(seen, event.is_set())
"""


@pytest.fixture
def waiters(prints: Prints) -> Callable[[str], str]:
    def run(source: str) -> str:
        import textwrap

        return prints(WAITERS + textwrap.dedent(source))

    return run


def test_set_wakes_all_and_no_condition_is_made(waiters: Callable[[str], str]) -> None:
    assert (
        waiters(
            """
            threads = start()
            assert all(thread._started.is_set() for thread in threads)
            print([vars(thread._started) for thread in threads], vars(event))
            event.set()
            end(threads)
            print(vars(event), event.wait(), event.wait(0))
            """
        )
        == "[{'_flag': True}, {'_flag': True}, {'_flag': True}] {'_flag': False}\n"
        "[True, True, True] True\n"
        "{'_flag': True} True True\n"
    )


def test_set_and_clear_at_once_wake_those_that_wait(waiters: Callable[[str], str]) -> None:
    assert (
        waiters(
            """
            threads = start()
            event.set()
            event.clear()
            late = start(1, 0.001)
            end(threads + late)
            """
        )
        == "[True, True, True, False] False\n"
    )


def test_timeouts_are_those_of_the_standard_event(waiters: Callable[[str], str]) -> None:
    assert (
        waiters(
            """
            print(event.wait(0), event.wait(-1), event.wait(0.001), event.wait(timeout=0))
            for bad in "x", 1e20, 10**400, float("nan"), []:
                try:
                    print(threading.Event().wait(bad))
                except (TypeError, OverflowError, ValueError) as exc:
                    print(type(exc).__name__)
            end(start(2, 0.001))
            """
        )
        == "False False False False\n"
        "TypeError\nOverflowError\nOverflowError\nFalse\nTypeError\n"
        "[False, False] False\n"
    )


def test_condition_that_is_asked_for_notifies_those_that_wait(
    waiters: Callable[[str], str],
) -> None:
    assert (
        waiters(
            """
            import time
            threads = start()
            condition = event._cond
            print(type(condition) is threading.Condition, condition is event._cond)
            print(len(condition._waiters))
            threads += start(1)
            with condition:
                condition.notify(2)
            time.sleep(0)
            print(seen)
            event.set()
            end(threads)
            """
        )
        == "True True\n3\n[True, True]\n[True, True, True, True] True\n"
    )


def test_turn_of_a_thread_that_waits_no_more_is_passed_over(waiters: Callable[[str], str]) -> None:
    assert (
        waiters(
            """
            import time
            first = start(2, 0.001)
            condition = event._cond
            print(len(condition._waiters))
            for thread in first:
                thread.join()
            second = start(1)
            with condition:
                condition.notify()
            end(second)
            print(len(condition._waiters))
            """
        )
        == "2\n[False, False, True] False\n0\n"
    )


def test_native_threads_wait_for_the_same_event(waiters: Callable[[str], str]) -> None:
    assert (
        waiters(
            """
            threads = start()
            native = pyfiber.native_thread(work)
            native.start()
            while len(event._cond._waiters) < 4:
                pyfiber.sleep(0.001)
            event.set()
            end([*threads, native])
            """
        )
        == "[True, True, True, True] True\n"
    )


def test_native_thread_sets_the_event(waiters: Callable[[str], str]) -> None:
    assert (
        waiters(
            """
            threads = start()
            pyfiber.to_thread(event.set)
            end(threads)
            print(vars(event))
            """
        )
        == "[True, True, True] True\n{'_flag': True}\n"
    )


def test_subclasses_and_replaced_methods_are_the_programs(prints: Prints) -> None:
    assert (
        prints(
            """
            import threading
            class Loud(threading.Event):
                def set(self):
                    print("set")
                    with self._cond:
                        self._flag = True
                        self._cond.notify_all()
            def wake(self):
                print("replaced")
                with self._cond:
                    self._flag = True
                    self._cond.notify_all()
            def run(event):
                thread = threading.Thread(target=event.wait)
                thread.start()
                event.set()
                thread.join()
            run(Loud())
            before = threading.Event.set
            plain = threading.Event()
            waiting = threading.Thread(target=plain.wait)
            waiting.start()
            threading.Event.set = wake
            plain.set()
            waiting.join()
            threading.Event.set = before
            """
        )
        == "set\nreplaced\n"
    )


def test_standard_method_kept_from_before_the_block_wakes(prints: Prints) -> None:
    assert (
        prints(
            """
            import threading
            from pyfiber._virtual import events
            event = threading.Event()
            seen = []
            threads = [
                threading.Thread(target=lambda: seen.append(event.wait())) for _ in range(2)
            ]
            for thread in threads:
                thread.start()
            events._set(event)
            events._clear(event)
            for thread in threads:
                thread.join()
            print(seen)
            """
        )
        == "[True, True]\n"
    )


def test_event_of_a_block_works_after_it() -> None:
    done = run_python(
        "-c",
        """if True:
            import threading
            import pyfiber
            standard = vars(threading.Event)["set"]
            with pyfiber.virtual_threads():
                event = threading.Event()
                print(repr(event)[-6:])
            print(vars(threading.Event)["set"] is standard)
            thread = threading.Thread(target=event.wait)
            thread.start()
            event.set()
            thread.join()
            print(type(event._cond) is threading.Condition)
            with pyfiber.virtual_threads():
                thread = threading.Thread(target=threading.Event().wait, args=(0.001,))
                thread.start()
                event.clear()
                thread.join()
                print(event.is_set())
            """,
    )
    assert (done.stdout, done.stderr) == ("unset>\nTrue\nTrue\nFalse\n", "")


def test_end_of_a_daemon_that_waits_leaves_the_event_usable(prints: Prints) -> None:
    assert (
        prints(
            """
            import pyfiber, threading
            event = threading.Event()
            def work():
                try:
                    event.wait()
                finally:
                    print("ended", pyfiber._engine._lot_waiters(event))
            threading.Thread(target=work, daemon=True).start()
            """
        )
        == "ended []\n"
    )


def test_threads_share_the_function_that_reports_until_a_hook_changes(prints: Prints) -> None:
    assert (
        prints(
            """
            import sys, threading
            one, two = threading.Thread(), threading.Thread()
            print(one._invoke_excepthook is two._invoke_excepthook)
            def hook(args):
                print("hook", args.exc_value, args.thread is three)
            def fail():
                raise ValueError("failed")
            before = threading.excepthook
            threading.excepthook = hook
            three = threading.Thread(target=fail)
            print(one._invoke_excepthook is three._invoke_excepthook)
            three.start()
            three.join()
            threading.excepthook = None
            try:
                threading.Thread()
            except RuntimeError as exc:
                print(exc)
            threading.excepthook = before
            """
        )
        == "True\nFalse\nhook failed True\nthreading.excepthook is None\n"
    )


@pytest.mark.parametrize("wait", ["threading.Event().wait()", "time.sleep(60)"])
def test_very_many_waiting_threads_share_stacks(prints: Prints, wait: str) -> None:
    assert (
        prints(
            f"""
            import threading, time
            def work(number):
                {wait}
            for number in range(2000):
                threading.Thread(target=work, args=(number,), daemon=True).start()
            stats = pyfiber.debug.stack_stats()
            refused = pyfiber.debug.info()["slots_refused"]
            print(refused is not None or sum(each["packed"] for each in stats) > 1000)
            """
        )
        == "True\n"
    )


@pytest.mark.parametrize("number", range(6))
def test_target_gets_its_arguments(prints: Prints, number: int) -> None:
    assert prints(
        f"""
            import threading
            def work(*args, **kwargs):
                print(args, kwargs)
            for kwargs in {{}}, {{"a": 1}}:
                thread = threading.Thread(target=work, args=range({number}), kwargs=kwargs)
                thread.start()
                thread.join()
                thread = threading.Thread(target=work, args=tuple(range({number})), kwargs=kwargs)
                thread.start()
                thread.join()
                print(hasattr(thread, "_target"))
            """
    ) == "".join(f"{tuple(range(number))} {kwargs}\n" * 2 + "False\n" for kwargs in ({}, {"a": 1}))
