"""Resuming a run from last.pt."""

import math
from pathlib import Path
from typing import Any

import torch
from torch import nn

from support.common import checkpoint
from support.common.errors import UserError
from support.distributed import weights
from support.distributed.collectives import broadcast_object, long_barrier
from support.training.optim import learning_rate
from support.training.progress import Progress

# `run` is a Run (support/training/run.py), which imports this module.


def resume_run(run, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Restores last.pt in all ranks, and returns its step. A collective.

    Raises UserError if the run is longer than it is to become.
    """
    loaded = None
    beginning = None  # in the other ranks, to which rank 0 sends it
    if run.rank == 0:
        loaded = checkpoint.load(run.folder / "last.pt")
        step = loaded["step"]
        if step > run.last_step:
            raise UserError(
                f"{run.folder} is at step {step} already: raise --steps or --epochs"
            )
        progress = loaded["progress"] | discard_newer_best(run.folder, step)
        shards = str(run.folder / loaded["sharded"]) if "sharded" in loaded else ""
        beginning = (step, progress, shards)
    long_barrier()  # rank 0 has read the files
    step, progress, shards = broadcast_object(beginning)
    run.progress = Progress(**progress)
    weights.restore(model, optimizer, loaded, shards)
    if run.progress.scaler and run.scaler.is_enabled():  # then and now in fp16
        run.scaler.load_state_dict(run.progress.scaler)
    run.stop_if_patience_is_over(step)
    if loaded:
        say_resumed(run, step, loaded["flags"])
    return step


def discard_newer_best(folder: Path, step: int) -> dict[str, Any]:
    """Removes best.pt if it is of a step after `step`, where the run is resumed.

    Returns the entries of Progress that depend on best.pt: without it, they are as if nothing
    had been evaluated.
    """
    path = folder / "best.pt"
    if path.is_file():
        best = checkpoint.load(path)
        if best["step"] <= step:  # it may hold the mean of weights, which is not in last.pt
            return {name: best["progress"][name] for name in ("highest", "best")}
        path.unlink()
    new = Progress()
    return {"highest": new.highest, "best": new.best, "since_best": 0, "last_evaluation": 0}


def say_resumed(run, step: int, flags: dict[str, Any]) -> None:
    """Says where the run goes on, and whether its learning rate jumps there.

    flags: those of the checkpoint. With other --epochs or --steps the schedule is another.
    """
    if step == run.last_step:
        run.say(f"resumed {run.folder} at step {step:,}, its last: nothing is left to train")
        return
    run.say(f"resumed {run.folder} at step {step:,}")
    last_step = flags["steps"] or flags["epochs"] * run.epoch_steps
    before = learning_rate(step, run.args, last_step)
    after = learning_rate(step, run.args, run.last_step)
    if not math.isclose(before, after, rel_tol=0.1):
        run.say(
            f"warning: the schedule is now of {run.last_step:,} steps instead of "
            f"{last_step:,}: the learning rate changes from {before:.1e} to {after:.1e}"
        )
