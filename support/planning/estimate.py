"""Estimates the seconds of a training step on some GPUs, and the fewest GPUs that hold a model.

    step = TrainingStep(ModelConfig(8000), sentences=64, length=128, precision="bf16")
    estimate = best(step, HARDWARE["h100"], "fsdp", nodes=2, per_node=8)
    estimate.fits, estimate.accumulate, estimate.seconds
    estimate.computing, estimate.communication  # the seconds, divided into these two

Padding is left out, and so is what support/planning/machines.py does not know of GPUs and
networks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

from support.planning.footprint import FP32, TrainingStep, memory
from support.planning.machines import Hardware, Network

# HSDP shards the model within each node: train_fsdp.py --replicas NODES.
MODE_NAMES = {
    "cpu": "train_cpu.py",
    "ddp": "DDP",
    "fsdp": "FSDP",
    "hsdp": "FSDP --replicas",
    "tp": "TP and FSDP",  # train_tp.py, each layer split over the GPUs of a node
}
FIRST_BUCKET = 2**20  # bytes of DDP's first bucket: PyTorch's default
BUCKET = 25 * 2**20  # and of the others
STOP_BYTES = 8  # of `stop_requested`, all-reduced once a step
ADAM_BYTES = 7 * FP32  # read and written for a parameter, its gradient and two moments
# All-reduces of tensor parallelism in an encoder and a decoder layer together, which have three
# attentions and two feed-forwards: in the forward pass one for each matrix that is split by
# rows, in the backward pass one for each that is split by columns.
FORWARD_SUMS = 3 + 2
BACKWARD_SUMS = 2 * 3 + 2  # an attention has two by columns: the query, and the key and value
MAX_GPUS = 1024
EVERY_COUNT = range(1, MAX_GPUS + 1)


@dataclass
class Estimate:
    """The memory and time of a step in a mode, on a number of GPUs.

    `memory`, by part, and `peak_memory` are those of the largest process, in bytes.
    """

    step: TrainingStep
    hardware: Hardware
    mode: str  # a key of MODE_NAMES
    nodes: int
    per_node: int  # GPUs, or processes of a CPU
    accumulate: int

    def __post_init__(self) -> None:
        if self.mode == "tp":
            self.step = replace(self.step, tensor=self.per_node)
        self.network = Network(self.hardware, self.nodes, self.per_node)
        self.gpus = self.nodes * self.per_node
        shards = {"fsdp": self.gpus, "hsdp": self.per_node, "tp": self.nodes}
        self.shards = shards.get(self.mode, 0)  # that FSDP gathers
        data_size = self.gpus // self.step.tensor  # processes that have different sentences
        # Pairs in a micro-batch of a process.
        self.micro_batch_size = math.ceil(self.step.sentences / data_size / self.accumulate)
        self.memory, self.peak_memory = memory(
            self.step,
            self.shards,
            self.micro_batch_size,
            self.accumulate,
            self.hardware.base_memory,
        )
        self.fits = self.peak_memory <= self.hardware.usable_memory
        self.set_computing()

    def set_computing(self) -> None:
        """Sets the seconds that a process computes in a micro-batch and in a step."""
        step = self.step
        hardware = self.hardware
        # If there are more processes than cores, they take turns.
        turns = max(1.0, self.per_node / hardware.cores)
        rate = hardware.peak_flops * hardware.efficiency
        computed = step.hardware_flops * self.micro_batch_size / step.sentences / rate
        layers = 2 * step.config.layers  # of the encoder and of the decoder
        launched = layers * hardware.launch
        # A GPU computes while the CPU starts the next kernels; a CPU does one after the other.
        elapsed = computed + launched if hardware.cpu else max(computed, launched)
        self.micro_batch_seconds = turns * elapsed
        parameters = sum(step.units) / max(1, self.shards)
        adam = turns * ADAM_BYTES * parameters / hardware.memory_bandwidth
        self.computing = self.accumulate * self.micro_batch_seconds + adam

    @cached_property
    def communication(self) -> float:
        """Seconds of a step in which computing waits: exposed communication."""
        if self.mode == "cpu":  # one all-reduce after the backward pass
            seconds = self.network.all_reduce(FP32 * self.step.parameters) + self.step.delay
        elif self.mode == "ddp":
            seconds = self.ddp_communication()
        else:
            seconds = self.fsdp_communication() + self.tensor_communication()
        seconds += self.network.all_reduce(STOP_BYTES) + self.step.delay
        return max(0.0, round(seconds, 12))  # the difference of equal numbers may be 1e-18

    @property
    def seconds(self) -> float:
        return self.computing + self.communication

    @property
    def mfu(self) -> float:
        """The model's FLOPs, without those of --recompute, as a share of the peak."""
        return self.step.flops / self.seconds / self.gpus / self.hardware.peak_flops

    @property
    def backward_share(self) -> float:
        """The backward pass's share of computing."""
        return 1 - self.step.forward_flops / self.step.hardware_flops

    def ddp_communication(self) -> float:
        """Returns the seconds of DDP's communication that the last backward pass does not hide.

        A bucket is all-reduced once its gradients exist, while the backward pass continues.
        """
        sizes = bucket_sizes(self.step.parameter_sizes)
        times = [self.network.all_reduce(size) for size in sizes]
        delays = len(sizes) * self.step.delay
        if self.hardware.cpu:  # communication takes the cores' time, so nothing is hidden
            return sum(times) + delays
        backward = self.micro_batch_seconds * self.backward_share
        ready = 0.0  # when a bucket's gradients are computed
        finished = 0.0  # when it is reduced
        for size, seconds in zip(sizes, times):
            ready += backward * size / sum(sizes)
            finished = max(finished, ready) + seconds
        return finished - backward + delays

    def fsdp_communication(self) -> float:
        """Returns the seconds of FSDP's communication that computing does not hide.

        HSDP shards within each node, and all-reduces the sums of the nodes over all nodes. With
        tensor parallelism each GPU's part of the layers is sharded over the nodes.
        """
        step = self.step
        hardware = self.hardware
        across_nodes = self.network.across_nodes()
        network = self.network
        if self.mode == "hsdp":
            network = network.within_nodes()
        elif self.mode == "tp":
            network = across_nodes
        gather = [
            hardware.gather_factor * network.all_gather(step.compute_bytes * unit)
            for unit in step.units
        ]
        scatter = [
            hardware.scatter_factor * network.all_gather(FP32 * unit) for unit in step.units
        ]
        nothing = [0.0] * len(step.units)
        across = nothing
        if self.mode == "hsdp":
            across = [across_nodes.all_reduce(FP32 * n / self.shards) for n in step.units]
        # The gradient's norm is a sum over the processes. In fp16 GradScaler also asks whether
        # the gradient of any of them has overflowed.
        sums = 2 if step.precision == "fp16" else 1
        waits = sums * self.network.all_reduce(FP32)
        waits += (self.fsdp_collectives() + sums) * step.delay
        if hardware.cpu:  # nothing is hidden; the root is gathered once, each layer twice
            gathered = self.accumulate * (2 * sum(gather) - gather[0])
            return gathered + sum(scatter) + sum(across) + waits
        earlier = (self.accumulate - 1) * self.pipeline(gather, nothing, nothing)
        return earlier + self.pipeline(gather, scatter, across) + waits

    def tensor_communication(self) -> float:
        """Returns the seconds of the all-reduces inside layers, for which computing waits."""
        step = self.step
        if step.tensor == 1:
            return 0.0
        size = step.compute_bytes * step.config.d_model * self.micro_batch_size * step.length
        seconds = self.network.within_nodes().all_reduce(size) + step.delay
        sums = FORWARD_SUMS * (2 if step.recompute else 1) + BACKWARD_SUMS
        return self.accumulate * step.config.layers * sums * seconds

    def fsdp_collectives(self) -> int:
        """Returns the number of collectives in a step, except those of a single element."""
        units = len(self.step.units)
        collectives = units if self.mode == "hsdp" else 0
        if self.shards > 1:
            gathers = 2 * units - 1  # the root once, each layer forward and backward
            collectives += self.accumulate * gathers + units
        return collectives

    def pipeline(self, gather: list[float], scatter: list[float], across: list[float]) -> float:
        """Returns the seconds that a micro-batch's computing waits for communication.

        gather, scatter, across: seconds of the all-gather, the reduce-scatter and the
        all-reduce over nodes, by unit: first the root, which holds what is in no layer, then
        the layers. A unit is gathered while the previous one computes. In the backward pass the
        all-gather of a layer and the reduce-scatter of the layer above it share the links
        within a node.
        """
        total = sum(self.step.units)
        compute = [self.micro_batch_seconds * unit / total for unit in self.step.units]
        forward = [(1 - self.backward_share) * seconds for seconds in compute]
        backward = [self.backward_share * seconds for seconds in compute]
        root, *layers = range(len(compute))
        compute_free = links_free = network_free = 0.0  # when each is free again

        def advance(
            gathering: float = 0.0,
            computing: float = 0.0,
            scattering: float = 0.0,
            summing: float = 0.0,
        ) -> None:
            """Gathers a unit and computes with it; meanwhile another's gradients are sent.

            All are seconds; `summing` is the all-reduce over nodes.
            """
            nonlocal compute_free, links_free, network_free
            began = max(compute_free, links_free + gathering)
            compute_free = began + computing
            links_free = began + scattering
            network_free = max(network_free, links_free) + summing

        advance(gather[root])
        for layer in layers:
            advance(gather[layer], forward[layer])
        # The projection to the vocabulary comes last, and first in the backward pass.
        advance(computing=forward[root])
        advance(computing=backward[root])
        scatter_above = across_above = 0.0  # of the layer above
        for layer in reversed(layers):
            advance(gather[layer], backward[layer], scatter_above, across_above)
            scatter_above = scatter[layer]
            across_above = across[layer]
        advance(scattering=scatter_above, summing=across_above)
        advance(scattering=scatter[root], summing=across[root])
        return network_free - self.micro_batch_seconds


