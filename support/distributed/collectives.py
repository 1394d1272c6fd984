"""Small values (all that can be pickled) that processes share. A collective: all must call it."""

import torch.distributed as dist


def all_gather_objects(value) -> list:
    """What each process has given, in the order of ranks. A collective."""
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def broadcast_object(value):
    """What process 0 has given; what the others give is ignored. A collective."""
    values = [value]
    dist.broadcast_object_list(values)
    return values[0]


def is_communication_error(problem: Exception) -> bool:
    """Whether an exchange failed because another process has died or does not answer."""
    return isinstance(problem, dist.DistError) or "gloo" in str(problem)
