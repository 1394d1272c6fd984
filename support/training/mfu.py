"""The peak that MFU is a share of: known for a GPU, measured once for a CPU."""

import contextlib
import json
import os
import socket
from pathlib import Path

import torch

from support.common.hardware import PEAKS, device_name, matrix_rate
from support.distributed.collectives import all_gather_objects, broadcast_object


def peak_rate(args, rank: int, world_size: int, cache: Path) -> float:
    """FLOP/s of all processes together, which MFU is a share of. A collective.

    That is --hardware-tflops or rank 0's GPU's in bf16 where it is known, times the processes; else
    what they reach when all multiply large matrices at the same time. It is measured once for a
    machine, and kept in `cache`.
    """
    name, path = device_name(args.device), cache / "matrix_rates.json"
    what = (
        f"{socket.gethostname()}, {name}, {world_size} x {torch.get_num_threads()} threads, "
        f"{args.precision}, torch {torch.__version__}"
    )
    rate = args.hardware_tflops * 1e12 * world_size
    if not rate and args.device == "cuda" and args.precision == "bf16":
        rate = world_size * next((peak for part, peak in PEAKS.items() if part in name), 0.0)
    if not rate:
        with contextlib.suppress(OSError, ValueError, TypeError):
            rate = float(json.loads(path.read_text()).get(what, 0))
    rate = broadcast_object(rate)  # another's GPU or cache may differ: all go the same way
    if not rate:
        rate = sum(all_gather_objects(matrix_rate(args.device, args.precision)))
        if rank == 0:
            keep_rate(path, what, rate)
    return rate


def keep_rate(path: Path, what: str, rate: float) -> None:
    """Adds a rate to those that are kept; where nothing can be written it is measured again."""
    with contextlib.suppress(OSError):
        rates = {}
        with contextlib.suppress(OSError, ValueError):
            rates = dict(json.loads(path.read_text()))
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps(rates | {what: rate}, indent=1))
        partial.rename(path)
