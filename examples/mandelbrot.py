"""The Mandelbrot set in black and white, computed in bands by threads, as a PBM image.

    python examples/mandelbrot.py mandelbrot.pbm
    python examples/mandelbrot.py --sequential mandelbrot.pbm

Each band is a description that the thread pool performs. The bands write to one array, each to
separate rows, so the image is the same, byte for byte, as that of one loop. With CPython's lock
threads take turns; they compute at the same time where the lock is released.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

from pyfiber.compose import Work, blocking, call, parallel

STEPS = 50


def stays(x: float, y: float) -> bool:
    """Is (x, y) in the set, as far as so many steps tell?"""
    # The two largest parts are known without a step.
    q = (x - 0.25) ** 2 + y * y
    if q * (q + x - 0.25) <= 0.25 * y * y or (x + 1) ** 2 + y * y <= 0.0625:
        return True
    a, b = x, y
    for _ in range(STEPS):
        aa, bb = a * a, b * b
        if aa + bb > 4:
            return False
        b = 2 * a * b + y
        a = aa - bb + x
    return True


def draw_rows(pixels: bytearray, size: int, first: int, last: int) -> None:
    """Rows first to last (exclusive), eight points in a byte."""
    row_bytes = size // 8
    scale = 2.5 / size
    for row in range(first, last):
        y = row * scale - 1.25
        for column in range(row_bytes):
            byte = 0
            for bit in range(8):
                byte = byte << 1 | stays((column * 8 + bit) * scale - 2.0, y)
            pixels[row * row_bytes + column] = byte


def band(pixels: bytearray, size: int, first: int, last: int) -> Work[None]:
    """Some rows, drawn by a thread of the pool."""
    return call(draw_rows, pixels, size, first, last).on_thread_pool()


def image(size: int, bands: int) -> Work[bytes]:
    """All bands at the same time, then the file."""
    pixels = bytearray(size * size // 8)
    edges = [size * n // bands for n in range(bands + 1)]
    works = [band(pixels, size, first, last) for first, last in itertools.pairwise(edges)]
    return parallel(*works).map(lambda _: pbm(pixels, size))


def pbm(pixels: bytearray, size: int) -> bytes:
    """The portable bitmap format."""
    return b"P4\n%d %d\n" % (size, size) + pixels


def sequential(size: int) -> bytes:
    """The same in one loop."""
    pixels = bytearray(size * size // 8)
    draw_rows(pixels, size, 0, size)
    return pbm(pixels, size)


def main() -> None:
    """Draw, write, tell how long it took."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--size", type=int, default=2048, help="points to a side")
    parser.add_argument("--bands", type=int, default=4)
    parser.add_argument("--sequential", action="store_true", help="one loop, no threads")
    options = parser.parse_args()
    if options.size % 8 or options.size < 8:
        parser.error("--size must be a multiple of 8")
    size, bands = options.size, options.bands
    work = call(sequential, size) if options.sequential else image(size, bands)
    seconds, data = blocking(work.timed())
    options.file.write_bytes(data)
    print(f"{options.file}: {len(data):,} bytes in {seconds:.2f} seconds")


if __name__ == "__main__":
    main()
