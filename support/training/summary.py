"""What a run prints: at its beginning, with its rows, and at its end."""

import math
import os
from typing import Any

import torch

from support.common.hardware import device_name, fast_precision, peak_memory
from support.common.paths import quote, script_path
from support.distributed.collectives import all_gather_objects
from support.training.settings import flags_of, option

# `run` is a Run (support/training/run.py), which imports this module.

LOW_MFU = 0.1  # below it a GPU mostly waits for the CPU, which starts its kernels
GOOD_MFU = 0.3
MAX_GROWTH = 8  # of a step; more would need other settings, too


def beginning(run) -> str:
    """Returns the lines that a run begins with: its settings, its data, and who computes."""
    args = run.args
    source = args.base_config or "the defaults"
    if args.is_resumed:
        source = f"those of {args.folder}"
    elif args.config:
        source += f", {args.config}"
    source += ", and the flags given"
    if args.growth > 1:
        size, lr = step_flags(args, 1)
        source += f"; for GPUs, steps of {args.growth} times the size: {size} {lr}"
    epochs = run.last_step / run.epoch_steps
    shown = f"{epochs:.1g}" if epochs < 0.1 else f"{round(epochs, 2):g}"
    steps = "1 step" if run.last_step == 1 else f"{run.last_step:,} steps"
    evaluations = ""
    if run.eval_every < run.last_step and run.eval_every != run.epoch_steps:
        evaluations = f"; an evaluation every {run.eval_every:,}"
    sharing = f" ({run.tp_size} share each layer)" if run.tp_size > 1 else ""
    lines = [
        f"settings: {source}",
        str(run.task),
        f"epochs: {shown} of {len(run.task.batches.examples):,} {run.task.unit}, {steps}"
        f"{evaluations}",
        f"processes: {run.world_size}{sharing}, threads of each: {torch.get_num_threads()}, "
        f"{device_name(args.device)}, {args.precision}",
    ]
    node_size = int(os.environ.get("LOCAL_WORLD_SIZE", run.world_size))
    if node_size % run.tp_size:
        lines.append(
            f"warning: --tensor {run.tp_size}, but a node has {node_size} processes, so the "
            f"parts of a layer are added up over the network; --tensor {node_size} would not"
        )
    is_cpu = args.device == "cpu"
    if is_cpu and args.precision == "bf16" and fast_precision("cpu") == "fp32":
        lines.append(
            "warning: bf16 is emulated on this CPU, and much slower than --precision fp32"
        )
    if args.warmup > run.last_step and not (args.is_resumed or args.benchmark):
        lines.append(
            f"warning: the run has {steps}, fewer than --warmup {args.warmup}: "
            f"the learning rate stays low; --warmup 0 takes a tenth of the run"
        )
    return "\n".join(lines)


def forecast(run, step: int) -> str:
    """Returns how long the rest of a run will take, by the speed of the last steps.

    If the model has been evaluated by then, its evaluations take much of the time and count.
    """
    steps = run.last_step - step
    if run.progress.last_evaluation:
        remaining = steps * run.progress.seconds / step
    else:
        seconds_of_epoch = epoch_tokens(run) / run.throughput.speeds[-1]
        remaining = steps / run.epoch_steps * seconds_of_epoch
    if remaining < 120:
        duration = f"{remaining:.0f} seconds"
    elif remaining < 2 * 3600:
        duration = f"{remaining / 60:.0f} minutes"
    elif remaining < 2 * 86_400:
        duration = f"{remaining / 3600:.0f} hours"
    else:
        duration = f"{remaining / 86_400:.0f} days"
    return f"about {duration} of training here"


