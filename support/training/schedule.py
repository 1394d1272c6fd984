"""What changes from step to step, as functions of its number; which weights learn how."""

import math

import torch
from torch import nn


def learning_rate(step: int, args, last: int) -> float:
    """The rate of a step, counted from 1, of a run of `last` steps.

    All schedules rise in a straight line to --lr in --warmup steps (0: a tenth of `last`, so that a
    run made longer warms up anew). Then `noam` falls as 1 / sqrt(step) (section 5.3; the paper's
    peak is (d_model * warmup) ** -0.5), `linear` in a line and `cosine` along half a wave to 0
    after the last step.
    """
    warmup = args.warmup or max(1, last // 10)
    if step <= warmup or args.schedule == "noam":
        return args.lr * min(step / warmup, (warmup / step) ** 0.5)
    left = (last + 1 - step) / (last + 1 - warmup)
    return args.lr * (left if args.schedule == "linear" else (1 - math.cos(math.pi * left)) / 2)


def parameter_groups(model: nn.Module, args) -> list[dict]:
    """The weights that learn, as the optimizer takes them; "scale" multiplies the learning rate.

    Biases and norms, all that has one dimension, never decay; a classifier's head may learn faster.
    """
    groups = {}
    for name, parameter in model.named_parameters():
        head = args.head_lr / args.lr if args.head_lr and name.startswith("head.") else 1.0
        decay = args.weight_decay if parameter.dim() > 1 else 0.0
        if parameter.requires_grad:
            groups.setdefault((head, decay), []).append(parameter)
    return [
        {"params": parameters, "scale": scale, "weight_decay": decay}
        for (scale, decay), parameters in groups.items()
    ]


def seed_step(seed: int, step: int, rank: int) -> None:
    """Seeds dropout for one step of one process: a resumed run draws what an unbroken one would."""
    torch.manual_seed((seed * 1_000_003 + step) * 1_009 + rank)
