"""A slow network on a fast machine: every exchange between processes waits before it begins."""

import functools
import time
from collections.abc import Callable

import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

# The last two are what PyTorch 2.13 calls those before them.
EXCHANGES = (
    "all_reduce",
    "all_gather_into_tensor",
    "reduce_scatter_tensor",
    "all_gather_single",
    "reduce_scatter_single",
)


def delay_exchanges(seconds: float) -> None:
    """Has every all-reduce, all-gather and reduce-scatter of this process wait so long first.

    But for the all-reduce of FSDP's norm, which DTensor sends by itself. The waiting is not
    overlapped with computing, as a network's latency may be: this is what it costs at most.
    DistributedDataParallel waits before each of its buckets.
    """
    if not seconds:
        return

    def delayed(exchange: Callable) -> Callable:
        @functools.wraps(exchange)
        def wait_first(*args, **kwargs):
            with record_function("network delay"):  # --profile shows it
                time.sleep(seconds)
            return exchange(*args, **kwargs)

        return wait_first

    for name in EXCHANGES:
        if hasattr(dist, name):
            setattr(dist, name, delayed(getattr(dist, name)))
    plain = DistributedDataParallel.__init__

    def with_hook(self, *args, **kwargs):
        plain(self, *args, **kwargs)
        self.register_comm_hook(None, allreduce_hook)  # DDP's own sends without dist.all_reduce

    DistributedDataParallel.__init__ = with_hook
