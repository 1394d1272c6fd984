"""The checkpoint file that every page reads and writes (support/distributed/weights.py gathers what is in it).

    checkpoint = load(Path("logs/RUN/best.pt"))          # tensors, numbers and text: nothing is run

format, step, model (weights by plain names), task (what the task saved), flags, progress; in
last.pt optimizer too, in best.pt averaged. train_fsdp.py --sharded writes last.pt without weights
and optimizer: they are in the folder that its "sharded" names, each process's part in a file of its
own.
"""

import os
import pickle
import shutil
import warnings
from pathlib import Path

import torch
from torch import Tensor

from support.common.errors import UserError, first_line
from support.common.paths import LOGS

FORMAT = 2
SCRIPTS = {"translation": "translate.py", "classification": "classify.py"}  # by kind of task


def unpickle(path: Path, mmap: bool = False):
    """What torch.save wrote, on the CPU; nothing in it is run. Raises what torch.load raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a pickle's version: a second line
        return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)


def load(path: Path) -> dict:
    """What a checkpoint file holds, on the CPU. Raises UserError where it cannot be used."""
    try:
        checkpoint = unpickle(path, mmap=True)
        if isinstance(checkpoint, dict) and checkpoint.get("format") == 1:
            raise UserError(f"{path}: written by an older version of this project (format 1)")
        if not isinstance(checkpoint, dict) or checkpoint.get("format") != FORMAT:
            raise KeyError("it has no format, or an unknown one")
        for name, kind in {
            "step": int,
            "model": dict,
            "task": dict,
            "flags": dict,
            "progress": dict,
        }.items():
            if not isinstance(checkpoint.get(name), kind):
                raise KeyError(f"its {name} is missing or spoilt")
        for name, weight in checkpoint["model"].items():
            if isinstance(weight, Tensor) and not weight.isfinite().all():
                raise ValueError(f"{name} holds numbers that are not finite")
        return checkpoint
    except OSError as problem:
        raise UserError(f"{path}: {problem.strerror or problem}") from problem
    except pickle.UnpicklingError:
        raise UserError(
            f"{path}: refused, it is not a plain checkpoint "
            f"(it may hold code, or be no checkpoint)"
        ) from None
    except (RuntimeError, EOFError, KeyError, TypeError, AttributeError, ValueError) as problem:
        raise UserError(f"{path}: not a whole checkpoint ({first_line(problem)})") from problem


def find_checkpoint(path: Path | None, kind: str) -> Path:
    """The checkpoint file `path`, best.pt in the run's folder `path`, or the newest run's in logs/.

    kind: of the task that it was trained for; where that is another, or there is no such file,
    raises UserError.
    """
    if path:
        if path.is_dir() and not (path / "best.pt").is_file():
            raise UserError(
                f"{path}: it has no best.pt, the weights that training leaves there"
            )
        path = path / "best.pt" if path.is_dir() else path
        content = load(path)
        if "sharded" in content:
            raise UserError(
                f"{path}: its weights are in parts; best.pt beside it has them whole"
            )
        script = SCRIPTS.get(str(content["task"].get("kind")), SCRIPTS[kind])
        if script != SCRIPTS[kind]:
            raise UserError(
                f"{path}: not a model for {kind}; use python {script} --checkpoint {path}"
            )
        return path
    paths = sorted(LOGS.rglob("best.pt"), key=lambda path: path.stat().st_mtime)
    for path in reversed(paths):
        if load(path)["task"].get("kind") == kind:
            return path
    data = " --data kinds" if kind == "classification" else ""
    raise UserError(
        f"there is no checkpoint for {kind} under logs/ yet; "
        f"train one, in a few minutes: python train_cpu.py{data}"
    )


def save(path: Path, checkpoint: dict) -> None:
    """Writes under another name, syncs, renames, so the file is always whole. Raises UserError."""
    partial = path.with_name(path.name + ".partial")
    try:
        with open(partial, "wb") as file:
            torch.save({"format": FORMAT} | checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(path)
        folder = os.open(path.parent, os.O_RDONLY)  # the new name has to be on disk, too
        os.fsync(folder)
        os.close(folder)
    except (OSError, RuntimeError) as problem:  # torch.save makes a full disk RuntimeError
        partial.unlink(missing_ok=True)
        kept = "; the one from before is whole" if path.is_file() else ""
        reason = first_line(problem, 200)
        raise UserError(
            f"{path}: the checkpoint cannot be written ({reason}){kept}"
        ) from problem


def load_run(folder: Path, sharded: bool) -> dict:
    """The checkpoint FOLDER/last.pt that a run goes on from. Raises UserError."""
    path = folder / "last.pt"
    if not path.is_file():
        raise UserError(f"{path}: no such file; --resume takes the folder of a run, logs/RUN")
    checkpoint = load(path)
    if "sharded" in checkpoint and not sharded:
        raise UserError(
            f"{path}: its weights are in {checkpoint['sharded']}/; train_fsdp.py goes "
            f"on with it, and without --sharded writes one file"
        )
    if not {"optimizer", "sharded"} & checkpoint.keys():
        raise UserError(f"{path}: it has weights but no optimizer state to go on from")
    return checkpoint


def remove_sharded(folder: Path, but: str) -> None:
    """Removes the checkpoints in parts of other steps than `but`."""
    for other in folder.glob("sharded-*"):
        if other.name != but:
            shutil.rmtree(other, ignore_errors=True)


def mean_weights(paths: list[Path]) -> dict[str, Tensor]:
    """The mean, weight by weight, of several checkpoints (section 6.1)."""
    states = [load(path)["model"] for path in paths]
    return {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}
