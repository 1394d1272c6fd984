"""How long a step takes on so many GPUs, and how few of them hold a model, worked out.

    job = Job(ModelConfig(vocab_size=8000), sentences=64, length=128, precision="bf16")
    plan = best(job, KINDS["h100"], "fsdp", nodes=2, per_node=8)
    plan.fits, plan.accumulate, plan.seconds, plan.computing, plan.exchange, plan.mfu

Rates are FLOPs or bytes a second, bandwidths are those of one direction. Left out are networks that
other jobs use too, GPUs that are slower than others, and padding.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from support.common.hardware import PEAKS
from support.planning.footprint import FP32, Job, memory

MODES = ("ddp", "fsdp", "mesh")  # and "cpu": train_cpu.py
USABLE = 0.9  # of a GPU's memory, a guess: CUDA, NCCL and gaps between tensors take some
BUCKETS = (2**20, 25 * 2**20)  # bytes of DDP's first bucket and of the others: its defaults
ADAM = 7 * FP32  # bytes read and written for a parameter: it, its gradient, two moments
MOST = 1024  # GPUs that are tried


@dataclass(frozen=True)
class Kind:
    """A kind of GPU, and of the nodes and network that it comes with; or of a CPU's core."""

    memory: float  # bytes
    rate: float  # FLOP/s of its data sheet, without sparsity
    memory_rate: float  # bytes/s of its own memory
    inside: float  # bytes/s from a GPU to the others of its node
    adapter: float  # bytes/s of one network adapter
    adapters: int  # of a node
    hop: float = 3.4e-6  # s: NVLink, ring, in NCCL (src/graph/tuning.cc, Simple)
    hop_between: float = 14e-6  # s: the same for a network
    # Of `rate`, by computing alone. Published is MFU, which counts the exchanges, too. On H100:
    # Llama 3 0.38 to 0.43 (arxiv.org/abs/2407.21783); torchtitan's benchmarks 0.33, and 0.39 with
    # torch.compile, at 500 of 700 W; llm-foundry's benchmarks 0.35 to 0.46 (FSDP, bf16, up to 13
    # billion parameters and 4,096 tokens, nothing recomputed).
    efficiency: float = 0.4
    # Of a bandwidth. NCCL counts on 20 of an NVLink's 25 GB/s, on 12 of the 16 of PCIe 3.0 x 16,
    # and on 12 of a network's 12.5 (src/graph/topo.h). What NVLink SHARP gains is left out.
    reached: float = 0.8
    launch: float = 0.0  # s the CPU takes to start a layer's kernels, there and back
    precision: str = "bf16"  # that `rate` is for
    cpu: bool = False
    cores: int = 0  # that a node's processes share; 0: one for each
    base: float = 0.0  # bytes of Python and PyTorch, where they count
    gather: float = 1.0  # times as slow as half an all-reduce: an all-gather,
    scatter: float = 1.0  # and a reduce-scatter; Gloo's are slower, NCCL's are not

    @property
    def usable(self) -> float:
        """Bytes that training can have."""
        return self.memory * (1 if self.cpu else USABLE)

    def network(self, per_node: int) -> float:
        """Bytes/s that a node with so many GPUs sends: one GPU cannot use all adapters."""
        return self.adapter * min(per_node, self.adapters)


# A layer takes some 80 kernels and 100 views, there and back: 10 and 2 us each, a rule of thumb
# for which no source was found.
LAUNCH = 1e-3
# NVIDIA's data sheets of H200 SXM, H100 SXM, A100 SXM, V100 SXM2 and L4. Their GB count as 1e9
# bytes, though CUDA finds up to 7 % more. Their NVLink and PCIe are both directions: half of it.
# Adapters are those of NVIDIA's DGX H200 and H100 (8 x NDR, 400 Gb/s), DGX A100 (8 x HDR, 200 Gb/s)
# and DGX-1 (4 x EDR, 100 Gb/s).
KINDS = {
    "h200": Kind(141e9, PEAKS["H200"], 4.8e12, 450e9, 50e9, 8, launch=LAUNCH),
    "h100": Kind(80e9, PEAKS["H100"], 3.35e12, 450e9, 50e9, 8, launch=LAUNCH),
    # MFU of A100 is higher: 0.45 to 0.64 in llm-foundry's benchmarks, 0.51 to 0.61 in torchtitan's.
    "a100-80": Kind(
        80e9, PEAKS["A100"], 2.039e12, 300e9, 25e9, 8, efficiency=0.55, launch=LAUNCH
    ),
    "a100-40": Kind(
        40e9, PEAKS["A100"], 1.555e12, 300e9, 25e9, 8, efficiency=0.55, launch=LAUNCH
    ),
    # It has no bf16: support/common/kernels.py trains in fp32 on it, outside its tensor cores. Neither of
    # that nor of the L4 an MFU was found: their efficiency is the H100's.
    "v100": Kind(32e9, 15.7e12, 0.9e12, 150e9, 12.5e9, 4, launch=LAUNCH, precision="fp32"),
    # PCIe 4.0 x 16 and NCCL's hop over it; Google Cloud's G2 machines have at most 100 Gb/s.
    "l4": Kind(24e9, PEAKS["L4"], 0.3e12, 32e9, 12.5e9, 1, hop=5.7e-6, launch=LAUNCH),
    # A core as in logs/README.md (AMD EPYC, bf16), with about the MFU of logs/*/summary.json; 4 GB,
    # bandwidths and hops are guesses; gather and scatter as once measured. --measure replaces all
    # but those between nodes.
    "cpu": Kind(
        4e9,
        220e9,
        5e9,
        2e9,
        1.25e9,
        1,
        hop=1e-4,
        hop_between=2e-4,
        efficiency=0.5,
        cpu=True,
        gather=2.3,
        scatter=2.9,
    ),
}


