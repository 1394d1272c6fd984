"""The gain of each optimization on a CPU: paired runs with and without it.

    python tests/measure/tricks.py --data multi30k --steps 40
    python tests/measure/tricks.py --data multi30k --only "Adam|memory" --cpu

All other flags are those of train_cpu.py, which runs with --benchmark. For each optimization
there are two runs: one with all of them, and one in which this one is replaced by the plain way
(or, for one that is not used, added). They take the same steps in turn: one waits while the
other computes, so that other load on the machine affects both alike. Prints the medians of both
speeds and of their ratio, without the first quarter of the steps. The first row, of two equal
runs, shows the precision of the measurement. --write keeps all speeds in
logs/reference/benchmark/tricks.csv. --cpu counts rank 0's CPU time in place of the elapsed
time, for a machine that others use too.
"""

import argparse
import csv
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from printed import header, row

import data
import model
import train_cpu
from support.common import kernels
from support.distributed import launch
from support.training.command_line import parse_arguments
from support.training.run import Run
from support.training.settings import CpuSettings
from support.translation.pool import keep_freed_memory


def unsorted(lengths, batch_tokens, rng, batch_size=0):
    """`group_by_length` without sorting: batches of as many tokens, but with more padding."""
    longer = np.maximum(lengths[0], lengths[-1])  # examples of a classifier have one side
    order = rng.permutation(len(longer))
    batches = []
    start = 0
    while start < len(order):
        size = batch_size
        if not size:
            widths = np.maximum.accumulate(longer[order[start : start + batch_tokens]])
            padded = widths * np.arange(1, len(widths) + 1)  # tokens of 1, 2, ... sentences
            size = max(1, int((padded <= batch_tokens).sum()))
        batches.append(order[start : start + size])
        start += size
    return batches


def reduce_each_parameter() -> None:
    """Has train_cpu.py sum the gradients of one parameter after the other."""
    initialize = train_cpu.initialize
    all_reduce = dist.all_reduce
    sizes = []

    def note_sizes(model, seed):
        sizes.extend(parameter.numel() for parameter in model.parameters())
        initialize(model, seed)

    def reduce(tensor):
        is_gradient = tensor.numel() == sum(sizes)
        for part in tensor.split(sizes) if is_gradient else [tensor]:
            all_reduce(part)

    train_cpu.initialize = note_sizes
    dist.all_reduce = reduce


def put(place, name: str, value) -> Callable[[], None]:
    return lambda: setattr(place, name, value)


class Change(NamedTuple):
    """What a run does in place of a trick."""

    instead: str
    apply: Callable[[], None] = lambda: None  # called in each of its processes
    flags: tuple[str, ...] = ()


def adam_in_a_loop(*args, **kwargs):
    return AdamW(*args, **kwargs | {"fused": False})


AdamW = torch.optim.AdamW
PATIENCE = timedelta(minutes=10)
ALL = "all of them"  # the run that has every trick
BF16 = "bf16"
CHANGES = {
    ALL: Change(""),
    "nothing": Change("the same again"),
    "one process a core": Change("one process, a thread a core", flags=("--procs", "1")),
    BF16: Change("fp32", flags=("--precision", "fp32")),
    "PyTorch's attention in fp32": Change(
        "written out",
        put(kernels, "fused_attention", model.scaled_dot_product),
        ("--precision", "fp32"),
    ),
    "attention written out in bf16": Change(
        "PyTorch's", put(kernels, "cpu_bf16_attention", F.scaled_dot_product_attention)
    ),
    "attention for short sentences": Change(
        "as model.py writes it", put(kernels, "cpu_bf16_attention", model.scaled_dot_product)
    ),
    "oneDNN's plans for all shapes": Change(  # seen from the second epoch on
        "for the last 1,024",
        lambda: os.environ.update(ONEDNN_PRIMITIVE_CACHE_CAPACITY="1024"),
    ),
    "glibc's memory as it is": Change("memory that it keeps", keep_freed_memory),
    "random bits of dropout 64 at a time": Change(
        "nn.Dropout", put(kernels, "ByteDropout", torch.nn.Dropout)
    ),
    "a loss that keeps no logits": Change(
        "written plainly",
        put(
            kernels,
            "FusedLinearCrossEntropy",
            SimpleNamespace(apply=model.linear_cross_entropy),
        ),
    ),
    "sentences of like length together": Change(
        "as they come", put(data, "group_by_length", unsorted)
    ),
    "one all-reduce": Change("one for each parameter", reduce_each_parameter),
    "fused Adam": Change("in a loop", put(torch.optim, "AdamW", adam_in_a_loop)),
}
# What a trick is compared with, if not with all of them: both runs in fp32.
AGAINST = {"PyTorch's attention in fp32": BF16}


