"""Records a few steps of every rank with torch.profiler, for --profile, in logs/RUN/.

    trace-rank0.json.gz ...   everything that a rank recorded, for https://ui.perfetto.dev
    step.csv, step.png        one of the steps: what each rank did and sent
    profile.json              memory, and bytes sent in that step: counted, and by the formula
    memory.png                a plot of the memory

On several nodes, the waiting times are only as exact as the agreement of the nodes' clocks.
Training without --profile imports none of this code.
"""

import gzip
import json
import os
from collections import Counter
from contextlib import ExitStack
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function

from support.common.errors import UserError
from support.common.files import write_json
from support.profiling.memory import MemoryCounter, SplitLayers, formula
from support.profiling.profile_plots import draw_profiles, read_profile
from support.profiling.spans import combine, write_spans
from support.profiling.timeline import Step, find_step, groups_of, read_events

WARM_UP = 5  # steps before the recording; memory is counted in them
SETTLE = 1  # step that is recorded but not used, because the profiler's first one is slow
RECORDED = 3  # steps; the one in the middle is drawn


class Profile:
    """Records steps of this rank. After the last one, rank 0 writes the results of all ranks.

    Hooks of the model and of autograd mark in the trace where the phases of a step begin:
    "batch", "forward" and "backward" for each micro-batch, then "optimizer", which includes
    the collectives before it. DistributedDataParallel keeps the hooks of the model that it
    wraps.
    """

    def __init__(self, run, model: nn.Module, optimizer: torch.optim.Optimizer, step: int):
        """Registers the hooks. Raises UserError if the run ends before the last step to record.

        run: a Run (support/training/run.py). step: the number of steps that were done before, 0
        for a new run.
        """
        first = step + WARM_UP + SETTLE + 1
        self.recorded = range(first, first + RECORDED)
        self.drawn = self.recorded[RECORDED // 2]
        if self.recorded[-1] > run.last_step:
            raise UserError(
                f"--profile records steps {first} to {self.recorded[-1]}, but the last step of "
                f"this run is {run.last_step}: raise --steps or --epochs"
            )
        self.run = run
        self.model = model
        self.step = step
        self.micro_batch = 0  # of the step: how many are done
        self.seconds = 0.0  # of the step that is drawn
        self.profiler: Any = None  # of torch, while it records
        self.step_range = ExitStack()
        self.memory = MemoryCounter(model, optimizer)
        self.split_layers = SplitLayers(model)
        self.activations_sent = 0.0  # in the step that is drawn
        self.hooks = [
            model.register_forward_pre_hook(self.begin_forward, prepend=True),
            model.register_forward_hook(self.begin_backward),
        ]

    # --- Called by the hooks

    def mark(self, phase: str) -> None:
        """Marks in the trace that a phase begins. It lasts until the next mark."""
        with record_function(phase):
            pass

    @torch.compiler.disable
    def begin_forward(self, *_: Any) -> None:
        """Called before the model's forward pass."""
        if torch.is_grad_enabled():  # else it is an evaluation
            self.mark("forward")

    @torch.compiler.disable
    def begin_backward(
        self, model: nn.Module, inputs: tuple, output: tuple[Tensor, Tensor]
    ) -> None:
        """Called after the model's forward pass, with its loss."""
        if torch.is_grad_enabled():
            self.mark("backward")
            loss, _ = output
            loss.register_hook(self.await_backward)

    def await_backward(self, gradient: Tensor) -> None:
        """Called when the backward pass starts at the loss."""
        engine = torch.autograd.Variable._execution_engine
        # DDP and FSDP queue callbacks for the end of the backward pass, too, and wait in them
        # for their collectives. One that is queued by a callback runs after all of these.
        engine.queue_callback(lambda: engine.queue_callback(self.end_backward))

    def end_backward(self) -> None:
        """Called at the very end of the backward pass."""
        self.micro_batch += 1
        is_last = self.micro_batch == self.run.args.accumulate
        self.mark("optimizer" if is_last else "batch")

    # --- Called by the run

    def begin_step(self) -> None:
        """Begins the next step. After an evaluation it is called again for the same step."""
        number = self.step + 1
        if number == self.recorded[0] - SETTLE and not self.profiler:
            os.environ.setdefault("KINETO_LOG_LEVEL", "9")  # otherwise it logs to stderr
            activities = [ProfilerActivity.CPU]
            if self.run.args.device == "cuda":
                activities.append(ProfilerActivity.CUDA)
            self.profiler = profile(activities=activities, record_shapes=True)
            self.profiler.start()
        self.micro_batch = 0
        self.split_layers.sent = 0.0
        self.step_range.close()
        self.step_range.enter_context(record_function(f"step {number}"))
        self.mark("batch")

    def end_step(self, step: int, seconds: float) -> bool:
        """Ends a step, which took `seconds`. Returns whether the recording is over.

        After the last step this is a collective: rank 0 receives the results of all ranks and
        writes them.
        """
        self.step_range.close()
        self.step = step
        if step == self.drawn:
            self.seconds = seconds
            self.activations_sent = self.split_layers.sent
        if step == self.recorded[0] - SETTLE - 1:
            self.memory.finish()
        if step < self.recorded[-1]:
            return False
        self.profiler.stop()
        for hook in [*self.hooks, *self.split_layers.hooks]:
            hook.remove()
        results: list = [None] * self.run.world_size
        dist.gather_object(self.result(), results if self.run.rank == 0 else None)
        if self.run.rank == 0:
            self.write(results)
        return True

    # --- The results

    def result(self) -> tuple[Step, dict[str, int], float]:
        """Writes the trace of this rank.

        Returns the step that is drawn, the bytes of each part of the memory, and the bytes that
        were sent inside layers in that step.
        """
        run = self.run
        run.folder.mkdir(parents=True, exist_ok=True)  # on other nodes it is new
        path = run.folder / f"trace-rank{run.rank}.json"
        packed = path.with_name(f"{path.name}.gz")
        for each in (path, packed):
            each.unlink(missing_ok=True)  # a link would be followed
        self.profiler.export_chrome_trace(str(path))  # it cannot pack a file on Windows
        trace = path.read_bytes()
        path.unlink()
        with gzip.open(packed, "wb") as file:
            file.write(trace)
        events = read_events(json.loads(trace))
        groups = groups_of(run.rank, run.world_size, run.args.replicas, run.args.tensor)
        return find_step(events, self.drawn, groups), self.memory.bytes, self.activations_sent

    def write(self, results: list[tuple[Step, dict[str, int], float]]) -> None:
        """Writes the results of all ranks, in their order, to the folder of the run."""
        args = self.run.args
        folder = self.run.folder
        steps, memory_of_ranks, activations_sent = zip(*results)
        write_spans(combine(steps), self.drawn, folder / "step.csv")
        largest = max(memory_of_ranks, key=lambda memory: memory["total"])
        theory = formula(self.model, args.accumulate, args.precision, self.run.world_size)
        theory["sent"] += round(max(activations_sent))
        sent = [sum(collective.sent for collective in step.collectives) for step in steps]
        collective_bytes: Counter[str] = Counter()
        for collective in steps[0].collectives:
            collective_bytes[collective.name] += collective.bytes
        content = {
            "step": self.drawn,
            "seconds": self.seconds,
            "memory": {
                "rank": memory_of_ranks.index(largest),
                "counted": largest,
                "formula": theory["memory"],
            },
            "sent": {"counted": round(max(sent)), "formula": theory["sent"]},
            "collective_bytes": collective_bytes,
        }
        write_json(folder / "profile.json", content)
        draw_profiles([read_profile(folder)], folder)
