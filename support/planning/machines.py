"""What a GPU, a node and a network can do, and how long a collective takes on them.

    network = Network(HARDWARE["h100"], nodes=2, per_node=8)
    network.all_reduce(25e6)  # seconds, of 25 MB

Rates are FLOPs or bytes per second, bandwidths are those of one direction. Networks that other
jobs use as well, and GPUs that are slower than others, are left out.
"""

import math
from dataclasses import dataclass, replace

from support.common.hardware import LAUNCH_SECONDS, PEAKS

USABLE = 0.9  # of a GPU's memory, a guess: CUDA, NCCL and gaps between tensors take the rest


@dataclass(frozen=True)
class Hardware:
    """A GPU with the node and network that it comes with, or a core of a CPU."""

    memory: float  # bytes
    peak_flops: float  # FLOP/s of the data sheet, without sparsity
    memory_bandwidth: float  # bytes/s of its own memory
    node_bandwidth: float  # bytes/s from a GPU to the others of its node
    adapter_bandwidth: float  # bytes/s of one network adapter
    adapters: int  # of a node; a GPU uses one
    # Seconds of one hop in a ring, as NCCL assumes them (src/graph/tuning.cc, protocol Simple):
    node_latency: float = 3.4e-6  # over NVLink
    network_latency: float = 14e-6  # over a network
    # The share of peak_flops that computing alone reaches. Published figures are MFU, which
    # includes communication. On H100: Llama 3 0.38 to 0.43 (arxiv.org/abs/2407.21783);
    # torchtitan's benchmarks 0.33, and 0.39 with torch.compile, at 500 of 700 W; llm-foundry's
    # benchmarks 0.35 to 0.46 (FSDP, bf16, up to 13 billion parameters and 4,096 tokens, nothing
    # recomputed).
    efficiency: float = 0.4
    # The share of a bandwidth that is reached. NCCL assumes 20 of an NVLink's 25 GB/s, 12 of
    # the 16 of PCIe 3.0 x 16, and 12 of a network's 12.5 (src/graph/topo.h). The gain of
    # NVLink SHARP is left out.
    bandwidth_efficiency: float = 0.8
    launch: float = LAUNCH_SECONDS  # seconds to start a layer's kernels, forward and backward
    precision: str = "bf16"  # that peak_flops is for; a GPU with bf16 has the same in fp16
    cpu: bool = False
    cores: float = math.inf  # that a node's processes share
    base_memory: float = 0.0  # bytes of Python and PyTorch, where they count
    # The time of an all-gather, and of a reduce-scatter, relative to half an all-reduce: longer
    # with Gloo, the same with NCCL.
    gather_factor: float = 1.0
    scatter_factor: float = 1.0

    @property
    def usable_memory(self) -> float:
        """Bytes that are available to training."""
        return self.memory if self.cpu else self.memory * USABLE


# From NVIDIA's data sheets of H200 SXM, H100 SXM, A100 SXM, V100 SXM2 and L4. Their GB count as
# 1e9 bytes, though CUDA finds up to 7 % more. NVLink and PCIe are given there for both
# directions; here it is halved. Adapters are those of NVIDIA's DGX H200 and H100 (8 x NDR,
# 400 Gb/s), DGX A100 (8 x HDR, 200 Gb/s) and DGX-1 (4 x EDR, 100 Gb/s).
HARDWARE = {
    # memory, peak_flops, memory_bandwidth, node_bandwidth, adapter_bandwidth, adapters
    "h200": Hardware(141e9, PEAKS["NVIDIA H200"], 4.8e12, 450e9, 50e9, 8),
    "h100": Hardware(80e9, PEAKS["NVIDIA H100 80GB HBM3"], 3.35e12, 450e9, 50e9, 8),
    # MFU of A100 is higher: 0.45 to 0.64 in llm-foundry's benchmarks, 0.51 to 0.61 in
    # torchtitan's.
    "a100-80": Hardware(
        80e9, PEAKS["NVIDIA A100-SXM4-80GB"], 2.039e12, 300e9, 25e9, 8, efficiency=0.55
    ),
    "a100-40": Hardware(
        40e9, PEAKS["NVIDIA A100-SXM4-40GB"], 1.555e12, 300e9, 25e9, 8, efficiency=0.55
    ),
    # It has no bf16. For it and for the L4 no published MFU was found; they get the H100's
    # efficiency.
    "v100": Hardware(32e9, 125e12, 0.9e12, 150e9, 12.5e9, 4, precision="fp16"),
    # PCIe 4.0 x 16 and NCCL's latency over it; Google Cloud's G2 machines have at most 100
    # Gb/s.
    "l4": Hardware(24e9, PEAKS["NVIDIA L4"], 0.3e12, 32e9, 12.5e9, 1, node_latency=5.7e-6),
    # A core of an AMD EPYC with bf16, with about the MFU of the runs in logs/reference/;
    # memory, bandwidths and latencies are guesses, the two factors were measured once.
    # --measure replaces everything but the network between nodes.
    "cpu": Hardware(
        memory=4e9,
        peak_flops=220e9,
        memory_bandwidth=5e9,
        node_bandwidth=2e9,
        adapter_bandwidth=1.25e9,
        adapters=1,
        node_latency=1e-4,
        network_latency=2e-4,
        efficiency=0.5,
        launch=0.0,
        cpu=True,
        gather_factor=2.3,
        scatter_factor=2.9,
    ),
}


@dataclass(frozen=True)
class Network:
    """How long a collective takes among `per_node` processes on each of `nodes` nodes."""

    hardware: Hardware
    nodes: int
    per_node: int  # GPUs, or processes of a CPU
    sharing: int = 1  # collectives that use the nodes' network at the same time

    def within_nodes(self) -> "Network":
        """Returns the network of collectives of which each is within a node."""
        return replace(self, nodes=1)

    def across_nodes(self) -> "Network":
        """Returns the network of collectives that have one process of each node."""
        return replace(self, per_node=1, sharing=self.per_node)

    def transfer(self, size: float) -> float:
        """Returns the seconds to pass `size` bytes around a ring, without latency.

        Each of n processes sends (n - 1) / n of the bytes, and the slowest link decides.
        """
        bandwidth = math.inf
        if self.per_node > 1:
            bandwidth = self.hardware.node_bandwidth
        if self.nodes > 1:
            adapters = min(self.per_node * self.sharing, self.hardware.adapters)
            share = self.hardware.adapter_bandwidth * adapters / self.sharing
            bandwidth = min(bandwidth, share)
        processes = self.nodes * self.per_node
        sent = (processes - 1) / processes * size
        return sent / (self.hardware.bandwidth_efficiency * bandwidth)

    def all_reduce(self, size: float) -> float:
        """Returns the seconds of an all-reduce of `size` bytes: twice around the ring.

        Between nodes NCCL uses trees where that has less latency.
        """
        node_latency = (self.per_node - 1) * self.hardware.node_latency
        network_latency = math.ceil(math.log2(self.nodes)) * self.hardware.network_latency
        return 2 * (self.transfer(size) + (node_latency + network_latency))

    def all_gather(self, size: float) -> float:
        """Returns the seconds of an all-gather or reduce-scatter. size: bytes of the whole."""
        node_latency = self.nodes * (self.per_node - 1) * self.hardware.node_latency
        network_latency = (self.nodes - 1) * self.hardware.network_latency
        return self.transfer(size) + (node_latency + network_latency)
