"""What a process's memory holds in training, and what it sends: counted, and by the formula."""

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from support.common.hardware import peak_memory

PARTS = ("parameters", "gradients", "optimizer_state", "activations", "all_else")


def mine(tensor: Tensor) -> Tensor:
    """The tensor itself, or of one in shards that of this process."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def bytes_of(tensors) -> int:
    """The bytes of the storages of tensors; one that several of them share counts once."""
    storages = [mine(tensor).untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


class Counter:
    """Counts, in this process, the bytes of each part of the memory at its largest."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer):
        self.model, self.optimizer, self.bytes, self.kept = model, optimizer, {}, {}
        self.saved = torch.autograd.graph.saved_tensors_hooks(self.keep, lambda tensor: tensor)
        self.hook = optimizer.register_step_pre_hook(self.count_gradients)
        self.counting = False

    def begin_phase(self, name: str) -> None:
        """Counts what autograd keeps of a forward pass for the backward pass, parameters apart.

        With bf16 that has also the copies in bf16 that autocast makes of the parameters.
        """
        if name == "forward" and self.hook:
            self.saved.__enter__()
            self.counting = True
        elif self.counting:
            self.saved.__exit__()
            self.counting = False
            # Layers that FSDP has gathered, used and dropped are empty by now.
            weights = {
                mine(weight).untyped_storage().data_ptr() for weight in self.model.parameters()
            }
            self.at_least(
                "activations",
                sum(storage.nbytes() for at, storage in self.kept.items() if at not in weights),
            )
            self.kept.clear()

    def keep(self, tensor: Tensor) -> Tensor:
        storage = mine(tensor).untyped_storage()
        self.kept[storage.data_ptr()] = storage
        return tensor

    def count_gradients(self, *_) -> None:
        gradients = [
            weight.grad for weight in self.model.parameters() if weight.grad is not None
        ]
        self.at_least("gradients", bytes_of(gradients))

    def at_least(self, part: str, counted: int) -> None:
        self.bytes[part] = max(self.bytes.get(part, 0), counted)

    def finish(self) -> None:
        """Ends the counting: "all else" is the process's peak memory less the parts.

        Parts are at their largest at different moments: where they are more than that, it is 0.
        """
        self.hook.remove()
        self.hook = None
        state = [
            value
            for values in self.optimizer.state.values()
            for value in values.values()
            if isinstance(value, Tensor)
        ]
        self.bytes["parameters"] = bytes_of(self.model.parameters())
        self.bytes["optimizer_state"] = bytes_of(state)
        total = round(peak_memory() * 2**20)
        counted = {part: self.bytes[part] for part in PARTS[:4]}
        self.bytes = counted | {
            "all_else": max(0, total - sum(counted.values())),
            "total": total,
        }

    def formula(self, micro_batches: int, precision: str, world_size: int) -> dict:
        """What theory says of one process: bytes of parts in fp32 with Adam, and bytes it sends.

        An all-gather or a reduce-scatter of B bytes over n processes sends B (n - 1) / n, an
        all-reduce twice as much. A layer in shards is gathered twice for each micro-batch, all else
        once; gradients are summed once a step, in fp32. Frozen layers are gathered once, but the
        highest: FSDP fetches it ahead, as if the backward pass came to it.
        """
        layers = self.model.layers()
        frozen = sum(not next(layer.parameters()).requires_grad for layer in layers)
        layers = {
            id(weight)
            for layer in layers[max(0, frozen - 1) :]
            for weight in layer.parameters()
        }
        width = 2 if precision == "bf16" else 4  # bytes of a number that is gathered
        found, sent = dict.fromkeys(PARTS[:3], 0.0), 0.0
        for weight in self.model.parameters():
            shards, copies = 1, world_size
            if isinstance(weight, DTensor):
                sizes = zip(weight.placements, weight.device_mesh.shape)
                copies = max([size for place, size in sizes if place.is_replicate()], default=1)
                shards = weight.device_mesh.size() // copies
            mean = weight.numel() / shards  # numbers that a process has of it
            found["parameters"] += 4 * mean
            gathers = micro_batches * (2 if id(weight) in layers else 1)
            sent += (shards - 1) * mean * gathers * width
            if weight.requires_grad:
                found["gradients"] += 4 * mean
                found["optimizer_state"] += 8 * mean
                sent += 4 * mean * (shards - 1 + 2 * (copies - 1) / copies)
        return {
            "memory": {part: round(size) for part, size in found.items()},
            "sent": round(sent),
        }
