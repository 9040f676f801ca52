"""Two fibers hand a ball to each other out of the depth of ordinary function calls.

    python examples/ping_pong.py
    python examples/ping_pong.py --exchanges 1000000 --depth 200 --quiet

No function on the way is marked in any way: a fiber is suspended where it stands, with its whole
call stack, and goes on from there.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from time import perf_counter

from pyfiber import Fiber, current


def below(depth: int, function: Callable[[], None]) -> None:
    """Call a function from `depth` nested calls."""
    if depth:
        below(depth - 1, function)
    else:
        function()


def play_pong(depth: int, ping: Fiber[object], say: Callable[..., object]) -> None:
    """Return every ball to the other fiber."""

    def return_balls() -> None:
        ball = ping.switch()
        while True:
            say("          <- pong", ball)
            ball = ping.switch(ball)

    below(depth, return_balls)


def play(exchanges: int, depth: int, say: Callable[..., object]) -> float:
    """Let two fibers exchange balls; the time it took, in seconds."""
    pong = Fiber(play_pong, (depth, current(), say), name="pong")
    pong.switch()  # up to where it waits for the first ball

    def serve_balls() -> None:
        for ball in range(exchanges):
            say("ping ->", ball)
            returned = pong.switch(ball)
            assert returned == ball

    start = perf_counter()
    below(depth, serve_balls)
    return perf_counter() - start


def be_quiet(*_: object) -> None:
    """Say nothing."""


def main() -> None:
    """Play, and tell how long a switch took."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--exchanges", type=int, default=3, help="balls there and back")
    parser.add_argument("--depth", type=int, default=10, help="calls below which each side plays")
    parser.add_argument("--quiet", action="store_true", help="do not print every ball")
    options = parser.parse_args()
    seconds = play(options.exchanges, options.depth, be_quiet if options.quiet else print)
    switches = 2 * max(options.exchanges, 1)
    each = seconds / switches * 1e9
    print(f"{switches:,} switches, {options.depth} calls deep: {each:,.0f} ns each")


if __name__ == "__main__":
    main()
