"""Measures the rates of this machine's CPU, in a few seconds, for an estimate.

    hardware = measure(step, processes=2)  # instead of HARDWARE["cpu"]

Each process has one thread. As many processes compute side by side as there are cores, since
they share caches and memory; all of them communicate.
"""

import importlib
import math
import statistics
import timeit
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

import psutil
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from model import ModelConfig, Transformer, initialize
from support.common.errors import UserError
from support.common.hardware import (
    autocast_dtype,
    available_cores,
    configure_backends,
    matrix_rate,
    peak_resident,
)
from support.common.kernels import speed_up
from support.distributed.clip import clip_gradients
from support.distributed.launch import end_at_once
from support.distributed.rendezvous import connect, store_on_loopback
from support.planning.estimate import ADAM_BYTES
from support.planning.footprint import FP32, TrainingStep
from support.planning.machines import HARDWARE, Hardware, Network

# The collectives of FSDP, which older versions of PyTorch name otherwise.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter_single = (
    getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
)

REPEATS = 7
SENT = 2**22  # elements: 16 MiB, where a bucket of DDP has 25
TINY = TrainingStep(ModelConfig(300, layers=1, d_model=32, d_ff=64), 4, 32, cpu=True)


@dataclass
class Timings:
    """What rank 0 measures: seconds, except the first two."""

    base_memory: float = 0.0  # bytes of a process that has trained TINY: Python and PyTorch
    peak_flops: float = 0.0  # FLOP/s
    step: float = 0.0  # forward and backward pass of all sentences of the step
    quarter: float = 0.0  # the same for a quarter of them
    adam: float = 0.0
    latency: float = 0.0  # an all-reduce of 16 bytes; from here on 0 with a single process
    all_reduce: float = 0.0  # of SENT elements
    all_gather: float = 0.0  # of the largest unit, with the copy that FSDP makes
    reduce_scatter: float = 0.0


def median_seconds(call: Callable[[], None]) -> float:
    """Returns the median time of a call, after one call to warm up."""
    call()
    return statistics.median(timeit.repeat(call, number=1, repeat=REPEATS))


def seconds_after_computing(collective: Callable[[], None]) -> float:
    """Returns the seconds that a collective adds when it follows computation, as in a step.

    Right after another collective it would be faster: the caches would hold its tensors, and
    all processes would start it at the same time.
    """
    factor = torch.randn(1024, 1024)

    def seconds(call: Callable[[], None]) -> float:
        def compute_and_call() -> None:
            factor @ factor
            call()

        dist.barrier()
        return timeit.timeit(compute_and_call, number=REPEATS) / REPEATS

    differences = [seconds(collective) - seconds(lambda: None) for _ in range(REPEATS)]
    return max(1e-6, statistics.median(differences))


