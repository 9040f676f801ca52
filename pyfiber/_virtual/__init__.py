"""``virtual_threads()``: every thread that the program starts is a fiber.

    starting.py   starts threads as fibers, says which thread runs
    events.py     events without Conditions
    lean.py       what a Thread object does for itself, done once for many
    signals.py    handlers of signals run in the main program
    masks.py      masks of signals, and sigwait()
    async_exc.py  exceptions that one thread raises in another
    shutdown.py   the end of the block, as the end of a program
    forks.py      the child of a fork
    table.py      which function stands in for which
    block.py      the run of a block, and the context manager
    command.py    `python -m pyfiber run --virtual-threads`

To make the threads of a run fibers that is there already, open a ``starting.Session`` with its
scheduler while ``table.install(table.THREADS)`` is in force, and end it by ``shutdown``.
"""

from __future__ import annotations

from pyfiber._virtual.block import VirtualThreads, virtual_threads

__all__ = ["VirtualThreads", "virtual_threads"]
