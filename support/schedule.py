"""What changes from step to step, as pure functions of the step's number."""

import torch


def learning_rate(step: int, args) -> float:
    """Section 5.3: a straight line up to --lr in --warmup steps, then down with the step's root.

    step counts from 1. The paper's peak is (d_model * warmup) ** -0.5.
    """
    return args.lr * min(step / args.warmup, (args.warmup / step) ** 0.5)


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seeds dropout for one step of one process: a resumed run draws what an unbroken one would."""
    torch.manual_seed((seed * 1_000_003 + step) * 1_009 + rank)