@dataclass
class Plan:
    """What a mode comes to on so many GPUs. Memory in bytes, of the largest process."""

    job: Job
    kind: Kind
    mode: str
    nodes: int
    per_node: int
    accumulate: int

    def __post_init__(self):
        job, kind, self.gpus = self.job, self.kind, self.nodes * self.per_node
        sentences = math.ceil(job.sentences / self.gpus / self.accumulate)
        self.shards = {"fsdp": self.gpus, "mesh": self.per_node}.get(self.mode, 0)
        self.memory, self.most = memory(job, self.shards, sentences, self.accumulate, kind.base)
        self.fits = self.most <= kind.usable
        # Processes that are more than the cores take turns.
        turns = max(1, self.per_node / kind.cores) if kind.cores else 1
        computed = job.computed * sentences / job.sentences / (kind.rate * kind.efficiency)
        launched = 2 * job.config.layers * kind.launch  # while a GPU computes, a CPU cannot
        self.micro = turns * (computed + launched if kind.cpu else max(computed, launched))
        adam = turns * ADAM * job.parameters / max(1, self.shards) / kind.memory_rate
        self.computing = self.accumulate * self.micro + adam

    @cached_property
    def exchange(self) -> float:
        """Seconds of a step in which exchanges keep computing waiting."""
        times = {"cpu": self.flat, "ddp": self.buckets}.get(self.mode, self.sharded)
        return times() + self.collective(16, 2) + self.job.delay  # and the loss, at the end

    @property
    def seconds(self) -> float:
        return self.computing + self.exchange

    @property
    def mfu(self) -> float:
        """The share of the peak that the model's FLOPs come to, without those of --recompute."""
        return self.job.flops / self.seconds / self.gpus / self.kind.rate

    def collective(self, size: float, passes: int, among: str = "all") -> float:
        """Seconds to exchange `size` bytes: two passes for an all-reduce, one for its two halves.

        In each pass every process sends (n - 1) / n of them around a ring, and its slowest link
        counts. among: all processes, those of a node, or those of one place on all "nodes".
        """
        kind, nodes, per_node = self.kind, self.nodes, self.per_node
        network = kind.network(per_node)
        if among == "node":
            nodes = 1
        elif among == "nodes":  # the others of the node send as well
            network, per_node = network / per_node, 1
        n = nodes * per_node
        slowest = min(
            [kind.inside] * (per_node > 1) + [network] * (nodes > 1), default=math.inf
        )
        # A ring has n - 1 hops. NCCL all-reduces over trees of nodes where that waits less.
        across = nodes - 1 if passes == 1 else math.ceil(math.log2(nodes))
        within = n - nodes if passes == 1 else per_node - 1
        hops = within * kind.hop + across * kind.hop_between
        return passes * ((n - 1) / n * size / (kind.reached * slowest) + hops)

    def flat(self) -> float:
        """train_cpu.py: one all-reduce after the backward pass."""
        return self.collective(FP32 * self.job.parameters, 2) + self.job.delay

    def buckets(self) -> float:
        """DDP: a bucket is sent once its gradients are there, while the last backward goes on."""
        sizes = [0.0]
        for tensor in reversed(self.job.tensors):
            if sizes[-1] >= BUCKETS[len(sizes) > 1]:
                sizes.append(0.0)
            sizes[-1] += FP32 * tensor
        times, waits = [self.collective(size, 2) for size in sizes], len(sizes) * self.job.delay
        if self.kind.cpu:  # sending takes the cores' time, too
            return sum(times) + waits
        ready = ended = 0.0
        backward = self.micro * self.backward
        for size, time in zip(sizes, times):
            ready += backward * size / sum(sizes)
            ended = max(ended, ready) + time
        return ended - backward + waits

    @property
    def backward(self) -> float:
        """The backward pass's share of computing: the forward pass is a third of `flops`."""
        return 1 - self.job.flops / 3 / self.job.computed

    def sharded(self) -> float:
        """FSDP; with a mesh within each node, and what a node has summed is summed over all."""
        job, units, mesh = self.job, self.job.units, self.mode == "mesh"
        among = "node" if mesh else "all"
        gather, scatter = (
            [rate * self.collective(number * unit, 1, among) for unit in units]
            for rate, number in ((self.kind.gather, job.number), (self.kind.scatter, FP32))
        )
        across = [
            mesh * self.collective(FP32 * unit / self.shards, 2, "nodes") for unit in units
        ]
        gathers, sums = self.accumulate * (2 * len(units) - 1), len(units)
        exchanges = (self.shards > 1) * (gathers + sums) + mesh * sums
        # The norm is a sum over all, too: each process has its part.
        waits = (exchanges + 1) * job.delay + self.collective(FP32, 2)
        if self.kind.cpu:
            gathered = self.accumulate * (2 * sum(gather) - gather[0])
            return gathered + sum(scatter) + sum(across) + waits
        none = [0.0] * len(units)
        return (
            (self.accumulate - 1) * self.pipeline(gather, none, none)
            + self.pipeline(gather, scatter, across)
            + waits
        )

    def pipeline(self, gather: list, scatter: list, across: list) -> float:
        """What a micro-batch waits: a layer is gathered while the one before it computes.

        The seconds of each exchange, by unit: first what is in no layer, then the layers. In the
        backward pass gathering a layer and scattering the one above it share the network.
        """
        compute = [self.micro * unit / sum(self.job.units) for unit in self.job.units]
        begun = clock = inside = between = 0.0  # the times at which each is free
        for i in range(len(compute)):
            inside = max(inside, begun) + gather[i]
            begun = max(clock, inside)
            clock = begun + (i > 0) * (1 - self.backward) * compute[i]
        clock += (1 - self.backward) * compute[0]  # the projection comes last,
        begun, clock = clock, clock + self.backward * compute[0]  # and on the way back first
        for i in reversed(range(len(compute))):
            ready = inside = max(inside, begun) + (gather[i] if i else 0)
            if i + 1 < len(compute):
                inside = max(inside, clock) + scatter[i + 1]
                between = max(inside, between) + across[i + 1]
            if i:
                begun = max(clock, ready)
                clock = begun + self.backward * compute[i]
        inside = max(inside, clock) + scatter[0]
        return max(inside, max(inside, between) + across[0]) - self.micro


