"""Counts the kernels that a GPU would run for a training step, without a GPU.

    python tests/measure/kernels.py             # 6+6 layers in bf16, as of train_ddp.py
    python tests/measure/kernels.py --layers 3

A GPU that trains a small model waits for Python, which starts one kernel after the other: their
number decides the speed. The model is the one that --device cuda would train, but its tensors
are on the CPU. An operation counts as a kernel unless it returns a view or allocates memory. A
cast is a copy in another precision. Operations of the backward pass belong to the line whose
gradient they compute; those of no line add up the gradients of a tensor that has several uses.

On a GPU an operation may take more than one kernel: a product may be split.
"""

import argparse
import re
import sys
import traceback
from collections import Counter
from pathlib import Path
from unittest.mock import patch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import torch
from printed import header, row
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from model import ModelConfig, Transformer
from support.common.kernels import speed_up

NO_KERNEL = ("_unsafe_view", "empty", "empty_like", "empty_strided", "new_empty")
OTHER_LINES = "no line: sums of gradients"
SENTENCES, LENGTH = 4, 12  # of one block of the loss: a CPU has 64 rows in one, a GPU 4,096


def dropout(x: Tensor, p: float, training: bool, inplace: bool) -> Tensor:
    """`F.dropout` as it is on a GPU: a single operation."""
    dropped, _mask = torch.native_dropout(x, p, training)
    return dropped


def is_cast(name: str, args: tuple, result: Tensor) -> bool:
    """Returns whether an operation copies numbers in another precision."""
    if name == "_to_copy":
        return args[0].dtype != result.dtype
    return name == "copy_" and args[0].dtype != args[1].dtype


def source_line() -> str:
    """Returns the line of model.py or support/ that the current operation belongs to."""
    node = torch._C._current_autograd_node()
    calls = traceback.format_stack()
    if node is not None:  # in a backward pass
        calls = node.metadata.get("traceback_", [])  # of the forward pass
    pattern = rf'File "{ROOT}/(model.py|support/.*)", line .*\n *(.*?)(?:  #.*)?\n'
    for call in reversed(calls):
        place = re.search(pattern, call)
        if place:
            return "{}: {}".format(*place.groups())
    return OTHER_LINES


class KernelCounter(TorchDispatchMode):
    """Counts operations by name and by line, and the casts among them by line."""

    def __init__(self):
        super().__init__()
        self.names: Counter[str] = Counter()
        self.lines: Counter[str] = Counter()
        self.casts: Counter[str] = Counter()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        name = operation.overloadpacket.__name__
        if operation.is_view or name in NO_KERNEL:
            return result
        line = source_line()
        self.names[name] += 1
        self.lines[line] += 1
        if is_cast(name, args, result):
            self.casts[line] += 1
        return result


def count(layers: int) -> dict[str, KernelCounter]:
    """Returns what the forward and the backward pass of a micro-batch consist of."""
    config = ModelConfig(1000, layers=layers, d_model=64, heads=4, d_ff=128)
    model = speed_up(Transformer(config), "cuda", torch.bfloat16)
    ids = torch.full((SENTENCES, LENGTH), 5)
    token_indices = torch.arange(ids.numel())
    passes = {"forward": KernelCounter(), "backward": KernelCounter()}
    with (
        patch("torch.nn.functional.dropout", dropout),
        torch.autograd.set_detect_anomaly(True, check_nan=False),  # it keeps the lines
    ):
        with passes["forward"], torch.autocast("cpu", torch.bfloat16):
            loss, _ = model(ids, ids, ids, token_indices)
        with passes["backward"]:
            loss.backward()
    return passes


def print_table(title: str, columns: dict[str, Counter[str]], at_least: int = 0) -> None:
    """Prints a row for each key of the counters, those with the most first.

    at_least: rows that add up to less are left out.
    """
    total = sum(columns.values(), Counter())
    print(f"\n{header(title, *columns)}")
    for key, number in total.most_common():
        if number >= at_least:
            print(row(f"`{key}`", *(counter[key] for counter in columns.values())))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=6, help="encoder layers, and decoder's")
    layers = parser.parse_args().layers
    passes = count(layers)
    print(f"{layers}+{layers} layers, bf16, a micro-batch of train_ddp.py on a GPU\n")
    print(header("pass", "kernels", "of which casts"))
    for name, counter in passes.items():
        print(row(name, counter.lines.total(), counter.casts.total()))
    by_name = {name: counter.names for name, counter in passes.items()}
    print_table("operation", by_name, at_least=layers)
    by_line = {}
    for name, counter in passes.items():
        by_line[name] = counter.lines
        by_line[f"casts, {name}"] = counter.casts
    print_table("line", by_line, at_least=layers)


if __name__ == "__main__":
    main()
