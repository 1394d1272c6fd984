"""Learning rate and seed as functions of the step; the optimizer's parameter groups."""

import math

import torch
from torch import nn

from support.training.settings import Settings


def learning_rate(step: int, args: Settings, last_step: int) -> float:
    """Returns the learning rate of a step, counted from 1, of a run of `last_step` steps.

    All schedules rise linearly to --lr in --warmup steps (0: a tenth of the run). Then `noam`
    falls as 1 / sqrt(step) (section 5.3 of "Attention Is All You Need"), whereas `linear` and
    `cosine` reach 0 after the last step.
    """
    warmup = args.warmup or max(1, last_step // 10)
    if step <= warmup:
        return args.lr * (step / warmup)
    if args.schedule == "noam":
        return args.lr * (warmup / step) ** 0.5
    remaining = (last_step + 1 - step) / (last_step + 1 - warmup)
    if args.schedule == "linear":
        return args.lr * remaining
    if args.schedule == "cosine":
        return args.lr * ((1 - math.cos(math.pi * remaining)) / 2)
    raise ValueError(f"there is no schedule {args.schedule!r}")


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Sets the learning rate of all weights; "scale" is the factor of a classifier's head."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["scale"]


def parameter_groups(model: nn.Module, args: Settings) -> list[dict]:
    """Returns the weights that learn, as the optimizer takes them, by scale and weight decay.

    Parameters of one dimension, the biases and the weights of norms, have no weight decay.
    --head-lr sets the rate of a classifier's head.
    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        scale = 1.0
        if args.head_lr and name.startswith("head."):
            scale = args.head_lr / args.lr
        decay = args.weight_decay if parameter.dim() > 1 else 0.0
        groups.setdefault((scale, decay), []).append(parameter)
    return [
        {"params": parameters, "scale": scale, "weight_decay": decay}
        for (scale, decay), parameters in groups.items()
    ]


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seeds dropout for one step of one rank, so that a resumed run draws the same numbers."""
    # The two primes keep seeds apart: those of a run's steps and ranks, up to 1,009 ranks, and
    # those of runs with different --seed, up to 1,000,003 steps.
    torch.manual_seed((seed * 1_000_003 + step) * 1_009 + rank)
