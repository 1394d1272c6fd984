"""What the scripts that measure print, and what train_*.py --benchmark has printed."""

import re
from typing import NamedTuple

BENCHMARK = re.compile(
    r"([\d,]+) source\+target tokens/s, MFU (\S+) of .* at most ([\d,]+) MiB each"
)


class Benchmark(NamedTuple):
    """What a training script with --benchmark measures."""

    speed: float  # source and target tokens per second
    mfu: str  # such as "31.4%"
    mib: float  # the peak memory of the largest process


def read_benchmark(printed: str) -> Benchmark | None:
    """Returns what a training script has printed, or None if another program did."""
    found = BENCHMARK.search(printed)
    if not found:
        return None
    speed, mfu, mib = found.groups()
    return Benchmark(float(speed.replace(",", "")), mfu, float(mib.replace(",", "")))


def row(*cells: object) -> str:
    """Returns a row of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def header(*titles: str) -> str:
    """Returns the first two lines of a Markdown table."""
    return f"{row(*titles)}\n{row(*['---'] * len(titles))}"
