"""The log of a run in logs/RUN/: config.json, metrics.csv, and what the trackers get."""

import csv
import dataclasses
import json
import platform
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from support.common.errors import UserError
from support.common.files import write_csv, write_json

# `run` is a Run (support/training/run.py), which imports this module.

COLUMNS = [
    "step",
    "epoch",
    "seconds",
    "tokens",
    "train_loss",
    "learning_rate",
    "grad_norm",
    "tokens_per_second",
    "mfu",
    "step_ms",  # milliseconds of a step, and of those in which rank 0 waited for its batch
    "data_ms",
    "memory_mib",  # the peak of rank 0: PyTorch's tensors on a GPU, or the whole process
    "reserved_mib",  # what PyTorch has taken of the GPU for its tensors; 0 on a CPU
    "valid_loss",
]  # the metrics of the task follow


class MetricsLog:
    """The log of one run, written by rank 0. A resumed run appends to it.

    After a crash, the steps since the checkpoint are repeated and give the same values.
    TensorBoard keeps the repeated ones, W&B the first ones.
    """

    def __init__(
        self, run, model: nn.Module, step: int, hosts_and_devices: list[tuple[str, str]]
    ):
        """Writes config.json, and opens metrics.csv without the rows that come after `step`.

        step: the last one done; hosts_and_devices: of each rank.
        """
        self.folder = run.folder
        self.columns = [*COLUMNS, *(f"valid_{name}" for name in run.task.metrics)]
        hosts, devices = zip(*hosts_and_devices)
        self.about = {
            "mode": Path(sys.argv[0]).stem.removeprefix("train_"),
            "flags": run.args.flags(),
            "model": dataclasses.asdict(run.task.config),
            "world_size": run.world_size,
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "hosts": list(dict.fromkeys(hosts)),
            "devices": list(dict.fromkeys(devices)),
            "threads": torch.get_num_threads(),
            "python": platform.python_version(),
            **{name: version(name) for name in ("torch", "numpy", "tokenizers")},
            "started": time.strftime("%Y-%m-%d %H:%M:%S"),
            "saved": step > 0,
        }
        path = self.folder / "metrics.csv"
        rows = rows_until(path, step)
        cells = [[row.get(name, "") for name in self.columns] for row in rows]
        write_csv(path, [self.columns, *cells])
        self.csv_file = path.open("a", buffering=1, encoding="utf-8", newline="")
        self.csv_writer = csv.DictWriter(
            self.csv_file, self.columns, extrasaction="ignore", lineterminator="\n"
        )
        write_json(self.folder / "config.json", self.about)
        self.tensorboard: Any = None
        self.wandb_run: Any = None
        if run.args.tensorboard:
            self.start_tensorboard(step)
        if run.args.wandb:
            self.start_wandb(run.args.wandb, run.progress.wandb_id)

    def start_tensorboard(self, step: int) -> None:
        """Opens TensorBoard's record of the run, which ends at `step`."""
        from torch.utils.tensorboard import SummaryWriter

        self.tensorboard = SummaryWriter(str(self.folder), purge_step=step + 1)
        self.tensorboard.add_text("config", json.dumps(self.about, indent=1), step)

    def start_wandb(self, project: str, run_id: str) -> None:
        """Starts or continues W&B's record, with its key from the environment or its login."""
        import wandb

        try:
            self.wandb_run = wandb.init(
                project=project,
                name=self.folder.name,
                id=run_id,
                resume="allow",
                dir=str(self.folder),
                config=self.about,
            )
        except wandb.Error as problem:
            raise UserError(f"--wandb: {problem}") from problem

    def write(self, row: dict[str, Any]) -> None:
        """Adds a row to metrics.csv; the trackers get the same numbers."""
        self.csv_writer.writerow(row)
        step = row["step"]
        values = {name: float(row[name]) for name in self.columns[1:] if name in row}
        if self.tensorboard:
            for name, value in values.items():
                self.tensorboard.add_scalar(name, value, step)
        if self.wandb_run:
            self.wandb_run.log(values, step=step)

    def note_saved(self) -> None:
        """Notes in config.json that there is a checkpoint, which no other run overwrites."""
        if not self.about["saved"]:
            self.about["saved"] = True
            write_json(self.folder / "config.json", self.about)

    def close(self) -> None:
        self.csv_file.close()
        if self.tensorboard:
            self.tensorboard.close()
        if self.wandb_run:
            self.wandb_run.finish()


def rows_until(path: Path, step: int) -> list[dict[str, str]]:
    """Returns the rows of metrics.csv up to `step`, without one that was cut short.

    Its columns may be others than today's, if a metric was added since.
    """
    if not step or not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    # In a row that is cut short, missing values are None; in a longer one, a key is None.
    whole = [row for row in rows if None not in (*row, *row.values())]
    return [row for row in whole if int(row["step"]) <= step]
