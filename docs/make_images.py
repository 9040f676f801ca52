"""Makes the images in docs/images; needs matplotlib and Pillow.

python docs/make_images.py
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

import matplotlib.pyplot as plt
from PIL import Image

from pyfiber.grains import READY, FairShare, GrainPool, Policy, RoundRobin
from pyfiber.testing import VirtualClock, run

HERE = Path(__file__).resolve().parent
IMAGES = HERE / "images"
COSTS = {"1 ms a step": 0.001, "2 ms a step": 0.002, "3 ms a step": 0.003}


def turns_over_time(policy: Policy) -> dict[str, list[float]]:
    """When each grain had its turns in one second of a virtual clock."""
    clock = VirtualClock()
    turns: dict[str, list[float]] = {name: [] for name in COSTS}

    def worker(name: str) -> Generator[Any, Any, None]:
        while clock.now() < 1:
            turns[name].append(clock.now())
            clock.spend(COSTS[name])
            yield READY

    def main() -> None:
        pool = GrainPool(policy).start()
        for name in COSTS:
            pool.queue(worker, name)

    run(main, clock=clock)
    return turns


def fair_share() -> None:
    """Turns of three grains under two policies."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.5), sharey=True, layout="constrained")
    for axis, policy in zip(axes, (RoundRobin(), FairShare()), strict=True):
        for name, times in turns_over_time(policy).items():
            axis.plot(times, range(1, len(times) + 1), label=f"{name}: {len(times)} turns")
        axis.set_title(repr(policy))
        axis.set_xlabel("seconds of a virtual clock")
        axis.legend()
    axes[0].set_ylabel("turns so far")
    figure.savefig(IMAGES / "fair-share.png", dpi=100)


def mandelbrot() -> None:
    """What the example draws, a quarter of its size to a side."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "mandelbrot.pbm"
        example = HERE.parent / "examples" / "mandelbrot.py"
        subprocess.run([sys.executable, str(example), str(file)], check=True)
        with Image.open(file) as image:
            small = image.convert("L").resize((512, 512), Image.Resampling.BOX)
            small.quantize(8).save(IMAGES / "mandelbrot.png", optimize=True)


if __name__ == "__main__":
    IMAGES.mkdir(exist_ok=True)
    fair_share()
    mandelbrot()