def take_turns(name: str) -> None:
    """Makes a process of train_cpu.py wait for its turn at each step and report its speed."""
    store = dist.TCPStore(
        "127.0.0.1", int(os.environ["PORT"]), is_master=False, timeout=PATIENCE
    )
    clock = time.process_time if "CPU" in os.environ else time.perf_counter
    seed_step = train_cpu.seed_step
    record = Run.record
    began = 0.0

    def wait_first(seed: int, step: int, rank: int) -> None:
        nonlocal began
        store.wait([f"{name} {step}"])
        began = clock()
        seed_step(seed, step, rank)

    def report(run: Run, step: int, *more) -> None:
        if run.rank == 0:
            tokens = run.task.step_cost(step - 1).tokens
            speed = tokens / (clock() - began)
            store.set(f"{name} {step - 1} speed", str(speed))
        record(run, step, *more)

    train_cpu.seed_step = wait_first
    Run.record = report


if __name__ == "__mp_main__":  # in each process that `spawn` starts
    CHANGES[os.environ["VARIANT"]].apply()
    take_turns(os.environ["VARIANT"])


def measure(trick: str, steps: int, flags: list[str]) -> list[tuple[float, float]]:
    """Tokens a second of each step, with the trick and without it."""
    store = dist.TCPStore(
        "127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=PATIENCE
    )
    both = (AGAINST.get(trick, ALL), trick)
    found = []
    start = [sys.executable, __file__, "--benchmark", "--steps", str(steps)]
    running = [
        subprocess.Popen(
            [*start, *flags, *CHANGES[name].flags],
            stdout=subprocess.DEVNULL,
            env=os.environ | {"VARIANT": name, "PORT": str(store.port)},
        )
        for name in both
    ]
    try:
        for step in range(steps):
            speeds = {}
            for name in both if step % 2 else both[::-1]:  # neither is always the first
                store.set(f"{name} {step}", "")
                speeds[name] = float(store.get(f"{name} {step} speed"))
            found.append(tuple(speeds[name] for name in both))
    finally:
        for run in running:
            if len(found) < steps:  # a run has failed
                run.terminate()
            run.wait()
    return found[steps // 4 :]


def main() -> None:
    if "VARIANT" in os.environ:  # one of the runs that `measure` has started
        launch.spawn(train_cpu.train, parse_arguments(__doc__, CpuSettings))
        return
    own = argparse.ArgumentParser(
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    own.add_argument("--steps", metavar="N", type=int, default=40)
    own.add_argument("--only", metavar="PATTERN", default="", help="some tricks, by name")
    own.add_argument("--cpu", action="store_true")
    own.add_argument("--write", action="store_true")
    given, flags = own.parse_known_args()
    if given.write and (given.only or given.cpu):
        own.error("--write replaces the whole table: leave out --only and --cpu")
    if given.cpu:
        os.environ["CPU"] = "1"
    found = {}
    titles = ["what is fast", "what is instead", "tokens/s", "instead", "median of the ratio"]
    print(header(*titles), flush=True)
    for trick in CHANGES:
        if trick != ALL and re.search(given.only, trick):
            found[trick] = measure(trick, given.steps, flags)
            with_it, without_it = map(statistics.median, zip(*found[trick]))
            ratio = statistics.median(one / other for one, other in found[trick])
            cells = [f"{with_it:,.0f}", f"{without_it:,.0f}", f"{ratio:.2f}"]
            print(row(trick, CHANGES[trick].instead, *cells), flush=True)
    if given.write:
        path = Path("logs/reference/benchmark/tricks.csv")
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w", newline="") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(
                ["trick", "instead", "tokens_per_second", "tokens_per_second_instead"]
            )
            rows.writerows(
                [trick, CHANGES[trick].instead, round(with_it), round(without_it)]
                for trick, speeds in found.items()
                for with_it, without_it in speeds
            )


if __name__ == "__main__":
    main()
