"""The memory of a training process and the bytes that it sends: counted, and by formula."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from support.common.hardware import peak_memory

PARTS = ("parameters", "gradients", "optimizer_state", "activations", "all_else")


def local_tensor(tensor: Tensor) -> Tensor:
    """Returns this rank's shard of a DTensor, and another tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Returns the bytes that tensors occupy. A storage that several share counts once."""
    storages = [local_tensor(tensor).untyped_storage() for tensor in tensors]
    bytes_by_address = {storage.data_ptr(): storage.nbytes() for storage in storages}
    return sum(bytes_by_address.values())


class MemoryCounter:
    """Counts the bytes of each part of this process's memory at its largest, in `bytes`.

    It hooks into the model and the optimizer until `finish` is called.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer):
        self.model = model
        self.optimizer = optimizer
        self.bytes = dict.fromkeys(PARTS, 0)
        self.saved_storages: dict[int, torch.UntypedStorage] = {}  # by address
        self.saving = torch.autograd.graph.saved_tensors_hooks(self.note_saved, self.give_back)
        self.hooks = [
            model.register_forward_pre_hook(self.begin_forward, prepend=True),
            model.register_forward_hook(self.end_forward),
            optimizer.register_step_pre_hook(self.count_gradients),
        ]

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
        # Layers that FSDP has gathered, used and freed are empty by now.
        parameters = {
            local_tensor(weight).untyped_storage().data_ptr()
            for weight in self.model.parameters()
        }
        activations = [
            storage.nbytes()
            for address, storage in self.saved_storages.items()
            if address not in parameters
        ]
        self.saved_storages.clear()
        self.bytes["activations"] = max(self.bytes["activations"], sum(activations))

    @torch.compiler.disable
    def note_saved(self, tensor: Tensor) -> Tensor:
        """Notes the storage of a tensor that autograd saves."""
        storage = local_tensor(tensor).untyped_storage()
        self.saved_storages[storage.data_ptr()] = storage
        return tensor

    @torch.compiler.disable
    def give_back(self, tensor: Tensor) -> Tensor:
        """Returns a saved tensor to autograd as it is."""
        return tensor

    def count_gradients(self, *_: Any) -> None:
        """Counts the gradients, just before the optimizer uses them."""
        gradients = [
            weight.grad for weight in self.model.parameters() if weight.grad is not None
        ]
        self.bytes["gradients"] = max(self.bytes["gradients"], storage_bytes(gradients))

    def finish(self) -> None:
        """Removes the hooks, and counts the rest.

        "all_else" is the peak memory less the parts. Since these are at their largest at
        different moments, their sum may exceed the peak; then it is 0.
        """
        for hook in self.hooks:
            hook.remove()
        state = [
            value
            for values in self.optimizer.state.values()
            for value in values.values()
            if isinstance(value, Tensor)
        ]
        self.bytes["parameters"] = storage_bytes(self.model.parameters())
        self.bytes["optimizer_state"] = storage_bytes(state)
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
