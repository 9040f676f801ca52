"""Without a GIL: the main thread runs a copy of the bytecode of its own once it shares work."""

from __future__ import annotations

import sysconfig
import textwrap

import pytest

from tests.support.subprocesses import run_script

pytestmark = [
    pytest.mark.skipif(
        not sysconfig.get_config_var("Py_GIL_DISABLED"), reason="this CPython has a GIL"
    ),
]

PROGRAM = """
import ctypes, os, sys, threading
import pyfiber

def leaf():
    return 1

def main():
    fibers = [pyfiber.spawn(leaf) for _ in range(100)]
    return sum([fiber.result() for fiber in fibers])

def where():
    '''Does this thread run what stands in the code object, or which copy?'''
    import _testinternalcapi
    leaf()
    code = leaf.__code__
    place = _testinternalcapi.get_tlbc_id(code)
    return "inside" if id(code) < place < id(code) + sys.getsizeof(code) else place

def elsewhere(count):
    found, ready = [], threading.Barrier(count)

    def body():
        ready.wait()
        found.append(where())
        ready.wait()

    threads = [threading.Thread(target=body) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found
"""


def run(code: str) -> None:
    """The program, and these lines."""
    run_script(PROGRAM + textwrap.dedent(code))


def test_main_thread_that_shares_work_runs_a_copy_of_its_own() -> None:
    pytest.importorskip("_testinternalcapi")
    run(
        """
        assert where() == "inside"
        assert pyfiber.run(main) == 100
        assert where() == "inside"
        for _ in range(3):
            assert pyfiber.run(main, threads=2) == 100
            places = [where(), *elsewhere(4)]
            assert "inside" not in places
            assert len(set(places)) == 5
        """
    )


def test_child_of_a_fork_gives_nobody_the_copy_of_its_frames() -> None:
    pytest.importorskip("_testinternalcapi")
    run(
        """
        assert pyfiber.run(main, threads=2) == 100
        child = os.fork()
        places = [where(), *elsewhere(4)]
        assert "inside" not in places, places
        assert len(set(places)) == 5
        assert pyfiber.run(main, threads=2) == 100
        if child:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        """
    )


def test_exception_sent_to_the_main_thread_arrives_after_sharing() -> None:
    run(
        """
        assert pyfiber.run(main, threads=2) == 100
        me = ctypes.c_ulong(threading.get_ident())
        try:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(me, ctypes.py_object(KeyboardInterrupt))
            for _ in range(1000):
                leaf()
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("it went to another thread")
        """
    )


def test_spare_thread_state_hides_no_thread_from_faulthandler() -> None:
    run(
        """
        import faulthandler, tempfile
        assert pyfiber.run(main, threads=2) == 100
        held = threading.Event()
        def waits():
            held.wait()
        thread = threading.Thread(target=waits)
        thread.start()
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            text = file.read()
        held.set()
        thread.join()
        assert "in waits" in text, text
        assert "in <module>" in text, text
        """
    )


def test_spare_thread_state_loses_no_sample_of_the_profiler() -> None:
    pytest.importorskip("profiling.sampling", reason="the profiler is of 3.15")
    run(
        """
        import _remote_debugging
        assert pyfiber.run(main, threads=2) == 100
        unwinder = _remote_debugging.RemoteUnwinder(os.getpid(), all_threads=True)
        names = [frame.funcname for interpreter in unwinder.get_stack_trace()
                 for thread in interpreter.threads for frame in thread.frame_info]
        assert "<module>" in names, names
        """
    )
