"""What this machine's CPU reaches, found in some seconds: the numbers that a plan needs of it.

    kind = measure(job, processes=2)                       # a Kind, in the place of KINDS["cpu"]

Each process has one thread. As many compute side by side as there are cores, since they share
caches and memory; all of them exchange.
"""

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.utils import clip_grad_norm_

from model import Transformer, initialize
from support.common.errors import UserError
from support.common.hardware import available_cores, matrix_rate, peak_memory
from support.common.kernels import configure_backends, speed_up
from support.distributed.rendezvous import store_on_loopback
from support.planning.estimate import ADAM, Kind, Plan
from support.planning.footprint import FP32, Job

REPEATS = 7
EXCHANGED = 2**22  # numbers: 16 MiB, some of DDP's buckets


def median_seconds(call: Callable[[], None]) -> float:
    """The time of a call, which is made once before to warm up."""
    call()
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def seconds_after_computing(exchange: Callable[[], None]) -> float:
    """What an exchange adds to some computing, as in a step.

    Right after another one it would be faster: there caches still hold what it takes, and all
    processes come at the same time.
    """
    factor = torch.randn(1024, 1024)

    def seconds(call: Callable[[], None]) -> float:
        dist.barrier()
        began = time.perf_counter()
        for _ in range(REPEATS):
            factor @ factor
            call()
        return (time.perf_counter() - began) / REPEATS

    more = [seconds(exchange) - seconds(lambda: None) for _ in range(REPEATS)]
    return max(1e-6, statistics.median(more))


def compute(job: Job) -> dict[str, float]:
    """Seconds of a whole and of a quarter of a step's sentences, there and back; of AdamW."""
    torch.manual_seed(0)
    bf16 = job.precision == "bf16"
    model = speed_up(Transformer(job.config), "cpu", bf16)
    initialize(model, seed=1)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def pass_through(sentences: int) -> None:
        ids = torch.randint(3, job.config.vocab_size, (sentences, job.length))
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss, _ = model(ids, ids, ids)
        (loss / ids.numel()).backward()

    def adam() -> None:
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    few = max(1, job.sentences // 4)
    return {
        "whole": median_seconds(lambda: pass_through(job.sentences)),
        "few": median_seconds(lambda: pass_through(few)),
        "adam": median_seconds(adam),
        "peak": matrix_rate("cpu", job.precision),
    }


def exchange(processes: int, layer: int) -> dict[str, float]:
    """Seconds of all-reduces; of what FSDP does with a layer of so many numbers, with copies."""
    all_gather, reduce_scatter = (
        getattr(dist, new, None) or getattr(dist, old)  # by PyTorch's version
        for new, old in (
            ("all_gather_single", "all_gather_into_tensor"),
            ("reduce_scatter_single", "reduce_scatter_tensor"),
        )
    )
    few, many = torch.zeros(4), torch.zeros(EXCHANGED)
    shard = torch.zeros(-(-layer // processes))
    whole, copy = torch.zeros(2, len(shard) * processes)

    def gather() -> None:
        all_gather(whole, shard)
        copy.copy_(whole)

    def scatter() -> None:
        whole.copy_(copy)
        reduce_scatter(shard, whole)

    calls = {
        "latency": lambda: dist.all_reduce(few),
        "exchange": lambda: dist.all_reduce(many),
        "gather": gather,
        "scatter": scatter,
    }
    return {name: seconds_after_computing(call) for name, call in calls.items()}


def worker(rank: int, processes: int, port: int, job: Job, path: str) -> None:
    """One process of `measure`; rank 0 writes what it found to `path`."""
    configure_backends()
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group(
        "gloo", store=store, rank=rank, world_size=processes, timeout=timedelta(hours=1)
    )  # while cores take turns at a large model

    found = {"base": peak_memory() * 2**20}
    dist.barrier()
    if rank < available_cores():
        found |= compute(job)
    dist.barrier()
    if processes > 1:
        found |= exchange(processes, max(job.units))
    if rank == 0:
        with open(path, "w") as file:
            json.dump(found, file)
    dist.barrier()
    dist.destroy_process_group()


def measure(job: Job, processes: int) -> Kind:
    """The rates of this machine's CPU while so many processes train on it. Raises UserError."""
    store = store_on_loopback()
    with tempfile.NamedTemporaryFile("r", suffix=".json") as file:
        try:
            mp.spawn(worker, (processes, store.port, job, file.name), nprocs=processes)
        except (mp.ProcessExitedException, mp.ProcessRaisedException) as problem:
            said = str(problem).strip().splitlines()[-1]  # of a traceback the error itself
            raise UserError(f"--measure: {said[:200]} (out of memory?)") from problem
        found = json.load(file)
    # A straight line through both times: what a sentence takes, and what a pass takes besides. By
    # noise alone a sentence could seem to take less than at the peak, or even nothing.
    more = job.sentences - max(1, job.sentences // 4)
    sentence = (
        (found["whole"] - found["few"]) / more if more else found["whole"] / job.sentences
    )
    fastest = job.flops / job.sentences / found["peak"]  # without --recompute, as measured
    sentence = max(fastest, sentence)
    besides = max(0.0, found["whole"] - job.sentences * sentence)
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    kind = Kind(
        memory=machine / processes,
        rate=found["peak"],
        efficiency=fastest / sentence,
        memory_rate=ADAM * job.parameters / found["adam"],
        inside=1.0,
        reached=1.0,
        adapter=1.25e9,
        adapters=1,
        hop_between=2e-4,  # guesses, as in KINDS
        launch=besides / 2 / job.config.layers,
        precision=job.precision,
        cpu=True,
        cores=available_cores(),
        base=found["base"],
    )
    if processes == 1:
        return kind
    hop, ring = found["latency"] / 2 / (processes - 1), 2 * (processes - 1) / processes
    sent = found["exchange"] - found["latency"]
    kind = replace(kind, hop=hop, inside=ring * FP32 * EXCHANGED / max(sent, 1e-6))
    half = Plan(job, kind, "fsdp", 1, processes, 1).collective(FP32 * max(job.units), 1)
    return replace(kind, gather=found["gather"] / half, scatter=found["scatter"] / half)
