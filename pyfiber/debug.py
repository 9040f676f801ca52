"""Tools to look at a program from inside: its fibers, its loops, its stacks, this build.

Nothing here changes what a program does. The counters that a service should always export are in
``pyfiber.metrics``; ``python -m pyfiber ps`` and ``top`` look from outside.
"""

from __future__ import annotations

from pyfiber._engine import stack_stats, trim_stacks
from pyfiber._info import info
from pyfiber._logs import LogFilter
from pyfiber._patch import patch_report
from pyfiber._profile import Profiler, ProfileRow
from pyfiber._report import debug_on_signal, dump_fibers, dump_on_signal
from pyfiber._trace import trace
from pyfiber._watchdog import watchdog

__all__ = [
    "LogFilter",
    "ProfileRow",
    "Profiler",
    "debug_on_signal",
    "dump_fibers",
    "dump_on_signal",
    "info",
    "patch_report",
    "stack_stats",
    "trace",
    "trim_stacks",
    "watchdog",
]
