"""What threads do, done by fibers: start, join, names, idents, locals, failures."""

from __future__ import annotations

import sys

import pytest

from tests.conftest import Child
from tests.virtual.conftest import Prints


def test_thread_runs_as_fiber_of_the_run(prints: Prints) -> None:
    assert (
        prints(
            """
            import threading
            def work():
                print(pyfiber.current_scheduler() is here, pyfiber.current() is not body)
            here, body = pyfiber.current_scheduler(), pyfiber.current()
            thread = threading.Thread(target=work)
            print(thread.is_alive())
            thread.start()
            thread.join()
            print(thread.is_alive())
            """
        )
        == "False\nTrue True\nFalse\n"
    )


def test_threads_wait_at_the_same_time(prints: Prints) -> None:
    assert (
        prints(
            """
            import threading, time
            def work():
                time.sleep(0.1)
            began = time.monotonic()
            threads = [threading.Thread(target=work) for _ in range(100)]
            for thread in threads:
                thread.start()
            print(threading.active_count())
            for thread in threads:
                thread.join()
            print(threading.active_count(), time.monotonic() - began < 1)
            """
        )
        == "101\n1 True\n"
    )


def test_each_thread_has_its_own_ident_and_object(prints: Prints) -> None:
    assert (
        prints(
            """
            import _thread, threading
            seen = []
            done = threading.Event()
            def work():
                here = threading.current_thread()
                seen.append((here, here.ident, threading.get_ident(), here.native_id,
                             threading.get_native_id(), _thread.get_ident()))
                done.wait()
            main = threading.get_ident()
            threads = [threading.Thread(target=work, name=f"t{n}") for n in range(3)]
            for thread in threads:
                thread.start()
            assert [each[0] for each in seen] == threads
            assert all(each[1] == each[2] == each[5] == each[0].ident for each in seen)
            assert all(each[3] == each[4] for each in seen)
            assert len({main, *(each[1] for each in seen)}) == 4
            assert threading.enumerate() == [threading.main_thread(), *threads]
            assert threading.get_ident() == main == threading.main_thread().ident
            assert threading.current_thread() is threading.main_thread()
            done.set()
            print("done")
            """
        )
        == "done\n"
    )


def test_code_in_a_spawned_fiber_or_generator_belongs_to_the_right_thread(prints: Prints) -> None:
    assert (
        prints(
            """
            import threading
            @pyfiber.generator
            def names():
                pyfiber.emit(threading.current_thread().name)
            def work():
                name = lambda: threading.current_thread().name
                print(list(names()), pyfiber.Fiber(name).switch())
                print(pyfiber.spawn(name).result())
            thread = threading.Thread(target=work, name="t")
            thread.start()
            thread.join()
            """
        )
        == "['t'] t\nMainThread\n"
    )


def test_thread_local_is_the_threads_own_and_mains_stays(prints: Prints) -> None:
    assert (
        prints(
            """
            import threading
            class Local(threading.local):
                def __init__(self):
                    self.made_by = threading.current_thread().name
            mine = Local()
            mine.x = "main"
            def work():
                print(mine.made_by, hasattr(mine, "x"))
                mine.x = "thread"
            thread = threading.Thread(target=work, name="t")
            thread.start()
            thread.join()
            print(mine.made_by, mine.x)
            """
        )
        == "t False\nMainThread main\n"
    )


def test_thread_begins_with_an_empty_context(prints: Prints) -> None:
    assert (
        prints(
            """
            import contextvars, threading
            var = contextvars.ContextVar("var", default="unset")
            var.set("main")
            thread = threading.Thread(target=lambda: print(var.get()))
            thread.start()
            thread.join()
            """
        )
        == "unset\n"
    )


def test_failure_goes_to_excepthook_and_exit_is_silent(prints: Prints) -> None:
    assert (
        prints(
            """
            import sys, threading
            def fail():
                raise ZeroDivisionError
            def run(target):
                thread = threading.Thread(target=target, name=target.__name__)
                thread.start()
                thread.join()
            run(sys.exit)
            threading.excepthook = lambda args: print(args.exc_type.__name__, args.thread.name)
            run(fail)
            """
        )
        == "ZeroDivisionError fail\n"
    )


