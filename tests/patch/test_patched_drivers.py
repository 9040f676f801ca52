"""Drivers in C, by their hooks: stand-ins for psycopg 3 and psycopg2, without a server."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.support.subprocesses import run_python

PSYCOPG2 = {
    "psycopg2/__init__.py": """
        class Error(Exception): pass
        class OperationalError(Error): pass
        from psycopg2 import extensions
    """,
    "psycopg2/extensions.py": """
        POLL_OK, POLL_READ, POLL_WRITE = 0, 1, 2
        _callback = None
        def set_wait_callback(callback):
            global _callback
            _callback = callback
        def get_wait_callback():
            return _callback
        class Connection:
            "Needs room to write, then something to read."
            def __init__(self, sock):
                self.sock, self.states, self.cancelled = sock, [2, 1, 0], False
            def fileno(self):
                return self.sock.fileno()
            def poll(self):
                return self.states.pop(0)
            def cancel(self):
                self.cancelled = True
        class connection:
            closed = 1
            def __enter__(self):
                return self
            def __exit__(self, kind, value, where):
                raise Exception("connection already closed")
    """,
}

PSYCOPG = {
    "psycopg/__init__.py": """
        from psycopg import errors, pq, waiting
        class Connection:
            def __init__(self, sock):
                self.pgconn, self.cancelled = pq.PGconn(sock), False
            def wait(self, gen, interval=0.1):
                return waiting.wait(gen, self.pgconn.socket, interval)
            def cancel_safe(self):
                self.cancelled = True
    """,
    "psycopg/errors.py": """
        class Error(Exception): pass
        class OperationalError(Error): pass
        class QueryCanceled(OperationalError): pass
        class _WaitTimeout(Error): pass
    """,
    "psycopg/pq.py": """
        class TransactionStatus:
            IDLE, ACTIVE = 0, 1
        class PGconn:
            def __init__(self, sock):
                self.sock, self.transaction_status, self.finished = sock, 1, False
            @property
            def socket(self):
                return self.sock.fileno()
            def finish(self):
                self.finished = True
    """,
    "psycopg/waiting.py": """
        def wait(gen, fileno, interval=0.0, timeout=None):
            return "theirs"
        def wait_conn(gen, interval=0.0, timeout=None):
            return "theirs"
    """,
}

BEGIN = """
    import socket, threading, pytest, pyfiber
    left, right = socket.socketpair()
    def waits(fn, *args):
        fiber = pyfiber.spawn(fn, *args)
        for _ in range(5):
            pyfiber.yield_now()
        assert not fiber.done()
        return fiber
    def cancelled(fiber):
        fiber.cancel()
        with pytest.raises(pyfiber.FiberCancelled):
            fiber.result()
