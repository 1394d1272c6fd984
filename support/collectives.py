"""Small values (all that can be pickled) that processes share. A collective: all must call it."""

import torch.distributed as dist


def of_all(value) -> list:
    """What each process has given, in the order of ranks. A collective."""
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def from_rank_0(value):
    """What process 0 has given; what the others give is ignored. A collective."""
    values = [value]
    dist.broadcast_object_list(values)
    return values[0]


def lost_touch(problem: Exception) -> bool:
    """Whether an exchange failed because another process has died or does not answer."""
    return isinstance(problem, dist.DistError) or "gloo" in str(problem)
