"""Clipping the gradients by the norm of all of them, in all four training scripts."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.linalg import vector_norm


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """Scales the gradients down to max_norm, and returns their norm before, in fp64.

    PyTorch's `clip_grad_norm_` does the same, but its norm depends on how the gradients are
    sharded, and it takes DTensors of one mesh only. In train_tp.py the weights that are split
    have the whole mesh, and the others the data ranks' alone. With DTensors it is a collective.
    max_norm: 0 leaves the gradients as they are.
    """
    gradients: list = [weight.grad for weight in parameters if weight.grad is not None]
    # Whether they are DTensors; importing their class would take half a second.
    is_sharded = hasattr(gradients[0], "to_local")
    parts = [each.to_local() for each in gradients] if is_sharded else gradients
    squares = norms_of(parts).square()
    if is_sharded:
        # The sum over the ranks has a part once for each rank that has it.
        copies = torch.tensor([count_copies(gradient) for gradient in gradients])
        # Not blocking: else the CPU would wait for a GPU in each step.
        squares /= copies.to(squares.device, non_blocking=True)
    square = squares.sum()
    if is_sharded:
        dist.all_reduce(square)
    norm = square.sqrt()
    if max_norm:
        scale = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(parts, scale.to(parts[0].dtype))
    return norm


def norms_of(tensors: list[Tensor]) -> Tensor:
    """Returns the norm of each tensor, (tensors,), in fp64."""
    if not tensors[0].is_cpu:
        return torch.stack(torch._foreach_norm(tensors)).double()
    # On a CPU, PyTorch adds one square after another in fp32: the norm of a whole embedding may
    # be 1e-4 too small, those of its shards less. Row by row it is exact up to 1e-7.
    rows = [vector_norm(tensor, dim=-1) for tensor in tensors]
    return torch.stack([vector_norm(norms, dtype=torch.float64) for norms in rows])


def count_copies(gradient) -> int:
    """Returns how many ranks have the same part of a gradient, a DTensor."""
    num_parts = 1
    for size, placement in zip(gradient.device_mesh.shape, gradient.placements):
        if not placement.is_replicate():
            num_parts *= size
    return dist.get_world_size() // num_parts
