"""A run: its steps, its log and checkpoints in logs/RUN/, and the progress that it shows."""

import dataclasses
import hashlib
import json
import math
import os
import socket
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from support.common import checkpoint
from support.common.errors import UserError
from support.common.hardware import device_name, peak_memory
from support.common.run_folder import lock_folder
from support.common.streams import ignore_lost_stdout
from support.distributed.collectives import (
    all_gather_objects,
    broadcast_object,
    long_barrier,
    sum_over_data,
)
from support.distributed.rendezvous import check_same_data
from support.distributed.signals import Signals, stop_requested
from support.training import summary
from support.training.metrics_log import MetricsLog
from support.training.optim import learning_rate
from support.training.progress import Progress
from support.training.settings import Settings
from support.training.tasks import Task
from support.training.throughput import Throughput, peak_rate

# support/distributed/weights.py is imported where it is used. It takes as long to load as
# PyTorch itself, and neither the parent of train_cpu.py nor `--help` needs it.

MOST_STEPS_UNEVALUATED = 5_000  # unless --eval-every says otherwise
MOST_STEPS_UNSAVED = 1_000  # unless --save-every does


class Run:
    """Counts what a run does, in every rank; rank 0 also keeps logs/RUN/ and shows progress.

    With --benchmark it keeps no log and no checkpoints. The trial of --minutes (`args.trial`)
    is a benchmark that ends with an evaluation and a checkpoint, to measure how long they take.
    """

    def __init__(self, args: Settings, task: Task, rank: int, world_size: int):
        self.args = args
        self.task = task
        self.rank = rank
        self.world_size = world_size
        self.tp_size = args.tensor  # ranks that share each layer, and have the same data
        self.data_rank = rank // self.tp_size
        self.data_size = world_size // self.tp_size
        self.folder = Path(args.folder)
        self.keeps_log = rank == 0 and not args.benchmark
        self.keeps_checkpoints = self.keeps_log or (rank == 0 and args.trial is not None)
        self.epoch_steps = len(task.batches)
        self.last_step = args.steps or args.epochs * self.epoch_steps
        # An epoch of a large corpus may take days, so it is evaluated in equal parts.
        parts = math.ceil(self.epoch_steps / MOST_STEPS_UNEVALUATED)
        self.eval_every = args.eval_every or math.ceil(self.epoch_steps / parts)
        self.progress = Progress(growth=args.growth)
        self.throughput: Throughput
        # Sums of nll and norm over the steps that were not read back yet.
        self.unread: Tensor | None = None
        self.scaler = torch.amp.GradScaler(enabled=False)  # `start` takes the script's, if any
        # The row of metrics.csv for the steps since the last one. `make_row` makes it, and
        # `write_row` writes it: if an evaluation is due, after it, with its metrics.
        self.row: dict[str, Any] = {}
        self.bar: Any = None  # tqdm's
        self.log: MetricsLog | None = None  # in the rank that writes
        # On GPUs what is saved is a copy in main memory, which training does not change. With
        # --sharded the ranks write their shards themselves, and last.pt is small.
        in_background = args.device == "cuda" and not args.sharded
        self.writer = checkpoint.Writer(in_background)
        self.profile: Any = None

    # --- Starting and resuming

    def start(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        scaler: torch.amp.GradScaler | None = None,
    ) -> int:
        """Prints the settings, starts or resumes the run, and returns how many steps are done.

        A new run begins at step 0, with pretrained weights if the task has them. A resumed run
        loads last.pt: rank 0 reads it and sends the weights; of a sharded checkpoint each rank
        reads its own shard. scaler: what scales the loss in fp16. Raises UserError if the ranks
        have different data, or the run cannot begin.
        """
        self.throughput = Throughput(peak_rate(self.args, self.rank, self.world_size))
        self.say(summary.beginning(self))
        content = json.dumps(self.task.state(), sort_keys=True)
        check_same_data(hashlib.sha256(content.encode()).hexdigest()[:12])
        if self.keeps_log:
            self.lock = lock_folder(self.folder, is_new=not self.args.is_resumed)
        if scaler:
            self.scaler = scaler
        step = self.load_weights(model, optimizer)
        self.progress.wandb_id = self.progress.wandb_id or uuid.uuid4().hex[:8]
        if self.args.profile:
            from support.profiling.profiler import Profile

            self.profile = Profile(self, model, optimizer, step)
        host_and_device = (socket.gethostname(), device_name(self.args.device))
        hosts_and_devices = all_gather_objects(host_and_device)
        if self.keeps_log:
            self.remove_later_files(step)
            self.log = MetricsLog(self, model, step, hosts_and_devices)
        if self.rank == 0 and sys.stderr.isatty():
            from tqdm import tqdm

            self.bar = tqdm(total=self.last_step, initial=step, unit="step", dynamic_ncols=True)
        self.began = time.perf_counter() - self.progress.seconds
        if step == self.last_step and self.progress.last_evaluation < step:
            self.say(f"evaluating the weights of step {step}")  # where the run was stopped
            metrics = self.task.evaluate(model, "valid", self.data_rank, self.data_size)
            self.make_row(step)
            self.record_evaluation(step, model, metrics)
        self.restart_clock()
        return step

    def load_weights(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
        """Loads last.pt or pretrained weights, if any, and returns how many steps are done."""
        if self.args.is_resumed:
            from support.training.resume import resume_run

            return resume_run(self, model, optimizer)
        if self.task.pretrained_weights:
            from support.distributed.weights import load_some_weights

            load_some_weights(model, self.task.pretrained_weights, self.rank)
            self.task.pretrained_weights = None  # the model has them now
        return 0

    def remove_later_files(self, step: int) -> None:
        """Removes half-written files, and what an interrupted run wrote after `step`."""
        for partial in self.folder.glob("*.partial"):
            partial.unlink()
        if step < self.last_step:  # a run that had ended is made longer
            (self.folder / "summary.json").unlink(missing_ok=True)
        if step == 0:  # a run that was killed before it saved last.pt may have left its best
            (self.folder / "best.pt").unlink(missing_ok=True)
        for path in checkpoint.evaluation_checkpoints(self.folder):
            if checkpoint.evaluated_step(path) > step:
                path.unlink()

    def restart_clock(self) -> None:
        """Starts the clock of the next step: after a step, an evaluation or a save."""
        if self.profile:
            self.profile.begin_step()
        self.step_began = time.perf_counter()

    def stop_clock(self, step: int) -> float:
        """Returns the seconds that a step took. With --profile it waits for the device."""
        if self.profile and self.args.device == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - self.step_began
        if self.profile and self.profile.end_step(step, seconds):
            self.profile = None
            self.say(
                f"{self.folder}: step.png, memory.png; "
                f"open trace-rank*.json.gz with https://ui.perfetto.dev"
            )
        return seconds

    # --- After each step

    def should_evaluate(self, step: int) -> bool:
        """Returns whether the model is evaluated after this step."""
        return self.takes_place(step, self.is_evaluation_due(step))

    def should_save(self, step: int, stopping: bool) -> bool:
        """Returns whether a checkpoint is written after this step."""
        if self.args.save_every:
            is_due = step % self.args.save_every == 0
        else:
            is_due = self.is_evaluation_due(step) or step % MOST_STEPS_UNSAVED == 0
        return self.takes_place(step, is_due) or (stopping and not self.args.benchmark)

    def is_evaluation_due(self, step: int) -> bool:
        """Returns whether the steps from one evaluation to the next end here."""
        if self.args.eval_every:
            return step % self.args.eval_every == 0
        return step % self.epoch_steps % self.eval_every == 0  # also at the end of an epoch

    def takes_place(self, step: int, is_due: bool) -> bool:
        """Returns whether an evaluation or a save follows this step: if due, or after the last.

        A benchmark has none, except a trial after its last step.
        """
        is_last = step == self.last_step
        if self.args.benchmark:
            return is_last and self.args.trial is not None
        return is_last or is_due

    def ends_row(self, step: int) -> bool:
        """Returns whether this step ends a row of metrics.csv."""
        is_due = step % self.args.log_every == 0 or self.is_evaluation_due(step)
        return is_due or step == self.last_step

    def record(self, step: int, nll: Tensor, num_targets: int, norm: Tensor) -> None:
        """Counts a step, and writes the row of metrics.csv if one is due.

        nll: this rank's sum over its targets; num_targets: of all ranks; norm: the gradient's.
        It is a collective, and waits for the device, only where a row, an epoch or a save is
        due; with --profile it waits for the device after each step. Raises UserError, which
        ends the run, if the loss or the gradient is not finite. In fp16 an infinite gradient
        only skips the step, as long as the scale of the loss is at least 1.
        """
        cost = self.task.step_cost(step - 1)
        self.add_unread(nll, norm)
        # Before a save, too: what the device still computes belongs to the time of this step.
        ends_epoch = step % self.epoch_steps == 0
        if self.ends_row(step) or ends_epoch or self.should_save(step, stopping=False):
            self.read_back(step)
        seconds = self.stop_clock(step)
        self.throughput.add(seconds, self.task.batches.seconds_waited, cost.tokens, cost.flops)
        self.task.batches.seconds_waited = 0.0
        self.progress.count_step(cost.examples, cost.tokens, num_targets, seconds)
        if self.ends_row(step):
            self.writer.check()
            self.make_row(step)
            self.row["grad_norm"] = f"{float(norm):.6f}"
            self.forecast_once(step)
        if self.bar is not None:
            self.bar.update()
        if not self.should_evaluate(step):  # else `record_evaluation` ends the step
            self.write_row({})
            self.end_epoch(step)
        if self.args.trial:
            self.stop_if_trial_is_over(step, self.args.trial.max_seconds)
            self.args.trial.steps_ended = time.perf_counter()
        self.restart_clock()

    def add_unread(self, nll: Tensor, norm: Tensor) -> None:
        """Adds a step's nll and norm to the sums that stay on the device until `read_back`.

        The sum of the norms shows whether one of them was not finite.
        """
        if self.scaler.is_enabled():  # then it is no error: the scaler skips the step
            norm = torch.where(norm.isfinite(), norm, 0.0)
        values = torch.stack([nll.double(), norm.double()])
        self.unread = values if self.unread is None else self.unread + values

    def read_back(self, step: int) -> None:
        """Adds up, over all ranks, the losses still on the devices. Raises as `record` does."""
        if self.unread is None:
            return
        sum_over_data(self.unread, self.data_size)
        nll, norms = self.unread.tolist()
        self.unread = None
        # The scale begins at 2**16, and each overflow halves it. Below 1 the gradient itself
        # is too large. Without a scaler it is 1.
        if not math.isfinite(nll + norms) or self.scaler.get_scale() < 1:
            quantity = "gradient" if math.isfinite(nll) else "loss"
            self.end_diverged_run(step, quantity)
        self.progress.add_nll(nll)

    def end_diverged_run(self, step: int, quantity: str) -> None:
        """Closes the log, and raises UserError: a loss or a gradient is not finite."""
        self.writer.wait()
        saved = [name for name in ("best.pt", "last.pt") if (self.folder / name).is_file()]
        saved = broadcast_object(saved)  # other nodes may not have the folder
        self.close()
        hint = "Nothing was saved."
        if saved and not self.args.benchmark:
            hint = f"The last good checkpoint is {self.folder}/{saved[-1]}."
        remedies = ["a new run with a lower --lr", "one with a longer --warmup"]
        if self.args.precision != "fp32":
            remedies.append("--precision fp32")
        raise UserError(
            f"The {quantity} is not finite, as was noticed at step {step}. {hint} "
            f"Try {' or '.join(remedies)}."
        )

    def make_row(self, step: int) -> None:
        """Makes a row of metrics.csv, of the steps since the last one.

        A run that is resumed only to evaluate its last step may have taken none since: then the
        row has no loss and no speed.
        """
        progress = self.progress
        progress.seconds = time.perf_counter() - self.began
        self.row = {
            "step": step,
            "epoch": self.epoch_of(step),
            "seconds": f"{progress.seconds:.2f}",
            "tokens": progress.tokens,
            "learning_rate": f"{learning_rate(step, self.args, self.last_step):.4e}",
            "memory_mib": round(peak_memory()),
            "reserved_mib": round(torch.cuda.max_memory_reserved() / 2**20),
            **self.throughput.end_row(),
        }
        loss = progress.end_row()
        if loss is not None:
            self.row["train_loss"] = f"{loss:.6f}"
            if self.bar is not None and self.throughput.speeds:
                text = f"loss {loss:.3f}, {self.throughput.speeds[-1]:,.0f} tokens/s"
                self.bar.set_postfix_str(text, refresh=False)

    def forecast_once(self, step: int) -> None:
        """Says after the second row how long the run will take: the first steps are slower."""
        if self.keeps_log and len(self.throughput.speeds) == 2 and step < self.last_step:
            self.say(summary.forecast(self, step))
            advice = summary.advice(self)
            if advice:
                self.say(advice)

    def epoch_of(self, step: int) -> int:
        """Returns the number of the epoch that a step is in, from 1."""
        return math.ceil(step / self.epoch_steps)

    # --- Evaluations and checkpoints

    def record_evaluation(self, step: int, model: nn.Module, metrics: dict[str, float]) -> None:
        """Logs an evaluation, and saves its weights.

        They are saved as best.pt if they are the best (`Progress.note_evaluation`), and as
        step-N.pt if checkpoints are averaged. A collective: rank 0 gathers the weights. Raises
        UserError where the loss is not finite.
        """
        from support.distributed import weights

        if not math.isfinite(metrics["loss"]):
            self.end_diverged_run(step, "validation loss")
        self.finish_writing()  # so that main memory holds one copy at a time
        state = weights.full_state_dict(model)
        self.progress.evaluated = {f"valid_{name}": value for name, value in metrics.items()}
        self.write_row(self.progress.evaluated)
        self.end_epoch(step)
        score = self.score(metrics)
        standard_error = self.task.standard_error(score[0]) if self.task.metrics else 0.0
        is_best = self.progress.note_evaluation(step, score, standard_error)
        content = self.checkpoint_content(step, state)
        self.write_files(lambda: self.write_evaluated(content, is_best))
        self.stop_if_patience_is_over(step)
        self.restart_clock()

    def score(self, metrics: dict[str, float]) -> list[float]:
        """Returns what decides which evaluation is the highest: first metric, then -loss."""
        # With --bleu-sentences 0 the first metric is missing.
        first_metric = [metrics.get(name, 0.0) for name in self.task.metrics[:1]]
        return [*first_metric, -metrics["loss"]]

    def write_evaluated(self, content: dict[str, Any], is_best: bool) -> None:
        """Writes the files of an evaluation, and removes step-*.pt that are not needed now."""
        if is_best:
            checkpoint.save(self.folder / "best.pt", content | {"averaged": 1})
        if self.args.average_checkpoints > 1:
            checkpoint.save(self.folder / f"step-{content['step']:07d}.pt", content)
            kept = self.args.average_checkpoints
            for path in checkpoint.evaluation_checkpoints(self.folder)[:-kept]:
                path.unlink()

    def stop_if_patience_is_over(self, step: int) -> None:
        """Makes this step the last one if --patience is over, in all ranks."""
        if 0 < self.args.patience <= self.progress.since_best:
            self.say(f"step {step}: no better for {self.args.patience} evaluations")
            self.last_step = step

    def stop_if_trial_is_over(self, step: int, max_seconds: float) -> None:
        """Makes this step the last of a trial whose time is over; rank 0 decides for all."""
        is_over = time.perf_counter() - self.began > max_seconds
        if broadcast_object(is_over):
            self.last_step = step

    def save_checkpoint(
        self, step: int, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        """Writes last.pt, to resume from; with --sharded each rank its shard. A collective."""
        from support.distributed import weights

        self.finish_writing()
        model_state, optimizer_state = weights.state_dicts(model, optimizer, self.args.sharded)
        self.read_back(step)
        self.progress.seconds = time.perf_counter() - self.began
        self.progress.scaler = self.scaler.state_dict()
        if self.args.sharded:
            shards = f"sharded-{step:07d}"
            weights.save_sharded(self.folder, shards, model_state, optimizer_state)
            content = self.checkpoint_content(step, {}) | {"sharded": shards}
        else:
            content = self.checkpoint_content(step, model_state) | {
                "optimizer": optimizer_state
            }
        self.write_files(lambda: self.write_last(content))
        self.restart_clock()

    def write_files(self, job: Callable[[], None]) -> None:
        """Calls `job` in the rank that saves, or lets its thread call it. A collective.

        `finish_writing` waits for the thread.
        """
        if self.keeps_checkpoints:
            self.writer.write(job)
        long_barrier()

    def finish_writing(self) -> None:
        """Waits until the files of the last `write_files` are written. A collective."""
        self.writer.wait()
        long_barrier()

    def write_last(self, content: dict[str, Any]) -> None:
        """Writes last.pt, and removes the shards of earlier ones."""
        checkpoint.save(self.folder / "last.pt", content)
        checkpoint.remove_sharded(self.folder, content.get("sharded", ""))
        if self.log:
            self.log.note_saved()

    def checkpoint_content(self, step: int, model_state: dict[str, Tensor]) -> dict[str, Any]:
        """Returns what the checkpoint files of every script hold."""
        return {
            "step": step,
            "model": model_state,
            "task": self.task.state(),
            "flags": self.args.flags(),
            "progress": dataclasses.asdict(self.progress),
        }

    # --- The log

    def write_row(self, evaluated: dict[str, float]) -> None:
        """Writes the row of metrics.csv that the step has ended, if any, and shows it.

        evaluated: columns of the row by name, such as valid_loss; {} without an evaluation.
        """
        if self.row and self.log:
            row = self.row | {name: f"{value:.6f}" for name, value in evaluated.items()}
            self.log.write(row)
            is_shown = self.bar is None and row["step"] % (10 * self.args.log_every) == 0
            if evaluated or is_shown:
                self.say(summary.progress_line(self, row))
        self.row = {}

    def end_epoch(self, step: int) -> None:
        """Adds the record of the epoch that this step has ended, if any."""
        if step % self.epoch_steps == 0:
            self.progress.end_epoch(self.epoch_of(step), step)

    def say(self, text: str) -> None:
        """Prints a line from rank 0, above the progress bar."""
        if self.rank > 0:
            return
        with ignore_lost_stdout(OSError):
            if self.bar is None:
                print(text)
            else:
                self.bar.write(text)

    def close(self) -> None:
        """Closes the log and the progress bar."""
        if self.bar is not None:
            self.bar.close()
        if self.log:
            self.log.close()

    # --- The end

    def finish(self, step: int, model: nn.Module, stopping: bool) -> None:
        """Says how to resume a stopped run, or scores and sums up one that has ended."""
        from support.training import final  # it needs support/distributed/weights.py

        if self.args.trial:
            self.measure_trial(self.args.trial)
        self.finish_writing()
        if self.profile:
            last = self.profile.recorded[-1]
            self.say(f"--profile: the run ended before step {last}, so nothing was recorded")
        if self.args.benchmark:
            summary.print_benchmark(self)
        elif stopping or stop_requested():  # a signal may have come in the last evaluation
            self.say(summary.how_to_resume(self, step))
        else:
            Signals.handle(self.stop_scoring)
            final.score_run(self, model)
            Signals.handle(Signals.note)
        self.close()
        long_barrier()  # torchrun ends all ranks once one of them leaves with an error

    def measure_trial(self, trial) -> None:
        """Notes how long a trial's steps and evaluation took, before a thread writes files."""
        trial.evaluation_seconds = time.perf_counter() - trial.steps_ended
        trial.epoch_steps = self.epoch_steps
        trial.eval_every = self.eval_every
        speed, _ = self.throughput.warm_medians()
        trial.epoch_seconds = summary.epoch_tokens(self) / speed

    def stop_scoring(self, number: int, _frame) -> None:
        """Ends the process on a signal. The run is saved; once resumed, it is scored again."""
        Signals.handle(lambda *_: None)  # ignores a second one
        self.say(summary.how_to_resume(self, self.last_step))
        os._exit(128 + number)
