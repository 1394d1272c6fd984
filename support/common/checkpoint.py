"""The checkpoint files best.pt, last.pt and step-*.pt of a run.

    checkpoint = load(Path("logs/RUN/best.pt"))  # tensors, numbers and text: no code is run

    field       content
    format      the version of this table
    step        optimizer steps done
    model       weights by name
    task        all that is needed to use the model: its type of task, its configuration, ...
    flags       the flags of the run
    progress    `Progress` of support/training/progress.py: counts, epochs, ...
    optimizer   the optimizer's state; last.pt only
    averaged    how many checkpoints the weights are the mean of; best.pt only
    sharded     last.pt of --sharded only (train_fsdp.py, train_tp.py): the folder that has, in
                the place of model and optimizer, a file for each process

support/distributed/weights.py gathers the weights that are saved and distributes those loaded.
"""

import os
import pickle
import shutil
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor

from support.common.errors import UserError, as_user_error, first_line
from support.common.files import replace, sync, sync_folder
from support.common.paths import LOGS, quote, script_path
from support.common.streams import note

FORMAT = 4  # increase it when a field, a weight's rows, or what model.py computes changes
CAN_MAP = sys.platform != "win32"  # where a file cannot be replaced while it is mapped
SCRIPTS = {"translation": "translate.py", "classification": "classify.py"}  # by task type


def unpickle(path: Path):
    """Returns what torch.save wrote, on the CPU, mapped from disk where that can be.

    No code is run. Raises as torch.load does.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a warning would be a second line beside the error
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=CAN_MAP)
        except RuntimeError:  # some file systems map none, and older files cannot be mapped
            return torch.load(path, map_location="cpu", weights_only=True)


def load(path: Path) -> dict:
    """Returns a checkpoint file's content, on the CPU. Raises UserError if it is unusable."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    with as_user_error(f"{path}: not a whole checkpoint"):
        try:
            checkpoint = unpickle(path)
        except pickle.UnpicklingError:
            raise ValueError("it may hold code, or be another kind of file") from None
        if checkpoint["format"] != FORMAT:
            raise ValueError(
                f"its format is {checkpoint['format']}, this version reads {FORMAT}: "
                f"train again"
            )
        if checkpoint["task"]["type"] not in SCRIPTS:
            raise ValueError(f"it is for {checkpoint['task']['type']!r}, an unknown task")
        for name, weight in checkpoint["model"].items():
            if not weight.isfinite().all():
                raise ValueError(f"{name} holds numbers that are not finite")
        return checkpoint