"""


@pytest.fixture
def run_with(tmp_path: Path) -> Any:
    """Runs a program that finds the stand-ins."""
    for name, text in (PSYCOPG2 | PSYCOPG).items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(textwrap.dedent(text))
    # Further down the path than the tests, but before what is installed.
    env = {"PYTHONPATH": str(tmp_path)}

    def run(code: str) -> str:
        program = textwrap.dedent(BEGIN) + textwrap.dedent(code)
        done = run_python("-c", program, env=env, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_psycopg2_parks_in_fibers_and_waits_elsewhere(run_with: Any) -> None:
    run_with("""
        import psycopg2, pyfiber.psycopg2
        from psycopg2.extensions import Connection, get_wait_callback, set_wait_callback
        pyfiber.psycopg2.install()
        pyfiber.psycopg2.install()
        wait = get_wait_callback()
        def main():
            fiber = waits(wait, Connection(left))
            right.send(b"x")
            fiber.result()
            left.recv(1)
            connection = Connection(left)
            cancelled(waits(wait, connection))
            assert connection.cancelled
            odd = Connection(left)
            odd.states = [9]
            with pytest.raises(psycopg2.OperationalError, match="bad state"):
                wait(odd)
        pyfiber.run(main)
        thread = threading.Thread(target=wait, args=(Connection(left),))
        thread.start()
        right.send(b"x")
        thread.join()
        pyfiber.psycopg2.uninstall()
        assert get_wait_callback() is None
        set_wait_callback(print)
        pyfiber.psycopg2.install()
        pyfiber.psycopg2.uninstall()
        assert get_wait_callback() is print
    """)


def test_cancellation_passes_through_the_block_of_a_connection_of_psycopg2(run_with: Any) -> None:
    run_with("""
        import pyfiber.psycopg2
        from psycopg2.extensions import connection, get_wait_callback
        pyfiber.psycopg2.install()
        def block(error=pyfiber.Cancelled):
            with connection():
                if error is not pyfiber.Cancelled:
                    raise error
                pyfiber.sleep(1000)
        def main():
            cancelled(waits(block))
            with pytest.raises(Exception, match="already closed"):
                block(ValueError)
        pyfiber.run(main)
        before = connection.__exit__.__wrapped__
        pyfiber.psycopg2.uninstall()
        assert connection.__exit__ is before
    """)


def test_psycopg_parks_in_fibers_and_is_itself_elsewhere(run_with: Any) -> None:
    run_with("""
        import psycopg, pyfiber.psycopg
        from psycopg import waiting
        before = waiting.wait, waiting.wait_conn, psycopg.Connection.wait
        pyfiber.psycopg.install()
        pyfiber.psycopg.install()
        def query(log):
            log.append((yield 2))
            log.append((yield 3) & 2)
            log.append((yield 1))
            return "done"
        def connect():
            assert (yield left.fileno(), 2) == 2
            assert (yield right.fileno(), 1) == 1
            return "connected"
        def main():
            log = []
            fiber = waits(waiting.wait, query(log), left.fileno(), 0.1)
            right.send(b"x")
            assert fiber.result() == "done"
            assert log == [2, 2, 1]
            fiber = waits(waiting.wait_conn, connect())
            left.send(b"x")
            assert fiber.result() == "connected"
            left.recv(1)
            with pytest.raises(psycopg.errors._WaitTimeout):
                waiting.wait(query([]), left.fileno(), 0.1, 0.01)
        pyfiber.run(main)
        assert waiting.wait(None, 0) == waiting.wait_conn(None) == "theirs"
        assert psycopg.Connection(left).wait(None) == "theirs"
        pyfiber.psycopg.uninstall()
        assert before == (waiting.wait, waiting.wait_conn, psycopg.Connection.wait)
    """)


def test_cancelled_query_of_psycopg_leaves_a_connection_of_use(run_with: Any) -> None:
    run_with("""
        import psycopg, pyfiber.psycopg
        pyfiber.psycopg.install()
        pyfiber.psycopg._GRACE = 0.05
        class Healthy(psycopg.Connection):
            def cancel_safe(self):
                super().cancel_safe()
                right.send(b"x")  # the server's answer
        def query():
            while not (yield 1):  # as psycopg's: nothing is ready yet
                pass
            raise psycopg.errors.QueryCanceled
        def main():
            one = Healthy(left)
            cancelled(waits(one.wait, query()))
            assert one.cancelled
            assert not one.pgconn.finished
            left.recv(1)
            silent = psycopg.Connection(left)
            cancelled(waits(silent.wait, query()))
            assert silent.cancelled
            assert silent.pgconn.finished
            idle = psycopg.Connection(left)
            idle.pgconn.transaction_status = 0
            cancelled(waits(idle.wait, query()))
            assert not idle.cancelled
        pyfiber.run(main)
    """)


@pytest.mark.parametrize("early", [True, False])
def test_patch_installs_them_whenever_they_are_imported(run_with: Any, early: bool) -> None:
    run_with(f"""
        import sys
        def load():
            import psycopg, psycopg2
        if {early}:
            load()
        patch = pyfiber.patch()
        load()
        import psycopg, psycopg2
        assert "Gate" in type(psycopg.waiting.wait).__name__
        assert psycopg2.extensions.get_wait_callback() is not None
        assert "psycopg, by pyfiber.psycopg.install()" in str(pyfiber.debug.patch_report())
        patch.undo()
        assert "Gate" not in type(psycopg.waiting.wait).__name__
        assert psycopg2.extensions.get_wait_callback() is None
    """)


def test_patch_keeps_what_the_program_has_installed(run_with: Any) -> None:
    run_with("""
        import psycopg2, pyfiber.psycopg
        psycopg2.extensions.set_wait_callback(print)
        pyfiber.psycopg.install()
        patch = pyfiber.patch()
        assert psycopg2.extensions.get_wait_callback() is print
        assert "psycopg2 keeps the wait callback" in str(pyfiber.debug.patch_report())
        patch.undo()
        assert pyfiber.psycopg.is_installed()
        assert psycopg2.extensions.get_wait_callback() is print
    """)


def test_report_names_loaded_modules_that_block_and_what_to_do(run_with: Any) -> None:
    said = run_with("""
        import sys, types, sqlite3, psycopg2
        sys.modules["psycopg2._psycopg"] = types.ModuleType("_psycopg")
        print(pyfiber.debug.patch_report())
        print("--")
        patch = pyfiber.patch()
        print(pyfiber.debug.patch_report())
    """)
    before, _, after = said.partition("--")
    assert "_sqlite3: SQLite reads" in before
    assert "pyfiber.threads.OneThread" in after
    assert "call pyfiber.psycopg2.install()" in before
    assert "call pyfiber.psycopg2.install()" not in after


@pytest.mark.parametrize("name", ["psycopg", "psycopg2"])
def test_hook_imported_before_its_driver_is_installed_by_the_patch(
    run_with: Any, name: str
) -> None:
    run_with(f"""
        patch = pyfiber.patch()
        import pyfiber.{name} as hook
        assert hook.is_installed()
        notes = pyfiber.debug.patch_report().notes
        assert notes["drivers"] == ["{name}, by pyfiber.{name}.install()"]
        patch.undo()
        assert not hook.is_installed()
    """)
