"""Signals reach the main program; the child of a fork has one thread."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from tests.virtual.conftest import Prints

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and forks of Unix")


def test_ctrl_c_interrupts_the_main_program_where_it_waits(prints: Prints) -> None:
    assert (
        prints(
            """
            import os, signal, threading
            going = threading.Event()
            def work():
                os.kill(os.getpid(), signal.SIGINT)
                going.wait()
                print("thread goes on")
            thread = threading.Thread(target=work)
            try:
                thread.start()
                threading.Event().wait()
            except KeyboardInterrupt:
                print("interrupted")
            going.set()
            thread.join()
            """
        )
        == "interrupted\nthread goes on\n"
    )


def test_ctrl_c_interrupts_the_main_program_where_it_computes(prints: Prints) -> None:
    assert (
        prints(
            """
            import os, signal, threading
            threading.Timer(0.001, os.kill, (os.getpid(), signal.SIGINT)).start()
            try:
                while True:
                    pass
            except KeyboardInterrupt:
                print("interrupted")
            """
        )
        == "interrupted\n"
    )


def test_handler_runs_in_the_main_program_and_may_raise_there(prints: Prints) -> None:
    assert (
        prints(
            """
            import os, signal, threading, time
            mine = threading.local()
            mine.x = "main"
            def handler(number, frame):
                print(threading.current_thread().name, mine.x, frame is not None)
                if events:
                    events.pop().set()
                else:
                    raise ConnectionError
            def work():
                time.sleep(0.01)  # until the main program waits for the event
                os.kill(os.getpid(), signal.SIGTERM)
            print(signal.signal(signal.SIGTERM, handler))
            assert signal.getsignal(signal.SIGTERM) is handler
            event = threading.Event()
            events = [event]
            threading.Thread(target=work).start()
            event.wait()
            threading.Thread(target=work).start()
            try:
                threading.Event().wait()
            except ConnectionError:
                print("raised")
            """
        )
        == "0\nMainThread main True\nMainThread main True\nraised\n"
    )


def test_threads_may_not_set_handlers_and_pause_parks(prints: Prints) -> None:
    assert (
        prints(
            """
            import os, signal, threading, time
            def work():
                try:
                    signal.signal(signal.SIGUSR1, print)
                except ValueError as exc:
                    print(exc)
                time.sleep(0.01)
                signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
            signal.signal(signal.SIGUSR1, lambda *_: print("handled"))
            thread = threading.Thread(target=work)
            thread.start()
            signal.pause()
            thread.join()
            try:
                signal.pthread_kill(thread.ident, 0)
            except ProcessLookupError:
                print("gone")
            """
        )
        == "signal only works in main thread of the main interpreter\nhandled\ngone\n"
    )


def test_forked_child_of_a_thread_has_this_thread_alone(prints: Prints) -> None:
    assert (
        prints(
            """
            import os, threading, time, warnings
            warnings.simplefilter("ignore")
            def waits():
                try:
                    time.sleep(0.1)
                finally:
                    print("other thread", os.getpid() == parent, flush=True)
            def forks():
                ident = threading.get_ident()
                if pid := os.fork():
                    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                    return
                here = threading.current_thread()
                main = threading.main_thread() is here and here.ident == ident
                print(main, threading.enumerate() == [here], flush=True)
                child = threading.Thread(target=lambda: print("native", flush=True))
                child.start()
                child.join()
            parent = os.getpid()
            threading.Thread(target=waits).start()
            thread = threading.Thread(target=forks)
            thread.start()
            thread.join()
            """
        )
        == "True True\nnative\n0\nother thread True\n"
    )


def test_forked_child_of_the_main_program_goes_on_after_the_block(
    command: Callable[..., tuple[int, str, str]],
) -> None:
    status, out, err = command(
        """
        import atexit, os, sys, threading, time, warnings
        warnings.simplefilter("ignore")
        def waits():
            try:
                time.sleep(0.1)
            finally:
                print("other thread", os.getpid() == parent, flush=True)
        parent = os.getpid()
        threading.Thread(target=waits).start()
        atexit.register(lambda: print("at exit", os.getpid() == parent, flush=True))
        if pid := os.fork():
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        else:
            thread = threading.Thread(target=lambda: print("native", flush=True))
            thread.start()
            sys.exit(7)
        """
    )
    assert (status, err) == (0, "")
    assert out == "native\nat exit False\n7\nother thread True\nat exit True\n"


def test_processes_of_multiprocessing_talk_to_threads(
    command: Callable[..., tuple[int, str, str]],
) -> None:
    status, out, err = command(
        """
        import multiprocessing, sys, threading, warnings
        warnings.simplefilter("ignore")
        def double(source, sink, lock):
            while (item := source.get()) is not None:
                with lock:
                    sink.put(2 * item)
        if __name__ == "__main__":
            for method in ("fork", "spawn"):
                how = multiprocessing.get_context(method)
                source, sink, lock = how.Queue(), how.Queue(2), how.RLock()
                process = how.Process(target=double, args=(source, sink, lock))
                process.start()
                got = []
                reader = threading.Thread(target=lambda: got.extend(sink.get() for _ in range(9)))
                reader.start()
                for n in range(9):
                    source.put(n)
                reader.join()
                source.put(None)
                process.join()
                print(method, got == list(range(0, 18, 2)), process.exitcode)
        """
    )
    assert (status, out, err) == (0, "fork True 0\nspawn True 0\n", "")


def test_child_of_a_fork_in_a_thread_is_not_preempted(prints: Prints) -> None:
    assert (
        prints(
            """
            import os, threading, time
            pids = []
            parent = os.getpid()
            def work():
                pid = os.fork()
                if pid == 0:
                    end = time.process_time() + 0.05  # ten slices
                    while time.process_time() < end:
                        pass
                    os._exit(0)
                pids.append(pid)
            threading.Thread(target=work).start()
            while not pids:  # ready all the time: the child has a copy of this
                if os.getpid() != parent:
                    os._exit(7)
            print(os.waitstatus_to_exitcode(os.waitpid(pids[0], 0)[1]))
            """
        )
        == "0\n"
    )
