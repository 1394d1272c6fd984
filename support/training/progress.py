"""What a run has done so far: counts and sums, which its checkpoints hold."""

import math
from dataclasses import dataclass, field
from typing import Any

from support.common.hardware import peak_memory

# The sums over the steps of an epoch, before its first one.
EPOCH_SUMS = {"nll": 0.0, "targets": 0, "tokens": 0, "examples": 0, "seconds": 0.0}


@dataclass
class Progress:
    """The progress of a run, which a resumed run continues."""

    seconds: float = 0.0
    tokens: int = 0
    nll: float = 0.0  # since the last row of metrics.csv, like targets
    targets: int = 0
    # What `Run.score` returned for the highest evaluation, and for the weights in best.pt.
    highest: list[float] = field(default_factory=lambda: [-math.inf, -math.inf])
    best: list[float] = field(default_factory=lambda: [-math.inf, -math.inf])
    since_best: int = 0  # evaluations since the highest one
    last_evaluation: int = 0  # its step
    epoch: dict[str, float] = field(default_factory=EPOCH_SUMS.copy)  # the current one's sums
    evaluated: dict[str, float] = field(default_factory=dict)  # last evaluation of the epoch
    epochs: list[dict[str, Any]] = field(default_factory=list)  # a record of each that is done
    wandb_id: str = ""
    scaler: dict[str, Any] = field(default_factory=dict)  # the state of GradScaler, with fp16
    growth: int = 1  # how many times as large its steps are for GPUs (larger_steps.py)

    def count_step(self, examples: int, tokens: int, num_targets: int, seconds: float) -> None:
        """Counts a step; its nll is added when it is read back from the device."""
        self.tokens += tokens
        self.targets += num_targets
        self.epoch["examples"] += examples
        self.epoch["tokens"] += tokens
        self.epoch["targets"] += num_targets
        self.epoch["seconds"] += seconds

    def add_nll(self, nll: float) -> None:
        """Adds the loss of one or more steps, summed over their targets and all ranks."""
        self.nll += nll
        self.epoch["nll"] += nll

    def end_row(self) -> float | None:
        """Returns the loss per target of the row's steps, or None without any; begins a row."""
        if not self.targets:
            return None
        loss = self.nll / self.targets
        self.nll = 0.0
        self.targets = 0
        return loss

    def note_evaluation(self, step: int, score: list[float], standard_error: float) -> bool:
        """Notes an evaluation, and returns whether its weights are kept as the best.

        They are if it is the highest. They also are if its first metric is less than a standard
        error lower: that may be chance, and later weights were trained for longer.
        """
        self.last_evaluation = step
        self.since_best += 1
        if score > self.highest:
            self.highest = score
            self.since_best = 0
        is_kept = not self.since_best or score[0] > self.highest[0] - standard_error
        if is_kept:
            self.best = score
        return is_kept

    def end_epoch(self, number: int, step: int) -> None:
        """Keeps the record of the epoch that `step` ends, and begins the next one."""
        if self.epoch["seconds"]:  # else a resumed run has it already
            self.epochs.append(self.epoch_record(number, step))
        self.epoch = EPOCH_SUMS.copy()
        self.evaluated = {}

    def epoch_record(self, number: int, step: int) -> dict[str, Any]:
        """Returns what summary.json says of the current epoch, which `step` is in."""
        epoch = self.epoch
        return {
            "epoch": number,
            "step": step,
            "train_loss": epoch["nll"] / epoch["targets"],
            **self.evaluated,
            "examples": epoch["examples"],
            "tokens": epoch["tokens"],
            "seconds": round(epoch["seconds"], 2),
            "samples_per_second": round(epoch["examples"] / epoch["seconds"], 1),
            "tokens_per_second": round(epoch["tokens"] / epoch["seconds"]),
            "memory_mib": round(peak_memory()),
        }