def test_started_by_the_low_level_function(prints: Prints) -> None:
    assert (
        prints(
            """
            import _thread, sys, threading
            sys.unraisablehook = lambda args: print(type(args.exc_value).__name__)
            done = _thread.allocate_lock()
            done.acquire()
            def work(a, b=None):
                print(a, b, _thread.get_ident() == idents[0])
                done.release()
                raise ValueError
            idents = []
            idents.append(_thread.start_new_thread(lambda: (pyfiber.sleep(0), work(1, b=2)), ()))
            done.acquire()
            for wrong in ((1, ()), (work, 1), (work, (), 1)):
                try:
                    _thread.start_new_thread(*wrong)
                except TypeError as exc:
                    print(exc)
            """
        )
        == "1 2 True\nValueError\nfirst arg must be callable\n2nd arg must be a tuple\n"
        "optional 3rd arg must be a dictionary\n"
    )


def test_misuse_of_a_thread_is_an_error(prints: Prints) -> None:
    assert (
        prints(
            """
            import threading
            def work():
                try:
                    thread.join()
                except RuntimeError as exc:
                    print(exc)
            thread = threading.Thread(target=work)
            for method in (thread.join, thread.start, thread.start):
                try:
                    method()
                except RuntimeError as exc:
                    print(exc)
            """
        )
        == "cannot join thread before it is started\ncannot join current thread\n"
        "threads can only be started once\n"
    )


def test_join_with_timeout_returns_and_any_number_may_join(prints: Prints) -> None:
    assert (
        prints(
            """
            import threading, time
            go = threading.Event()
            thread = threading.Thread(target=go.wait)
            thread.start()
            thread.join(0)
            thread.join(0.01)
            for endless in (1e300, float("inf"), float("nan")):
                other = threading.Thread(target=go.wait)
                other.start()
                try:  # before 3.13 the error makes threading count the thread as ended
                    other.join(endless)
                except (OverflowError, ValueError) as exc:
                    print(type(exc).__name__)
            print(thread.is_alive())
            joined = []
            def join():
                thread.join()
                joined.append(1)
            others = [threading.Thread(target=join) for _ in range(5)]
            for each in others:
                each.start()
            native = pyfiber.native_thread(join)
            native.start()
            go.set()
            for each in (*others, native):
                each.join(threading.TIMEOUT_MAX)
            print(len(joined), thread.is_alive())
            """
        )
        == "OverflowError\nOverflowError\nValueError\nTrue\n6 False\n"
    )


def test_native_thread_is_one_of_the_system_and_starts_fibers(prints: Prints) -> None:
    assert (
        prints(
            """
            import threading
            def work(a, *, b):
                ident = threading.get_ident()
                print(a, b, pyfiber.native_thread.__module__, ident == native.ident, ident % 2)
                thread = threading.Thread(target=lambda: print(threading.get_ident() % 2))
                thread.start()
                thread.join()
            native = pyfiber.native_thread(work, (1,), {"b": 2}, name="n", daemon=False)
            print(type(native) is threading.Thread, native.name, native.daemon)
            native.start()
            native.join()
            """
        )
        == "True n False\n1 2 pyfiber True 0\n1\n"
    )


def test_frames_of_all_threads_are_shown(prints: Prints) -> None:
    assert (
        prints(
            """
            import sys, threading
            go = threading.Event()
            def waits():
                go.wait()
            thread = threading.Thread(target=waits)
            thread.start()
            def shows():
                frames = sys._current_frames()
                names = []
                for ident in (thread.ident, threading.get_ident(), threading.main_thread().ident):
                    frame = frames[ident]
                    calls = []
                    while frame:
                        calls.append(frame.f_code.co_name)
                        frame = frame.f_back
                    names.append([n for n in ("waits", "shows", "<module>") if n in calls])
                print(names, len(frames))
            other = threading.Thread(target=shows)
            other.start()
            other.join()
            go.set()
            """
        )
        == "[['waits'], ['shows'], ['<module>']] 3\n"
    )


def test_stack_size_and_count(prints: Prints) -> None:
    assert (
        prints(
            """
            import _thread, threading
            print(threading.stack_size(), threading.stack_size(256 * 1024), threading.stack_size())
            go = threading.Event()
            thread = threading.Thread(target=go.wait)
            thread.start()
            print(_thread._count())
            go.set()
            thread.join()
            print(_thread._count())
            try:
                threading.stack_size(5)
            except ValueError:
                print("refused")
            """
        )
        == "0 0 262144\n1\n0\nrefused\n"
    )


def test_computing_threads_take_turns(prints: Prints) -> None:
    assert (
        prints(
            """
            import threading, time
            state = []
            def spin():
                while not state:
                    pass
            thread = threading.Thread(target=spin)
            thread.start()
            time.sleep(0.001)  # the main program comes back
            state.append(1)
            thread.join()
            threading.Timer(0.001, state.clear).start()
            while state:
                pass
            print("done")
            """
        )
        == "done\n"
    )


