"""The child of a fork within a block of virtual threads.

The child has only the thread that has forked, and that is the child's main thread. Threads that it
starts are native ones: the fibers of the other threads are copies that must not go on, so the run
that they belong to never goes on in the child.
"""

from __future__ import annotations

import contextlib
import os

from pyfiber._virtual import starting


def _after_fork() -> None:
    if starting.session is not None:
        starting.session.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def leave(undo: contextlib.ExitStack) -> None:
    """Leave the block in the child, which must not wait for threads that it does not have."""
    undo.pop_all()