def save(path: Path, checkpoint: dict) -> None:
    """Writes a checkpoint so that `path` is whole at every moment.

    The file is written under another name, synced to disk, and renamed. Raises UserError if
    that fails; what `path` held before is still there.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        with open(partial, "wb") as file:
            torch.save({"format": FORMAT} | checkpoint, file)
            file.flush()
            sync(file.fileno())
        replace(partial, path)
        sync_folder(path.parent)  # the rename has to reach the disk, too
    except (OSError, RuntimeError) as problem:  # torch.save raises RuntimeError on a full disk
        reason = first_line(problem)
        if isinstance(problem, RuntimeError):
            free = shutil.disk_usage(path.parent).free >> 20
            reason += f"; {free:,} MiB are free on the disk"
        partial.unlink(missing_ok=True)
        raise write_error(path, reason, previous=path) from problem


def write_error(path: Path, reason: str, previous: Path) -> UserError:
    """Returns the error of a checkpoint that cannot be written.

    previous: where the one before it is, if there is one.
    """
    message = f"{path}: the checkpoint cannot be written ({reason})"
    if previous.is_file():
        message += "; the previous one is intact"
    return UserError(message)


class Writer:
    """Calls functions that write files: at once, or in a thread while training continues.

    A process that ends waits for the thread first.
    """

    def __init__(self, in_background: bool):
        self.pool = ThreadPoolExecutor(max_workers=1) if in_background else None
        self.job: Future | None = None  # the last one that the thread was given

    def write(self, job: Callable[[], None]) -> None:
        """Waits until the last job is done, and calls `job`, or lets the thread call it.

        A job in the thread must not use tensors that training changes. Raises what the job, or
        in the thread the one before, has raised.
        """
        self.wait()
        if self.pool:
            self.job = self.pool.submit(job)
        else:
            job()

    def wait(self) -> None:
        """Waits until all is written. Raises what the job has raised."""
        job = self.job
        self.job = None
        if job:
            job.result()

    def check(self) -> None:
        """Raises what the job has raised, if it is done."""
        if self.job and self.job.done():
            self.wait()


# --- Which checkpoint to use ------------------------------------------------------------------


def find_checkpoint(path: Path | None, task_type: str) -> tuple[Path, dict]:
    """Returns the checkpoint file to use for a type of task, and its content.

    path: a file, or the folder of a run, which stands for its best.pt; None: best.pt of the
    newest run of that type under logs/. task_type: one of SCRIPTS. Raises UserError if there
    is none, or it is for another type of task.
    """
    if path is None:
        return newest_checkpoint(task_type)
    if path.is_dir():
        if not (path / "best.pt").is_file():
            raise UserError(f"{path}: no best.pt, which a run has after its first evaluation")
        path = path / "best.pt"
    checkpoint = load(path)
    if "sharded" in checkpoint:
        raise UserError(f"{path}: its weights are sharded; use best.pt in the same folder")
    its_type = checkpoint["task"]["type"]
    if its_type != task_type:
        raise UserError(
            f"{path}: not a model for {task_type}; "
            f"use python {script_path(SCRIPTS[its_type])} --checkpoint {quote(path)}"
        )
    return path, checkpoint


def newest_checkpoint(task_type: str) -> tuple[Path, dict]:
    """Returns best.pt of the newest run of that type under logs/, and its content.

    A file that cannot be read is left out, with a warning. Raises UserError if there is none.
    """
    for path in sorted(find_all("best.pt"), key=os.path.getmtime, reverse=True):
        try:
            checkpoint = load(path)
        except UserError as problem:
            note(f"warning: {problem}; it is left out")
            continue
        if checkpoint["task"]["type"] == task_type:
            return path, checkpoint
    command = f"python {script_path('train_cpu.py')}"
    if task_type == "classification":
        command += " --data kinds"
    raise UserError(
        f"there is no checkpoint for {task_type} under logs/ yet; "
        f"train one, in a few minutes: {command}"
    )


def find_all(name: str) -> list[Path]:
    """Returns the files of that name in all folders under logs/, but not in hidden ones.

    Links in logs/ itself are followed, but none below: runs may come from other people.
    """
    links = [path for path in LOGS.glob("[!.]*") if path.is_symlink()]
    # By their real paths: a link may lead to another folder under logs/.
    paths: dict[Path, Path] = {}
    for folder, subfolders, _ in chain.from_iterable(map(os.walk, [LOGS, *links])):
        subfolders[:] = [each for each in subfolders if not each.startswith(".")]
        path = Path(folder, name)
        if path.is_file() and not path.is_symlink():
            paths.setdefault(path.resolve(), path)
    return list(paths.values())


def load_run(folder: Path, can_read_shards: bool) -> dict:
    """Returns the checkpoint FOLDER/last.pt from which a run is resumed.

    can_read_shards: whether the script can read sharded checkpoints. Raises UserError.
    """
    path = folder / "last.pt"
    if not path.is_file():
        run = LOGS / folder
        if run == folder or not (run / "last.pt").is_file():
            run = LOGS / "RUN"
        raise UserError(f"{path}: no such file; --resume takes the folder of a run, {run}")
    checkpoint = load(path)
    if "sharded" in checkpoint and not can_read_shards:
        raise UserError(
            f"{path}: its weights are sharded, in {checkpoint['sharded']}/; resume it with "
            f"train_fsdp.py or train_tp.py, which without --sharded write a single file"
        )
    return checkpoint


def check_corpus(checksum: str, state: dict, data: str, folder: str) -> None:
    """Raises UserError unless a resumed run has the corpus that it was started with.

    checksum: of the corpus that --data and other flags name now; state: of the task, from the
    checkpoint; folder: of the run.
    """
    if state["checksum"] != checksum:
        raise UserError(
            f"--data {data}: {folder} was started with another corpus (--data, --valid, "
            f"--test) or by an earlier version of the scripts, or the corpus has changed "
            f"since; it needs a new run, with another --name"
        )


def evaluation_checkpoints(folder: Path) -> list[Path]:
    """Returns step-*.pt of a run: the weights of its last evaluations, oldest first."""
    return sorted(folder.glob("step-[0-9]*.pt"), key=evaluated_step)


def evaluated_step(path: Path) -> int:
    """Returns N of step-N.pt."""
    return int(path.stem.removeprefix("step-"))


def remove_sharded(folder: Path, keep: str) -> None:
    """Removes all sharded checkpoints in the folder of a run except the one named `keep`."""
    for path in folder.glob("sharded-*"):
        if path.name != keep:
            shutil.rmtree(path, ignore_errors=True)


def average_weights(paths: list[Path]) -> dict[str, Tensor]:
    """Returns the mean of each weight over several checkpoints."""
    states = [load(path)["model"] for path in paths]
    return {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}
