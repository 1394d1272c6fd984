"""A run: its log and checkpoints in logs/RUN/, and what it shows while it goes on."""

import hashlib
import json
import math
import socket
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from support.common import checkpoint
from support.common.errors import UserError, ignore_closed_stdout
from support.common.hardware import device_name
from support.common.paths import CACHE
from support.distributed import weights
from support.distributed.collectives import all_gather_objects, broadcast_object
from support.distributed.rendezvous import agree
from support.profiling.profiler import Profile
from support.training import report
from support.training.log import Log
from support.training.mfu import peak_rate
from support.training.schedule import learning_rate

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
    "valid_loss",
]  # and then the task's own figures
SUMS = ("nll", "targets", "tokens", "examples", "seconds")


class Run:
    """Counts what a run does, in every process; rank 0 also keeps logs/RUN/ and shows progress."""

    def __init__(self, args, task, rank: int, world_size: int):
        self.args, self.task, self.rank, self.world_size = args, task, rank, world_size
        self.folder, self.writes = Path(args.folder), rank == 0 and not args.benchmark
        self.last = args.steps or args.epochs * task.epoch_steps
        self.eval_every = args.eval_every or task.epoch_steps
        self.save_every = args.save_every or self.eval_every
        self.sharded = getattr(args, "sharded", False)  # a flag of train_fsdp.py
        self.options = weights.SHARDED if self.sharded else weights.FULL
        self.columns = [*COLUMNS, *(f"valid_{name}" for name in task.figures)]
        # Travels in the checkpoint. nll and targets: the sums since the last row of metrics.csv;
        # epoch: those of the epoch that is going on; epochs: a record of each that is done.
        self.progress = {
            "seconds": 0.0,
            "tokens": 0,
            "nll": 0.0,
            "targets": 0,
            "best": [-1.0, 0.0],
            "since_best": 0,
            "epoch": dict.fromkeys(SUMS, 0),
            "evaluated": {},
            "epochs": [],
        }
        self.peak = peak_rate(args, rank, world_size, CACHE)  # FLOP/s
        self.timed = []  # (tokens/s, MFU) of each row
        self.since = [0.0, 0, 0.0]  # seconds, tokens, FLOPs since a row
        self.row = self.bar = self.log = self.profile = None
        self.say(report.beginning(self))

    # --- Beginning and going on

    def restore(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
        """Puts the checkpoint that the run goes on from into all processes; returns its step, or 0.

        Rank 0 reads it and sends the weights; with --sharded each process reads its own part. All
        processes must have the same data.
        """
        task = self.task.saved()
        agree(data=hashlib.sha256(json.dumps(task, sort_keys=True).encode()).hexdigest())
        places = all_gather_objects((socket.gethostname(), device_name(self.args.device)))
        if self.writes:
            self.log = Log(
                self.folder, self.flags(), task["config"], model, self.columns, places
            )
            self.log.claim(is_new=not self.args.saved)
        found, start = None, (0, self.progress, "")
        if self.rank == 0 and self.args.saved:
            found = checkpoint.load_run(self.folder, hasattr(self.args, "sharded"))
            if found["step"] > self.last:
                raise UserError(f"{self.folder} is at step {found['step']} already")
            parts = str(self.folder / found["sharded"]) if "sharded" in found else ""
            start = found["step"], self.progress | found["progress"], parts
        step, self.progress, parts = broadcast_object(start)
        if self.args.saved:
            weights.restore(model, optimizer, found, parts)
            self.stop_if_no_better(step)
        elif self.task.weights:  # published ones, to begin with
            random = weights.full_state_dict(model)
            weights.load_full_state_dict(
                model, random | self.task.weights if self.rank == 0 else None
            )
            self.task.weights = None  # the model has them now
        if self.args.profile:
            self.profile = Profile(self, model, optimizer, step)
        if self.writes:
            self.log.open(self.args, self.progress, step, self.last)
        if self.rank == 0 and sys.stderr.isatty():
            from tqdm import tqdm

            self.bar = tqdm(total=self.last, initial=step, unit="step", dynamic_ncols=True)
        self.began = time.perf_counter() - self.progress["seconds"]
        self.begin_step()
        return step

    def begin_step(self) -> None:
        """Here begins the time of the next step."""
        if self.profile:
            self.profile.begin_step()
        self.mark = time.perf_counter()

    def flags(self) -> dict:
        """The flags, as config.json and the checkpoint have them."""
        return {
            name: value
            for name, value in vars(self.args).items()
            if name not in ("saved", "folder")
        }

    # --- After each step

    def should_evaluate(self, step: int) -> bool:
        """Whether the model is evaluated after this step."""
        return not self.args.benchmark and (step % self.eval_every == 0 or step == self.last)

    def should_save(self, step: int, stopping: bool) -> bool:
        """Whether a checkpoint is written after this step."""
        due = step % self.save_every == 0 or step == self.last or stopping
        return due and not self.args.benchmark

    def record(self, step: int, nll: float, targets: int, norm: float) -> None:
        """One step is done: its loss and targets, over all processes, and its gradient's norm.

        Raises UserError where the loss or the gradient is not a number, which ends the run.
        """
        seconds = time.perf_counter() - self.mark
        if self.profile and self.profile.end_step(step, seconds):
            self.profile = None
        if not math.isfinite(nll + norm):
            self.close()
            what = "gradient" if math.isfinite(nll) else "loss"
            saved = (self.folder / "last.pt").is_file() and not self.args.benchmark
            kept = f"{self.folder}/last.pt is from before" if saved else "nothing was saved"
            raise UserError(
                f"step {step}: the {what} is not finite; {kept} "
                f"(a lower --lr, a longer --warmup or --precision fp32 may help)"
            )
        progress, (examples, tokens, flops) = self.progress, self.task.size(step - 1)
        progress["tokens"] += tokens
        progress["nll"] += nll
        progress["targets"] += targets
        self.since = [a + b for a, b in zip(self.since, (seconds, tokens, flops))]
        for name, more in zip(SUMS, (nll, targets, tokens, examples, seconds)):
            progress["epoch"][name] += more
        loss, speed = progress["nll"] / progress["targets"], self.since[1] / self.since[0]
        if self.bar is not None:
            self.bar.set_postfix_str(f"loss {loss:.3f}, {speed:,.0f} tokens/s", refresh=False)
            self.bar.update()
        if step % self.args.log_every == 0 or step % self.eval_every == 0 or step == self.last:
            progress["seconds"] = time.perf_counter() - self.began
            self.timed.append((speed, self.since[2] / self.since[0] / self.peak))
            self.row = {
                "step": step,
                "epoch": -(-step // self.task.epoch_steps),
                "seconds": f"{progress['seconds']:.2f}",
                "tokens": progress["tokens"],
                "train_loss": f"{loss:.6f}",
                "learning_rate": f"{learning_rate(step, self.args, self.last):.4e}",
                "grad_norm": f"{norm:.6f}",
                "tokens_per_second": f"{speed:.0f}",
                "mfu": f"{self.timed[-1][1]:.4f}",
            }
            self.since, progress["nll"], progress["targets"] = [0.0, 0, 0.0], 0.0, 0
        if not self.should_evaluate(step):
            self.write_row(step, {})
        self.begin_step()

    def save_best(self, step: int, model: nn.Module, figures: dict[str, float]) -> None:
        """After an evaluation: the best weights go to best.pt, the latest to step-N.pt.

        The best have the highest first figure on the validation part, and of those the lowest loss.
        A collective: where the processes have parts of the weights, rank 0 gathers them.
        """
        whole = weights.full_state_dict(model)
        columns = ("loss", *self.task.figures)
        self.progress["evaluated"] = {
            f"valid_{name}" if name in columns else name: value
            for name, value in figures.items()
        }
        self.write_row(step, self.progress["evaluated"])
        reached = [figures[self.task.figures[0]], -figures["loss"]]
        self.progress["since_best"] += 1
        if reached > self.progress["best"]:
            self.progress |= {"best": reached, "since_best": 0}
            if self.writes:
                best = self.content(step, whole) | {"averaged": 1}
                checkpoint.save(self.folder / "best.pt", best)
        if self.writes and self.args.average_checkpoints > 1:  # as many as will be averaged
            checkpoint.save(self.folder / f"step-{step:07d}.pt", self.content(step, whole))
            for old in sorted(self.folder.glob("step-[0-9]*.pt"))[
                : -self.args.average_checkpoints
            ]:
                old.unlink()
        self.stop_if_no_better(step)
        self.begin_step()

    def stop_if_no_better(self, step: int) -> None:
        """Makes this step the last if --patience is over: the figures are the same everywhere."""
        if 0 < self.args.patience <= self.progress["since_best"]:
            self.say(f"step {step}: no better for {self.args.patience} evaluations")
            self.last = step

    def save_checkpoint(self, step: int, model: dict, optimizer: dict) -> None:
        """Writes last.pt, what a run goes on from; with --sharded every process writes its part."""
        if self.sharded:
            name = f"sharded-{step:07d}"
            weights.save_sharded(self.folder, name, model, optimizer)
            model = {}
        if self.writes:
            self.progress["seconds"] = time.perf_counter() - self.began
            more = {"sharded": name} if self.sharded else {"optimizer": optimizer}
            checkpoint.save(self.folder / "last.pt", self.content(step, model) | more)
            checkpoint.remove_sharded(self.folder, more.get("sharded", ""))
            self.log.note_saved()
        self.begin_step()

    def content(self, step: int, model: dict[str, Tensor]) -> dict:
        """What every mode's checkpoint file holds."""
        return {
            "step": step,
            "model": model,
            "task": self.task.saved(),
            "flags": self.flags(),
            "progress": self.progress,
        }

    # --- The log

    def write_row(self, step: int, evaluated: dict[str, float]) -> None:
        """Ends a step: writes its row of metrics.csv, if any, and its epoch's record at its end."""
        if step % self.task.epoch_steps == 0:
            self.progress["epochs"].append(report.of_epoch(self, step))
            self.progress |= {"epoch": dict.fromkeys(SUMS, 0), "evaluated": {}}
        row, self.row = self.row, None
        if not (row and self.writes):
            return
        self.log.write(row | {name: f"{value:.6f}" for name, value in evaluated.items()})
        if evaluated or self.bar is None and step % (10 * self.args.log_every) == 0:
            gone = self.progress["seconds"]
            found = "".join(
                f", {name.replace('_', ' ')} {round(evaluated[name], 4):.4g}"
                for name in self.columns
                if name in evaluated
            )
            self.say(
                f"step {step}/{self.last}, epoch {row['epoch']}: "
                f"loss {float(row['train_loss']):.3f}{found}, "
                f"{int(row['tokens_per_second']):,} tokens/s, {report.minutes(gone)} gone, "
                f"{report.minutes((self.last - step) * gone / step)} left"
            )

    def say(self, text: str) -> None:
        """A line from rank 0, above the progress bar."""
        if self.rank == 0:
            with ignore_closed_stdout():
                (self.bar.write if self.bar is not None else print)(text)

    def close(self) -> None:
        """Ends what this run has open."""
        if self.bar is not None:
            self.bar.close()
        if self.log:
            self.log.close()

    # --- The end

    def finish(self, step: int, model: nn.Module, stopping: bool) -> None:
        """Says where a stopped run goes on, or sums up one that has reached its last step."""
        if self.args.benchmark:
            report.benchmark(self)
        elif stopping:
            report.stopped(self, step)
        else:
            report.finish(self, model)
        self.close()
        dist.barrier()  # torchrun ends all once one leaves in error
