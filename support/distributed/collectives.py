"""Collectives for small Python values: all ranks must call them."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def all_gather_objects(value: Any) -> list[Any]:
    """Returns the values of all ranks, in their order."""
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def broadcast_object(value: Any) -> Any:
    """Returns the value of rank 0; those of other ranks are ignored."""
    values = [value]
    dist.broadcast_object_list(values)
    return values[0]


def long_barrier() -> None:
    """Waits for all ranks, for up to ten times --timeout.

    It follows what rank 0 does alone, such as writing a large file.
    """
    assert dist.group.WORLD is not None, "there is no process group"
    options = dist.BarrierOptions()
    # The launcher has set this default to --timeout.
    options.timeout = 10 * dist.distributed_c10d.default_pg_timeout
    gloo: Any = dist.group.WORLD._get_backend(torch.device("cpu"))
    gloo.barrier(options).wait()


def sum_over_data(values: Tensor, data_size: int) -> None:
    """Replaces values by their sum over the ranks that have different data.

    data_size: how many these are. The ranks of a TP group have the same data and the same
    values, which count once.
    """
    dist.all_reduce(values)
    values /= dist.get_world_size() // data_size


def is_communication_error(problem: Exception) -> bool:
    """Returns whether a collective failed because another process does not answer."""
    return isinstance(problem, dist.DistError) or "gloo" in str(problem)
