"""The switch interval of virtual threads is their time slice."""

from __future__ import annotations

from tests.conftest import Child
from tests.virtual.conftest import Prints


def test_switch_interval_sets_the_time_slice_and_is_the_programs_again_afterwards(
    child: Child,
) -> None:
    child(
        """
        import sys
        from pyfiber import virtual_threads
        before = sys.getswitchinterval()
        with virtual_threads(time_slice=0.01):
            assert sys.getswitchinterval() == 0.01
            sys.setswitchinterval(0.002)
            assert sys.getswitchinterval() == 0.002
            sys.setswitchinterval(1e-9)
            assert sys.getswitchinterval() == 0.0001
            try:
                sys.setswitchinterval(0)
            except ValueError as exc:
                assert "strictly positive" in str(exc)
            else:
                raise AssertionError
        assert sys.getswitchinterval() == before
        """
    )


def test_thread_that_computes_is_preempted_by_default(prints: Prints) -> None:
    prints(
        """
        import threading
        up = []
        def computes():
            while not up:
                pass
        thread = threading.Thread(target=computes)
        thread.start()
        up.append(True)
        thread.join()
        """
    )


def test_main_program_that_computes_is_preempted(prints: Prints) -> None:
    prints(
        """
        import sys, threading
        sys.setswitchinterval(0.001)
        up = []
        threading.Timer(0, up.append, (True,)).start()
        while not up:
            pass
        """
    )
