"""The memory of a training process and the bytes that it sends: counted, and by formula."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from support.common.hardware import autocast_dtype, peak_memory

MEMORY_PARTS = ("parameters", "gradients", "optimizer_state", "activations", "all_else")


def storage_sizes(tensors: Iterable[Tensor]) -> dict[int, int]:
    """Returns the bytes of each storage that tensors have on this rank, by its address."""
    storages = [
        (tensor.to_local() if isinstance(tensor, DTensor) else tensor).untyped_storage()
        for tensor in tensors
    ]
    return {storage.data_ptr(): storage.nbytes() for storage in storages}


class MemoryCounter:
    """Records in `bytes` how large each part of this process's memory becomes.

    Its hooks stay in the model and the optimizer until `finish` is called, which also adds
    "total", the peak memory of the process.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer):
        self.model = model
        self.optimizer = optimizer
        self.bytes = dict.fromkeys(MEMORY_PARTS, 0)
        self.saved: list[Tensor] = []  # what autograd saves in a forward pass
        self.saving = torch.autograd.graph.saved_tensors_hooks(self.note, lambda tensor: tensor)
        self.hooks = [
            model.register_forward_pre_hook(self.begin_forward, prepend=True),
            model.register_forward_hook(self.end_forward),
            optimizer.register_step_pre_hook(self.count_gradients),
        ]

    def count(self, part: str, sizes: dict[int, int]) -> None:
        """Records the size of a part if it is larger than before. sizes: of its storages."""
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
        """Counts what was saved, without parameters but with the copies that autocast makes."""
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

        "all_else" is the peak memory minus the other parts, or 0 if these add up to more than
        the peak, as they can, because each is largest at a different moment.
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


class SplitLayers:
    """Adds up the bytes that this rank sends inside the layers that train_tp.py has split.

    An all-reduce of B bytes over the n ranks of a layer sends 2 B (n - 1) / n. The forward pass
    all-reduces the output of each matrix that is split by rows; the backward pass, the gradient
    of the input of each matrix that is split by columns. --recompute repeats the forward pass.
    The caller removes the `hooks`.
    """

    def __init__(self, model: nn.Module):
        self.sent = 0.0
        self.hooks = []
        for module in model.modules():
            if isinstance(module, nn.Linear) and division_of(module.weight).splits > 1:
                self.hooks.append(module.register_forward_hook(self.add))

    @torch.compiler.disable
    def add(self, module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        """Called after the product with a matrix: adds the bytes that its all-reduce sends."""
        splits = division_of(module.weight).splits
        if module.weight.placements[-1].is_shard(0):  # by columns, which are rows of `weight`
            summed = inputs[0]
            is_recomputation = torch._C._current_graph_task_id() != -1  # within a backward pass
            is_sent = summed.requires_grad and not is_recomputation
        else:
            summed = output
            is_sent = torch.is_grad_enabled()  # else it is an evaluation
        if is_sent:
            self.sent += 2 * summed.numel() * summed.element_size() * (splits - 1) / splits


class Division(NamedTuple):
    """How a weight is divided over the ranks."""

    shards: int = 1  # that FSDP gathers
    copies: int = 1  # ranks that have the same shard, and sum its gradient
    splits: int = 1  # parts that are never gathered: --tensor of train_tp.py


def division_of(weight: Tensor, world_size: int = 1) -> Division:
    """Returns how a weight is divided. One that is not a DTensor has `world_size` copies."""
    if not isinstance(weight, DTensor):
        return Division(copies=world_size)
    mesh = weight.device_mesh
    shards = copies = splits = 1
    for i, placement in enumerate(weight.placements):
        size = mesh.size(i)
        if mesh.mesh_dim_names and mesh.mesh_dim_names[i] == "tensor":
            splits = 1 if placement.is_replicate() else size
        elif placement.is_replicate():
            copies = size
        else:
            shards = size
    return Division(shards, copies, splits)


def formula(model: Any, micro_batches: int, precision: str, world_size: int) -> dict:
    """Returns the bytes that one rank should hold in memory, and those it should send per step.

    "memory" has the parameters, the gradients and Adam's state, all in fp32. An all-gather or a
    reduce-scatter of B bytes over n ranks sends B (n - 1) / n, an all-reduce twice as much. A
    sharded layer is gathered twice for each micro-batch, everything else once. Gradients are
    summed once per step, in fp32. Frozen layers are gathered once, except the highest: FSDP
    prefetches it as if the backward pass reached it. What train_tp.py sends inside layers is
    not included: see `SplitLayers`.
    """
    layers = model.layers()
    frozen = [layer for layer in layers if not next(layer.parameters()).requires_grad]
    trained = layers[max(0, len(frozen) - 1) :]  # and the highest frozen one
    gathered_twice = {id(weight) for layer in trained for weight in layer.parameters()}
    gathered_width = 2 if autocast_dtype(precision) else 4  # bytes per element
    memory = dict.fromkeys(("parameters", "gradients", "optimizer_state"), 0.0)
    sent = 0.0
    for weight in model.parameters():
        shards, copies, splits = division_of(weight, world_size)
        elements = weight.numel() / shards / splits  # that a rank keeps of it, on average
        memory["parameters"] += 4 * elements
        gathers = micro_batches
        if id(weight) in gathered_twice:
            gathers *= 2
        sent += (shards - 1) * elements * gathers * gathered_width
        if weight.requires_grad:
            memory["gradients"] += 4 * elements
            memory["optimizer_state"] += 8 * elements
            reduce_scatter = shards - 1
            all_reduce = 2 * (copies - 1) / copies
            sent += 4 * elements * (reduce_scatter + all_reduce)
    return {"memory": {part: round(size) for part, size in memory.items()}, "sent": round(sent)}
