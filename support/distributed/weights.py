"""Weights that are in parts, one in each process: how they become whole, and parts again.

The functions are collectives: all processes have to call them, or the others wait until --timeout.
They do the same whether the processes have parts (train_fsdp.py) or copies of the whole.
"""

from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.checkpoint import load as load_parts
from torch.distributed.checkpoint import save as save_parts
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.tensor import DTensor

from support.common.errors import UserError, first_line
from support.distributed.collectives import is_communication_error

# Whole weights: gathered to rank 0's CPU, and sent from there. All processes have to take part.
WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)
FROM_RANK_0 = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
PARTS = StateDictOptions()  # each process its own


def restore(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    checkpoint: dict | None,
    sharded: str = "",
) -> None:
    """Puts a checkpoint into model and optimizer, in all processes. Raises UserError.

    checkpoint: what rank 0 has read, None in the others: rank 0 sends each its weights. sharded:
    the folder of a checkpoint in parts, from which every process reads its own.
    """
    try:
        if sharded:
            weights, state = get_state_dict(model, optimizer, options=PARTS)
            load_parts({"model": weights, "optimizer": state}, checkpoint_id=sharded)
            set_state_dict(
                model,
                optimizer,
                model_state_dict=weights,
                optim_state_dict=state,
                options=PARTS,
            )
        else:
            whole = checkpoint or {"model": {}, "optimizer": {}}
            weights, state = whole["model"], whole["optimizer"]
            set_model_state_dict(model, weights, options=FROM_RANK_0)
            set_optimizer_state_dict(model, optimizer, state, options=FROM_RANK_0)
    except (RuntimeError, KeyError, ValueError) as problem:
        if is_communication_error(problem):  # nothing is wrong with the checkpoint
            raise
        raise UserError(
            f"the checkpoint does not fit the model ({first_line(problem, 200)})"
        ) from problem
    except CheckpointException as problem:
        raise UserError(
            f"{sharded}: not a whole checkpoint ({first_failure(problem)})"
        ) from problem


def save_sharded(folder: Path, name: str, weights: dict, state: dict) -> None:
    """Writes every process's part to FOLDER/NAME; a collective. Raises UserError."""
    try:
        save_parts({"model": weights, "optimizer": state}, checkpoint_id=folder / name)
    except CheckpointException as problem:
        raise UserError(
            f"{folder / name}: the checkpoint cannot be written "
            f"({first_failure(problem)}); the one from before is whole"
        ) from problem


def first_failure(problem: CheckpointException) -> str:
    """What went wrong in the first process in which something did, in a line."""
    rank, (failure, _) = min(problem.failures.items())
    return f"process {rank}: {first_line(failure, 150)}"


def full_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """The model's weights on the CPU: all of them in rank 0, {} in the others. A collective."""
    return get_model_state_dict(model, options=WHOLE)


def load_full_state_dict(model: nn.Module, weights: dict[str, Tensor] | None) -> None:
    """Gives every process's `model` the weights that rank 0 has. A collective."""
    if hasattr(model, "reshard"):  # FSDP's: after evaluating it is gathered
        model.reshard()
    set_model_state_dict(model, dict(weights or {}), options=FROM_RANK_0)  # it changes the dict


def gather_model(model: nn.Module, fresh: Callable) -> nn.Module | None:
    """A model with all its weights, to translate with; a collective.

    That is `model` itself, where it has them. Where each process has parts only, rank 0 gathers
    them on its CPU, into the model that `fresh()` makes, and the others get None.
    """
    if not any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        return model
    weights = full_state_dict(model)
    if dist.get_rank() > 0:
        return None
    whole = fresh()
    whole.load_state_dict(weights)
    return whole
