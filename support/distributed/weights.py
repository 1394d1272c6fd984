"""Saving and loading weights that may be sharded over the processes.

All functions but `first_failure` are collectives: every process has to call them, or the others
wait until --timeout. They do the same whether the processes have shards of the weights
(train_fsdp.py, train_tp.py) or whole copies of them.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from support.common.checkpoint import write_error
from support.common.errors import UserError, first_line
from support.distributed.collectives import is_communication_error

# PyTorch would warn that the parts of a weight on a mesh are gathered one dimension at a time.
logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)

# Each rank gets, or loads, its own shards.
SHARDED = StateDictOptions()
# Each rank gathers all weights on its device.
FULL_IN_ALL_RANKS = StateDictOptions(full_state_dict=True)
# Rank 0 gathers all weights on its CPU; the others get {}.
FULL_IN_RANK_0 = StateDictOptions(full_state_dict=True, cpu_offload=True)
# Rank 0 has all weights, and sends to each rank what it needs.
FROM_RANK_0 = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


def restore(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    checkpoint: dict | None,
    shards_folder: str = "",
) -> None:
    """Loads a checkpoint into model and optimizer. Raises UserError if it does not fit.

    checkpoint: what rank 0 has read, and sends to the others, which pass None.
    shards_folder: that of a sharded checkpoint, if it is one; every process reads its shards.
    """
    try:
        if shards_folder:
            from support.distributed.shards import load_shards

            weights, state = get_state_dict(model, optimizer, options=SHARDED)
            load_shards({"model": weights, "optimizer": state}, shards_folder)
            options = SHARDED
        else:
            content = checkpoint or {"model": {}, "optimizer": {}}
            weights, state = content["model"], content["optimizer"]
            options = FROM_RANK_0
        set_model_state_dict(model, weights, options=options)
        set_optimizer_state_dict(model, optimizer, state, options=options)
    except dcp.CheckpointException as problem:
        raise UserError(
            f"{shards_folder}: not a whole checkpoint ({first_failure(problem)})"
        ) from problem
    except (RuntimeError, KeyError, ValueError) as problem:
        if is_communication_error(problem):  # not a fault of the checkpoint
            raise
        raise UserError(
            f"the checkpoint does not fit the model ({first_line(problem)})"
        ) from problem


def state_dicts(
    model: nn.Module, optimizer: torch.optim.Optimizer, sharded: bool
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the states of model and optimizer, by the names of the weights.

    sharded: each process gets its own shards; otherwise rank 0 gets all, on its CPU.
    """
    return get_state_dict(model, optimizer, options=SHARDED if sharded else FULL_IN_RANK_0)


def save_sharded(folder: Path, name: str, weights: dict, state: dict) -> None:
    """Writes the shards of all processes to FOLDER/NAME. Raises UserError if that fails."""
    for path in (folder / name, *(folder / name).glob("*")):
        if path.is_symlink():  # from other people; PyTorch would follow it
            path.unlink(missing_ok=True)
    try:
        dcp.save({"model": weights, "optimizer": state}, checkpoint_id=folder / name)
    except dcp.CheckpointException as problem:
        reason = first_failure(problem)
        raise write_error(folder / name, reason, previous=folder / "last.pt") from problem


def first_failure(problem: dcp.CheckpointException) -> str:
    """Returns one line on the failure of the lowest rank that had one."""
    rank, (failure, _) = min(problem.failures.items())
    return f"process {rank}: {first_line(failure)}"


def full_state_dict(model: nn.Module) -> dict[str, Any]:
    """Returns all weights on the CPU in rank 0, and {} in the others."""
    return get_model_state_dict(model, options=FULL_IN_RANK_0)


def load_full_state_dict(model: nn.Module, weights: dict[str, Any] | None) -> None:
    """Loads rank 0's `weights` into the model of every process; the others pass None."""
    if isinstance(model, FSDPModule):  # FSDP leaves the root gathered after an evaluation
        model.reshard()
    weights = dict(weights or {})  # a copy, as the function below changes it
    set_model_state_dict(model, weights, options=FROM_RANK_0)


def load_some_weights(model: nn.Module, weights: dict[str, Tensor], rank: int) -> None:
    """Loads rank 0's `weights` into the model of every process, and keeps the others."""
    state = full_state_dict(model) | weights
    load_full_state_dict(model, state if rank == 0 else None)


def gather_model(model: nn.Module, make_model: Callable[[], nn.Module]) -> nn.Module:
    """Returns a model with whole weights in every process, where its own weights are.

    If the weights are not sharded, that is `model` itself. If they are, it is a new one from
    `make_model`, for which each process needs room.
    """
    if not any(isinstance(parameter, DTensor) for parameter in model.parameters()):
        return model
    with torch.device("meta"):  # shapes without memory: it gets the gathered weights themselves
        gathered = make_model()
    gathered.load_state_dict(
        get_model_state_dict(model, options=FULL_IN_ALL_RANKS), assign=True
    )
    return gathered
