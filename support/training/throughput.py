"""How fast a run is: tokens per second, and MFU, the share of the hardware's peak FLOP/s."""

import contextlib
import socket
import statistics
from pathlib import Path

import torch

from support.common.files import read_json, write_json
from support.common.hardware import PEAKS, autocast_dtype, device_name, matrix_rate
from support.common.paths import CACHE
from support.distributed.collectives import all_gather_objects, broadcast_object


class Throughput:
    """The speed of all ranks together, over the steps since the last row of metrics.csv."""

    def __init__(self, peak: float):
        """peak: FLOP/s of all ranks together."""
        self.peak = peak
        self.speeds: list[float] = []  # tokens/s of each row
        self.mfus: list[float] = []
        self.steps: list[tuple[float, float, int, float]] = []  # since the last row

    def add(self, seconds: float, seconds_waited: float, tokens: int, flops: float) -> None:
        """Adds a step. seconds_waited: those of its seconds in which it waited for data."""
        self.steps.append((seconds, seconds_waited, tokens, flops))

    def end_row(self) -> dict[str, str]:
        """Returns the columns of metrics.csv that tell the speed since the last call."""
        if not self.steps:
            return {}
        seconds, seconds_waited, tokens, flops = map(sum, zip(*self.steps))
        speed = tokens / seconds
        mfu = flops / seconds / self.peak
        self.speeds.append(speed)
        self.mfus.append(mfu)
        columns = {
            "tokens_per_second": f"{speed:.0f}",
            "mfu": f"{mfu:.4f}",
            "step_ms": f"{1000 * seconds / len(self.steps):.2f}",
            "data_ms": f"{1000 * seconds_waited / len(self.steps):.2f}",
        }
        self.steps.clear()
        return columns

    def warm_medians(self) -> tuple[float, float]:
        """Returns the median tokens/s and MFU of all rows but the first quarter."""
        start = len(self.speeds) // 4
        return statistics.median(self.speeds[start:]), statistics.median(self.mfus[start:])


def peak_rate(args, rank: int, world_size: int, cache: Path = CACHE) -> float:
    """Returns the FLOP/s of all ranks together, which MFU is a share of. A collective.

    With --hardware-tflops, or in bf16 or fp16 on a GPU of PEAKS, it is that figure times the
    number of ranks. Otherwise all ranks multiply large matrices at the same time, and the sum
    of their rates is kept in `cache`.
    """
    path = cache / "matrix_rates.json"
    setup = (
        f"{socket.gethostname()}, {device_name(args.device)}, "
        f"{world_size} x {torch.get_num_threads()} threads, "
        f"{args.precision}, torch {torch.__version__}"
    )
    rates: dict[str, float] = {}
    # No rates, if the file is missing or damaged.
    with contextlib.suppress(OSError, ValueError, TypeError):
        rates = dict(read_json(path))
    rate = world_size * known_rate(args) or rates.get(setup, 0.0)
    rate = broadcast_object(rate)  # all ranks go the same way, whatever their caches hold
    if not rate:
        rate = sum(all_gather_objects(matrix_rate(args.device, args.precision)))
        if rank == 0:
            with contextlib.suppress(OSError):  # else it is measured again
                cache.mkdir(parents=True, exist_ok=True)
                write_json(path, rates | {setup: rate})
    return rate


def known_rate(args) -> float:
    """Returns the FLOP/s of a rank by --hardware-tflops or its GPU's data sheet, or else 0."""
    if args.hardware_tflops:
        return args.hardware_tflops * 1e12
    if args.device != "cuda" or not autocast_dtype(args.precision):
        return 0.0
    return PEAKS.get(device_name(args.device), 0.0)
