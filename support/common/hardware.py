"""The machine that a process runs on: its cores, memory, device, precision and compiler."""

import math
import os
import platform
import re
import shutil
import sys
import sysconfig
import time
from pathlib import Path

import psutil
import torch

from support.common.errors import UserError

# Dense FLOP/s in bf16 and in fp16, which are equal, from NVIDIA's data sheets, by the name that
# CUDA gives the device. The Tesla T4 has fp16 alone. A slice of a GPU (MIG) and a laptop's chip
# have other names, and are measured, like all that are not here.
PEAKS = {
    "NVIDIA GB200": 2500e12,
    "NVIDIA B200": 2250e12,
    "NVIDIA H200 NVL": 835e12,
    "NVIDIA H200": 989e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100 80GB PCIe": 312e12,
    "NVIDIA A100-PCIE-40GB": 312e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA L40": 181e12,
    "NVIDIA L4": 121e12,
    "Tesla T4": 65e12,
}


# What a CPU needs for a layer in both passes of a micro-batch: mostly to start its kernels.
# Beside an H200 a step took 4.3 to 4.7 ms a layer, all else included
# (logs/reference/gpu/README.md).
LAUNCH_SECONDS = 4.5e-3


def available_cores(cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """Returns how many cores this process may use: under Slurm or Docker often not all.

    Raises UserError.
    """
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    # Not every Slurm binds a job to the cores that it grants; `docker run --cpus` binds none.
    granted = number_in_environment("SLURM_CPUS_PER_TASK", cores)
    return max(1, min(cores, granted, cgroup_quota(cgroups) or cores))


def number_in_environment(name: str, default: int) -> int:
    """Returns an environment variable's whole number, or `default`. Raises UserError."""
    text = os.environ.get(name) or str(default)
    if not text.isdecimal():
        raise UserError(f"{name}={text}: the environment variable must be a whole number")
    return int(text)


def cgroup_quota(cgroups: Path) -> int:
    """Returns the container's quota of CPU time in cores, rounded up; 0 without a quota."""
    try:
        if (cgroups / "cpu.max").exists():  # cgroups version 2
            quota, period = (cgroups / "cpu.max").read_text(encoding="utf-8").split()
        else:  # version 1
            quota = (cgroups / "cpu" / "cpu.cfs_quota_us").read_text(encoding="utf-8")
            period = (cgroups / "cpu" / "cpu.cfs_period_us").read_text(encoding="utf-8")
        if quota == "max" or int(quota) <= 0:
            return 0
        return math.ceil(int(quota) / int(period))
    except (OSError, ValueError):  # no cgroups here
        return 0


def matrix_rate(device: str, precision: str) -> float:
    """Measures the FLOP/s of matrix products of several sizes, for about two seconds."""
    dtype = autocast_dtype(precision) or torch.float32
    sizes = (4096, 8192) if device == "cuda" else (768, 1024, 1536)
    matrices = [torch.randn(size, size, device=device, dtype=dtype) for size in sizes]
    best = 0.0
    since_best = 0
    end = time.perf_counter() + 2
    while since_best < 10 and time.perf_counter() < end:
        for matrix in matrices:
            start = time.perf_counter()
            matrix @ matrix
            if device == "cuda":
                torch.cuda.synchronize()
            rate = 2 * len(matrix) ** 3 / (time.perf_counter() - start)
            since_best = 0 if rate > 1.02 * best else since_best + 1
            best = max(best, rate)
    if device == "cuda":
        del matrix, matrices  # the run's peak memory must not count them
        torch.cuda.reset_peak_memory_stats()
    return best


def peak_memory() -> float:
    """Returns the peak memory of this process in MiB: PyTorch's on the GPU, if it uses one."""
    if torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() / 2**20
    return peak_resident() / 2**20


def peak_resident() -> int:
    """Returns the most bytes of main memory that this process has had."""
    if sys.platform == "win32":
        return psutil.Process().memory_info().peak_wset
    status = Path("/proc/self/status")
    if status.exists():  # Linux, where `resource` would count what the parent process had
        line = re.search(r"VmHWM:\s*(\d+) kB", status.read_text(encoding="utf-8"))
        if line:
            return int(line[1]) * 2**10
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 2**10  # bytes there, KiB elsewhere


def find_device(requested: str, supported: tuple = ("cpu", "cuda")) -> str:
    """Returns the device for --device: "cpu" or "cuda"; "auto" takes a GPU if there is one.

    supported: the devices that the script can use. Raises UserError if the device is not one of
    them, is not here, or if torchrun has started more processes here than there are GPUs.
    """
    device = requested
    if requested == "auto":
        device = "cuda" if "cuda" in supported and torch.cuda.is_available() else "cpu"
    if device not in supported:
        raise UserError(f"--device {device}: this script runs on {supported[0]} only")
    if device == "cuda":
        check_gpus()
    return device


def check_gpus() -> None:
    """Raises UserError unless each process of this machine can have a GPU."""
    cuda = torch.version.cuda
    if not cuda:
        raise UserError(
            "--device cuda: this PyTorch is built without CUDA; install the one with it, or "
            "use --device cpu instead"
        )
    if not torch.cuda.is_available():
        raise UserError(
            f"--device cuda: PyTorch finds no GPU that it can use; nvidia-smi has to show one "
            f"and CUDA {cuda} or newer, which the driver decides; or use --device cpu instead"
        )
    major, minor = torch.cuda.get_device_capability()
    # Such as sm_90, sm_90a, or compute_120: code that a newer GPU's driver compiles.
    oldest = min(int(re.sub(r"\D", "", name)) for name in torch.cuda.get_arch_list())
    if 10 * major + minor < oldest:
        raise UserError(
            f"--device cuda: this PyTorch has no code for the {torch.cuda.get_device_name()}, "
            f"which is sm_{major}{minor}, older than sm_{oldest}; install PyTorch's build "
            f"for an older CUDA, or use --device cpu instead"
        )
    processes = number_in_environment("LOCAL_WORLD_SIZE", 1)  # set by torchrun
    gpus = torch.cuda.device_count()
    if processes > gpus:
        raise UserError(
            f"--nproc-per-node {processes}: each process needs a GPU, and this machine has "
            f"{gpus}; start fewer processes, or use --device cpu"
        )


def device_name(device: str) -> str:
    """Returns the name of the GPU or of the CPU."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    return torch.cpu.get_capabilities().get("cpu_name") or platform.machine()


def fast_precision(device: str) -> str:
    """Returns the precision in which the hardware multiplies matrices fastest.

    That is "bf16" where the hardware and the library have it; elsewhere PyTorch emulates it,
    slowly. (Its build for macOS lacks oneDNN, the library for CPUs.) It is "fp16" on older GPUs
    with tensor cores, which begin with compute capability 7.0, and otherwise "fp32".
    """
    if device == "cuda":
        major, _ = torch.cuda.get_device_capability()
        if major >= 8:
            return "bf16"
        return "fp16" if major >= 7 else "fp32"
    supports = torch.cpu.get_capabilities()
    instructions = ("avx512_bf16", "amx_bf16", "bf16")
    has_bf16 = torch.backends.mkldnn.is_available() and any(map(supports.get, instructions))
    return "bf16" if has_bf16 else "fp32"


def autocast_dtype(precision: str) -> torch.dtype | None:
    """Returns the type of matrix products under `torch.autocast`, or None for no autocast."""
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)


def configure_backends(precision: str = "fp32") -> None:
    """Configures PyTorch's libraries for this process; call it before the first computation.

    precision: that of --precision. With "tf32" a GPU rounds the inputs of fp32's matrix
    products to 10 bits after the point, for its faster units.
    """
    if precision == "tf32":
        torch.set_float32_matmul_precision("high")
    # On an H100 PyTorch would choose cuDNN's attention, which plans anew for each batch shape.
    torch.backends.cuda.enable_cudnn_sdp(False)
    # Convolutions in fp32 are exact, and add up in the same order each time.
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.deterministic = True
    # oneDNN, too, plans for each batch shape. It caches 1,024 plans, but an epoch needs several
    # times as many. It reads this variable when it is first used.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "16384")


def check_compiler(device: str) -> None:
    """Raises UserError unless torch.compile will find a compiler and Python's headers.

    device: "cpu", for which it generates C++, or "cuda", for which Triton compiles some C.
    """
    if device == "cuda":
        default = "gcc" if shutil.which("gcc") else "clang"
        compiler = os.environ.get("CC") or default
    else:
        default = {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
        compiler = os.environ.get("CXX") or default
    header = Path(sysconfig.get_path("include"), "Python.h")
    if not (shutil.which(compiler) and header.is_file()):
        raise UserError(
            f"--compile needs a compiler and Python's headers, here {compiler} and {header}: "
            f"apt install g++ python3-dev, or what your system calls them"
        )
