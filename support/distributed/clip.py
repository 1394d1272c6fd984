"""Clipping the gradients of train_tp.py, whose weights are on different meshes."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


def clip_gradients(parameters: list[nn.Parameter], max_norm: float) -> Tensor:
    """Scales the gradients down to max_norm, and returns their norm before. A collective.

    PyTorch's `clip_grad_norm_` takes DTensors of one mesh only. In train_tp.py the weights that
    are split have the whole mesh, and the others the data ranks' alone.
    """
    parts = []
    copies = []
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None:  # the loss does not depend on it
            continue
        assert isinstance(gradient, DTensor), "every weight of train_tp.py is a DTensor"
        parts.append(gradient.to_local())
        copies.append(count_copies(gradient))
    norms = torch.stack(torch._foreach_norm(parts)).double()
    # Not blocking: else the CPU would wait for a GPU in each step.
    divisors = torch.tensor(copies).to(norms.device, non_blocking=True)
    square = (norms.square() / divisors).sum()
    dist.all_reduce(square)
    norm = square.sqrt()
    scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
    torch._foreach_mul_(parts, scale.to(parts[0].dtype))
    return norm


def count_copies(weight: DTensor) -> int:
    """Returns how many ranks have the same part of a weight."""
    num_parts = 1
    for size, placement in zip(weight.device_mesh.shape, weight.placements):
        if not placement.is_replicate():
            num_parts *= size
    return dist.get_world_size() // num_parts