def advice(run) -> str:
    """Returns a line with a larger step if the GPUs of a new run are hardly used, or "".

    Starting the kernels takes as long for a large step as for a small one. Adam's learning rate
    grows with the square root of the step.
    """
    args = run.args
    mfu = run.throughput.mfus[-1]
    if args.device != "cuda" or mfu >= LOW_MFU or args.is_resumed:
        return ""
    most = MAX_GROWTH // args.growth
    growth = min(most, 2 ** math.ceil(math.log2(GOOD_MFU / mfu)))
    if growth == 1:
        return ""
    size, _ = step_flags(args, 1)
    larger, lr = step_flags(args, growth)
    return (
        f"the GPUs reach {100 * mfu:.2g}% of their peak (MFU): {size} is small for them; "
        f"try {larger} {lr}"
    )


def step_flags(args, growth: int) -> tuple[str, str]:
    """Returns the flags of a step that is so many times as large: its size and its --lr."""
    name = "batch_size" if args.batch_size else "batch_tokens"
    lr = args.lr * math.sqrt(growth)
    return f"{option(name)} {growth * getattr(args, name)}", f"--lr {lr:.2g}"


def epoch_tokens(run) -> float:
    """Returns how many tokens an epoch has; before one has ended, up to 200 steps tell."""
    if run.progress.epochs:  # all have the same examples
        return run.progress.epochs[-1]["tokens"]
    num_steps = min(run.epoch_steps, 200)
    tokens = sum(run.task.step_cost(step).tokens for step in range(num_steps))
    return tokens * (run.epoch_steps / num_steps)


def progress_line(run, row: dict[str, Any]) -> str:
    """Returns a line with the run's progress; row: the last one of metrics.csv."""
    step = row["step"]
    seconds = run.progress.seconds
    remaining = (run.last_step - step) * seconds / step
    parts = []
    if "train_loss" in row:
        parts.append(f"loss {float(row['train_loss']):.3f}")
    for name in ("loss", *run.task.metrics):
        value = row.get(f"valid_{name}")
        if value:
            parts.append(f"valid {name.replace('_', ' ')} {round(float(value), 4):.4g}")
    if "tokens_per_second" in row:
        parts.append(f"{int(row['tokens_per_second']):,} tokens/s")
    parts.append(f"{format_duration(seconds)} elapsed")
    parts.append(f"{format_duration(remaining)} left")
    return f"step {step}/{run.last_step}, epoch {row['epoch']}: {', '.join(parts)}"


def how_to_resume(run, step: int) -> str:
    """Returns the command that resumes a stopped run, and what it does not remember."""
    is_torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    defaults = {"replicas": 1, "device": "cuda" if is_torchrun else "cpu"}
    finished = ("profile", "minutes")  # the resumed run does not do them again
    flags = ""
    for name, field in sorted(flags_of(type(run.args)).items()):
        value = getattr(run.args, name)
        if field.metadata["remembered"] or name in finished:
            continue
        if not value or value == defaults.get(name):
            continue
        flags += f" {option(name)}"
        if value is not True:
            flags += f" {quote(str(value))}"
    command = "python"
    if is_torchrun:
        command = f"torchrun --standalone --nproc-per-node {run.world_size}"
        if os.environ["GROUP_WORLD_SIZE"] != "1":  # each node has a command of its own
            command = "torchrun ..."
    script = script_path()
    return (
        f"stopped and saved at step {step}; resume with: "
        f"{command} {script} --resume {quote(run.folder)}{flags}"
    )


def print_benchmark(run) -> None:
    """Prints how fast the steps were, and the memory of the largest process. A collective."""
    memory = all_gather_objects(peak_memory())
    if not run.throughput.speeds:
        run.say("stopped before there was anything to measure")
        return
    speed, mfu = run.throughput.warm_medians()
    run.say(
        f"{speed:,.0f} {run.task.speed_unit}/s, "
        f"MFU {mfu:.1%} of {run.throughput.peak / 1e9:,.0f} GFLOP/s; "
        f"processes x threads: {run.world_size} x {torch.get_num_threads()}, "
        f"{run.args.precision}; at most {max(memory):,.0f} MiB each"
    )


def format_duration(seconds: float) -> str:
    """Returns 90 seconds as 1:30, and 3,690 as 1:01:30."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
