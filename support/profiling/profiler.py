"""What --profile leaves in logs/RUN/: a few steps of every process, recorded by torch.profiler.

    trace.json.gz     all that was recorded, for https://ui.perfetto.dev; a group for each process
    step.csv, .png    one of the steps: what each process did, and what went over the network
    profile.json      memory, and bytes sent in that step, counted and by the formula
    memory.png        a picture of the memory

Who waits for whom on several nodes is only as right as their clocks agree. Without --profile there
is none of this, in the loop nor around it.
"""

import gzip
import importlib.util
import json
import os
import tempfile
from collections import Counter
from functools import wraps
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from support.common.errors import UserError
from support.common.files import write_json
from support.profiling import memory, memory_picture, step_picture
from support.profiling.spans import combine, write_step
from support.profiling.timeline import find_step, read_events
from support.profiling.trace import write_trace

WARM_UP = 5  # steps, in which memory is counted
SETTLE = 1  # step, since the profiler's first one is slow
RECORDED = 3  # steps; the one in the middle is drawn


class Profile:
    """Records steps of this process; at their end rank 0 writes what it has from all of them.

    step: the last one that was done. Raises UserError where there is nothing to record, or nobody to
    draw it.
    """

    def __init__(self, run, model: nn.Module, optimizer: torch.optim.Optimizer, step: int):
        self.run, self.step, first = run, step, step + WARM_UP + SETTLE + 1
        self.recorded = range(first, first + RECORDED)
        if run.args.benchmark:
            raise UserError("--profile with --benchmark: that leaves nothing in logs/")
        if not importlib.util.find_spec("matplotlib"):
            raise UserError("--profile: it draws with matplotlib: pip install matplotlib")
        if self.recorded[-1] > run.last:
            raise UserError(
                f"--profile records steps {first} to {self.recorded[-1]}; "
                f"the last one of this run is {run.last}"
            )
        self.memory = memory.Counter(model, optimizer)
        self.seconds, self.profiler, self.marks = {}, None, []
        # Where the passes begin: this way the pages do not have to say it.
        self.batches, self.backward = run.task.batches, torch.Tensor.backward
        run.task.batches = self.marked_batches
        torch.Tensor.backward = self.marked_backward()

    # --- What the pages call

    def marked_batches(self, *args):
        """The task's batches: once one is there, a forward pass begins."""
        for batch in self.batches(*args):
            self.begin_phase("forward")
            yield batch
        self.begin_phase("optimizer")

    def marked_backward(self):
        @wraps(self.backward)
        def backward(*args, **kwargs):
            self.begin_phase("backward")
            self.backward(*args, **kwargs)
            self.begin_phase("batch")

        return backward

    def begin_phase(self, name: str) -> None:
        """One phase of a step ends, and another begins."""
        self.memory.begin_phase(name)
        if self.marks:  # the step's, and then its phase's
            self.end_marks(1)
            self.begin_mark(name)

    def begin_mark(self, name: str) -> None:
        self.marks.append(record_function(name))
        self.marks[-1].__enter__()

    def end_marks(self, kept: int = 0) -> None:
        while len(self.marks) > kept:
            self.marks.pop().__exit__(None, None, None)

    # --- What the run calls

    def begin_step(self) -> None:
        """The next step begins now; said again, it begins only now."""
        if self.step + 1 == self.recorded[0] - SETTLE and not self.profiler:
            os.environ.setdefault("KINETO_LOG_LEVEL", "9")  # else it says that it starts
            gpu = [ProfilerActivity.CUDA] * (self.run.args.device == "cuda")
            self.profiler = profile(activities=[ProfilerActivity.CPU, *gpu], record_shapes=True)
            self.profiler.start()
        if self.profiler:
            self.end_marks()
            self.begin_mark(f"step {self.step + 1}")
            self.begin_mark("batch")

    def end_step(self, step: int, seconds: float) -> bool:
        """A step is done, and took so long. Returns whether it was the last to be recorded.

        Then it is a collective: rank 0 gets what all have recorded.
        """
        self.end_marks()
        self.step, self.seconds[step] = step, seconds
        if step == self.recorded[0] - SETTLE - 1:
            self.memory.finish()
        if step < self.recorded[-1]:
            return False
        self.profiler.stop()
        self.run.task.batches, torch.Tensor.backward = self.batches, self.backward
        everyone = [None] * self.run.world_size if self.run.rank == 0 else None
        dist.gather_object(self.mine(), everyone)
        if everyone:
            self.write(everyone)
        return True

    def mine(self) -> dict:
        """What this process has recorded."""
        with tempfile.TemporaryDirectory() as folder:
            self.profiler.export_chrome_trace(f"{folder}/trace.json")
            trace = Path(folder, "trace.json").read_bytes()
        events = read_events(json.loads(trace))
        return {
            "trace": gzip.compress(trace),
            "memory": self.memory.bytes,
            "steps": [find_step(events, step, self.run.world_size) for step in self.recorded],
        }

    def write(self, everyone: list[dict]) -> None:
        """Writes the files of the run's folder; everyone: what each process has recorded."""
        run, folder = self.run, self.run.folder
        steps = list(zip(*(each["steps"] for each in everyone)))
        spans = [combine(processes) for processes in steps]
        write_trace(
            folder / "trace.json.gz",
            [each["trace"] for each in everyone],
            [
                (min(step.start for step in processes), of_step)
                for processes, of_step in zip(steps, spans)
            ],
        )
        drawn = RECORDED // 2
        write_step(spans[drawn], self.recorded[drawn], folder / "step.csv")
        sent = [sum(each.sent for each in step.exchanges) for step in steps[drawn]]
        formula = self.memory.formula(run.args.accumulate, run.args.precision, run.world_size)
        largest = max(everyone, key=lambda each: each["memory"]["total"])
        kinds = Counter()
        for each in steps[drawn][0].exchanges:
            kinds[each.what] += each.bytes
        write_json(
            folder / "profile.json",
            {
                "step": self.recorded[drawn],
                "seconds": self.seconds[self.recorded[drawn]],
                "memory": {
                    "process": everyone.index(largest),
                    "counted": largest["memory"],
                    "formula": formula["memory"],
                },
                "sent": {"counted": round(max(sent)), "formula": formula["sent"]},
                "exchanged": kinds,
            },
        )
        step_picture.draw([step_picture.read(folder)], folder / "step.png")
        memory_picture.draw([memory_picture.read(folder)], folder / "memory.png")
        run.say(f"{folder}: step.png, memory.png; trace.json.gz is for https://ui.perfetto.dev")
