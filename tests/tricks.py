"""What each trick that is there for speed alone brings on a CPU: training without it, in turn.

    python tests/tricks.py --data multi30k --steps 40
    python tests/tricks.py --rounds 5 --only "Adam|memory" --cpu --write ...

All other flags are those of train_cpu.py. Each run is a fresh `train_cpu.py --benchmark` in which one
thing is as one would write it first (or, for a trick that is not used, as one would not). Prints the
median speed of each over the rounds, and how it compares with the run of the same round that has them
all. --write keeps every run in logs/benchmark/tricks.csv. On a machine that others use too, --cpu
counts the seconds that a process computed, not those that went by: waiting is then not seen, so what
processes and exchanges cost is not, either.
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
from functools import partial
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

import data
import model
import train_cpu
from support import fast, processes
from support.flags import parse_arguments


def unsorted(src_lengths, tgt_lengths, batch_tokens, rng):
    """`group_by_length` of sentences as they come: steps of as many tokens, with more padding."""
    longer, steps, start = np.maximum(src_lengths, tgt_lengths), [], 0
    order = rng.permutation(len(longer))
    while start < len(order):
        widths = np.maximum.accumulate(longer[order[start : start + batch_tokens]])
        fit = int((widths * np.arange(1, len(widths) + 1) <= batch_tokens).sum())
        steps.append(order[start : start + max(fit, 1)])
        start += len(steps[-1])
    return steps


def reduce_each_parameter() -> None:
    """Has train_cpu.py sum the gradients of one parameter after the other."""
    initialize, all_reduce, sizes = train_cpu.initialize, dist.all_reduce, []

    def note_sizes(model, seed):
        sizes.extend(parameter.numel() for parameter in model.parameters())
        initialize(model, seed)

    def reduce(tensor):
        is_gradient = tensor.numel() == sum(sizes)
        for part in tensor.split(sizes) if is_gradient else [tensor]:
            all_reduce(part)

    train_cpu.initialize, dist.all_reduce = note_sizes, reduce


def put(place, name: str, value) -> Callable[[], None]:
    return lambda: setattr(place, name, value)


ALL, FP32, SDPA = "all of them", "bf16", F.scaled_dot_product_attention
CHANGES = {                                                # trick: (what is instead, how, flags)
    ALL: ("", lambda: None, []),
    "one process a core": ("one process, a thread a core", lambda: None, ["--procs", "1"]),
    FP32: ("fp32", lambda: None, ["--precision", "fp32"]),
    "PyTorch's attention in fp32": (
        "written out", put(fast, "F", SimpleNamespace(
            scaled_dot_product_attention=model.scaled_dot_product)), ["--precision", "fp32"]),
    "attention written out in bf16": (
        "PyTorch's", put(model.Attention, "attend", staticmethod(SDPA)), []),
    "memory that glibc keeps": (
        "its defaults", put(processes, "keep_memory", lambda: None), []),
    "random bits of dropout 64 at a time": (
        "nn.Dropout", put(fast, "FastDropout", torch.nn.Dropout), []),
    "a loss that keeps no logits": (
        "written plainly", put(fast, "SummedCrossEntropy",
                               SimpleNamespace(apply=model.cross_entropy)), []),
    "sentences of like length together": (
        "as they come", put(data, "group_by_length", unsorted), []),
    "one all-reduce": ("one for each parameter", reduce_each_parameter, []),
    "Adam in a loop": (
        "fused=True", put(torch.optim, "Adam", partial(torch.optim.Adam, fused=True)), []),
}
AGAINST = {"PyTorch's attention in fp32": FP32}            # what a row is compared with, if not ALL

if __name__ == "__mp_main__":                              # in each process that `spawn` starts
    CHANGES[os.environ["WITHOUT"]][1]()
    if "CPU" in os.environ:
        time.perf_counter = time.process_time


def measure(trick: str, flags: list[str]) -> float:
    """Source and target tokens a second without this trick."""
    command = [sys.executable, __file__, "--benchmark", *CHANGES[trick][2], *flags]
    done = subprocess.run(command, env=os.environ | {"WITHOUT": trick}, capture_output=True,
                          text=True)
    if done.returncode:
        sys.exit(f"without {trick}: {done.stderr}")
    return float(re.search(r"([\d,]+) source\+target", done.stdout)[1].replace(",", ""))


def print_table(found: dict[str, list[float]]) -> None:
    print("| what is fast | what is instead | tokens/s | instead of |\n|" + " --- |" * 4)
    for trick, speeds in found.items():
        base = found[AGAINST.get(trick, ALL)]
        change = statistics.median(one / other - 1 for one, other in zip(speeds, base))
        print(f"| {trick} | {CHANGES[trick][0]} | {statistics.median(speeds):,.0f} "
              f"| {statistics.median(base):,.0f}: {change:+.1%} |")


def main() -> None:
    if "WITHOUT" in os.environ:
        processes.spawn(train_cpu.train, parse_arguments(__doc__, devices=("cpu",),
                                                         procs=(int, 0, "processes")))
        return
    own = argparse.ArgumentParser(description=__doc__, allow_abbrev=False,
                                  formatter_class=argparse.RawDescriptionHelpFormatter)
    own.add_argument("--rounds", metavar="N", type=int, default=3)
    own.add_argument("--only", metavar="PATTERN", default="", help="some tricks, by name")
    for name in ("--cpu", "--write"):
        own.add_argument(name, action="store_true")
    given, flags = own.parse_known_args()
    if given.cpu:
        os.environ["CPU"] = "1"
    chosen = {trick for trick in CHANGES if re.search(given.only, trick)}
    chosen |= {ALL, *(AGAINST[trick] for trick in chosen & AGAINST.keys())}
    found = {trick: [] for trick in CHANGES if trick in chosen}
    for _ in range(given.rounds):
        for trick, speeds in found.items():
            speeds.append(measure(trick, flags))
            print(f"{trick}, {CHANGES[trick][0]}: {speeds[-1]:,.0f}", file=sys.stderr, flush=True)
    if given.write:
        path = Path("logs/benchmark/tricks.csv")
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "w", newline="") as file:
            rows = csv.writer(file, lineterminator="\n")
            rows.writerow(["without", "instead", "round", "tokens_per_second"])
            rows.writerows([trick, CHANGES[trick][0], n, f"{speed:.0f}"]
                           for trick, speeds in found.items() for n, speed in enumerate(speeds, 1))
    print_table(found)


if __name__ == "__main__":
    main()
