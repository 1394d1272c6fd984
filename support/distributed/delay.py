"""A slow network on a fast machine: the collectives of a step wait before they begin."""

import time
from contextlib import contextmanager
from functools import partial

import torch
from torch.profiler import record_function

# All-reduce, all-gather and reduce-scatter, as PyTorch's dispatcher calls them.
OPERATORS = ("allreduce_", "_allgather_base_", "_reduce_scatter_base_")


@contextmanager
def delayed_collectives(seconds: float):
    """Within the block each all-reduce, all-gather and reduce-scatter of tensors waits first.

    Each collective of PyTorch is an operator in the namespace c10d, also those of DDP's
    buckets, of FSDP's layers and of the norm of sharded gradients. torch.library adds a kernel
    to the operator that waits and then calls the original one.

    The wait is not overlapped with computation, as the latency of a network may be: it is the
    most that this latency can cost.
    """
    library = torch.library.Library("c10d", "IMPL")
    for name in OPERATORS:
        operator = getattr(torch.ops.c10d, name).default
        kernel = partial(wait_first, operator, seconds)
        # BackendSelect comes before the kernels for CPU and CUDA.
        library.impl(name, kernel, "BackendSelect", with_keyset=True)
    yield
    del library  # removes its kernels


def wait_first(
    operator: torch._ops.OpOverload, seconds: float, keys: torch._C.DispatchKeySet, *args
):
    """Waits, and then calls the next kernel of `operator`."""
    with record_function("network delay"):  # --profile shows it
        time.sleep(seconds)
    next_keys = keys.remove(torch._C.DispatchKey.BackendSelect)
    return operator.redispatch(next_keys, *args)