def plans(
    job: Job, kind: Kind, mode: str, nodes: int, per_node: int, accumulate: int = 0
) -> list[Plan]:
    """Those with 1, 2, 4 … micro-batches and with one a sentence; or with a given number."""
    most = math.ceil(job.sentences / nodes / per_node)
    tried = {2**i for i in range(most.bit_length())} | {most}
    return [
        Plan(job, kind, mode, nodes, per_node, parts)
        for parts in ([accumulate] if accumulate else sorted(tried))
    ]


def best(*what) -> Plan:
    """Of `plans` the fastest that fits, and has few micro-batches; else that of least memory."""
    found = plans(*what)
    if fitting := [plan for plan in found if plan.fits]:
        return min(fitting, key=lambda plan: plan.seconds)
    return min(found, key=lambda plan: plan.most)


def layouts(per_node: int) -> Iterator[tuple[int, int]]:
    """(nodes, GPUs on each): 1, 2 … GPUs of one node, then 2, 3 … whole nodes."""
    yield from ((1, gpus) for gpus in range(1, per_node + 1))
    yield from ((nodes, per_node) for nodes in range(2, MOST // per_node + 1))


def smallest(job: Job, kind: Kind, mode: str, per_node: int, accumulate: int = 0) -> int:
    """The smallest number of GPUs that hold the model; 0 if MOST do not."""
    return next(
        (
            nodes * gpus
            for nodes, gpus in layouts(per_node)
            if any(plan.fits for plan in plans(job, kind, mode, nodes, gpus, accumulate))
        ),
        0,
    )
