"""The switch interval of virtual threads is their time slice."""

from __future__ import annotations

import sys
import threading

import pytest

from pyfiber import virtual_threads

pytestmark = pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="virtual threads need a GIL"
)


def test_switch_interval_sets_the_time_slice_and_is_the_programs_again_afterwards() -> None:
    before = sys.getswitchinterval()
    with virtual_threads(time_slice=0.01):
        assert sys.getswitchinterval() == 0.01
        sys.setswitchinterval(0.002)
        assert sys.getswitchinterval() == 0.002
        sys.setswitchinterval(1e-9)
        assert sys.getswitchinterval() == 0.0001
        with pytest.raises(ValueError, match="strictly positive"):
            sys.setswitchinterval(0)
    assert sys.getswitchinterval() == before


def test_thread_that_computes_is_preempted_by_default() -> None:
    up: list[bool] = []

    def computes() -> None:
        while not up:
            pass

    with virtual_threads():
        thread = threading.Thread(target=computes)
        thread.start()
        up.append(True)
        thread.join()


def test_main_program_that_computes_is_preempted() -> None:
    up: list[bool] = []
    with virtual_threads(time_slice=0.001):
        threading.Timer(0, up.append, (True,)).start()
        while not up:
            pass
