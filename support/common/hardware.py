"""The machine a process runs on: its cores, its memory, and how fast it multiplies matrices."""

import os
import platform
import resource
import sys
import time
from pathlib import Path

import torch

from support.common.errors import UserError

# FLOP/s in bf16 without sparsity, by NVIDIA's data sheets; the first name that fits counts. No
# sheet of the H200 NVL was found: it has the rate of the H100 NVL, which has the same chip.
PEAKS = {
    "GB200": 2500e12,
    "B200": 2250e12,
    "H200 NVL": 835e12,
    "H200": 989e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L40": 181e12,
    "L4": 121e12,
}


def available_cores(cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """The cores this process may use: fewer than the machine's under Slurm, taskset or Docker."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    # Not every Slurm binds a job to the cores that it grants; docker run --cpus binds none.
    return min(
        cores, int(os.environ.get("SLURM_CPUS_PER_TASK") or cores), quota(cgroups) or cores
    )


def quota(cgroups: Path) -> int:
    """How many cores a container's quota of CPU time comes to, rounded up; 0 without a quota."""
    try:  # version 2, then version 1
        if (cgroups / "cpu.max").exists():
            share, period = (cgroups / "cpu.max").read_text().split()
        else:
            share, period = (
                (cgroups / "cpu" / f"cpu.cfs_{name}_us").read_text()
                for name in ("quota", "period")
            )
        return 0 if share == "max" or int(share) <= 0 else -(-int(share) // int(period))
    except (OSError, ValueError):
        return 0


def matrix_rate(device: str, precision: str) -> float:
    """FLOP/s of this process in matrix products of several sizes, until they get no faster."""
    dtype, best, since_best = torch.bfloat16 if precision == "bf16" else torch.float32, 0.0, 0
    matrices = [
        torch.randn(size, size, device=device, dtype=dtype)
        for size in ((4096, 8192) if device == "cuda" else (768, 1024, 1536))
    ]
    end = time.perf_counter() + 2
    while since_best < 10 and time.perf_counter() < end:
        for a in matrices:
            began = time.perf_counter()
            a @ a
            if device == "cuda":
                torch.cuda.synchronize()
            rate = 2 * len(a) ** 3 / (time.perf_counter() - began)
            since_best = 0 if rate > 1.02 * best else since_best + 1
            best = max(best, rate)
    if device == "cuda":
        del a, matrices  # they are not the run's
        torch.cuda.reset_peak_memory_stats()
    return best


def peak_memory() -> float:
    """The most memory this process has had, in MiB; with a GPU, the most PyTorch has had there."""
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() / 2**20
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kib / (2**20 if sys.platform == "darwin" else 2**10)


def find_device(asked: str, known: tuple = ("cpu", "cuda")) -> str:
    """What --device stands for: auto, or one of those that are known to the script.

    Raises UserError where it is not here, or not for each process that torchrun has started here.
    """
    if asked == "auto":
        asked = "cuda" if "cuda" in known and torch.cuda.is_available() else "cpu"
    if asked not in known:
        raise UserError(f"--device {asked}: this script trains on {known[0]} only")
    if asked == "cuda" and not torch.cuda.is_available():
        raise UserError(
            "--device cuda: there is no GPU here that PyTorch can use; "
            "--device cpu does without"
        )
    local, gpus = int(os.environ.get("LOCAL_WORLD_SIZE", 1)), torch.cuda.device_count()
    if asked == "cuda" and local > gpus:
        raise UserError(
            f"--nproc-per-node {local}: there are {gpus} GPUs here, one for each "
            f"process; --device cpu does without"
        )
    return asked


def device_name(device: str) -> str:
    """The name of the GPU or of the CPU."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    return getattr(torch.cpu, "get_capabilities", dict)().get("cpu_name", platform.machine())