def test_rlock_belongs_to_the_thread(prints: Prints) -> None:
    assert (
        prints(
            """
            import threading
            lock = threading.RLock()
            def work():
                print(lock.acquire(timeout=0.01))
            with lock, lock:
                thread = threading.Thread(target=work)
                thread.start()
                thread.join()
            work()
            lock.release()
            """
        )
        == "False\nTrue\n"
    )


def test_rlock_that_a_thread_holds_at_its_end_stays_held(prints: Prints) -> None:
    assert (
        prints(
            """
            import threading, weakref
            def ends_with(*locks):
                thread = threading.Thread(target=lambda: [lock.acquire() for lock in locks])
                thread.start()
                thread.join()
            lock, condition, dropped = threading.RLock(), threading.Condition(), threading.RLock()
            ends_with(lock, condition, dropped, dropped)
            print(lock.acquire(timeout=0.001), condition.acquire(blocking=False))
            try:
                lock.release()
            except RuntimeError as exc:
                print(exc)
            thread = threading.Thread(target=lambda: print(lock.acquire(timeout=0.001)))
            thread.start()
            thread.join()
            dropped = weakref.ref(dropped)
            print(dropped())
            """
        )
        == "False False\ncannot release un-acquired lock\nFalse\nNone\n"
    )


def test_rlock_of_an_ended_thread_that_other_code_releases_is_free(child: Child) -> None:
    done = child(
        """
        import pyfiber, threading
        lock = threading.RLock()
        with pyfiber.virtual_threads():
            thread = threading.Thread(target=lock.acquire)
            thread.start()
            thread.join()
        with lock:
            pass
        lock.release()
        with pyfiber.virtual_threads():
            thread = threading.Thread(target=lambda: print(lock.acquire(timeout=0.001)))
            thread.start()
            thread.join()
        del lock
        print(pyfiber._engine._lot_count())
        """
    )
    assert done.stdout == "True\n0\n"


def test_pipe_between_threads_parks(prints: Prints) -> None:
    assert (
        prints(
            """
            import os, threading
            reading, writing = os.pipe()
            got = []
            def work():
                while data := os.read(reading, 65536):
                    got.append(len(data))
            thread = threading.Thread(target=work)
            thread.start()
            print(os.write(writing, b"x" * 1000000))
            os.close(writing)
            thread.join()
            print(sum(got))
            """
        )
        == "1000000\n1000000\n"
    )


def test_trace_and_profile_functions_belong_to_threads(prints: Prints) -> None:
    assert (
        prints(
            """
            import sys, threading, time
            def tracer(frame, event, arg):
                if event == "call":
                    seen.append(frame.f_code.co_name)
            def traced():
                time.sleep(0.001)
                inner()
            def inner():
                pass
            def other():
                inner()
            def calls():
                names = [name for name in seen if name in ("traced", "inner", "other")]
                seen.clear()
                return names
            seen = []
            threading.settrace(tracer)
            thread = threading.Thread(target=traced)
            thread.start()
            threading.settrace(None)
            other()
            thread.join()
            other()
            print(calls(), sys.gettrace())
            sys.settrace(tracer)
            thread = threading.Thread(target=traced)
            thread.start()
            other()
            thread.join()
            print(calls(), sys.gettrace() is tracer)
            sys.settrace(None)
            threading.setprofile(tracer)
            thread = threading.Thread(target=traced)
            thread.start()
            threading.setprofile(None)
            other()
            thread.join()
            print(calls(), sys.getprofile())
            """
        )
        == "['traced', 'inner'] None\n['other', 'inner'] True\n['traced', 'inner'] None\n"
    )


@pytest.mark.skipif(sys.version_info < (3, 14), reason="threads have contexts from 3.14 on")
def test_thread_runs_in_its_context(prints: Prints) -> None:
    assert (
        prints(
            """
            import contextvars, threading
            var = contextvars.ContextVar("var")
            context = contextvars.Context()
            context.run(var.set, "given")
            def work():
                print(var.get(), context is not contextvars.copy_context())
                var.set("changed")
            for _ in range(2):
                thread = threading.Thread(target=work, context=context)
                thread.start()
                thread.join()
            var.set("mine")
            other = threading.Thread(target=lambda: print(var.get("nothing")))
            other.start()
            other.join()
            print(var.get(), context[var])
            """
        )
        == "given True\nchanged True\nnothing\nmine changed\n"
    )
