"""A run's log in logs/RUN/: metrics.csv, config.json, and the trackers."""

import fcntl
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from support.common.errors import UserError
from support.common.files import write_json
from support.training.trackers import Trackers


class Log:
    """The log of one run, written by rank 0; a run that goes on appends to it."""

    def __init__(
        self,
        folder: Path,
        flags: dict,
        config: dict,
        model: nn.Module,
        columns: list[str],
        places: list[tuple[str, str]],
    ):
        """places: of each process its host and its device."""
        self.folder, self.columns = folder, columns
        hosts, devices = (list(dict.fromkeys(names)) for names in zip(*places))
        self.about = {
            "mode": Path(sys.argv[0]).stem.removeprefix("train_"),
            "flags": flags,
            "model": config,
            "world_size": dist.get_world_size(),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "hosts": hosts,
            "devices": devices,
            "threads": torch.get_num_threads(),
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "numpy", "tokenizers")},
            "started": time.strftime("%Y-%m-%d %H:%M:%S"),
            "saved": False,
        }

    def open(self, args, progress: dict, step: int, last: int) -> None:
        """Removes from the folder what comes after `step`, the last one done; opens metrics.csv.

        progress: what travels in the checkpoint; last: the step that the run now ends at. Raises
        UserError where the folder cannot be written.
        """
        try:
            for left in self.folder.glob(
                "*.partial"
            ):  # by a run that was killed while it wrote
                if left.is_file():  # else translate.py converts a model
                    left.unlink()
            if step < last:  # a run that has ended is made longer
                (self.folder / "summary.json").unlink(missing_ok=True)
            for kept in self.folder.glob("step-[0-9]*.pt"):
                if int(kept.stem[5:]) > step:
                    kept.unlink()
            path, partial, rows = (
                self.folder / "metrics.csv",
                self.folder / "metrics.partial",
                [],
            )
            if step and path.is_file():
                commas = len(self.columns) - 1  # fewer: a row that is cut short
                rows = [
                    row
                    for row in path.read_text().splitlines()[1:]
                    if row.count(",") == commas and int(row.split(",")[0]) <= step
                ]
            partial.write_text("\n".join([",".join(self.columns), *rows]) + "\n")
            partial.rename(path)
            self.metrics = open(path, "a", buffering=1)  # by lines: others can watch it grow
            self.about["saved"] = step > 0
            write_json(self.folder / "config.json", self.about)
        except OSError as problem:
            raise UserError(
                f"{self.folder}: cannot be written ({problem.strerror or problem})"
            ) from problem
        self.trackers = Trackers(args, self.folder, self.about, progress, step)

    def claim(self, is_new: bool) -> None:
        """Locks the folder until this process ends, so that two runs never write to it.

        is_new: whether there was no checkpoint when the flags were read. Raises UserError where
        there is one now, another run still writes, or the folder cannot be written.
        """
        try:
            self.lock = open(self.folder / ".lock", "w")
        except OSError as problem:
            raise UserError(
                f"{self.folder}: cannot be written ({problem.strerror or problem})"
            ) from problem
        for _ in range(200):  # a run that was just killed may still save
            try:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.1)
            except OSError:  # a file system without locks
                break
        else:
            raise UserError(f"{self.folder}: another run is writing to it")
        if is_new and (self.folder / "last.pt").is_file():
            raise UserError(
                f"{self.folder}: a run that was ending has just saved it; start again"
            )

    def write(self, row: dict) -> None:
        """Adds a row to metrics.csv; the trackers get it as it stands there, to the last digit."""
        self.metrics.write(",".join(str(row.get(name, "")) for name in self.columns) + "\n")
        values = {
            name: float(row[name]) for name in self.columns[1:] if row.get(name, "") != ""
        }
        self.trackers.track(row["step"], values)

    def note_saved(self) -> None:
        """Says in config.json that there is a checkpoint: without it the run is not overwritten."""
        if not self.about["saved"]:
            self.about["saved"] = True
            write_json(self.folder / "config.json", self.about)

    def close(self) -> None:
        """Closes metrics.csv and what --tensorboard and --wandb write."""
        self.metrics.close()
        self.trackers.close()
