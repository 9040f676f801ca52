"""``virtual_threads()``: where it is allowed, what it leaves behind, how it ends."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import Child
from tests.virtual.conftest import Prints


def test_where_the_block_is_refused(child: Child) -> None:
    done = child(
        """
        import pyfiber, threading
        def attempt(where):
            try:
                with pyfiber.virtual_threads():
                    print("entered", where)
            except pyfiber.FiberError as exc:
                print(where, "-", str(exc).partition(":")[0].partition(" (")[0])
        pyfiber.run(attempt, "run")
        pyfiber.Fiber(attempt, ("fiber",)).switch()
        thread = threading.Thread(target=attempt, args=("thread",))
        thread.start()
        thread.join()
        go = threading.Event()
        thread = threading.Thread(target=go.wait)
        thread.start()
        attempt("after threads")
        go.set()
        thread.join()
        with pyfiber.virtual_threads():
            attempt("twice")
        attempt("again")
        """
    )
    assert done.stdout.splitlines() == [
        "run - virtual_threads() inside of a run",
        "fiber - virtual_threads() in a raw fiber",
        "thread - virtual_threads() works on the main thread only",
        "after threads - virtual_threads() after the program has started threads",
        "twice - virtual_threads() inside of a run",
        "entered again",
    ]


def test_greenlet_is_pyfibers_in_a_block_and_refused_if_it_was_imported_before(
    child: Child, tmp_path: Path
) -> None:
    (tmp_path / "greenlet.py").write_text("", encoding="utf-8")
    done = child(
        f"""
        import sys, types
        import pyfiber, pyfiber.greenlet
        sys.path.insert(0, {str(tmp_path)!r})
        sys.modules["greenlet"] = types.ModuleType("greenlet")
        try:
            with pyfiber.virtual_threads():
                print("entered")
        except pyfiber.FiberError as exc:
            print(exc)
        del sys.modules["greenlet"]
        for _ in range(2):
            with pyfiber.virtual_threads():
                import greenlet
                print(greenlet is pyfiber.greenlet)
        """
    )
    refused, *words = done.stdout.splitlines()
    assert refused.startswith("virtual_threads() after greenlet has been imported")
    assert "call pyfiber.greenlet.install() before" in refused
    assert words == ["True", "True"]


def test_everything_is_put_back(child: Child) -> None:
    child(
        """
        import _thread, os, signal, sys, threading, time
        import pyfiber
        from pyfiber._patch import in_force
        names = [(_thread, n) for n in dir(_thread)] + [(threading, n) for n in dir(threading)]
        names += [(sys, "_current_frames"), (signal, "signal"), (os, "read"), (time, "sleep")]
        before = [getattr(*each) for each in names]
        handlers = [signal.getsignal(n) for n in signal.valid_signals()]
        main = dict(vars(threading.main_thread()))
        for _ in range(2):
            with pyfiber.virtual_threads():
                assert _thread.get_ident is not before[names.index((_thread, "get_ident"))]
                from time import sleep
                from _thread import get_ident
                threading.Thread(target=sleep, args=(60,), daemon=True).start()
            assert [getattr(*each) for each in names] == before
            assert [signal.getsignal(n) for n in signal.valid_signals()] == handlers
            assert dict(vars(threading.main_thread())) == main
            assert threading.enumerate() == [threading.main_thread()]
            assert not threading._limbo and not list(in_force())
            assert get_ident() == _thread.get_ident()
        thread = threading.Thread(target=sleep, args=(0,))
        thread.start()
        thread.join()
        with pyfiber.patch(time=True):
            with pyfiber.virtual_threads():
                pass
            assert list(in_force()) == ["time"]
        """
    )


def test_block_waits_for_threads_that_are_no_daemons(prints: Prints) -> None:
    assert (
        prints(
            """
            import threading, time
            def work(n):
                time.sleep(0.001)
                if n:
                    threading.Thread(target=work, args=(n - 1,)).start()
                else:
                    threading.main_thread().join()
                    print("last", threading.main_thread().is_alive())
            threading.Thread(target=work, args=(3,)).start()
            print("end of the block")
            """
        )
        == "end of the block\nlast False\n"
    )


def test_daemon_is_unwound_at_the_end_and_reports_nothing(prints: Prints) -> None:
    assert (
        prints(
            """
            import threading, time
            def work():
                try:
                    time.sleep(60)
                    print("not reached")
                finally:
                    print("finally")
                    try:
                        threading.Thread(target=print).start()
                    except RuntimeError as exc:
                        print(exc)
            threading.Thread(target=work, daemon=True).start()
            """
        )
        == "finally\ncan't create new thread at interpreter shutdown\n"
    )


def test_thread_pools_end_with_the_block_and_work_afterwards(child: Child) -> None:
    done = child(
        """
        import pyfiber
        from concurrent.futures import ThreadPoolExecutor
        def square(x):
            return x * x
        with pyfiber.virtual_threads():
            pool = ThreadPoolExecutor(3)
            futures = [pool.submit(square, n) for n in range(5)]
        print([future.result() for future in futures])
        with ThreadPoolExecutor(3) as pool:
            print(list(pool.map(square, range(5))))
        """
    )
    assert done.stdout == "[0, 1, 4, 9, 16]\n" * 2


def test_failure_of_the_body_passes_when_the_threads_have_ended(child: Child) -> None:
    done = child(
        """
        import pyfiber, threading, time
        def work():
            time.sleep(0.001)
            print("thread")
        try:
            with pyfiber.virtual_threads():
                threading.Thread(target=work).start()
                raise KeyError("body")
        except KeyError as exc:
            print(repr(exc))
        """
    )
    assert done.stdout == "thread\nKeyError('body')\n"


def test_ten_thousand_workers_of_a_pool(prints: Prints) -> None:
    assert (
        prints(
            """
            import threading
            from concurrent.futures import ThreadPoolExecutor
            barrier = threading.Barrier(2001)
            with ThreadPoolExecutor(max_workers=10_000) as pool:
                futures = [pool.submit(barrier.wait) for _ in range(2000)]
                barrier.wait()
                print(len({future.result() for future in futures}))
            """
        )
        == "2000\n"
    )


def test_servers_timers_and_multiprocessings_threads(prints: Prints) -> None:
    assert (
        prints(
            """
            import socket, socketserver, threading
            from multiprocessing.pool import ThreadPool
            class Echo(socketserver.StreamRequestHandler):
                def handle(self):
                    for line in self.rfile:
                        self.wfile.write(line)
            with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
                threading.Thread(target=server.serve_forever).start()
                clients = [socket.create_connection(server.server_address) for _ in range(20)]
                for client in clients:
                    client.sendall(b"hello\\n")
                print({client.recv(100) for client in clients})
                for client in clients:
                    client.close()
                server.shutdown()
            with ThreadPool(4) as pool:
                print(pool.map(abs, range(-3, 0)))
            fired = threading.Event()
            threading.Timer(0.001, fired.set).start()
            print(fired.wait(10))
            """
        )
        == "{b'hello\\n'}\n[3, 2, 1]\nTrue\n"
    )


def test_exit_functions_of_threading_run_before_threads_are_waited_for(child: Child) -> None:
    done = child(
        """
        import pyfiber, threading
        with pyfiber.virtual_threads():
            stop = threading.Event()
            threading.Thread(target=stop.wait).start()
            threading._register_atexit(print, "last", end="")
            threading._register_atexit(stop.set)
        print(".")
        """
    )
    assert done.stdout == "last.\n"
