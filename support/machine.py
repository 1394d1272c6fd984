"""The machine a process runs on: its cores, its memory, and how fast it multiplies matrices."""

import os
import platform
import resource
import sys
import time

import torch

# FLOP/s in bf16 without sparsity, by the makers' data sheets; the first name that fits counts.
PEAKS = {"B200": 2250e12, "H200 NVL": 835e12, "H200": 989e12, "H100 NVL": 835e12,
         "H100 PCIe": 756e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12, "L40": 181e12,
         "L4": 121e12}


def available_cores() -> int:
    """The cores this process may use: fewer than the machine's under Slurm or taskset."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    # Not every Slurm binds a job to the cores that it grants.
    return min(cores, int(os.environ.get("SLURM_CPUS_PER_TASK") or cores))


def matrix_rate(device: str, precision: str) -> float:
    """FLOP/s that MFU is a share of: a known GPU's in bf16, else of a large matrix product."""
    if device == "cuda" and precision == "bf16":
        name = torch.cuda.get_device_name()
        if known := next((peak for part, peak in PEAKS.items() if part in name), None):
            return known
    size, times = (8192 if device == "cuda" else 1024), []
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    a = torch.randn(size, size, device=device, dtype=dtype)
    for _ in range(6):
        began = time.perf_counter()
        a @ a
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()               # these matrices are not the run's
    return 2 * size**3 / min(times)


def peak_memory() -> float:
    """The most memory this process has had, in MiB; with a GPU, the most PyTorch has had there."""
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() / 2**20
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kib / (2**20 if sys.platform == "darwin" else 2**10)


def device_name(device: str) -> str:
    """The name of the GPU or of the CPU."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    return getattr(torch.cpu, "get_capabilities", dict)().get("cpu_name", platform.machine())
