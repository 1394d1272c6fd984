"""Larger steps for GPUs, if neither the command line nor --config sets their size.

The sizes in configs/ suit CPUs. A GPU often computes such a step in less time than the CPU
needs to start its kernels. Then the steps of a new run are enlarged.
"""

import math

import torch

from support.common.hardware import LAUNCH_SECONDS
from support.training.settings import Settings
from support.training.summary import LOW_MFU, MAX_GROWTH

# `task` is a Task (support/training/tasks.py), which imports this module.

# The fewest steps that enlarging may leave, a guess: with fewer, the same epochs may train a
# model less. On the phrasebook 3,991 steps reached BLEU 95.5, and 1,937 steps of twice the size
# 93.4, in one run each; the standard deviation of other seeds is 0.85.
MIN_STEPS = 10_000


def find_growth(task, args: Settings) -> int:
    """Returns the factor by which to enlarge the steps, a power of two.

    It is as large as the GPUs need to reach an MFU of LOW_MFU in the time in which the CPU
    starts the kernels of a step, but at most MAX_GROWTH, and leaves the run at least MIN_STEPS
    steps. It is 1 if the number of steps is given (but for --benchmark) or found by --minutes.
    """
    if args.minutes or (args.steps and not args.benchmark):
        return 1
    num_sampled = min(len(task.batches), 20)
    step_flops = 0.0  # on average
    for step in range(num_sampled):
        step_flops += task.step_cost(step).flops / num_sampled
    with torch.device("meta"):  # without memory
        num_layers = len(task.build_model().layers())
    # The CPU starts the kernels of each micro-batch.
    launch_seconds = args.accumulate * num_layers * LAUNCH_SECONDS
    mfu = step_flops / launch_seconds / args.gpu_rate
    num_steps = args.epochs * len(task.batches)
    needed = 2 ** math.ceil(math.log2(LOW_MFU / mfu))
    allowed = 2 ** math.floor(math.log2(num_steps / MIN_STEPS))
    return max(1, min(needed, allowed, MAX_GROWTH))


def enlarge_steps(args: Settings, growth: int) -> None:
    """Enlarges the steps. Adam's learning rate grows with the square root of their size."""
    args.growth = growth
    args.batch_tokens *= growth
    args.batch_size *= growth
    args.lr = float(f"{args.lr * math.sqrt(growth):.2g}")
    args.head_lr = float(f"{args.head_lr * math.sqrt(growth):.2g}")
    args.warmup = math.ceil(args.warmup / growth)  # it keeps its share of the data