def quarter_of(step: TrainingStep) -> int:
    """Returns a quarter of the sentences, at least one."""
    return max(1, step.sentences // 4)


def time_computing(step: TrainingStep) -> Timings:
    """Measures the forward and backward pass, and AdamW."""
    torch.manual_seed(0)
    dtype = autocast_dtype(step.precision)
    configure_backends()
    model = speed_up(Transformer(step.config), "cpu", dtype)
    initialize(model, seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def forward_backward(sentences: int) -> None:
        ids = torch.randint(3, step.config.vocab_size, (sentences, step.length))
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            loss, _ = model(ids, ids, ids, torch.arange(ids.numel()))
        (loss / ids.numel()).backward()

    def adam() -> None:
        clip_gradients(model.parameters(), 1.0)
        optimizer.step()

    return Timings(
        step=median_seconds(lambda: forward_backward(step.sentences)),
        quarter=median_seconds(lambda: forward_backward(quarter_of(step))),
        adam=median_seconds(adam),
    )


def time_collectives(timings: Timings, processes: int, unit: int) -> None:
    """Adds the collectives to `timings`. unit: elements of the largest unit of FSDP."""
    small = torch.zeros(4)
    large = torch.zeros(SENT)
    shard = torch.zeros(math.ceil(unit / processes))
    whole = torch.zeros(len(shard) * processes)
    copy = torch.zeros_like(whole)

    def all_gather() -> None:
        all_gather_single(whole, shard)
        copy.copy_(whole)

    def reduce_scatter() -> None:
        whole.copy_(copy)
        reduce_scatter_single(shard, whole)

    timings.latency = seconds_after_computing(lambda: dist.all_reduce(small))
    timings.all_reduce = seconds_after_computing(lambda: dist.all_reduce(large))
    timings.all_gather = seconds_after_computing(all_gather)
    timings.reduce_scatter = seconds_after_computing(reduce_scatter)


@end_at_once()
def worker(rank: int, processes: int, port: int, step: TrainingStep, results) -> None:
    """Measures in one of the processes; rank 0 puts its Timings into the queue `results`."""
    torch.set_num_threads(1)
    hour = timedelta(hours=1)  # computing takes long with a large model on shared cores
    store = connect(port, hour)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=processes, timeout=hour)
    for module in ("train_fsdp", "support.distributed.weights"):
        importlib.import_module(module)  # what a training process imports counts, too
    time_computing(TINY)
    base_memory = peak_resident()
    dist.barrier()
    timings = Timings()
    if rank < available_cores():
        timings = time_computing(step)
        timings.peak_flops = matrix_rate("cpu", step.precision)
    timings.base_memory = base_memory
    dist.barrier()
    if processes > 1:
        time_collectives(timings, processes, max(step.units))
    if rank == 0:
        results.put(timings)
    dist.barrier()
    dist.destroy_process_group()


def take_timings(step: TrainingStep, processes: int) -> Timings:
    """Starts the processes and returns what rank 0 measured. Raises UserError."""
    store = store_on_loopback()
    results = mp.get_context("spawn").SimpleQueue()
    try:
        mp.spawn(worker, (processes, store.port, step, results), nprocs=processes)
    except (mp.ProcessExitedException, mp.ProcessRaisedException) as problem:
        message = str(problem).strip().splitlines()[-1]  # the last line of a traceback
        raise UserError(f"--measure: {message[:200]} (out of memory?)") from problem
    return results.get()


def fit(timings: Timings, step: TrainingStep, processes: int) -> Hardware:
    """Returns the Hardware with which an estimate of `step` gives these timings."""
    fastest = step.flops / step.sentences / timings.peak_flops  # measured without --recompute
    # The seconds of a sentence are the slope of a line through both times; its intercept is the
    # overhead of a pass. Noise could make the slope less than the peak allows, or negative.
    difference = step.sentences - quarter_of(step)
    slope = (timings.step - timings.quarter) / difference if difference else timings.step
    sentence = max(fastest, slope)
    overhead = max(0.0, timings.step - step.sentences * sentence)
    layers = 2 * step.config.layers  # of the encoder and of the decoder
    hardware = replace(
        HARDWARE["cpu"],  # for the network between nodes, which one machine cannot measure
        memory=psutil.virtual_memory().total / processes,
        peak_flops=timings.peak_flops,
        efficiency=fastest / sentence,
        memory_bandwidth=ADAM_BYTES * step.parameters / timings.adam,
        bandwidth_efficiency=1.0,
        launch=overhead / layers,
        precision=step.precision,
        cores=available_cores(),
        base_memory=timings.base_memory,
    )
    if processes == 1:
        return hardware
    sent = 2 * (processes - 1) / processes * FP32 * SENT  # bytes
    seconds = max(timings.all_reduce - timings.latency, 1e-6)
    node_latency = timings.latency / 2 / (processes - 1)
    hardware = replace(hardware, node_latency=node_latency, node_bandwidth=sent / seconds)
    network = Network(hardware, nodes=1, per_node=processes)
    half_all_reduce = network.all_gather(FP32 * max(step.units))
    gather = timings.all_gather / half_all_reduce
    scatter = timings.reduce_scatter / half_all_reduce
    return replace(hardware, gather_factor=gather, scatter_factor=scatter)


def measure(step: TrainingStep, processes: int) -> Hardware:
    """Returns the Hardware of this CPU, shared by `processes` processes. Raises UserError."""
    return fit(take_timings(step, processes), step, processes)