def bucket_sizes(tensors: list[int]) -> list[float]:
    """Returns the bytes of DDP's buckets, filled from the last parameter to the first.

    tensors: elements of each parameter.
    """
    sizes = [0.0]
    for elements in reversed(tensors):
        capacity = FIRST_BUCKET if len(sizes) == 1 else BUCKET
        if sizes[-1] >= capacity:
            sizes.append(0.0)
        sizes[-1] += FP32 * elements
    return sizes


def best(
    step: TrainingStep, hardware: Hardware, mode: str, nodes: int, per_node: int
) -> Estimate:
    """Returns the fastest estimate that fits or, if none does, the one of least memory.

    Unless step.accumulate is set, it tries 1, 2, 4 ... micro-batches, up to one for each
    sentence. Of equally fast ones it is the one with the fewest micro-batches.
    """
    estimate = partial(Estimate, step, hardware, mode, nodes, per_node)
    counts = [step.accumulate]
    if not step.accumulate:
        most = estimate(accumulate=1).micro_batch_size
        powers = [2**i for i in range(most.bit_length())]
        counts = [count for count in powers if count < most] + [most]
    estimates = [estimate(count) for count in counts]
    fitting = [estimate for estimate in estimates if estimate.fits]
    if fitting:
        return min(fitting, key=lambda estimate: estimate.seconds)
    return min(estimates, key=lambda estimate: estimate.peak_memory)


def layouts(per_node: int, counts: Sequence[int] = EVERY_COUNT) -> list[tuple[int, int]]:
    """Returns (nodes, GPUs on each): parts of one node, then whole nodes."""
    one_node = [(1, gpus) for gpus in counts if gpus < per_node]
    return one_node + [(nodes, per_node) for nodes in counts if nodes * per_node <= MAX_GPUS]


def fewest_gpus(step: TrainingStep, hardware: Hardware, mode: str, per_node: int) -> int:
    """Returns the smallest number of GPUs that hold the model; 0 if MAX_GPUS do not."""
    for nodes, gpus in layouts(per_node):
        if can_run(step, mode, nodes, gpus) and best(step, hardware, mode, nodes, gpus).fits:
            return nodes * gpus
    return 0


def can_run(step: TrainingStep, mode: str, nodes: int, per_node: int) -> bool:
    """Returns whether a mode can run on `nodes` nodes with `per_node` GPUs or cores each."""
    if mode == "cpu":
        return nodes == 1
    if mode == "tp":  # the GPUs of a node share each layer
        return step.config.heads % per_node == 0 and step.config.d_ff % per_node == 0
    return True
