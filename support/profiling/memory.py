"""The memory of a training process and the bytes that it sends: counted, and by formula."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from support.common.hardware import peak_memory

PARTS = ("parameters", "gradients", "optimizer_state", "activations", "all_else")


def storage_sizes(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Returns the bytes of each storage that tensors have on this rank, by its address."""
    storages = [
        (tensor.to_local() if isinstance(tensor, DTensor) else tensor).untyped_storage()
        for tensor in tensors
    ]
    return {storage.data_ptr(): storage.nbytes() for storage in storages}


class MemoryCounter:
    """Counts the bytes of each part of this process's memory at its largest, in `bytes`.

    It hooks into the model and the optimizer until `finish` is called.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer):
        self.model = model
        self.optimizer = optimizer
        self.bytes = dict.fromkeys(PARTS, 0)
        self.saved: list[Tensor] = []  # what autograd saves in a forward pass
        self.saving = torch.autograd.graph.saved_tensors_hooks(self.note, lambda tensor: tensor)
        self.hooks = [
            model.register_forward_pre_hook(self.begin_forward, prepend=True),
            model.register_forward_hook(self.end_forward),
            optimizer.register_step_pre_hook(self.count_gradients),
        ]

    def count(self, part: str, sizes: dict[int, int]) -> None:
        """Counts the storages of a part, if they are more than before."""
        self.bytes[part] = max(self.bytes[part], sum(sizes.values()))

    @torch.compiler.disable
    def note(self, tensor: Tensor) -> Tensor:
        """Notes a tensor that autograd saves."""
        self.saved.append(tensor)
        return tensor

    @torch.compiler.disable
    def begin_forward(self, *_: Any) -> None:
        """Starts to note what autograd saves, unless this is an evaluation."""
        if torch.is_grad_enabled():
            self.saving.__enter__()

    @torch.compiler.disable
    def end_forward(self, *_: Any) -> None:
        """Counts what was saved, without the parameters.

        With bf16 it includes the copies in bf16 that autocast makes of the parameters.
        """
        if not torch.is_grad_enabled():
            return
        self.saving.__exit__()
        sizes = storage_sizes(self.saved)  # layers that FSDP has freed are empty by now
        for address in storage_sizes(self.model.parameters()):
            sizes.pop(address, None)
        self.saved.clear()
        self.count("activations", sizes)

    def count_gradients(self, *_: Any) -> None:
        """Counts the gradients, just before the optimizer uses them."""
        gradients = [weight.grad for weight in self.model.parameters()]
        self.count("gradients", storage_sizes(grad for grad in gradients if grad is not None))

    def finish(self) -> None:
        """Removes the hooks, and counts the rest.

        "all_else" is the peak memory less the parts. Since these are at their largest at
        different moments, their sum may exceed the peak; then it is 0.
        """
        for hook in self.hooks:
            hook.remove()
        state = [value for values in self.optimizer.state.values() for value in values.values()]
        self.count("parameters", storage_sizes(self.model.parameters()))
        tensors = [value for value in state if isinstance(value, Tensor)]
        self.count("optimizer_state", storage_sizes(tensors))
        total = round(peak_memory() * 2**20)
        self.bytes["all_else"] = max(0, total - sum(self.bytes.values()))
        self.bytes["total"] = total


def shards_and_copies(weight: Tensor, world_size: int) -> tuple[int, int]:
    """Returns how many shards a weight has, and how many ranks have the same shard."""
    if not isinstance(weight, DTensor):
        return 1, world_size
    copies = 1
    for placement, size in zip(weight.placements, weight.device_mesh.shape):
        if placement.is_replicate():
            copies = size
    return weight.device_mesh.size() // copies, copies


def formula(model: Any, micro_batches: int, precision: str, world_size: int) -> dict:
    """Returns the bytes that one rank should hold in memory, and those it should send a step.

    "memory" has the parameters, the gradients and Adam's state, all in fp32. An all-gather or a
    reduce-scatter of B bytes over n ranks sends B (n - 1) / n, an all-reduce twice as much. A
    sharded layer is gathered twice for each micro-batch, everything else once. Gradients are
    summed once a step, in fp32. Frozen layers are gathered once, except for the highest: FSDP
    prefetches it as if the backward pass came to it.
    """
    layers = model.layers()
    frozen = [layer for layer in layers if not next(layer.parameters()).requires_grad]
    gathered_twice = {
        id(weight)
        for layer in layers[max(0, len(frozen) - 1) :]
        for weight in layer.parameters()
    }
    gathered_width = 2 if precision == "bf16" else 4  # bytes of a number
    memory = dict.fromkeys(("parameters", "gradients", "optimizer_state"), 0.0)
    sent = 0.0
    for weight in model.parameters():
        shards, copies = shards_and_copies(weight, world_size)
        numbers = weight.numel() / shards  # that a rank keeps of it, on average
        memory["parameters"] += 4 * numbers
        gathers = micro_batches
        if id(weight) in gathered_twice:
            gathers *= 2
        sent += (shards - 1) * numbers * gathers * gathered_width
        if weight.requires_grad:
            memory["gradients"] += 4 * numbers
            memory["optimizer_state"] += 8 * numbers
            reduce_scatter = shards - 1
            all_reduce = 2 * (copies - 1) / copies
            sent += 4 * numbers * (reduce_scatter + all_reduce)
    return {
        "memory": {part: round(size) for part, size in memory.items()},
        "sent": round(sent),
    }
