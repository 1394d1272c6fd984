"""What each of the tricks that make training on a CPU fast has brought: the same training without it, in turn.

    python tests/tricks.py --data multi30k --steps 60     # all flags of train_cpu.py are passed on

Each run is a fresh `train_cpu.py --benchmark` in which one thing is as one would write it first, and all others are as
they are. Two rounds; prints a table of the means, and writes every run to logs/benchmark/tricks.csv.
"""

import csv
import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

import data
import model
import train_cpu

ROUNDS = 2


def plain_dropout(self, x):
    return F.dropout(x, self.p, self.training)


class PlainCrossEntropy:
    """The projection and PyTorch's loss, which keep (tokens, vocabulary) and its gradient."""

    @staticmethod
    def apply(x, weight, target, smoothing):
        loss = F.cross_entropy(F.linear(x, weight), target, reduction="sum", label_smoothing=smoothing)
        return loss, loss.detach()


def plain_all_reduce(table, rank, factor):
    dist.all_reduce(table[rank])
    table[rank] *= factor


def unsorted(src_lengths, tgt_lengths, batch_tokens, rng):
    """Steps of as many tokens, of sentences as they come."""
    steps, start, order, longer = [], 0, rng.permutation(len(src_lengths)), np.maximum(src_lengths, tgt_lengths)
    while start < len(order):
        end = start + 1
        while end < len(order) and (end + 1 - start) * longer[order[start : end + 1]].max() <= batch_tokens:
            end += 1
        steps.append(order[start:end])
        start = end
    return steps


def put(place, name: str, value):
    return lambda: setattr(place, name, value)


TRICKS = {                                                 # what is fast: (what it is replaced by, how, flags)
    "everything": ("", lambda: None, []),
    "one process a core": ("one process, a thread a core", lambda: None, ["--procs", "1"]),
    "bf16": ("fp32", lambda: None, ["--precision", "fp32"]),
    "memory that glibc keeps": ("its defaults", put(train_cpu, "keep_memory", lambda: None), []),
    "attention written out": ("F.scaled_dot_product_attention", put(model, "scaled_dot_product", F.scaled_dot_product_attention), []),
    "dropout's bits 64 at a time": ("F.dropout", put(model.Dropout, "forward", plain_dropout), []),
    "a loss that keeps no logits": ("F.cross_entropy", put(model, "SummedCrossEntropy", PlainCrossEntropy), []),
    "gradients summed through memory": ("Gloo's all_reduce", put(train_cpu, "add_up", plain_all_reduce), []),
    "sentences of like length together": ("as they come", put(data, "group_by_length", unsorted), []),
    "fused Adam": ("Adam in a loop over parameters", put(torch.optim, "Adam", lambda p, fused, **how: ADAM(p, foreach=False, **how)), []),
}
ADAM, WORKER = torch.optim.Adam, train_cpu.worker


def worker_without(rank: int, args, *more) -> None:
    TRICKS[os.environ["WITHOUT"]][1]()
    WORKER(rank, args, *more)


def main() -> None:
    if "WITHOUT" in os.environ:
        train_cpu.worker = worker_without
        sys.argv = ["train_cpu.py", *sys.argv[1:]]
        train_cpu.main()
        return
    found = {}
    for _ in range(ROUNDS):
        for trick, (_, _, flags) in TRICKS.items():
            done = subprocess.run([sys.executable, __file__, "--benchmark", *flags, *sys.argv[1:]], env=os.environ | {"WITHOUT": trick},
                                  capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"without {trick}: {done.stderr}")
            speed = float(re.search(r"([\d,]+) source\+target tokens/s", done.stdout)[1].replace(",", ""))
            found.setdefault(trick, []).append(speed)
            print(f"without {trick}: {speed:,.0f} tokens/s" if trick != "everything" else f"{speed:,.0f} tokens/s", file=sys.stderr, flush=True)
    logs = Path("logs/benchmark")
    logs.mkdir(parents=True, exist_ok=True)
    with open(logs / "tricks.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["without", "instead", "round", "tokens_per_second"])
        rows.writerows([trick, TRICKS[trick][0], n, f"{speed:.0f}"] for trick, speeds in found.items() for n, speed in enumerate(speeds, 1))
    best = statistics.mean(found.pop("everything"))
    print(f"{best:,.0f} source and target tokens/s with all\n\n| what is fast | instead | tokens/s | times |\n|" + " --- |" * 4)
    for trick, speeds in sorted(found.items(), key=lambda item: statistics.mean(item[1])):
        print(f"| {trick} | {TRICKS[trick][0]} | {statistics.mean(speeds):,.0f} | {best / statistics.mean(speeds):.2f} |")


if __name__ == "__main__":
    main()
